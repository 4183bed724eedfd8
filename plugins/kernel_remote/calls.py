"""gRPC calls from the client's side: one message out, messages and one outcome in. No I/O; knows nothing of inference.

Each call ends exactly once, by `concluded(outcome)`: with the far end's status, or with what became of the stream or the
connection. Whether it may be sent again is said by `Outcome.processed`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from kernel_grpc.http2 import Data, ErrorCode, Head, literal
from kernel_remote.client import ClientConnection, ClientStream

__all__ = ["INTERNAL", "UNAVAILABLE", "Call", "Kind", "Outcome", "head_of"]

EXHAUSTED, INTERNAL, UNAVAILABLE = 8, 13, 14

#: What an answer may hold of a message that is not complete without being counted, in bytes.
SMALL = 64 * 1024

#: Field by which the far end is asked to report its load, in the form that `choice.reported` reads; and that of its report.
ASK_LOAD = literal(b"endpoint-load-metrics-format", b"text")
LOAD = b"endpoint-load-metrics"

#: What stands in front of a message: whether it is compressed, and its length.
_PREFIX = struct.Struct(">BI")
_prefix, _unpack_prefix = _PREFIX.pack, _PREFIX.unpack_from


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


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What calls have in common. `ask_load`: the far end is to report its load. `most`: bytes of a message that is taken.

    `clock()`: the time, as deadlines have it.
    """

    path: str
    ask_load: bool = False
    most: int = 2**32
    clock: Callable[[], float] = time.monotonic


class Call(ClientStream):
    """One call, and the stream it goes on. Subclass it and override `message` and `concluded`.

    `pieces`: the one message that is sent. `deadline`: what is left of it when the call is sent is the far end's to keep.
    `ordered`: it must not overtake another ordered call to the same endpoint. `metadata`: fields of a header block that go along.
    """

    where = ""  # the endpoint
    over = False
    deadline: float | None = None
    ordered = False
    metadata = b""
    id = 0  # until it is sent
    _buffer: bytearray | None = None
    _counted = 0  # bytes of it that the connection's account has counted

    def __init__(self, kind: Kind, pieces: Sequence[Data]) -> None:
        self.kind = kind
        self.pieces = pieces

    def message(self, data: bytes) -> None:
        """A message has come."""

    def concluded(self, outcome: Outcome) -> None:
        """The call is over; told once."""

    def begin(self, connection: ClientConnection, head: bytes, where: str) -> None:
        """Send it on a connection that has room for it. `head`: of `head_of`; `where`: the endpoint."""
        self.where = where
        self.open(connection)
        if self.metadata:
            head += self.metadata
        if self.deadline is not None:
            head += literal(b"grpc-timeout", _timeout(self.deadline - self.kind.clock()))
        pieces = self.pieces
        size = sum(map(len, pieces))
        connection.outgoing.request(self, head, (_prefix(0, size), *pieces), size + 5)

    def finish(self, outcome: Outcome) -> None:
        """Tell the end, unless it was told."""
        if not self.over:
            self.over = True
            if self._counted:
                self._count(0)
            self.concluded(outcome)

    def cancel(self) -> None:
        """Nobody waits any more: the far end is told, and nothing is told here."""
        self.over = True
        if self._counted:
            self._count(0)
        if self.id and not self.done:
            self.leave()
            self.connection.left()

    def whole(self, first: Head, data: Data, start: int, stop: int, last: Head) -> None:
        self.connection.came += 1
        outcome = last.meaning
        size = stop - start - 5
        if first.meaning == b"200" and type(outcome) is Outcome and outcome.status >= 0 <= size <= self.kind.most:
            if not data[start] and _unpack_prefix(data, start)[1] == size:  # one message: by far the most
                self.message(bytes(data[start + 5 : stop]))
                self.finish(outcome)
                return
        self.block(first, False)
        self.received(data, start, stop, False)
        self.block(last, True)

    def block(self, head: Head, last: bool) -> None:
        self.connection.came += 1
        if self.over:
            return
        if last:
            self._finish(head)
        else:
            known = head.meaning  # the same block may have been the last of another answer
            http = head.meaning = known if type(known) is bytes else http_of(dict(head.fields))
            if http != b"200":
                self._end(UNAVAILABLE, f"answers with HTTP status {http.decode('latin-1', 'replace') or 'none'}")

    def _finish(self, head: Head) -> None:
        outcome = head.meaning
        if type(outcome) is not Outcome:
            outcome = head.meaning = outcome_of(dict(head.fields))
        if outcome.status < 0:
            fields = dict(head.fields)
            http = http_of(fields) if b":status" in fields else b"200"  # where it stood in the block before, it was that
            other = "" if http == b"200" else f", with HTTP status {http.decode('latin-1')}"
            known = fields.get(b"grpc-status", b"")[:16]
            what = f"with the grpc-status {known.decode('latin-1')!r}, which is no number" if known else "without a grpc-status"
            self._end(INTERNAL, f"ends an answer {what}{other}")
        elif self._buffer:
            self._end(INTERNAL, "ends an answer in the middle of a message")
        else:
            self.leave()
            self.finish(outcome)

    def received(self, data: Data, start: int, stop: int, ended: bool) -> None:
        self.connection.came += 1
        buffer = self._buffer
        if not buffer and not ended and stop - start >= 5 and not data[start]:
            if _unpack_prefix(data, start)[1] == stop - start - 5 <= self.kind.most:
                self.message(bytes(data[start + 5 : stop]))  # a message, whole
                return
        if buffer is None:
            buffer = self._buffer = bytearray()
        buffer += data[start:stop]
        if len(buffer) > SMALL and not self._count(len(buffer)):
            account = self.connection.account
            assert account is not None
            has = f"the server holds {account.used} of the {account.limit} bytes that {account.flag} allows"
            self._end(EXHAUSTED, f"answers with more than there is room for: {has}")
            return
        while len(buffer) >= 5 and not self.over:
            packed, size = _unpack_prefix(buffer)
            if packed:
                self._end(INTERNAL, "answers with a compressed message, for which nobody has asked")
                return
            if size > self.kind.most:
                self._end(EXHAUSTED, f"answers with a message of {size} bytes, {self.kind.most} are taken")
                return
            if len(buffer) < 5 + size:
                break
            message = bytes(memoryview(buffer)[5 : 5 + size])
            del buffer[: 5 + size]
            self.message(message)
        if self._counted and not self.over:
            self._count(len(buffer))
        if ended:
            self._end(INTERNAL, "ends an answer without trailers")

    def _count(self, size: int) -> bool:
        """Have so many bytes counted, all in all; whether there is room for them."""
        account = self.connection.account
        if account is not None:
            if size > self._counted:
                if not account.take(size - self._counted):
                    return False
            else:
                account.give_back(self._counted - size)
            self._counted = size
        return True

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
        self.finish(Outcome(status, f"endpoint {self.where} {text}", processed))


