"""One call: its messages in, its answer out, once. This is what the methods of services work with.

A Call is an HTTP/2 stream that knows gRPC: length-prefixed messages, compression, deadline, status. Everything happens on the
loop. Whatever ends a call (an answer, the client, its deadline, the end of the connection) ends it once: `done` is true from then
on, and all later attempts to send do nothing.

Most calls have one small message each way. They are read and answered here, without the parts that others are given when they
need them: Incoming (messages that come in pieces), Packing (compressed answers), Patience (clients that are slow to read).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from kernel import ServingError, peer_name
from kernel_grpc.http2 import Connection, Data, Head, Stream
from kernel_grpc.rpc import status
from kernel_grpc.rpc.assembly import LARGE, MAX_MESSAGE, PREFIX, Message
from kernel_grpc.rpc.incoming import Incoming
from kernel_grpc.rpc.meanings import Meaning
from kernel_grpc.rpc.metadata import Metadata
from kernel_grpc.rpc.packing import Packing
from kernel_grpc.rpc.patience import LITTLE, MAX_WAITING, MOST_WAITING, PATIENCE, SOON, Patience
from kernel_grpc.rpc.server import Server
from kernel_grpc.rpc.status import HEAD, NOBODYS_FAULT, SHUTTING_DOWN, STATUS_OF, TRAILERS, Status

__all__ = ["Call", "Payload", "open_call", "open_probe", "refusal"]

log = logging.getLogger(__name__)

#: A message without its prefix. The memory of pieces must not change any more; they are contiguous, of any format.
Payload = bytes | Sequence[Data]

#: A message of up to this many bytes goes out in one frame and as one piece.
SMALL = 16384 - PREFIX.size

_prefix = PREFIX.unpack_from

_HEALTH_ALONE = Meaning.refused(
    200, Status.RESOURCE_EXHAUSTED, "the server has as many connections as it may have; one more can ask for health alone"
)

#: HEADERS with the head, then the beginning of DATA with the prefix of the message; and HEADERS with the trailers.
_BEGIN = Struct(f">5sI{len(HEAD)}sIBIBI").pack
_MESSAGE = Struct(">IBIBI").pack
_END = Struct(f">5sI{len(TRAILERS)}s").pack
_HEAD_FRAME = len(HEAD).to_bytes(3, "big") + b"\x01\x04"
_TRAILERS_FRAME = len(TRAILERS).to_bytes(3, "big") + b"\x01\x05"


class Call(Stream):
    """One RPC under way.

    A method reads `metadata`, `forwarded` (metadata that become request parameters) and `deadline`, sets `request` (it is then
    cancelled when nobody waits for the answer any more) or `on_cancel`, and calls `reply`, or `send`, `finish` and `fail`.
    Where `meaning.asked` says so it has `meaning` say what the trailers tell of the call (`with_trailing`).
    `writable` is false while the client does not take what it is sent; `on_writable` is called when that may have changed.
    """

    __slots__ = (
        "_incoming",
        "_packing",
        "_patience",
        "begun",
        "deadline",
        "meaning",
        "moment",
        "on_cancel",
        "on_writable",
        "request",
        "server",
    )

    connection: Connection

    def __init__(
        self, server: Server, connection: Connection, id: int, ended: bool, length: int | None, meaning: Meaning
    ) -> None:
        super().__init__(connection, id, ended, length)
        self.server = server
        self.meaning = meaning
        self.begun = False  # the head is out
        self.deadline: float | None = None  # on the kernel's clock
        self.moment = 0.0  # when the deadline will be enforced
        self.request: Any = None  # what to cancel when nobody waits for the answer any more
        self.on_cancel: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self._incoming: Incoming | None = None
        self._packing: Packing | None = None
        self._patience: Patience | None = None

    # --- what methods read

    @property
    def metadata(self) -> Metadata:
        return self.meaning.metadata

    @property
    def client(self) -> str:
        """Who waits for the answer, as `Kernel.inflight` shows it."""
        return f"gRPC {peer_name(self.peer)}"

    @property
    def peer(self) -> object:
        """The client's address, as a transport's `peername`."""
        return self.connection.transport.get_extra_info("peername")

    @property
    def traceparent(self) -> str:
        """Whose trace the call continues, "" for nobody's."""
        value = self.meaning.metadata.get("traceparent", "")
        return value if isinstance(value, str) else ""

    @property
    def forwarded(self) -> tuple[tuple[str, str], ...]:
        return self.meaning.forwarded

    @property
    def is_stream(self) -> bool:
        """Whether the call has an end only when the client or the server wants one."""
        return self._incoming is not None and self._incoming.receiver is not None

    @property
    def writable(self) -> bool:
        """Whether the client takes what it is sent, as far as one can tell."""
        return not (self._packing is not None and self._packing.busy) and super().writable

    # --- what comes in

    def begin(self) -> None:
        """Do what comes before the first message where that is anything."""
        meaning = self.meaning
        if meaning.refusal is not None:
            self.connection.outgoing.worthless += 1
            self.end(meaning.refusal)
            return
        method = meaning.method
        assert method is not None
        if meaning.timeout is not None:
            now = self.server.kernel.clock()
            self.deadline = now + meaning.timeout
            self.moment = self.server.deadlines.add(self, self.deadline, now)
        if method.streaming:
            if self.server.draining:
                self.finish(Status.UNAVAILABLE, SHUTTING_DOWN)
                return
            incoming = self._gathered()
            try:
                receiver = method.handler(self)
                incoming.receiver = None if self.done else receiver
            except Exception as error:
                self.crashed(error)

    def received(self, data: Data, start: int, stop: int, ended: bool) -> int | None:
        if self.connection.outgoing.full and self.meaning.method.category == "inference":  # type: ignore[union-attr]
            return self._wait(start)
        incoming = self._incoming
        if ended and incoming is None and stop - start >= 5:
            compressed, size = _prefix(data, start)
            if size == stop - start - 5 and not compressed and size < LARGE:
                # The one message of a unary call, whole: what Incoming would do, without gathering it.
                self.handle(bytes(data[start + 5 : stop]))
                return None
        return (incoming or self._gathered()).received(self, data, start, stop, ended)

    def _wait(self, start: int) -> int:
        """Take no data, from `start` on, until the client has read more of what waits for it."""
        incoming = self._incoming or self._gathered()
        incoming.resting = self.held = True
        self.connection.outgoing.brake.waiting[self] = self.go_on
        return start

    def _gathered(self) -> Incoming:
        """Have messages gathered from the pieces that they come in."""
        server, method = self.server, self.meaning.method
        limit = server.most
        if method is not None and method.most is not None:
            limit = min(limit, method.most)
        incoming = self._incoming = Incoming(server.memory.receive, limit)
        self.sink = incoming.assembly
        return incoming

    def handle(self, message: Message) -> None:
        """Have a unary call's method handle its message."""
        try:
            self.meaning.method.handler(self, message)  # type: ignore[union-attr]
        except Exception as error:
            self.crashed(error)

    def space(self) -> memoryview | None:
        return None if self._incoming is None else self._incoming.space()

    def filled(self, count: int) -> None:
        assert self._incoming is not None
        self._incoming.filled(self, count)

    def crashed(self, error: BaseException) -> None:
        """A method has raised what it must not raise."""
        path = self.meaning.path
        log.error("the method '%s' has failed", path, exc_info=error)
        self.give_up(Status.INTERNAL, f"the method '{path}' has failed: {type(error).__name__}: {error}")

    def hold(self) -> None:
        """Take no further message for the time being; the client stops when its window is used up."""
        if self._incoming is not None:
            self._incoming.holding = True
        super().hold()

    def unhold(self) -> None:
        """Take messages again, perhaps some before this returns."""
        incoming = self._incoming
        if incoming is not None:
            incoming.holding = False
            if incoming.unpacking or incoming.resting:
                return
        super().unhold()

    def go_on(self) -> None:
        """Take further messages, after a turn of the loop for others."""
        if self._incoming is not None:
            self._incoming.go_on(self)

    # --- what goes out: head, messages and status, in that order and once

    def reply(self, message: Payload) -> None:
        """Answer a unary call: head, message and status 0 in one write. The bytes are the message's, without a prefix."""
        outgoing = self.connection.outgoing
        if type(message) is bytes:
            size = len(message)
            if (
                size + 5 <= outgoing.send_window
                and size + 5 <= self.send_window
                and size <= SMALL
                and self.ended
                and self.meaning.constant
                and not (self.done or self.begun or outgoing.long_way)
                and self._incoming is None
            ):
                # The very bytes that `send` and `finish` below would put there, as one piece: by far the most frequent answer.
                outgoing.send_window -= size + 5
                outgoing.sent += 1
                id = self.id
                del outgoing.streams[id]
                begin = _BEGIN(_HEAD_FRAME, id, HEAD, (size + 5) << 8, 0, id, 0, size)
                outgoing.out.append(begin + message + _END(_TRAILERS_FRAME, id, TRAILERS))
                self.done = True
                self.request = self.on_cancel = None
                if self.deadline is not None:
                    self.leave()
                if not outgoing.corked:
                    outgoing.on_output()
                return
        if self.done:
            return
        corked, outgoing.corked = outgoing.corked, True  # so that all of it goes out together
        try:
            self.send(message)
            self.finish()
        finally:
            outgoing.corked = corked
        if not corked:
            outgoing.on_output()

    def send(self, message: Payload) -> None:
        """Send one message of an answer that has several."""
        if self.done:
            return
        if isinstance(message, bytes):
            size = len(message)
            pieces: list[Data] = [message]
        else:
            pieces = [piece if type(piece) is bytes else memoryview(piece).cast("B") for piece in message]
            size = sum(map(len, pieces))
            if size <= SMALL:
                message = b"".join(pieces)
        outgoing = self.connection.outgoing
        if self.meaning.compression is not None:
            if self._packing is None:
                self._packing = Packing()
            self._packing.send(self, pieces, size)
        elif (
            type(message) is bytes
            and size <= SMALL
            and size + 5 <= outgoing.send_window
            and size + 5 <= self.send_window
            and not (self.queue or outgoing.long_way)
        ):
            # What `send_pieces` would have sent, as one piece: nothing waits, and the windows allow all of it.
            outgoing.send_window -= size + 5
            self.send_window -= size + 5
            outgoing.sent += 1
            id = self.id
            if self.begun:
                outgoing.out.append(_MESSAGE((size + 5) << 8, 0, id, 0, size) + message)
            else:
                self.begun = True
                outgoing.out.append(_BEGIN(_HEAD_FRAME, id, HEAD, (size + 5) << 8, 0, id, 0, size) + message)
            if not outgoing.corked:
                outgoing.on_output()
        else:
            self.send_pieces(pieces, size, compressed=False)

    def send_pieces(self, pieces: Sequence[Data], size: int, *, compressed: bool) -> None:
        """Send a message of any size, as windows and transport allow."""
        if size > MAX_MESSAGE:
            self.give_up(Status.RESOURCE_EXHAUSTED, f"the answer's message of {size} bytes is larger than {MAX_MESSAGE}")
            return
        patience = self._patience
        if patience is None:
            patience = self._patience = Patience()
        if patience.is_over(self.queued, self.server.now()):
            text = f"the client lets {self.queued} bytes wait, more than the {MAX_WAITING} that are kept for it"
            self.give_up(Status.RESOURCE_EXHAUSTED, text)
            return
        if self.connection.outgoing.queued > LITTLE and (text := waits(self.server, self.connection)):
            self.give_up(Status.RESOURCE_EXHAUSTED, text)
            return
        if not self.begun:
            self.begun = True
            compression = self.meaning.compression
            self.send_headers(HEAD if compression is None else status.head(compression.coding))
        patience.give(size + 5)
        self.send_data([PREFIX.pack(compressed, size), *pieces], size + 5)

    def finish(self, code: int = Status.OK, text: str = "") -> None:
        """End the call with a status; the first one counts."""
        if self.done:
            return
        if self._packing is not None and self._packing.busy:
            self._packing.finish(code, text)
            return
        self.leave()
        if code and code not in NOBODYS_FAULT:
            self.connection.outgoing.worthless += 1
        if text:
            text = status.shortened(text, self.connection.control.header_list_limit)
        block = status.trailers(code, text) if self.begun else status.trailers_only(code, text)
        if self.meaning.trailing is not None:
            block += self.meaning.trailing(status.room(self.connection.control.header_list_limit) - len(block))
        self.end(block)

    def fail(self, error: ServingError) -> None:
        """End the call with an error of the kernel's."""
        self.finish(STATUS_OF[error.code], error.message)

    def room_again(self) -> None:
        if self.on_writable is not None:
            self.on_writable()

    # --- ends that the method has not asked for

    def give_up(self, code: int, text: str) -> None:
        """End the call although its method has not: the method is told that nobody waits any more."""
        if self.done:
            return
        request, on_cancel = self.request, self.on_cancel
        self._packing = None
        self.connection.outgoing.drop(self)  # the status goes out now, what waits does not
        self.finish(code, text)
        self._cancel(request, on_cancel)

    def expired(self) -> None:
        """The deadline has passed."""
        self.give_up(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def is_late(self, least: float) -> bool:
        """Whether its request is begun and does not come: less than `least` bytes since this was asked last."""
        if self.ended or self.done or self.held or self.kept is not None:
            return False
        return self._incoming is None or self._incoming.is_late(least)

    def aborted(self, code: int) -> None:
        """The client has cancelled the call, or has gone."""
        request, on_cancel = self.request, self.on_cancel
        self.leave()
        self._cancel(request, on_cancel)

    def drain(self) -> None:
        """The server stops, and a stream may have no end of its own."""
        if self._incoming is not None and not self.ended:
            self._incoming.half_close(self)

    def _cancel(self, request: Any, on_cancel: Callable[[], None] | None) -> None:
        try:
            if request is not None:
                self.server.kernel.cancel(request)
            if on_cancel is not None:
                on_cancel()
        except Exception:
            log.exception("a call can't be cancelled")

    def leave(self) -> None:
        """Let go of what must not outlive the call."""
        if self._incoming is not None:
            self._incoming.let_go()
            self.sink = None
            if (brake := self.connection.outgoing.brake) is not None:
                brake.waiting.pop(self, None)
        self.request = self.on_cancel = self.on_writable = self._incoming = None
        if self.deadline is not None:
            self.server.deadlines.discard(self, self.moment)


def open_call(server: Server, connection: Connection, id: int, head: Head, ended: bool) -> Call:
    """Begin the call that a request asks for; http2 calls this."""
    meaning = head.meaning
    if meaning is None:
        meaning = server.meanings(head)
    if server.memory.send.used:
        meaning = refusal(server, connection, meaning) or meaning
    call = Call(server, connection, id, ended, head.content_length, meaning)
    if not meaning.ordinary:
        call.begin()
    return call


def open_probe(server: Server, connection: Connection, id: int, head: Head, ended: bool) -> Call:
    """Begin a call on a connection that was let in to ask for health alone."""
    meaning = server.meanings(head)
    if meaning.method is not None and meaning.method.category != "health":
        meaning = _HEALTH_ALONE
    call = Call(server, connection, id, ended, head.content_length, meaning)
    if not meaning.ordinary:
        call.begin()
    return call


def refusal(server: Server, connection: Connection, meaning: Meaning) -> Meaning | None:
    """Return the answer to a new call where too much waits already: for its client and it is no inference, which would wait
    (Brake); for all together and it is one.
    """
    if meaning.method is None or meaning.method.category == "health":
        return None
    account = server.memory.send
    if meaning.method.category != "inference":
        most = server.limits.queue
        if connection.outgoing.full:
            return Meaning.refused(200, Status.RESOURCE_EXHAUSTED, f"more than {most} bytes wait for this client")
    elif account.full:
        account.refused += 1
        return Meaning.refused(200, Status.RESOURCE_EXHAUSTED, account.refusal().message)
    return None


def waits(server: Server, connection: Connection) -> str:
    """Return why a client is sent no further answer, "" where it is: too much waits for it, and it does not read."""
    outgoing = connection.outgoing
    queued = outgoing.queued
    if queued > MOST_WAITING:
        return f"the client lets {queued} bytes wait, more than the {MOST_WAITING} that are kept for it"
    most = 2 * server.limits.queue
    if queued > min(most, MAX_WAITING):
        still = connection.reading.still(outgoing.delivered, server.now())
        for kept, seconds in ((most, SOON), (MAX_WAITING, PATIENCE)):
            if queued > kept and still > seconds:
                return f"the client lets {queued} bytes wait and has read nothing for {still:.0f} s; {kept} are kept for it then"
    return ""
