"""What the page is told as it happens: one producer for all who look, and none while nobody does.

A round looks at every model, a few at a time with turns of the loop between, and sends what has changed; how often there is one
depends on how many models there are. Who does not take what he is sent is told nothing until he does, and everything then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from kernel import Code, ServingError
from kernel_dashboard.figures import COUNTED, Figures, figures_of, latencies, quantiles, sendable

if TYPE_CHECKING:
    import asyncio

    from kernel import Kernel, Model, Reader

__all__ = ["Feed", "event"]

#: A round begins so many seconds after the last did, or later where there are many models: so many are looked at in a second.
PERIOD = 1.0
MODELS_PER_SECOND = 500

#: How many models are looked at in one turn of the loop, and how long others have it then; seconds. A model takes some 5 µs.
SLICE = 32
PAUSE = 0.005

#: How many may look, and how much may wait for one of them; bytes.
MOST_READERS = 64
MOST_WAITING = 256 * 1024

#: How many rounds are remembered for who comes later.
ROUNDS = 300

#: Of how many of a model's newest requests the quantiles are, and for how many rounds without any these are shown.
NEWEST = 256
KEPT_ROUNDS = 30

_encode = msgspec.json.Encoder().encode

Key = tuple[str, str]


def event(name: str, value: object) -> bytes:
    """Return a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))


class _Row:
    """What was last seen of a version. `shown`: its JSON. `idle`: how many rounds have brought no request."""

    __slots__ = ("figures", "idle", "quantiles", "shown", "state")

    def __init__(self) -> None:
        self.state: tuple[str, str] = ("", "")
        self.figures: Figures | None = None
        self.quantiles: list[float] | None = None
        self.idle = 0
        self.shown = b""


