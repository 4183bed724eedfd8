"""One request and its answer, and what whoever answers it uses of the connection that it came on.

Handlers open an Exchange, append it to their connection's `exchanges`, and see to it that it is answered once. They know their
connection as a ClientConnection: ours (answers.py) is one, and so is what stands for a request that came through ASGI.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kernel_http.connection import replies
from kernel_http.connection.heads import Head

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from kernel import InferenceRequest

__all__ = ["ClientConnection", "Exchange", "Exchanges", "Repeatable", "reply"]


class Exchanges(Protocol):
    """The requests in flight of one connection, oldest first: a list or a deque."""

    def append(self, exchange: Exchange, /) -> None: ...

    def __getitem__(self, index: int, /) -> Exchange: ...

    def __len__(self) -> int: ...


class Repeatable(Protocol):
    """What the head and the JSON part of a request mean, as the connection knows it: enough to serve another such request."""

    @property
    def generation(self) -> int:
        """That of the kernel when the request's names were last known to mean the same model."""

    def repeat(self, connection: ClientConnection, head: Head, tail: Any, /) -> bool:
        """Serve a request that differs in its tail alone. False: its names mean another model by now, so it must be read anew."""


class ClientConnection(Protocol):
    """The connection of a request, as its handler and its exchange use it."""

    barrier: bool
    """Set by a handler whose later requests must wait, until it calls `release`."""

    @property
    def exchanges(self) -> Exchanges: ...

    @property
    def client(self) -> str:
        """Who the client is, for people."""

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine."""

    @property
    def began(self) -> float:
        """When the request that is being handed over began to come in, by the loop's clock. 0.0: just now."""

    @property
    def is_held_up(self) -> bool:
        """Whether the client does not take what it is sent."""

    def flush(self) -> None:
        """Write the answers whose turn it is."""

    def write(self, data: replies.Payload, /) -> None:
        """Write a piece of the answer whose turn it is."""

    def closes_after(self, exchange: Exchange, /) -> bool:
        """Whether `exchange`, as far as is known, is the connection's last."""

    def close_after(self) -> None:
        """Take no further request."""

    def release(self) -> None:
        """Let later requests through again, after `barrier`."""

    def remember(self, head: Head, json: bytes, tail_size: int, recipe: Repeatable, /) -> None:
        """The next request may be like this one; where its bytes say so, have `recipe` repeat it."""

    def aside(self, work: Callable[[], Any], /) -> asyncio.Future[Any]:
        """Have `work` done on another thread, as it is too large for the loop."""

    def spend(self, units: int, /) -> None:
        """Serving the request has taken so many units of ten microseconds that others may come first (turns.py)."""

    def recount(self) -> None:
        """A large answer waits for its turn: count what the client has not taken yet."""

    def lend(self, exchange: Exchange, size: int, /) -> None:
        """`size` bytes of the budget's `receive`, which were taken, belong to `exchange` until it is answered."""

    def when_over(self, exchange: Exchange, over: Callable[[], None], /) -> None:
        """Call `over` once `exchange`, which is owed, has been answered or nobody waits for that any more."""

    def begin_again(self, waiting: Exchange, serve: Callable[[], None], /) -> None:
        """Serve the request of `waiting`, the newest exchange, which could not begin when it came."""

    def cancel(self, request: InferenceRequest, /) -> None:
        """Nobody waits for the request's answer any more."""

    def abort(self) -> None:
        """Close at once."""


class Exchange:
    """One request and its answer. `request` is what to cancel when the client goes."""

    __slots__ = ("connection", "head", "payload", "request")

    def __init__(self, connection: ClientConnection, head: Head) -> None:
        self.connection: ClientConnection | None = connection
        self.head = head
        self.payload: replies.Payload | None = None
        self.request: InferenceRequest | None = None

    #: The head of the answer has been written: the payload is only the rest of it.
    begun = False

    #: Bytes of pieces that wait for the client.
    waiting = 0

    @property
    def client(self) -> str:
        """Who waits for the answer, as `Kernel.inflight` shows it."""
        return self.connection.client if self.connection is not None else "an HTTP client that has gone"

    def advance(self) -> None:
        """It is this exchange's turn, and its answer isn't complete."""

    def answer(self, payload: replies.Payload) -> None:
        """Send the whole response as soon as it is its turn. The buffers must not change any more."""
        connection = self.connection
        if connection is None:
            return  # the client has gone
        self.request = None  # breaks the cycle request -> respond -> exchange -> request
        self.payload = payload
        if connection.exchanges[0] is self:
            connection.flush()
        elif type(payload) is not bytes:
            connection.recount()


def reply(connection: ClientConnection, head: Head, payload: replies.Payload) -> None:
    """Answer a request, in its turn, whose answer is known."""
    exchange = Exchange(connection, head)
    connection.exchanges.append(exchange)
    exchange.answer(payload)
