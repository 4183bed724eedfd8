"""Asks a running server over HTTP, for commands: one question, its answer as JSON. Errors say who was asked and what came.

Whoever answers is not trusted: all of an answer has SECONDS, however steadily it drips, and MOST_BYTES.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kernel.errors import Code, ServingError

if TYPE_CHECKING:
    import socket

__all__ = ["ask", "headers_of"]

#: How long an answer may take, from the question to its last byte.
SECONDS = 30.0

#: How long an answer may be.
MOST_BYTES = 64 * 1024 * 1024


def headers_of(lines: Iterable[str]) -> dict[str, str]:
    """Read values of --header, `NAME: VALUE`. Raises ServingError(INVALID_ARG)."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ServingError(Code.INVALID_ARG, f"--header '{line}' is not of the form NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


def ask(
    url: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None, *, seconds: float = SECONDS
) -> tuple[int, str, Any]:
    """Return status, reason and content of the answer to `GET path` below `url`, with a body to POST; {} where it has no content.

    `seconds`: for which it is waited for at most.

    Raises ServingError: INVALID_ARG where `url` is none, UNAVAILABLE where there is no answer, or one that is no JSON.
    """
    try:
        address = urlsplit(url)
        host, secure = address.hostname or "", address.scheme == "https"
        port = address.port or (443 if secure else 8000)
    except ValueError:  # such as a port that is no number
        host = ""
    if not host or address.scheme not in ("http", "https"):
        raise ServingError(Code.INVALID_ARG, f"'{url}' is no address, wanted is one such as http://localhost:8000")
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    until = time.monotonic() + seconds
    try:
        with contextlib.closing(kind(host, port, timeout=seconds)) as connection:
            method = "GET" if body is None else "POST"
            connection.request(method, f"{address.path.rstrip('/')}{path}", body, dict(headers or {}))
            timed = _Timed(connection.sock, until, seconds)
            with http.client.HTTPResponse(timed, method=method) as response:  # type: ignore[arg-type]
                response.begin()
                body = response.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise ServingError(Code.UNAVAILABLE, f"{url} can't be asked: its answer has more than {MOST_BYTES} bytes")
        return response.status, response.reason, json.loads(body) if body else {}
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise ServingError(Code.UNAVAILABLE, f"{url} can't be asked: {_cause(error)}") from None


class _Timed(io.RawIOBase):
    """What comes on a socket until a moment (of time.monotonic), and TimeoutError from then on, which says that `seconds` have
    passed. It is told as a socket is.
    """

    def __init__(self, connected: socket.socket, until: float, seconds: float) -> None:
        self._socket = connected
        self._until = until
        self._seconds = seconds

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left > 0:
            self._socket.settimeout(left)
            with contextlib.suppress(TimeoutError):  # its own words say nothing of how long
                return self._socket.recv_into(buffer)
        raise TimeoutError(f"it has not answered all within {self._seconds:g} seconds")


def _cause(error: Exception) -> str:
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):  # the port of gRPC, say
        return "it does not speak HTTP; wanted is the server's HTTP port, such as localhost:8000"
    return f"{type(error).__name__}: {error}"
