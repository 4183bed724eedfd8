"""What the page is told as it happens: one producer for all who look, and none while nobody does.

A round looks at every model, a few at a time with turns of the loop between, and sends what has changed. The more of the loop's
time rounds take, the fewer there are. Who does not take what he is sent is told nothing until he does, and everything then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import thread_time
from typing import TYPE_CHECKING, Any

import msgspec

from kernel import Code, ServingError
from kernel_dashboard.figures import COUNTED, Figures, figures_of, latencies, quantiles, sendable, weighted_quantiles

if TYPE_CHECKING:
    import asyncio

    from kernel import Kernel, Model, Reader

__all__ = ["Feed", "event"]

#: A round begins so many seconds after the last did, or later where it takes more of the loop's time than this share.
PERIOD = 1.0
SHARE = 0.005
LONGEST = 10.0

#: How many models are looked at in one turn of the loop, as long as that takes no longer than so; how long others have it then;
#: seconds. A model takes some 10 µs, and more where its latencies are looked at.
SLICE = 32
SLICE_SECONDS = 0.0004
PAUSE = 0.004

#: How many may look, and how much may wait for one of them; bytes.
MOST_READERS = 64
MOST_WAITING = 256 * 1024

#: How many rounds are remembered for who comes later.
ROUNDS = 300

#: Latencies are looked at of so many models in a round, of the others in the next ones; of each at most so many requests, the
#: newest. They are shown until so many rounds have brought no request.
LATENCIES = 32
NEWEST = 256
KEPT_ROUNDS = 30

_encode = msgspec.json.Encoder().encode

Key = tuple[str, str]


def event(name: str, value: object) -> bytes:
    """Return a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))


class _Row:
    """What was last seen of a version. `shown`: its JSON. `idle`: how many rounds have brought no request. `told`: how many had
    succeeded when its latencies were last looked at, and `at` when that was.
    """

    __slots__ = ("at", "figures", "idle", "quantiles", "shown", "state", "told")

    def __init__(self) -> None:
        self.state: tuple[str, str] = ("", "")
        self.figures: Figures | None = None
        self.quantiles: list[float] | None = None
        self.idle = 0
        self.told = 0
        self.at = 0.0
        self.shown = b""


class Feed:
    """Tells readers. `hello`: what they are told first. On the loop of `kernel`."""

    def __init__(self, kernel: Kernel, hello: dict[str, Any]) -> None:
        self._kernel = kernel
        self._hello = hello
        self._readers: dict[Reader, bool] = {}  # -> whether it is behind, and is to be told everything
        self._rows: dict[Key, _Row] = {}
        self._models: tuple[int, dict[Key, Model]] = (-1, {})  # the kernel's generation, and what served then
        self._totals = [0] * COUNTED
        self._history: deque[list[Any]] = deque(maxlen=ROUNDS)
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._spent = 0.0  # of the loop's time, in this round
        self._rounds = 0
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
        self._began, self._spent = kernel.clock(), 0.0
        self._rounds += 1
        if self._models[0] != kernel.generation:
            self._models = kernel.generation, {(one.name, str(one.version)): one for one in kernel.models()}
        self._step(_Round(kernel.known(), self._models[1]))

    def _step(self, round: _Round) -> None:
        """Look at some of the models that are left."""
        loop, clock = self._kernel.loop, self._kernel.clock
        changed: list[bytes] = []
        began, worked, left = clock(), thread_time(), SLICE
        while left and not round.is_over:
            changed += self._look(round.take(), round)
            left = left - 1 if clock() < began + SLICE_SECONDS else 0
        if changed:
            self._send(b"event: rows\ndata: [%b]\n\n" % b",".join(changed))
        if round.is_over:
            self._end(round, clock())
        self._spent += thread_time() - worked  # a machine that is busy otherwise makes a look no dearer
        if round.is_over:
            period = min(max(PERIOD, self._spent / SHARE), LONGEST)
            self._timer = loop.call_later(max(PAUSE, self._began + period - clock()), self._begin)
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
            if figures != before or is_new or state != row.state:
                row.state, row.figures = state, figures
                told = (name, line.version, line.state, sendable(line.reason), figures, row.quantiles)
                row.shown = _encode(told)
                yield row.shown

    def _count(self, model: Model, figures: Figures, row: _Row, round: _Round) -> None:
        """Add a model's figures to those of all."""
        before: Figures | None = row.figures
        if before is None:
            before = figures  # it was not looked at so far
        elif figures[0] < before[0] or figures[4] < before[4]:
            before = (0,) * len(figures)  # it was made anew
        if figures[:COUNTED] != before[:COUNTED]:
            self._totals = [total + now - then for total, now, then in zip(self._totals, figures, before)]
        round.pending += figures[COUNTED]
        round.running += figures[COUNTED + 1]
        round.age = max(round.age, figures[COUNTED + 2])
        if figures[0] != before[0]:
            row.idle = 0
        elif row.idle < KEPT_ROUNDS:
            row.idle += 1
        else:
            row.quantiles = None
        if (round.at + self._rounds) % round.stride == 0:
            self._note_latencies(model, figures[0], row, round)

    def _note_latencies(self, model: Model, success: int, row: _Row, round: _Round) -> None:
        """Look at the latencies of what a model has answered since they were looked at last."""
        answered, since = success - row.told, row.at
        row.told, row.at = success, self._kernel.clock()
        if answered > 0 and since:  # what came before anybody looked is not of this moment
            took = latencies(self._kernel.recent(model, NEWEST // round.stride or 1, since))
            if took:
                row.quantiles = quantiles(took)
                weight = answered / len(took)
                round.took += [(one, weight) for one in took]

    def _end(self, round: _Round, now: float) -> None:
        gone = self._rows.keys() - round.seen
        if gone:
            for key in gone:
                del self._rows[key]
            self._send(event("gone", sorted(gone)))
        round.took.sort()
        totals = [
            round_ms(now + self._kernel.epoch_offset), *self._totals, round.pending, round.running, round.age,
            weighted_quantiles(round.took), round.ready, len(self._rows), round.broken,
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
        self.stride = -(-len(models) // LATENCIES) or 1  # latencies are looked at in one of so many rounds
        self.pending = self.running = self.age = self.ready = self.broken = 0
        self.at = 0
        self._names = names

    def take(self) -> str:
        """Return the name of the next model, of which there is one."""
        self.at += 1
        return self._names[self.at - 1]

    @property
    def is_over(self) -> bool:
        return self.at >= len(self._names)


def round_ms(seconds: float) -> int:
    return int(seconds * 1000)
