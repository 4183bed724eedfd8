"""Files in a model's folder that its config names: those for TLS, and metadata that go along with each call.

They lie in the folder, also behind links: a config may come with a request. Metadata are in a file since what a config says is
told to whoever asks for it, and keys are not to be.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kernel import Key, ModelConfig
from kernel_grpc.http2 import literal
from kernel_remote.tls import Identity, cause_of, client_context

__all__ = ["read_authorities", "read_fields", "read_identity"]

T = TypeVar("T")

#: The longest file that is read.
MOST = 4 * 1024 * 1024

_FIELD = re.compile(r"([a-z0-9_.-]+): ?([\x20-\x7e]*)").fullmatch

_TLS = "TLS can't use the"

#: What gRPC says itself.
RESERVED = frozenset(("te", "content-type", "content-length", "host", "user-agent", "connection"))


def read_authorities(config: ModelConfig, model_folder: Path) -> str:
    """Return the certificates in the file that `ca_file` names, "" where there is none. Raises ConfigError."""
    return _read(config, model_folder, "ca_file", _TLS, _authorities) or ""


def read_identity(config: ModelConfig, model_folder: Path) -> Identity | None:
    """Return the certificate and its key in the files that `cert_file` and `key_file` name. Raises ConfigError.

    Where no `key_file` is named, the key stands behind the certificate.
    """
    parameters = config.message.parameters
    if "cert_file" not in parameters:
        if "key_file" in parameters:
            text = f"model '{config.name}' has a key_file and no cert_file"
            raise config.error(text, "a key belongs to a certificate", at=("parameters", Key("key_file")))
        return None
    certificate = _read(config, model_folder, "cert_file", _TLS, _certificate) or ""
    last = "key_file" if "key_file" in parameters else "cert_file"
    paths = [str((model_folder / parameters[key].string_value).resolve()) for key in ("cert_file", last)]

    def identity(key: str) -> Identity:
        if "PRIVATE KEY-----" not in key:
            raise ValueError("it holds no private key in PEM")
        found = Identity(hashlib.blake2b(f"{certificate}\0{key}".encode()).digest(), *paths)
        client_context("", found)
        return found

    return _read(config, model_folder, last, _TLS, identity)


def _certificate(text: str) -> str:
    if "CERTIFICATE-----" not in text:
        raise ValueError("it holds no certificate in PEM")
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    return text


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
        at = ("parameters", Key(key), "value", "string_value")
        raise config.error(f"{words} {key} '{name}' of model '{config.name}'", cause_of(error), at=at) from None
