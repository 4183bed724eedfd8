"""The one table of routes: which method and path means what, and what answers it.

Paths are matched whole and raw, as the reference does; the order of the table matters for names such as `stats`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kernel_http import replies
from kernel_http.heads import Head

if TYPE_CHECKING:
    from kernel_http.protocol import Connection

__all__ = ["Handler", "Route", "Router"]

#: `handler(connection, head, json, tail)`: open an exchange on the connection and see to it that it is answered once.
Handler = Callable[["Connection", Head, bytes, Any], None]

_VERSION = r"(?:/versions/(?P<version>[0-9]+))?"
_MODEL = rf"/v2/models/(?P<model>[^/]+){_VERSION}"
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]+))?"

NOT_FOUND = replies.error(404, "Not Found", json=False)


class Route(NamedTuple):
    """One row. `json`: the handler sets its content type before anything else, so its errors are application/json."""

    name: str
    method: str
    pattern: str
    json: bool


#: Name, method, path, whether errors are JSON from the start. Spec http_protocol, section 2.
ROUTES = (
    Route("infer", "POST", rf"{_MODEL}/infer", False),
    Route("generate", "POST", rf"{_MODEL}/generate", True),
    Route("generate_stream", "POST", rf"{_MODEL}/generate_stream", True),
    Route("live", "GET", r"/v2/health/live", False),
    Route("ready", "GET", r"/v2/health/ready", False),
    Route("server_metadata", "GET", r"/v2", True),
    Route("statistics", "GET", r"/v2/models/stats", True),
    Route("model_ready", "GET", rf"{_MODEL}/ready", False),
    Route("model_config", "GET", rf"{_MODEL}/config", True),
    Route("statistics", "GET", rf"{_MODEL}/stats", True),
    Route("model_metadata", "GET", _MODEL, True),
    Route("index", "POST", rf"{_REPOSITORY}/index", True),
    Route("load", "POST", rf"{_REPOSITORY}/models/(?P<model>[^/]+)/load", True),
    Route("unload", "POST", rf"{_REPOSITORY}/models/(?P<model>[^/]+)/unload", True),
)


class Router:
    """Finds the route of a head and notes it there, with the model and version of the path."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers
        self._rows = [(route, re.compile(route.pattern).fullmatch) for route in ROUTES]

    def handler(self, head: Head) -> Handler:
        assert head.route is not None
        return self._handlers[head.route.name]

    def resolve(self, head: Head) -> None:
        """Fill `head.route`, `model`, `version`, or `refusal` with the response to what isn't served."""
        for route, match in self._rows:
            found = match(head.path)
            if found is None:
                continue
            if head.method != route.method:
                head.refusal = replies.error(405, "Method Not Allowed", json=route.json)
                return
            groups = found.groupdict()
            head.route = route
            head.model = groups.get("model") or ""
            head.version = groups.get("version") or ""
            if groups.get("repository") and route.name != "index":
                head.refusal = replies.error(501, "'repository_name' specification is not supported", json=True)
            return
        head.refusal = NOT_FOUND
