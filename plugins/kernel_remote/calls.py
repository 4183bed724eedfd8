"""gRPC calls from the client's side: one message out, messages and one outcome in. No I/O; knows nothing of inference.

Each call ends exactly once, by `ended(outcome)`: with the far end's status, or with what became of the stream or the connection.
Whether it may be sent again is said by `Outcome.processed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from kernel_grpc.http2 import Data, ErrorCode, Head, literal
from kernel_remote.client import ClientConnection, ClientStream

__all__ = ["INTERNAL", "UNAVAILABLE", "Call", "CallStream", "Outcome", "head_of"]

EXHAUSTED, INTERNAL, UNAVAILABLE = 8, 13, 14

#: Field by which the far end is asked to report its load, in the form that `choice.reported` reads; and that of its report.
ASK_LOAD = literal(b"endpoint-load-metrics-format", b"text")
LOAD = b"endpoint-load-metrics"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call has ended: gRPC's `status` and its `message`.

    `processed`: the far end may have looked at it. `told`: the status is the far end's own word. `load`: what the answer says of
    the far end's load (ORCA), "" for nothing.
    """

    status: int
    message: str
    processed: bool = True
    told: bool = False
    load: str = ""


class Call:
    """One call. `pieces`: the one message that is sent, `size` bytes long.

    `message(data)` is told each message that comes, `ended(outcome)` the end, once. `timeout()`: the seconds that are left for
    the far end to keep, when the call is sent. `ask_load`: the far end is to report its load. `ordered`: it must not overtake
    another ordered call to the same endpoint. `most`: bytes of a message that is taken.
    `metadata`: fields of a header block that go along.
    """

    def __init__(
        self,
        path: str,
        pieces: Sequence[Data],
        message: Callable[[bytes], None],
        ended: Callable[[Outcome], None],
        *,
        timeout: Callable[[], float] | None = None,
        ask_load: bool = False,
        ordered: bool = False,
        most: int = 2**32,
        metadata: bytes = b"",
    ) -> None:
        self.path = path
        self.pieces = pieces
        self.size = sum(map(len, pieces))
        self.message = message
        self.ended = ended
        self.timeout = timeout
        self.ask_load = ask_load
        self.ordered = ordered
        self.most = most
        self.metadata = metadata
        self.over = False
        self.stream: CallStream | None = None

    def begin(self, connection: ClientConnection, head: bytes, where: str) -> None:
        """Send it on a connection that has room for it. `head`: of `head_of`; `where`: the endpoint."""
        stream = self.stream = CallStream(connection, self, where)
        head += self.metadata
        if self.timeout is not None:
            head += literal(b"grpc-timeout", _timeout(self.timeout()))
        prefix = b"\0" + self.size.to_bytes(4, "big")
        connection.outgoing.request(stream, head, (prefix, *self.pieces), self.size + 5)

    def end(self, outcome: Outcome) -> None:
        """Tell the end, unless it was told."""
        if not self.over:
            self.over = True
            self.stream = None  # which knows the call: what has ended is not to wait for the garbage collector
            self.ended(outcome)

    def cancel(self) -> None:
        """Nobody waits any more: the far end is told, and nothing is told here."""
        self.over = True
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.leave()
            stream.connection.left()


class CallStream(ClientStream):
    """The stream of a call: puts messages together, and reads status and trailers."""

    def __init__(self, connection: ClientConnection, call: Call, where: str) -> None:
        super().__init__(connection, connection.take_id(), False)
        self.call = call
        self.where = where
        self.buffer = bytearray()
        self.http = b""

    def block(self, head: Head, last: bool) -> None:
        self.connection.came += 1
        if last:
            self._finish(head)
        else:
            known = head.meaning  # the same block may have been the last of another answer
            self.http = http = known if type(known) is bytes else dict(head.fields).get(b":status", b"")
            head.meaning = http
            if self.http != b"200":
                self._end(UNAVAILABLE, f"answers with HTTP status {self.http.decode('latin-1') or 'none'}")

    def _finish(self, head: Head) -> None:
        outcome = head.meaning
        if type(outcome) is not Outcome:
            outcome = head.meaning = outcome_of(dict(head.fields))
        if outcome.status < 0:
            known = self.http or dict(head.fields).get(b":status", b"")
            other = "" if known == b"200" else f", with HTTP status {known.decode('latin-1') or 'none'}"
            self._end(INTERNAL, f"ends an answer without a grpc-status{other}")
        elif self.buffer:
            self._end(INTERNAL, "ends an answer in the middle of a message")
        else:
            self.leave()
            self.call.end(outcome)

    def received(self, data: Data, start: int, stop: int, ended: bool) -> None:
        self.connection.came += 1
        buffer = self.buffer
        if not buffer and not ended and stop - start >= 5 and not data[start]:
            if int.from_bytes(data[start + 1 : start + 5], "big") == stop - start - 5 <= self.call.most:
                self.call.message(bytes(data[start + 5 : stop]))  # a message, whole: by far the most
                return
        buffer += data[start:stop]
        while len(buffer) >= 5 and not self.call.over:
            size = int.from_bytes(buffer[1:5], "big")
            if buffer[0]:
                self._end(INTERNAL, "answers with a compressed message, for which nobody has asked")
                return
            if size > self.call.most:
                self._end(EXHAUSTED, f"answers with a message of {size} bytes, {self.call.most} are taken")
                return
            if len(buffer) < 5 + size:
                break
            message = bytes(memoryview(buffer)[5 : 5 + size])
            del buffer[: 5 + size]
            self.call.message(message)
        if ended:
            self._end(INTERNAL, "ends an answer without trailers")

    def aborted(self, code: int) -> None:
        connection = self.connection
        failure = connection.ending.failure
        if failure is not None:
            self._end(UNAVAILABLE, f"breaks the rules of HTTP/2: {failure[1]}")
        elif self.refused:
            self._end(UNAVAILABLE, connection.control.last_words or "", False)
        elif connection.gone:
            self._end(UNAVAILABLE, connection.gone)
        else:
            name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"code {code}"
            self._end(UNAVAILABLE, f"has reset the stream ({name})", code != ErrorCode.REFUSED_STREAM)

    def _end(self, status: int, text: str, processed: bool = True) -> None:
        self.leave()
        self.call.end(Outcome(status, f"endpoint {self.where} {text}", processed))


def outcome_of(fields: dict[bytes, bytes]) -> Outcome:
    """Return what trailers say; status -1 where they say none."""
    status = fields.get(b"grpc-status", b"")
    if not status.isdigit() or len(status) > 2:
        return Outcome(-1, "")
    text = unquote(fields.get(b"grpc-message", b"").decode("utf-8", "replace"), errors="replace")
    return Outcome(int(status), text, told=True, load=fields.get(LOAD, b"").decode("latin-1"))


def head_of(path: str, authority: str, secure: bool, ask_load: bool) -> bytes:
    """Return the header block of a call, but for what is its own."""
    block = (b"\x83\x87" if secure else b"\x83\x86") + literal(b":path", path.encode())  # :method POST, :scheme
    block += literal(b":authority", authority.encode()) + literal(b"te", b"trailers")
    block += literal(b"content-type", b"application/grpc")
    return block + ASK_LOAD if ask_load else block


def _timeout(seconds: float) -> bytes:
    """Return the value of grpc-timeout: at most eight digits."""
    micros = max(1, int(seconds * 1e6))
    return b"%du" % micros if micros < 10**8 else b"%dm" % min(micros // 1000, 10**8 - 1)
