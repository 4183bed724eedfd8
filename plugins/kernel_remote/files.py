"""Files in a model's folder that its config names: authorities for TLS, and metadata that go along with each call.

They lie in the folder, also behind links: a config may come with a request. Metadata are in a file since what a config says is
told to whoever asks for it, and keys are not to be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kernel import Key, ModelConfig
from kernel_grpc.http2 import literal
from kernel_remote.tls import client_context

__all__ = ["read_authorities", "read_fields"]

T = TypeVar("T")

#: The longest file that is read.
MOST = 4 * 1024 * 1024

_FIELD = re.compile(r"([a-z0-9_.-]+): ?([\x20-\x7e]*)").fullmatch

#: What gRPC says itself.
RESERVED = frozenset(("te", "content-type", "content-length", "host", "user-agent", "connection"))


def read_authorities(config: ModelConfig, model_folder: Path) -> str:
    """Return the certificates in the file that `ca_file` names, "" where there is none. Raises ConfigError."""
    return _read(config, model_folder, "ca_file", "TLS can't use the", _authorities) or ""


def read_fields(config: ModelConfig, model_folder: Path) -> bytes:
    """Return the metadata in the file that `metadata_file` names, as fields of a header block. Raises ConfigError."""
    return _read(config, model_folder, "metadata_file", "can't use the", _fields) or b""


def _authorities(text: str) -> str:
    client_context(text)
    return text


def _fields(text: str) -> bytes:
    """Return the fields that lines `name: value` say; empty ones and those that begin with # say none."""
    fields = b""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            match = _FIELD(line.strip())
            if match is None or match[1] in RESERVED or match[1].startswith("grpc-"):
                raise ValueError(f"line {number} is no 'name: value', with a name in lower case that is not gRPC's own")
            fields += literal(match[1].encode(), match[2].encode())
    return fields


def _read(config: ModelConfig, model_folder: Path, key: str, words: str, use: Callable[[str], T]) -> T | None:
    """Return what `use` makes of the file that a parameter names, None where it names none."""
    parameters = config.message.parameters
    name = parameters[key].string_value if key in parameters else ""
    if not name:
        return None
    try:
        path = (model_folder / name).resolve()
        if not path.is_relative_to(model_folder.resolve()):
            raise ValueError("it must lie within the model's folder")
        with path.open("rb") as file:
            return use(file.read(MOST).decode("ascii"))
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        cause = re.sub(r" \(_ssl\.c:\d+\)$", "", getattr(error, "strerror", None) or str(error))
        at = ("parameters", Key(key), "value", "string_value")
        raise config.error(f"{words} {key} '{name}' of model '{config.name}'", cause, at=at) from None
