"""Where the kernel has a gate: each request asks it before its handler sees it.

A door is made with each head and remembered with it, so that what a request asks of the gate is one call. Nothing here is
used without a gate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from kernel import Denied, Gate
from kernel_http.connection import replies
from kernel_http.connection.browsers import Browsers
from kernel_http.connection.exchange import ClientConnection, Repeatable, reply
from kernel_http.connection.heads import Head
from kernel_http.connection.routes import CHANGING, ROUTES, SETTINGS, Handler, Route, Router

__all__ = ["GatedRouter"]


class GatedRouter(Router):
    """Gives each head that is served its door, and asks there before each request's handler, and before each large body."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        restrictions: Mapping[str, tuple[str, str]],
        gate: Gate,
        rows: Sequence[Route] = (),
        browsers: Browsers | None = None,
    ) -> None:
        self._categories = {route.name: route.category for route in (*ROUTES, *rows)}  # "": for anybody, so nobody asks
        asked = {name: gated(one) if self._categories[name] else one for name, one in handlers.items()}
        super().__init__(asked, restrictions, rows=rows, browsers=browsers)
        self._gate = gate

    def resolve(self, head: Head) -> None:
        super().resolve(head)
        if head.refusal is None and self._categories[head.route]:
            changes = head.route in CHANGING or (head.route in SETTINGS and head.method == "POST")
            operation = f"{head.method} {head.path}"
            head.door = self._gate.door(head.headers, self._categories[head.route], operation, head.model, changes)

    def admit(self, connection: ClientConnection, head: Head) -> Head:
        """Return the head of a request whose body is to come. Where the door says no it has a refusal: the body is dropped."""
        if head.refusal is None and self._categories[head.route]:
            try:
                head.door.check(connection)
            except Denied as denied:
                head = copy.copy(head)  # the head itself belongs to all requests like this
                head.refusal = replies.denied(denied)
        return head

    def repeatable(self, recipe: Repeatable) -> Repeatable:
        return GatedRepeatable(recipe)


def gated(handler: Handler) -> Handler:
    """Return a handler that serves what its door lets pass."""

    def ask(connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        try:
            stay = head.door.enter(connection)
        except Denied as denied:
            reply(connection, head, replies.denied(denied))
            return
        handler(connection, head, json, tail)
        # Answers go out in order: where the newest is out already, so are all others.
        if stay is not None and connection.exchanges:
            connection.when_over(connection.exchanges[-1], stay())

    return ask


class GatedRepeatable:
    """A recipe that asks the door before it repeats a request."""

    __slots__ = ("_recipe",)

    def __init__(self, recipe: Repeatable) -> None:
        self._recipe = recipe

    @property
    def generation(self) -> int:
        return self._recipe.generation

    def repeat(self, connection: ClientConnection, head: Head, tail: Any) -> bool:
        if head.door.standing.holds:
            return self._recipe.repeat(connection, head, tail)
        try:
            stay = head.door.enter(connection)
        except Denied as denied:
            reply(connection, head, replies.denied(denied))
            return True
        served = self._recipe.repeat(connection, head, tail)  # where it isn't, it is read anew and asks once more
        if stay is not None and served and connection.exchanges:
            connection.when_over(connection.exchanges[-1], stay())  # as `gated` does
        return served