def http_of(fields: dict[bytes, bytes]) -> bytes:
    """Return the HTTP status of an answer; with its type behind it where that is none of gRPC's."""
    status, kind = fields.get(b":status", b""), fields.get(b"content-type", b"application/grpc")
    return status if kind.startswith(b"application/grpc") else status + b" and content-type " + kind[:64]


def outcome_of(fields: dict[bytes, bytes]) -> Outcome:
    """Return what trailers say; status -1 where they say none."""
    status = fields.get(b"grpc-status", b"")
    if not status.isdigit() or len(status) > 2:
        return Outcome(-1, "")
    text = unquote(fields.get(b"grpc-message", b"").decode("utf-8", "replace"), errors="replace")
    return Outcome(int(status), text, told=True, load=fields.get(LOAD, b"").decode("latin-1"))


def head_of(path: str, ask_load: bool, authority: str, secure: bool) -> bytes:
    """Return the header block of a call, but for what is its own."""
    block = (b"\x83\x87" if secure else b"\x83\x86") + literal(b":path", path.encode())  # :method POST, :scheme
    block += literal(b":authority", authority.encode()) + literal(b"te", b"trailers")
    block += literal(b"content-type", b"application/grpc")
    return block + ASK_LOAD if ask_load else block


def _timeout(seconds: float) -> bytes:
    """Return the value of grpc-timeout: at most eight digits."""
    micros = max(1, int(seconds * 1e6))
    return b"%du" % micros if micros < 10**8 else b"%dm" % min(micros // 1000, 10**8 - 1)
