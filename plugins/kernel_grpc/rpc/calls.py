"""One call: its messages in, its answer out, once. This is what the methods of services work with.

A Call is an HTTP/2 stream that knows gRPC: length-prefixed messages, compression, deadline, status. Everything happens on the
loop. Whatever ends a call (an answer, the client, its deadline, the end of the connection) ends it once: `done` is true from then
on, and all later attempts to send do nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel import peer_name
from kernel_grpc.http2 import Connection, Data
from kernel_grpc.rpc.answers import Answer, Payload
from kernel_grpc.rpc.assembly import LARGE, MAX_MESSAGE, PREFIX, Assembly, Memory, Message, MessageError
from kernel_grpc.rpc.compression import UNPACKED_ON_LOOP, unpacked
from kernel_grpc.rpc.metadata import Metadata
from kernel_grpc.rpc.methods import Method, Receiver
from kernel_grpc.rpc.status import SHUTTING_DOWN, Status

if TYPE_CHECKING:
    from kernel_grpc.rpc.meanings import Meaning
    from kernel_grpc.rpc.server import Server

__all__ = ["Call", "Memory", "Message", "Metadata", "Method", "Payload", "Receiver"]

log = logging.getLogger(__name__)

_prefix = PREFIX.unpack_from


class Call(Answer):
    """One RPC under way.

    A method reads `method`, `metadata`, `forwarded` (metadata that become request parameters) and `deadline`, sets `request` (it
    is then cancelled when nobody waits for the answer any more) or `on_cancel`, and calls `reply`, or `send`, `finish` and
    `fail`. `writable` is false while the client does not take what it is sent; `on_writable` is called when that may have
    changed.
    """

    __slots__ = ("_assembly", "_first", "_holding", "_receiver", "_unpacking", "method")

    def __init__(
        self, server: Server, connection: Connection, id: int, ended: bool, length: int | None, meaning: Meaning
    ) -> None:
        super().__init__(connection, id, ended, length)
        self.server = server
        self.meaning = meaning
        self.method = meaning.method
        self.begun = False
        self.deadline: float | None = None
        self.request: Any = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self._backlog = None
        self._behind = self._given = self._taken = 0
        self._since = 0.0
        self._assembly: Assembly | None = None
        self._receiver: Receiver | None = None
        self._first: Message | None = None  # the one message of a unary call
        self._holding = False  # the method has called `hold`
        self._unpacking = False  # a message is being unpacked on another thread

    @property
    def metadata(self) -> Metadata:
        return self.meaning.metadata

    @property
    def client(self) -> str:
        """Who waits for the answer, as `Kernel.inflight` shows it."""
        return f"gRPC {peer_name(self.connection.transport.get_extra_info('peername'))}"

    @property
    def is_stream(self) -> bool:
        """Whether the call has an end only when the client or the server wants one."""
        return self._receiver is not None

    @property
    def traceparent(self) -> str:
        """Whose trace the call continues, "" for nobody's."""
        value = self.meaning.metadata.get("traceparent", "")
        return value if isinstance(value, str) else ""

    @property
    def forwarded(self) -> tuple[tuple[str, str], ...]:
        return self.meaning.forwarded

    def begin(self) -> None:
        """Do what comes before the first message where that is anything."""
        meaning = self.meaning
        if meaning.refusal is not None:
            self.end(meaning.refusal)
            return
        assert self.method is not None
        if meaning.timeout is not None:
            now = self.server.kernel.clock()
            self.deadline = now + meaning.timeout
            self.moment = self.server.deadlines.add(self, self.deadline, now)
        if self.method.streaming:
            if self.server.draining:
                self.finish(Status.UNAVAILABLE, SHUTTING_DOWN)
                return
            self._assembly = self.sink = Assembly()
            try:
                receiver = self.method.handler(self)
            except Exception as error:
                self._crashed(error)
            else:
                self._receiver = None if self.done else receiver

    # --- what comes in

    def received(self, data: Data, start: int, stop: int, ended: bool) -> int | None:
        if ended and self._assembly is None and stop - start >= 5:
            compressed, size = _prefix(data, start)
            if size == stop - start - 5 and not compressed and size < LARGE:
                try:
                    self.method.handler(self, bytes(data[start + 5 : stop]))  # type: ignore[union-attr]
                except Exception as error:
                    self._crashed(error)
                return None
        assembly = self._assembly
        if assembly is None:
            assembly = self._assembly = self.sink = Assembly()
        try:
            while start < stop:
                start = assembly.feed(data, start, stop)
                if assembly.message is not None:
                    self._take(assembly)
                    if self.done:
                        return None
                    if self.held:
                        return start
        except MessageError as error:
            self.give_up(error.status, error.text)
            return None
        except MemoryError:
            self._no_memory(f", of which {assembly.progress} have come")
            return None
        if ended:
            self._end_of_messages(assembly)
        return None

    def space(self) -> memoryview | None:
        try:
            return None if self._assembly is None else self._assembly.space()
        except MemoryError:
            return None  # `received` will say so

    def filled(self, count: int) -> None:
        assembly = self._assembly
        assert assembly is not None
        assembly.filled(count)
        if assembly.message is not None:
            try:
                self._take(assembly)
            except MessageError as error:
                self.give_up(error.status, error.text)
            except MemoryError:
                self._no_memory()

    def _take(self, assembly: Assembly) -> None:
        """Take a complete message. Raises MessageError."""
        message = assembly.fetch()
        if not assembly.compressed:
            self._message(message)
            return
        coding = self.meaning.coding
        if not coding:
            raise MessageError(Status.INTERNAL, "a compressed message, but no grpc-encoding that says how")
        if len(message) <= UNPACKED_ON_LOOP:
            self._message(unpacked(message, coding, MAX_MESSAGE))
            return
        self._unpacking = True
        super().hold()
        job = self.server.kernel.loop.run_in_executor(None, unpacked, message, coding, MAX_MESSAGE)
        job.add_done_callback(self._unpacked)

    def _unpacked(self, done: asyncio.Future[Message]) -> None:
        self._unpacking = False
        if done.cancelled() or self.done:  # the loop is closing; or nobody waits any more
            return
        error = done.exception()
        if isinstance(error, MessageError):
            self.give_up(error.status, error.text)
        elif isinstance(error, MemoryError):
            self._no_memory()
        elif error is not None:
            self._crashed(error)
        else:
            try:
                self._message(done.result())
            except MessageError as problem:
                self.give_up(problem.status, problem.text)
            if not self._holding:
                super().unhold()

    def _message(self, message: Message) -> None:
        if self._receiver is not None:
            try:
                self._receiver.message(message)
            except Exception as error:
                self._crashed(error)
        elif self._first is None:
            self._first = message
        else:
            raise MessageError(Status.UNIMPLEMENTED, f"more than one message, which '{self.meaning.path}' does not take")

    def _end_of_messages(self, assembly: Assembly) -> None:
        if not assembly.is_empty:
            text = f"the request is cut off within a message, behind {assembly.progress}"
            self.give_up(Status.INTERNAL, text)
            return
        try:
            if self._receiver is not None:
                self._receiver.half_closed()
            elif self._first is not None:
                message, self._first = self._first, None
                self.method.handler(self, message)  # type: ignore[union-attr]
            else:
                self.finish(Status.UNIMPLEMENTED, f"no message; '{self.meaning.path}' takes one")
        except Exception as error:
            self._crashed(error)

    def _no_memory(self, more: str = "") -> None:
        self.give_up(Status.RESOURCE_EXHAUSTED, f"there is no memory for the request{more}")

    def _crashed(self, error: BaseException) -> None:
        path = self.meaning.path
        log.error("the method '%s' has failed", path, exc_info=error)
        self.give_up(Status.INTERNAL, f"the method '{path}' has failed: {type(error).__name__}: {error}")

    # --- back-pressure

    def hold(self) -> None:
        """Take no further message for the time being; the client stops when its window is used up."""
        self._holding = True
        super().hold()

    def unhold(self) -> None:
        """Take messages again, perhaps some before this returns."""
        self._holding = False
        if not self._unpacking:
            super().unhold()

    # --- the end

    def drain(self) -> None:
        """The server stops, and a stream may have no end of its own."""
        if self._receiver is not None and not self.ended:
            try:
                self._receiver.half_closed()
            except Exception as error:
                self._crashed(error)

    def leave(self) -> None:
        super().leave()
        self._receiver = self._assembly = self._first = None
