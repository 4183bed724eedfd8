"""Unary calls of clients that have much to send to one model wait here, each connection's in their order, for its turn.

The law: a call that waits here is nobody's yet: whatever ends it, it is passed over. A connection with no other call of the
model in flight does not wait. Whether there is use in waiting, and whose turn it is, the model says (`Model.backpressure`).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel import InferenceRequest, Model
    from kernel_grpc.http2 import Connection
    from kernel_grpc.rpc.calls import Call

__all__ = ["Turns"]


class _Line:
    """What one connection would send to one model. `last`: its newest call that has begun."""

    __slots__ = ("last", "waiting")

    def __init__(self, last: Call) -> None:
        self.last = last
        self.waiting: deque[tuple[Call, InferenceRequest]] = deque()


class Turns:
    """Of one front end. `lines`: there are none as long as no model has more to do than keeps its instances busy."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Connection, Model], _Line] = {}

    def began(self, call: Call, model: Model) -> None:
        """A call has begun, and waits in the model's queue: perhaps later ones of its connection are to wait here."""
        if model.backpressure.crowded and len(call.connection.outgoing.streams) > 1:
            self._line_up((call.connection, model), _Line(call))

    def wait(self, call: Call, model: Model, request: InferenceRequest) -> bool:
        """Have a call wait; False where it need not."""
        key = call.connection, model
        line = self.lines.get(key)
        if line is None:
            return False
        if line.last.done and not line.waiting:
            del self.lines[key]
            model.backpressure.forget(line)
            return False
        line.waiting.append((call, request))
        return True

    def _line_up(self, key: tuple[Connection, Model], line: _Line) -> None:
        self.lines[key] = line
        key[1].backpressure.wait(line, partial(self._go_on, key, line))

    def _go_on(self, key: tuple[Connection, Model], line: _Line) -> None:
        """It is the turn of a connection: begin the first call that somebody still waits for, if the client reads."""
        if (outgoing := key[0].outgoing).full:
            outgoing.brake.waiting[line] = partial(self._go_on, key, line)
            return
        del self.lines[key]
        model, waiting = key[1], line.waiting
        while waiting:
            call, request = waiting.popleft()
            if call.done:
                continue
            line.last = call
            if waiting or model.backpressure.crowded:
                self._line_up(key, line)
            call.request = request
            model.enqueue(request)
            return
