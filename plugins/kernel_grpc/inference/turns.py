"""Unary calls of clients that have much to send to one model wait here, each connection's in their order, for its turn.

The law: a call that waits here is nobody's yet: whatever ends it, it is passed over. A connection with no other call of the
model in flight does not wait. Whether there is use in waiting, and whose turn it is, the model says (`Model.backpressure`); where
its answers may be large, so does the connection's share of it (shares.py).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from kernel_grpc.inference.shares import Share, share_of

if TYPE_CHECKING:
    from kernel import InferenceRequest, Model
    from kernel_grpc.http2 import Connection
    from kernel_grpc.inference.recipe import Recipe
    from kernel_grpc.rpc.calls import Call

__all__ = ["Turns"]

#: With so many calls in a line those that are done are looked for; then again when it is twice as long.
TIDY = 16


class _Line:
    """What one connection would send to one model. `last`: its newest call that has begun, None where it waits for its share."""

    __slots__ = ("_tidy_at", "last", "waiting")

    def __init__(self, last: Call | None) -> None:
        self.last = last
        self.waiting: deque[tuple[Call, InferenceRequest]] = deque()
        self._tidy_at = TIDY

    def add(self, call: Call, request: InferenceRequest) -> None:
        """Append a call. Those that were cancelled, or are late, go: a line may stand still while their places are taken."""
        waiting = self.waiting
        waiting.append((call, request))
        if len(waiting) > self._tidy_at:
            self.waiting = waiting = deque([one for one in waiting if not one[0].done])
            self._tidy_at = max(TIDY, 2 * len(waiting))


class Turns:
    """Of one front end. `lines`: there are none as long as no model has more to do than keeps its instances busy."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Connection, Model], _Line] = {}

    def share(self, call: Call, recipe: Recipe) -> Share:
        """Count a call whose model's answers may be large in the share of its connection. Where that is full, it will `wait`."""
        connection, model = call.connection, recipe.model
        share = share_of(connection, recipe.replies)
        if share.full and (connection, model) not in self.lines:
            line = self.lines[connection, model] = _Line(None)
            share.wait(line, partial(self._go_on, (connection, model), line))
        share.in_flight += 1
        return share

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
        if line.last is not None and line.last.done and not line.waiting:
            del self.lines[key]
            model.backpressure.forget(line)
            return False
        line.add(call, request)
        if (share := _share(request)) is not None:
            share.in_flight -= 1
        return True

    def _line_up(self, key: tuple[Connection, Model], line: _Line) -> None:
        self.lines[key] = line
        key[1].backpressure.wait(line, partial(self._go_on, key, line))

    def _go_on(self, key: tuple[Connection, Model], line: _Line) -> None:
        """It is the turn of a connection: begin the first call that somebody still waits for, if the client reads."""
        model, waiting = key[1], line.waiting
        if (outgoing := key[0].outgoing).full:
            outgoing.brake.waiting[line] = partial(self._go_on, key, line)
            return
        while waiting and waiting[0][0].done:
            waiting.popleft()
        share = _share(waiting[0][1]) if waiting else None
        if share is not None and share.full:
            share.wait(line, partial(self._go_on, key, line))
            return
        del self.lines[key]
        if not waiting:
            return
        call, request = waiting.popleft()
        line.last = call
        if share is not None:
            share.in_flight += 1
        if model.backpressure.crowded or (waiting and share is None):
            self._line_up(key, line)
        elif waiting and share is not None:
            self.lines[key] = line
            share.wait(line, partial(self._go_on, key, line))
        call.request = request
        model.enqueue(request)


def _share(request: InferenceRequest) -> Share | None:
    """Return the share that a request has a part of, None where its model's answers are little."""
    return getattr(request.respond, "share", None)
