"""The access log: a line for each request that comes from outside and is answered, as JSON, written by a thread of its own.

The loop puts a record into a queue that has an end, and waits for nobody: what finds it full is counted, and told in a line of
its own and in the server's log. So is what can't be written; a line is written whole or not at all. What was refused before
anybody knew what it is a request for has a line of another form. Without an access log nothing of this is made, and requests pay
nothing (request_log.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kernel.errors import ServingError, clipped
from kernel.observability.request_log import RequestTracing
from kernel.requests import InferenceRequest, InferenceResponse, Respond

__all__ = ["AccessLog", "AccessTracing"]

log = logging.getLogger("kernel")

#: How many records may wait for the writer; further ones are dropped.
QUEUED = 65_536

#: How often the writer looks whether there is something. It is not woken: that would cost each request a call of the system.
LOOK_SECONDS = 0.05

#: How many records are made into text and written at a time.
TOGETHER = 512

#: How long the end waits until what is queued is written.
END_SECONDS = 2.0

#: How much of an error's text a line has, and how much of the first line of a request that was refused; in characters.
LONGEST = 1000
SHOWN = 256

STDOUT = "-"

#: When it was answered (seconds since the epoch), id, client, protocol, model, version, rows, code, seconds in all, of them in
#: the queue, responses, error.
Record = tuple[float, str, str, str, str, int, int, str, float, float, int, str]


class Unread(NamedTuple):
    """A request that nobody could read. `request`: how it begins. `status`: of HTTP; `code`: elsewhere."""

    moment: float
    client: str
    protocol: str
    request: str
    status: int
    code: str
    error: str


class UnreadLine(msgspec.Struct, omit_defaults=True):
    """What its line says."""

    time: str
    client: str
    protocol: str
    request: str
    status: int = 0
    code: str = ""
    error: str = ""


class Line(msgspec.Struct, omit_defaults=True):
    """What a line says, by the names that docs/cli.md has."""

    time: str
    id: str
    client: str
    protocol: str
    model: str
    version: int
    rows: int
    code: str
    seconds: float
    queue_seconds: float
    responses: int
    error: str = ""


class AccessLog:
    """Writes to `path`, STDOUT for the standard output. Raises OSError where that can't be opened.

    `client_of`: says who waits for a request's answer.
    """

    def __init__(
        self,
        path: str,
        client_of: Callable[[InferenceRequest], str],
        *,
        queued: int = QUEUED,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._path = path
        self.client_of = client_of
        self._file = _opened(path)
        self._most = queued
        self._look = look_seconds
        self._queue: deque[Record | Unread] = deque()
        self._full = 0  # lines that found the queue full; the loop counts them
        self._lost = 0  # lines that could not be written; the writer counts them
        self._told = 0  # how many of both the file tells of
        self._torn = False  # the file ends within a line
        self._ended = threading.Event()
        self._anew = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="kernel-access-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How many lines are missing in the file, in all."""
        return self._full + self._lost

    def add(self, record: Record) -> None:
        """Have a record written, or dropped where too many wait. Never waits. On the loop."""
        if len(self._queue) < self._most:
            when, id, *rest, error = record  # an id may be as long as a body, and many may wait
            self._queue.append((when, clipped(id), *rest, clipped(error, LONGEST)))  # type: ignore[arg-type]
        else:
            self._full += 1

    def refused(self, client: str, protocol: str, request: bytes | str, result: int | str, error: str) -> None:
        """Have it written that a request was refused which nobody could read. Never waits. On the loop.

        `request`: how it began, its first line counts. `result`: the status that it was answered with, of HTTP, or a code's name.
        """
        if len(self._queue) >= self._most:
            self._full += 1
            return
        text = request if isinstance(request, str) else request[: 4 * SHOWN].decode("latin-1")
        first = text.partition("\n")[0].removesuffix("\r")
        # Of how many is not told: who refuses it has kept only the beginning.
        line = clipped(first[:SHOWN], SHOWN) + ("…" if len(first) > SHOWN else "")
        status, code = (result, "") if isinstance(result, int) else (0, result)
        self._queue.append(Unread(time.time(), client, protocol, line, status, code, clipped(error, LONGEST)))

    def reopen(self) -> None:
        """Go on in a new file of the same name, where the old one was moved away."""
        self._anew = True

    def close(self) -> None:
        """Write what is queued, for END_SECONDS at most."""
        self._ended.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        while True:
            ending = self._ended.wait(self._look)  # what came before it was set is written below
            if self._anew:
                self._anew = False
                self._open_anew()
            self._write()
            while self._queue:
                self._write()
            if ending:
                return

    def _open_anew(self) -> None:
        try:
            new = _opened(self._path)
        except OSError as error:
            log.error("the access log can't be opened anew, the old one goes on: %s", error)
            return
        old, self._file = self._file, new
        self._torn = self._torn and os.fstat(new).st_size > 0
        if old != new:
            os.close(old)

    def _write(self) -> None:
        """Write some records in one piece, so that replicas may share a file, and how many are missing."""
        records = [self._queue.popleft() for _ in range(min(TOGETHER, len(self._queue)))]
        missing = self.dropped - self._told
        lines = [_text(record) for record in records]
        if missing:
            lines.append(msgspec.json.encode({"time": _shown(time.time()), "dropped": missing}))
        if not lines:
            return
        try:
            self._append(lines)
        except _Unwritten as failed:
            self._lost += max(0, len(records) - failed.written)
            if not self._failing:
                self._failing = True
                log.error("the access log can't be written: %s; what is to be there is lost until it can", failed)
            return
        if missing:
            self._told += missing
            why = "it could not be written" if self._failing else "they come faster than they can be written"
            log.warning("the access log has dropped %d lines: %s", missing, why)
        self._failing = False

    def _append(self, lines: list[bytes]) -> None:
        """Write lines behind one another. Raises _Unwritten; the file has whole lines then, too."""
        before = b"\n" if self._torn else b""
        data = memoryview(before + b"\n".join([*lines, b""]))
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError as error:
            if done:
                whole = bytes(data[:done]).rfind(b"\n") + 1
                self._torn = done > whole and not self._taken_back(done - whole)
            raise _Unwritten(str(error), max(0, bytes(data[:done]).count(b"\n") - len(before))) from None
        self._torn = False

    def _taken_back(self, size: int) -> bool:
        """Take the beginning of a line, which is all that there was room for, from the end of the file. False: it can't be,
        as it is no file, or another replica has written behind it.
        """
        try:
            end = os.lseek(self._file, 0, os.SEEK_CUR)  # behind what we wrote
            if end != os.fstat(self._file).st_size:
                return False
            os.ftruncate(self._file, end - size)
            os.lseek(self._file, end - size, os.SEEK_SET)
        except OSError:
            return False
        return True


