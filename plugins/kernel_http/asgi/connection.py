"""What stands for a connection where a request comes through ASGI: what the handler answers goes out as ASGI messages.

Handlers know it as a ClientConnection, like one of our own. The client sets the pace: while `send` waits, the connection is held
up, and what else a stream has gathers in its exchange, within bounds. When the client goes, or the server gives the request up,
the request that it waited for is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kernel import MemoryBudget
from kernel_http.connection import replies

if TYPE_CHECKING:
    from kernel import InferenceRequest
    from kernel_http.asgi.request import Receive, Send
    from kernel_http.connection.exchange import Exchange, Repeatable
    from kernel_http.connection.heads import Head
    from kernel_http.connection.server import Server

__all__ = ["CLIENT_GONE", "LISTEN_AFTER", "SLICE", "AsgiConnection", "transmit"]

log = logging.getLogger(__name__)

#: Seconds after which a task begins to listen whether the client goes. Most answers are there sooner and need none; and a client
#: that went before is told of then, too.
LISTEN_AFTER = 0.02

#: The most bytes in a message. ASGI wants `bytes`, so arrays are copied into it, but never all of a large one at a time.
SLICE = 256 * 1024

#: The answer that nobody waits for: servers throw it away, but middlewares take an application that says nothing for broken.
CLIENT_GONE = b"HTTP/1.1 499 Client Closed Request\r\nContent-Length: 0\r\n\r\n"

#: How many heads of responses are remembered.
HEADS = 1024


class AsgiConnection:
    """A connection that has one request."""

    __slots__ = (
        "_aborted",
        "_complete",
        "_gone",
        "_lent",
        "_listener",
        "_loop",
        "_over",
        "_ready",
        "_sending",
        "_task",
        "_timer",
        "_waiter",
        "barrier",
        "exchanges",
        "is_held_up",
        "server",
    )

    client = "HTTP by ASGI"
    is_local = True  # whom the app lets through is its own business
    began = 0.0  # when the request began to come in; the server doesn't say

    def __init__(self, server: Server, held: int = 0) -> None:
        """`held`: bytes of the budget that the request holds."""
        self.server = server
        self.exchanges: list[Exchange] = []  # none or one
        self.is_held_up = False  # the client has not taken what it was sent
        self._loop = server.kernel.loop
        self._ready: deque[replies.Payload] = deque()  # what is to be sent next
        self._over: Callable[[], None] | None = None  # what is to be called when the request is over
        self._lent = held  # bytes of the budget that the request holds
        self._sending = 0  # bytes of it that large answers hold until the server has taken them
        self._complete = False  # there will be nothing more
        self._gone = False  # nobody waits for the answer any more
        self._aborted = ""  # why the answer is cut off
        self._task: asyncio.Task[Any] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None
        self.barrier = False  # would hold later requests, of which there are none

    # --- what exchanges call

    def flush(self) -> None:
        """Send the answer, or, when it has begun, the rest of it."""
        payload = self.exchanges[0].payload
        assert payload is not None
        self._complete = True
        self._put(payload)

    def write(self, data: replies.Payload) -> None:
        """Send a piece of the answer."""
        self.is_held_up = True  # until the server has taken it
        self._put(data)

    def closes_after(self, exchange: Exchange) -> bool:
        return False  # whether the connection lives on is the server's business

    def close_after(self) -> None:
        """There is no further request anyway."""

    def remember(self, head: Head, json: bytes, tail_size: int, recipe: Repeatable) -> None:
        """The next request may be like this one, but it will not come as bytes."""

    def aside(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have `work` done on another thread, as it is too large for the loop."""
        return self._loop.run_in_executor(self.server.kernel.pools.aside, work)

    def spend(self, units: int) -> None:
        """Whose turn it is is the server's business."""

    def recount(self) -> None:
        """There is no other answer that one could wait for."""

    def lend(self, exchange: Exchange, size: int) -> None:
        """`size` bytes of the budget's `receive`, which were taken, belong to the request until it is answered."""
        self._lent += size

    def when_over(self, exchange: Exchange, over: Callable[[], None]) -> None:
        """Call `over` once the answer has been sent or nobody waits for it any more."""
        self._over = over

    def begin_again(self, waiting: Exchange, serve: Callable[[], None]) -> None:
        """Serve the request, which could not begin when it came."""
        self.exchanges.pop()
        serve()

    def cancel(self, request: InferenceRequest) -> None:
        """Nobody waits for the request's answer any more."""
        self.server.kernel.cancel(request)

    def release(self) -> None:
        """There is no later request that would have waited."""

    def abort(self) -> None:
        """End the exchange in the middle: the client takes too little."""
        self._aborted = f"the client of {self.exchanges[0].head.path} does not take its answer, which is cut off"
        if self._task is not None:
            self._task.cancel()

    # --- the two ends of it

    async def run(self, receive: Receive, send: Send) -> None:
        """Send the answer as it comes; return when it has been sent or the client has gone.

        Raises ConnectionAbortedError where an answer must be cut off: an exception is how an application says that.
        """
        self._task = asyncio.current_task()
        begun = False
        try:
            while not self._gone:
                if not self._ready:
                    await self._next(receive)
                    continue
                payload = self._ready.popleft()
                await transmit(send, payload, begun=begun, last=self._complete and not self._ready)
                self._count(-size_of(payload))
                begun = True
                if self._ready:
                    continue
                if self._complete:
                    return
                self.is_held_up = False
                for exchange in self.exchanges:  # none once the client has gone
                    exchange.advance()
            if not begun:
                await transmit(send, CLIENT_GONE, begun=False, last=True)
        except OSError:  # so servers may tell that the client has gone
            return
        except asyncio.CancelledError:
            if not self._aborted or self._task is None or self._task.uncancel():
                raise
            raise ConnectionAbortedError(self._aborted) from None
        finally:
            self.gone()
            await self._stop_listening()

    def gone(self) -> None:
        """Nobody waits for the answer any more."""
        self._gone = True
        self._ready.clear()
        self._count(-self._sending)
        over, self._over = self._over, None
        if over is not None:
            over()
        lent, self._lent = self._lent, 0
        self.server.kernel.memory.receive.give_back(lent)
        for exchange in self.exchanges:
            exchange.connection = None
            request, exchange.request = exchange.request, None
            if request is not None:
                self.server.kernel.cancel(request)
        self.exchanges.clear()
        self._wake()

    # --- waiting

    def _put(self, data: replies.Payload) -> None:
        self._ready.append(data)
        self._count(size_of(data))
        self._wake()

    def _count(self, size: int) -> None:
        """So much more is to be sent, or less: large answers only."""
        account = self.server.kernel.memory.send
        if size > 0:
            self._sending += size
            account.add(size)
        elif size < 0 < self._sending:
            size = min(-size, self._sending)
            self._sending -= size
            account.give_back(size)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _next(self, receive: Receive) -> None:
        """Return when there is something to send, or the client has gone."""
        if self._timer is None:
            self._timer = self._loop.call_later(LISTEN_AFTER, self._listen, receive)
        self._waiter = self._loop.create_future()
        await self._waiter

    def _listen(self, receive: Receive) -> None:
        self._listener = self._loop.create_task(self._until_gone(receive))

    async def _until_gone(self, receive: Receive) -> None:
        """Wait for the one message that can still come. Another one would be no server's, and tells nothing."""
        try:
            message = await receive()
        except Exception as error:
            log.debug("it can't be known whether a client has gone: %s", error)
            return
        if message["type"] == "http.disconnect":
            self.gone()

    async def _stop_listening(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait([listener])


# --- from bytes to messages ------------------------------------------------------------------------------------------

_heads: dict[bytes, tuple[int, list[tuple[bytes, bytes]]]] = {}


def size_of(payload: replies.Payload) -> int:
    """Return how many bytes of the budget something to be sent takes: none where it is small."""
    size = len(payload) if isinstance(payload, bytes) else sum(map(len, payload))
    return size if size > MemoryBudget.SMALL else 0


async def transmit(send: Send, payload: replies.Payload, *, begun: bool, last: bool) -> None:
    """Send a response, its beginning, or, when it has `begun`, more of it. `last`: that is all of it."""
    first, rest = (payload, []) if isinstance(payload, bytes) else (bytes(payload[0]), payload[1:])
    if not begun:
        end = first.index(b"\r\n\r\n") + 4
        status, headers = _parsed(first[:end])
        # A list of its own: what lies between us and the server may change it.
        await send({"type": "http.response.start", "status": status, "headers": headers.copy()})
        if not rest and len(first) - end <= SLICE:
            first = first[end:]
        else:
            rest = [memoryview(first)[end:], *rest]
            first = b""
    if not rest and len(first) <= SLICE:
        await send({"type": "http.response.body", "body": first, "more_body": not last})
        return
    pieces = _slices([first, *rest])
    piece = next(pieces, b"")
    for following in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        piece = following
    await send({"type": "http.response.body", "body": piece, "more_body": not last})


def _slices(parts: list[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the parts in order, in slices of their own memory."""
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), SLICE):
            yield bytes(view[at : at + SLICE])


def _parsed(head: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return status and header fields of a response's head, names in lower case as ASGI wants them."""
    known = _heads.get(head)
    if known is None:
        line, *lines = head[:-4].split(b"\r\n")
        fields = [field.split(b": ", 1) for field in lines]
        known = int(line.split(b" ", 2)[1]), [(name.lower(), value) for name, value in fields]
        if len(_heads) >= HEADS:
            _heads.clear()
        _heads[head] = known
    return known
