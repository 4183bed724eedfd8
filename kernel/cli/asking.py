"""Asks a running server over HTTP, for commands: one GET, its answer as JSON. Errors say who was asked and what came."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kernel.errors import Code, ServingError

__all__ = ["ask"]

#: How long an answer is waited for.
SECONDS = 30.0

#: How long an answer may be; what is longer counts as none.
MOST_BYTES = 64 * 1024 * 1024


def ask(url: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, Any]:
    """Return status, reason and content of the answer to `GET path` below `url`; {} where it has no content.

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
    try:
        with contextlib.closing(kind(host, port, timeout=SECONDS)) as connection:
            connection.request("GET", f"{address.path.rstrip('/')}{path}", headers=dict(headers or {}))
            response = connection.getresponse()
            body = response.read(MOST_BYTES + 1)
        return response.status, response.reason, json.loads(body) if 0 < len(body) <= MOST_BYTES else {}
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise ServingError(Code.UNAVAILABLE, f"{url} can't be asked: {_cause(error)}") from None


def _cause(error: Exception) -> str:
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):  # the port of gRPC, say
        return "it does not speak HTTP; wanted is the server's HTTP port, such as localhost:8000"
    return f"{type(error).__name__}: {error}"
