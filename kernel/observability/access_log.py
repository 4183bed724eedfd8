"""The access log: a line for each request that comes from outside and is answered, as JSON, written by a thread of its own.

The loop puts a record into a queue that has an end, and waits for nobody: what finds it full is counted, and told in a line of
its own and in the server's log. Without an access log nothing of this is made, and requests pay nothing (request_log.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

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

#: How much of an error's text a line has, in characters.
LONGEST = 1000

STDOUT = "-"

#: When it was answered (seconds since the epoch), id, client, protocol, model, version, rows, code, seconds in all, of them in
#: the queue, responses, error.
Record = tuple[float, str, str, str, str, int, int, str, float, float, int, str]


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
        self._queue: deque[Record] = deque()
        self._dropped = 0  # since they were last told of
        self.dropped = 0  # in all
        self._ended = threading.Event()
        self._anew = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="kernel-access-log", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        """Have a record written, or dropped where too many wait. Never waits. On the loop."""
        if len(self._queue) < self._most:
            when, id, *rest, error = record  # an id may be as long as a body, and many may wait
            self._queue.append((when, clipped(id), *rest, clipped(error, LONGEST)))  # type: ignore[arg-type]
        else:
            self._dropped += 1
            self.dropped += 1

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
            while self._queue or self._dropped:
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
        if old != new:
            os.close(old)

    def _write(self) -> None:
        """Write some records in one piece, so that replicas may share a file, and what was dropped before them."""
        lines = []
        count, self._dropped = self._dropped, 0
        records = [self._queue.popleft() for _ in range(min(TOGETHER, len(self._queue)))]
        for record in records:
            lines.append(_text(record))
        if count:
            lines.append(msgspec.json.encode({"time": _shown(time.time()), "dropped": count}))
            log.warning("the access log has dropped %d lines: they come faster than they can be written", count)
        left = memoryview(b"\n".join([*lines, b""]))
        try:
            while left:
                left = left[os.write(self._file, left) :]
            self._failing = False
        except OSError as error:
            self.dropped += len(records)
            if not self._failing:
                self._failing = True
                log.error("the access log can't be written: %s; what is to be there is lost until it can", error)


def _opened(path: str) -> int:
    if path == STDOUT:
        return 1
    # Not waiting: a pipe that nobody reads is told of. Written at its end, whoever else writes to it.
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    os.set_blocking(file, True)
    return file


def _text(record: Record) -> bytes:
    when, id, client, protocol, model, version, rows, code, seconds, queue, responses, error = record
    line = Line(
        _shown(when), id, client, protocol, model, version, rows, code, round(seconds, 6), round(queue, 6), responses, error,
    )  # fmt: skip
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:  # a text that UTF-8 can't carry
        for name in ("id", "client", "model", "error"):
            setattr(line, name, getattr(line, name).encode(errors="backslashreplace").decode())
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
