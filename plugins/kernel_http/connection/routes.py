"""The one table of routes: which method and path means what, and what answers it.

Paths are matched whole and raw, as the reference does; the order of the table matters for names such as `stats`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kernel import only_local
from kernel_http.connection import replies
from kernel_http.connection.browsers import Browsers
from kernel_http.connection.exchange import ClientConnection, Repeatable, reply
from kernel_http.connection.heads import Head

__all__ = ["CHANGING", "SETTINGS", "Handler", "Route", "Router"]

#: `handler(connection, head, json, tail)`: open an exchange on the connection and see to it that it is answered once.
Handler = Callable[[ClientConnection, Head, bytes, Any], None]

_VERSION = r"(?:/versions/(?P<version>[0-9]++))?"
_MODEL = rf"/v2/models/(?P<model>[^/]++){_VERSION}"
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]++))?"
_SYSTEM = r"/v2/systemsharedmemory(?:/region/(?P<region>[^/]++))?"
_CUDA = r"/v2/cudasharedmemory(?:/region/(?P<region>[^/]++))?"

#: The routes whose requests go to models.
REQUESTS = ("infer", "generate", "generate_stream")

#: The routes that take a body as large as `--http-max-input-size` allows, and how large one of the others may be; bytes.
LARGE_BODIES = frozenset({"infer", "generate", "generate_stream", "load"})
SMALL_BODY = 64 * 1024

NOT_FOUND = replies.error(404, "Not Found", json=False)


class Route(NamedTuple):
    """One row. `methods`: one or more, between them a space. `json`: the handler sets its content type before anything else, so
    its errors are application/json. `category`: what `--http-restricted-api` calls it; "" for what nobody is kept from. `local`:
    as what it is kept for clients of this machine, "" for nothing. `page`: it is for people in browsers.
    """

    name: str
    methods: str
    pattern: str
    json: bool
    category: str
    local: str = ""
    page: bool = False


#: Name, methods, path, whether errors are JSON from the start, category. See docs/contract/http_protocol.md, 2.
ROUTES = (
    Route("infer", "POST", rf"{_MODEL}/infer", False, "inference"),
    Route("generate", "POST", rf"{_MODEL}/generate", True, "inference"),
    Route("generate_stream", "POST", rf"{_MODEL}/generate_stream", True, "inference"),
    Route("live", "GET", r"/v2/health/live", False, "health"),
    Route("ready", "GET", r"/v2/health/ready", False, "health"),
    Route("server_metadata", "GET", r"/v2", True, "metadata"),
    Route("statistics", "GET", r"/v2/models/stats", True, "statistics"),
    Route("inflight", "GET", r"/v2/inflight", True, "statistics"),
    Route("scale", "GET", r"/v2/kernel/scale", True, "statistics"),
    Route("explain", "GET", r"/v2/kernel/explain/(?:id/[^/]++|(?:slowest|failed)(?:/[0-9]{1,4})?)", True, "statistics"),
    Route("calls", "GET", r"/v2/kernel/calls", True, "statistics", page=True),
    Route("logging", "GET POST", r"/v2/logging", True, "logging"),
    Route("trace", "GET POST", r"/v2(?:/models/(?P<model>[^/]++))?/trace/setting", True, "trace"),
    Route("model_ready", "GET", rf"{_MODEL}/ready", False, "health"),
    Route("model_config", "GET", rf"{_MODEL}/config", True, "model-config"),
    Route("statistics", "GET", rf"{_MODEL}/stats", True, "statistics"),
    Route("model_metadata", "GET", _MODEL, True, "metadata"),
    Route("index", "POST", rf"{_REPOSITORY}/index", True, "model-repository"),
    Route("load", "POST", rf"{_REPOSITORY}/models/(?P<model>[^/]++)/load", True, "model-repository"),
    Route("unload", "POST", rf"{_REPOSITORY}/models/(?P<model>[^/]++)/unload", True, "model-repository"),
    Route("replace_replicas", "POST", r"/v2/kernel/replicas/reload", True, "model-repository"),
    Route("system_status", "GET", rf"{_SYSTEM}/status", True, "shared-memory"),
    Route("system_register", "POST", rf"{_SYSTEM}/register", True, "shared-memory"),
    Route("system_unregister", "POST", rf"{_SYSTEM}/unregister", True, "shared-memory"),
    Route("cuda_status", "GET", rf"{_CUDA}/status", True, "shared-memory"),
    Route("cuda_register", "POST", rf"{_CUDA}/register", True, "shared-memory"),
    Route("cuda_unregister", "POST", rf"{_CUDA}/unregister", True, "shared-memory"),
    Route("openapi", "GET", r"/openapi\.json", True, "metadata", page=True),
    Route("docs", "GET", r"/docs/?", True, "metadata", page=True),
)


#: What changes something for everybody, or tells of the requests of all: route -> as what it is kept for clients of this machine.
#: Of the two that also show something, that is for all.
LOCAL = {
    "logging": "logging",
    "trace": "trace",
    "load": "model-repository",
    "unload": "model-repository",
    "replace_replicas": "model-repository",
    "system_register": "shared-memory",
    "system_unregister": "shared-memory",
    "cuda_register": "shared-memory",
    "cuda_unregister": "shared-memory",
    "inflight": "inflight",
}

#: Routes that change the server, whatever the request says; and those that do where it is a POST.
CHANGING = frozenset(
    {"load", "unload", "replace_replicas", "system_register", "system_unregister", "cuda_register", "cuda_unregister"}
)
SETTINGS = frozenset({"logging", "trace"})


def _guarded(handler: Handler, category: str) -> Handler:
    """Return a handler that refuses clients of other machines."""

    def guarded(connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        if connection.is_local or (head.method == "GET" and category != "inflight"):
            handler(connection, head, json, tail)
        else:
            reply(connection, head, replies.error(403, only_local(category), json=head.json_errors))

    return guarded


class Router:
    """Finds the route of a head and notes it there, with the names in its path.

    `restrictions`: category -> the name and value of the header that its requests must have. `local`: the categories whose
    changes are for clients of this machine alone. `rows`: routes besides ROUTES. `browsers`: what is asked of their requests.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        restrictions: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        local: Collection[str] = (),
        rows: Sequence[Route] = (),
        browsers: Browsers | None = None,
    ) -> None:
        kinds = {**LOCAL, **{row.name: row.local for row in rows}}
        kept = {name: _guarded(handlers[name], category) for name, category in kinds.items() if category in local}
        self._handlers = self._served = {**handlers, **kept}
        self._restrictions = restrictions
        self._rows = [(route, re.compile(route.pattern).fullmatch) for route in (*ROUTES, *rows)]
        self._browsers = browsers or Browsers()

    def refuse(self, handler: Handler | None) -> None:
        """Have `handler` answer what becomes a request to a model; None: serve them again."""
        refused = {} if handler is None else dict.fromkeys(REQUESTS, handler)
        self._handlers = {**self._served, **refused} if refused else self._served

    def handler(self, head: Head) -> Handler:
        return self._handlers[head.route]

    def admit(self, connection: ClientConnection, head: Head) -> Head:
        """Return the head of a request whose body is about to come in; one with a `refusal` where nobody will read that."""
        return head

    def repeatable(self, recipe: Repeatable) -> Repeatable:
        """Return what repeats a request by `recipe`, and asks before each what is asked before a handler."""
        return recipe

    def resolve(self, head: Head) -> None:
        """Fill `head.route` and what its path names, or `refusal` with the response to what isn't served."""
        for route, match in self._rows:
            found = match(head.path)
            if found is None:
                continue
            restriction = self._restrictions.get(route.category)
            if restriction is not None and not _has(head, *restriction):
                text = f"This API is restricted, expecting header '{restriction[0]}'"
                head.refusal = replies.error(403, text, json=False)
                return
            if head.method not in route.methods.split(" "):
                head.refusal = replies.error(405, "Method Not Allowed", json=route.json)
                return
            if route.page:
                head.refusal = self._browsers.page_refused(head, json=route.json)
            elif route.name in CHANGING or (route.name in SETTINGS and head.method == "POST"):
                head.refusal = self._browsers.change_refused(head)
            if head.refusal is not None:
                return
            groups = found.groupdict()
            head.route = route.name
            if route.name not in LARGE_BODIES:
                head.limit = SMALL_BODY
            if route.name != "infer":  # nowhere else has a body two parts
                head.json_length = None
            head.json_errors = route.json
            head.model = groups.get("model") or ""
            head.version = groups.get("version") or ""
            head.region = groups.get("region") or ""
            if groups.get("repository") and route.name != "index":
                head.refusal = replies.error(501, "'repository_name' specification is not supported", json=True)
            return
        head.refusal = NOT_FOUND


def _has(head: Head, name: str, value: str) -> bool:
    """Whether the request has that header with that value; of several by that name the first counts."""
    for key, text in head.headers:
        if key.lower() == name.lower().encode():
            return hmac.compare_digest(text.strip(), value.encode())
    return False
