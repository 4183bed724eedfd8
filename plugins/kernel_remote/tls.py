"""The client's side of TLS: whose certificates are trusted, which one is shown, and what has gone wrong in words."""

from __future__ import annotations

import functools
import re
import ssl
from dataclasses import dataclass, field

__all__ = ["Identity", "cause_of", "client_context"]

#: Reason of an SSLError -> what it means here.
_MEANINGS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate of ours, which cert_file and key_file name",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who has signed our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not take our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "our certificate was revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not take our certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "our certificate is of no kind that it takes",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it ends the handshake: perhaps it wants a certificate of ours (cert_file, key_file)",
    "TLSV1_ALERT_ACCESS_DENIED": "it does not let the owner of our certificate in",
    "WRONG_VERSION_NUMBER": "it speaks no TLS there: perhaps grpc:// is wanted",
    "KEY_VALUES_MISMATCH": "it is not the key of the certificate in cert_file",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """The certificate that is shown to who asks for one. `digest`: of what is in the two files."""

    digest: bytes
    certificate: str = field(compare=False)
    key: str = field(compare=False)


@functools.lru_cache(64)
def client_context(authorities: str, identity: Identity | None = None) -> ssl.SSLContext:
    """Return the context for connecting; kept, as reading the system's authorities takes milliseconds.

    `authorities`: certificates as PEM, "" for those that the system trusts. Raises OSError, which ssl.SSLError is, or ValueError.
    """
    context = ssl.create_default_context(cadata=authorities or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key, _no_passphrase)
    return context


def cause_of(error: BaseException) -> str:
    """Return what an error of the system's or of TLS says, without where in OpenSSL that was."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _MEANINGS:
        return _MEANINGS[error.reason]
    return re.sub(r" \(_ssl\.c:\d+\)$", "", getattr(error, "strerror", None) or str(error))


def _no_passphrase() -> str:
    raise ValueError("it is encrypted, and there is nobody to ask for its passphrase")
