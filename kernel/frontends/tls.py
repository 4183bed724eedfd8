"""The server's side of TLS: from the files that the flags name to a context, or an error that names the file and the cause.

Certificates are PEM files: the server's own with its chain, its private key without a passphrase, and the authorities whose
clients are trusted. Files that are replaced while the server runs are read anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernel.errors import Code, ServingError

__all__ = ["Decrypted", "RenewedContext", "server_context"]

log = logging.getLogger("kernel")

#: How many bytes are decrypted at a time, first of all, and where that takes more than SLOW seconds: for one, and at all.
FEWEST = 256
SLOW_BYTE, SLOW = 1e-7, 0.0005

#: The most.
MOST = 2 * 1024 * 1024

#: What a client may send until its handshake is over, in bytes: a few certificates of the longest kinds.
MOST_SHAKEN = 24 * 1024


class Decrypted(asyncio.BufferedProtocol):
    """A connection's protocol, which decides how much is decrypted for it at a time; the loop does the rest in its next turn.

    A record of TLS costs 3 microseconds, may have a single byte, and there may be ten thousand of them in what is read at once.
    So little is taken first, twice as much each time that it was there, and little again where its bytes have cost too much.
    """

    def __init__(self, inner: asyncio.BufferedProtocol, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: goes on within a turn of the loop."""
        self._inner = inner
        self._clock = clock
        self._most = self._given = FEWEST
        self._since = 0.0
        for name in ("connection_made", "connection_lost", "eof_received", "pause_writing", "resume_writing"):
            setattr(self, name, getattr(inner, name))

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = memoryview(self._inner.get_buffer(sizehint))[: self._most]
        self._given = len(buffer)
        self._since = self._clock()
        return buffer

    def buffer_updated(self, count: int) -> None:
        took = self._clock() - self._since
        if took > SLOW and took > count * SLOW_BYTE:
            self._most = FEWEST
        elif count == self._given:
            self._most = min(2 * self._most, MOST)
        self._inner.buffer_updated(count)


class _Shaking(ssl.SSLObject):
    """The TLS of one connection, which takes no more for its handshake than MOST_SHAKEN bytes.

    What a client sends for it is used in one call, at the loop: a certificate of a chain costs a tenth of a millisecond, and may
    have three hundred bytes. `incoming`: what has come.
    """

    incoming: ssl.MemoryBIO
    _taken = 0

    def do_handshake(self) -> None:
        """Go on with the handshake. What the client has sent behind its own part of it stays where it is."""
        incoming = self.incoming
        here, rest = incoming.pending, b""
        left = MOST_SHAKEN - self._taken
        if here > left:
            come = incoming.read()
            rest = come[left:]
            incoming.write(come[:left])
            here = left
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            if rest:
                raise ssl.SSLError(f"the client has sent more than {MOST_SHAKEN} bytes, and the handshake is not over") from None
            raise
        finally:
            self._taken += here - incoming.pending
            incoming.write(rest)


class RenewedContext(ssl.SSLContext):
    """A context that goes by the files as they are now. `files`: certificate, key, authorities; `stamps`: as they were read."""

    sslobject_class = _Shaking
    files: tuple[str, str, str] = ("", "", "")
    stamps: object = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        """As of any context; what it returns knows what has come."""
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(made, _Shaking)
        made.incoming = incoming
        return made

    def renew(self) -> None:
        """Read the files anew where they have changed; what can't be used is logged, once, and what was read before stays.

        Connections that are there go on as they are. Authorities that are no longer in their file are trusted until the end of
        the process.
        """
        stamps = _stamps(self.files)
        if stamps == self.stamps:
            return
        self.stamps = stamps
        certificate, key, client_ca = self.files
        try:
            server_context(certificate, key, client_ca)  # first on another one: what is in use must not be left half-way
            self.load_cert_chain(certificate, key, _no_passphrase)
            if client_ca:
                self.load_verify_locations(client_ca)
        except (ServingError, OSError, ValueError) as error:
            log.error("the certificate '%s' has changed and can't be read anew, the one before goes on: %s", certificate, error)
        else:
            log.info("the certificate '%s' has changed and was read anew", certificate)


def server_context(
    certificate: str, key: str, client_ca: str = "", *, mutual: bool = False, alpn: Sequence[str] = ()
) -> RenewedContext:
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
    context = RenewedContext(ssl.PROTOCOL_TLS_SERVER)
    context.files = certificate, key, client_ca
    context.stamps = _stamps(context.files)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server far more than the client
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


def _stamps(files: Sequence[str]) -> list[tuple[int, int, int] | None]:
    """Return what changes when files do; links are followed, as those that are exchanged to renew a certificate."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return found


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
