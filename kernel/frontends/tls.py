"""The server's side of TLS: from the files that the flags name to a context, or an error that names the file and the cause.

Certificates are PEM files: the server's own with its chain, its private key without a passphrase, and the authorities whose
clients are trusted.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernel.errors import Code, ServingError

__all__ = ["server_context"]


def server_context(
    certificate: str, key: str, client_ca: str = "", *, mutual: bool = False, alpn: Sequence[str] = ()
) -> ssl.SSLContext:
    """Return the context for listening. Raises ServingError(INVALID_ARG).

    `client_ca`: authorities of client certificates; a certificate that a client offers must come from one of them. `mutual`:
    every client has to offer one. `alpn`: protocols, the preferred one first.
    """
    if not certificate or not key:
        missing = "certificate" if not certificate else "private key"
        raise ServingError(Code.INVALID_ARG, f"TLS wants a server certificate and its private key; the {missing} is missing")
    if mutual and not client_ca:
        raise ServingError(
            Code.INVALID_ARG, "mutual TLS wants the root certificates of the clients; there is no file with them"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _try("server certificate", certificate, _check_pem, certificate)
    _try("private key", key, _check_pem, key)
    _try(f"private key '{key}' with the certificate", certificate, context.load_cert_chain, certificate, key, _no_passphrase)
    if client_ca:
        _try("root certificates", client_ca, _check_pem, client_ca)
        _try("root certificates", client_ca, context.load_verify_locations, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_OPTIONAL
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def _try(role: str, path: str, action: Callable[..., object], *args: Any) -> None:
    """Do something with a file; if that fails, tell with which one and why."""
    try:
        action(*args)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        cause = re.sub(r" \(_ssl\.c:\d+\)$", "", getattr(error, "strerror", None) or str(error))
        raise ServingError(Code.INVALID_ARG, f"TLS can't use the {role} '{path}': {cause}") from error


def _check_pem(path: str) -> None:
    if b"-----BEGIN " not in Path(path).read_bytes():
        raise ValueError("it is not a PEM file")


def _no_passphrase() -> str:
    raise ValueError("it is encrypted, and there is nobody to ask for its passphrase")
