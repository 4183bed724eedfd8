"""The client's side of TLS: whose certificates are trusted, as the config of a model says."""

from __future__ import annotations

import functools
import re
import ssl
from pathlib import Path

from kernel import Key, ModelConfig

__all__ = ["client_context", "read_authorities"]

#: The longest file with authorities that is read.
MOST = 4 * 1024 * 1024


def read_authorities(config: ModelConfig, model_folder: Path) -> str:
    """Return the certificates in the file that the parameter `ca_file` names, "" where there is none. Raises ConfigError.

    The file lies in the model's folder, also behind links: a config may come with a request.
    """
    name = config.message.parameters["ca_file"].string_value if "ca_file" in config.message.parameters else ""
    if not name:
        return ""
    try:
        path = (model_folder / name).resolve()
        if not path.is_relative_to(model_folder.resolve()):
            raise ValueError("it must lie within the model's folder")
        with path.open("rb") as file:
            text = file.read(MOST).decode("ascii")
        client_context(text)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        cause = re.sub(r" \(_ssl\.c:\d+\)$", "", getattr(error, "strerror", None) or str(error))
        at = ("parameters", Key("ca_file"), "value", "string_value")
        raise config.error(f"TLS can't use the ca_file '{name}' of model '{config.name}'", cause, at=at) from None
    return text


@functools.lru_cache(64)
def client_context(authorities: str) -> ssl.SSLContext:
    """Return the context for connecting; kept, as reading the system's authorities takes milliseconds. Raises ssl.SSLError.

    `authorities`: certificates as PEM, "" for those that the system trusts.
    """
    context = ssl.create_default_context(cadata=authorities or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context