class _Unwritten(Exception):
    """Lines could not be written, but for the first `written` of them."""

    def __init__(self, words: str, written: int) -> None:
        super().__init__(words)
        self.written = written


def _opened(path: str) -> int:
    if path == STDOUT:
        return 1
    # Not waiting: a pipe that nobody reads is told of. Written at its end, whoever else writes to it.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    os.set_blocking(file, True)
    return file


def _text(record: Record | Unread) -> bytes:
    line: Line | UnreadLine
    if isinstance(record, Unread):
        line = UnreadLine(_shown(record.moment), *record[1:])
    else:
        when, id, client, protocol, model, version, rows, code, seconds, queue, responses, error = record
        line = Line(
            _shown(when), id, client, protocol, model, version, rows, code, round(seconds, 6), round(queue, 6), responses, error,
        )  # fmt: skip
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:  # a text that UTF-8 can't carry
        for name in line.__struct_fields__:
            value = getattr(line, name)
            if isinstance(value, str):
                setattr(line, name, value.encode(errors="backslashreplace").decode())
        return msgspec.json.encode(line)


def _shown(moment: float) -> str:
    """Return `2026-01-31T12:00:00.250000Z`."""
    whole = int(moment)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((moment - whole) * 1_000_000):06}Z"


class AccessTracing:
    """What a model's `tracing` is with an access log; passes requests on to `tracing` where that is not None."""

    __slots__ = ("_access", "_clock", "_tracing")

    def __init__(self, tracing: RequestTracing | None, access: AccessLog, clock: Callable[[], float]) -> None:
        self._tracing = tracing
        self._access = access
        self._clock = clock

    def arrived(self, request: InferenceRequest, protocol: str = "", began: float = 0.0, traceparent: str = "") -> None:
        if self._tracing is not None:
            self._tracing.arrived(request, protocol, began, traceparent)
        now = self._clock()
        client = self._access.client_of(request)
        request.respond = _Noted(request, request.respond, self._access, self._clock, protocol, client, began or now)


class _Noted:
    """The continuation of a request that the access log is to have, around that of who waits for the answer (`inner`)."""

    __slots__ = ("_access", "_began", "_clock", "_protocol", "_request", "_responses", "client", "inner")

    def __init__(
        self,
        request: InferenceRequest,
        inner: Respond,
        access: AccessLog,
        clock: Callable[[], float],
        protocol: str,
        client: str,
        began: float,
    ) -> None:
        self._request = request
        self._access = access
        self._clock = clock
        self._protocol = protocol
        self._began = began
        self._responses = 0
        self.client = client
        self.inner = inner

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        if response is not None:
            self._responses += 1
        if final:
            request, now = self._request, self._clock()
            batch = request.batch
            begun = batch.started if batch is not None and batch.started else now
            error: ServingError | None = response.error if response is not None else None
            waited = max(0.0, begun - request.enqueued) if request.enqueued else 0.0
            model: Any = request.model
            self._access.add(
                (
                    time.time(),
                    request.id,
                    self.client,
                    self._protocol,
                    model.name,
                    model.version,
                    request.batch_size,
                    "OK" if error is None else error.code.name,
                    now - self._began,
                    waited,
                    self._responses,
                    "" if error is None else error.message,
                )
            )
        self.inner(response, final)