class Feed:
    """Tells readers. `hello`: what they are told first. On the loop of `kernel`."""

    def __init__(self, kernel: Kernel, hello: dict[str, Any]) -> None:
        self._kernel = kernel
        self._hello = hello
        self._readers: dict[Reader, bool] = {}  # -> whether it is behind, and is to be told everything
        self._rows: dict[Key, _Row] = {}
        self._totals = [0] * COUNTED
        self._history: deque[list[Any]] = deque(maxlen=ROUNDS)
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._looked = 0.0  # when the round before began
        self._closed = False

    def follow(self, reader: Reader) -> None:
        """Tell a reader from now on. Raises ServingError where too many are told."""
        if self._closed:
            raise ServingError(Code.UNAVAILABLE, "the server is about to stop")
        self._drop_gone()
        if len(self._readers) >= MOST_READERS:
            words = f"{len(self._readers)} look at this page already, and no more can be told"
            raise ServingError(Code.UNAVAILABLE, words)
        self._readers[reader] = False
        self._tell_all(reader)
        if self._timer is None:
            self._begin()

    def close(self) -> None:
        """End what is told."""
        self._closed = True
        self._stop()
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.end()

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._drop_gone()
        if not self._readers:
            self._stop()
            return
        kernel = self._kernel
        self._looked, self._began = self._began, kernel.clock()
        models = {(model.name, str(model.version)): model for model in kernel.models()}
        self._step(_Round(kernel.known(), models))

    def _step(self, round: _Round) -> None:
        """Look at some of the models that are left."""
        changed = [shown for name in round.take(SLICE) for shown in self._look(name, round)]
        if changed:
            self._send(b"event: rows\ndata: [%b]\n\n" % b",".join(changed))
        loop, now = self._kernel.loop, self._kernel.clock()
        if round.is_over:
            self._end(round, now)
            period = max(PERIOD, len(self._rows) / MODELS_PER_SECOND)
            self._timer = loop.call_later(max(PAUSE, self._began + period - now), self._begin)
        else:
            self._timer = loop.call_later(PAUSE, self._step, round)

    def _look(self, name: str, round: _Round) -> Iterator[bytes]:
        """Yield what has changed of the versions of a model."""
        for line in self._kernel.states(name):
            key = (name, line.version)
            row = self._rows.get(key)
            is_new = row is None
            if row is None:
                row = self._rows[key] = _Row()
            round.seen.add(key)
            model = round.models.get(key) if line.state == "READY" else None
            figures, before = None if model is None else figures_of(model, self._kernel.clock()), row.figures
            state = (line.state, line.reason)
            if model is not None and figures is not None:
                self._count(model, figures, row, round)
            round.ready += line.state == "READY"
            round.broken += line.state == "UNAVAILABLE" and line.reason not in ("", "unloaded")
            if is_new or figures != before or state != row.state:
                row.state, row.figures = state, figures
                told = (name, line.version, line.state, sendable(line.reason), figures, row.quantiles)
                row.shown = _encode(told)
                yield row.shown

    def _count(self, model: Model, figures: Figures, row: _Row, round: _Round) -> None:
        """Add a model's figures to those of all."""
        before: Figures | None = row.figures
        if before is None or any(now < then for now, then in zip(figures[:COUNTED], before)):
            before = (0,) * len(figures) if before is not None else figures  # it was made anew; or was not looked at so far
        for at in range(COUNTED):
            self._totals[at] += figures[at] - before[at]
        round.pending += figures[COUNTED]
        round.running += figures[COUNTED + 1]
        round.age = max(round.age, figures[COUNTED + 2])
        answered = figures[0] - before[0]
        if answered:
            took = latencies(self._kernel.recent(model, NEWEST, self._looked))
            if took:
                row.quantiles = quantiles([(one, 1.0) for one in took])
                row.idle = 0
                weight = answered / len(took)
                round.took += [(one, weight) for one in took]
        elif row.quantiles is not None:
            row.idle += 1
            if row.idle > KEPT_ROUNDS:
                row.quantiles = None

    def _end(self, round: _Round, now: float) -> None:
        gone = self._rows.keys() - round.seen
        if gone:
            for key in gone:
                del self._rows[key]
            self._send(event("gone", sorted(gone)))
        round.took.sort()
        totals = [
            round_ms(now + self._kernel.epoch_offset), *self._totals, round.pending, round.running, round.age,
            quantiles(round.took), round.ready, len(self._rows), round.broken,
        ]  # fmt: skip
        self._history.append(totals)
        self._send(event("round", totals))

    # -- readers -------------------------------------------------------------------------------------------------------

    def _tell_all(self, reader: Reader) -> None:
        rows = b",".join([row.shown for row in self._rows.values() if row.shown])
        reader.send(
            event("hello", {**self._hello, "now": round_ms(self._kernel.clock() + self._kernel.epoch_offset)})
            + event("history", list(self._history))
            + (b"event: rows\ndata: [%b]\n\n" % rows)
        )

    def _send(self, piece: bytes) -> None:
        for reader, behind in self._readers.items():
            if behind:
                if not reader.waiting:
                    self._readers[reader] = False
                    self._tell_all(reader)
            elif reader.waiting > MOST_WAITING:
                self._readers[reader] = True
            else:
                reader.send(piece)

    def _drop_gone(self) -> None:
        self._readers = {reader: behind for reader, behind in self._readers.items() if not reader.is_gone}

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Round:
    """One look at all models: their names, those that are READY, and what is added up on the way."""

    def __init__(self, names: list[str], models: dict[Key, Model]) -> None:
        self.models = models
        self.seen: set[Key] = set()
        self.took: list[tuple[float, float]] = []  # latencies, each with how many requests it stands for
        self.pending = self.running = self.age = self.ready = self.broken = 0
        self._names = names
        self._at = 0

    def take(self, count: int) -> list[str]:
        names = self._names[self._at : self._at + count]
        self._at += count
        return names

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._names)


def round_ms(seconds: float) -> int:
    return int(seconds * 1000)
