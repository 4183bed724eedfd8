"""What the page is told as it happens: one producer for all who look, and none while nobody does.

A round looks at every model, a few at a time with turns of the loop between, and sends what has changed. The more of the loop's
time rounds take, the fewer there are. Who does not take what he is sent is told nothing until he does, and everything then.
Where there are several replicas each tells what it sees (group.py), and what is sent are the sums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import thread_time
from typing import TYPE_CHECKING, Any

import msgspec

from kernel import Code, ServingError
from kernel_dashboard.figures import AGE, COUNTED, PENDING, RUNNING, Figures, quantiles, weighted_quantiles
from kernel_dashboard.group import merged
from kernel_dashboard.looking import Key, Look, Looker, Seen

if TYPE_CHECKING:
    import asyncio

    from kernel import Kernel, Reader

__all__ = ["Feed", "Others", "event"]

#: A round begins so many seconds after the last did, or later where it takes more of the loop's time than this share. A third of
#: the hundredth that it may take of what the loop gets done: on a machine with others, that is less than the time that passes.
PERIOD = 1.0
SHARE = 0.003
LONGEST = 10.0

#: How many models are looked at in one turn of the loop, and of how many what has changed is sent together; how long such a turn
#: may take, and how long others have the loop then; seconds. A model takes some 5 µs, more where its latencies are looked at.
SLICE = 32
TOGETHER = 128
SLICE_SECONDS = 0.0004
PAUSE = 0.004

#: How many may look, and how much may wait for one of them; bytes.
MOST_READERS = 64
MOST_WAITING = 256 * 1024

#: How many rounds are remembered for who comes later; how many without a request latencies are shown for.
ROUNDS = 300
KEPT_ROUNDS = 30

_encode = msgspec.json.Encoder().encode

#: Asks the other replicas, and calls back on the loop with what each sees, by its number; or with None and why that is not known.
Others = Callable[[Callable[["Mapping[int, list[Seen]] | None", str], None]], None]


def event(name: str, value: object) -> bytes:
    """Return a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))


class _Row:
    """What was last seen of a version, by replica. `told`: what was sent of it, and `shown` that as JSON. `idle`: how many rounds
    have brought no request. `took`: latencies of this round, each with how many requests it stands for.
    """

    __slots__ = ("idle", "parts", "quantiles", "shown", "told", "took")

    def __init__(self) -> None:
        self.parts: dict[int, Seen] = {}
        self.took: list[tuple[float, float]] = []
        self.quantiles: list[float] | None = None
        self.idle = 0
        self.told: tuple[Any, ...] = ()
        self.shown = b""

    def grow_older(self, figures: Figures) -> None:
        """Another round is over: latencies are not shown for ever of what is not asked any more."""
        before = self.told[4] if self.told else None
        if before is None or figures[0] != before[0]:
            self.idle = 0
        elif self.idle < KEPT_ROUNDS:
            self.idle += 1
        else:
            self.quantiles = None


class Feed:
    """Tells readers. `hello`: what they are told first. On the loop of `kernel`.

    `replica`: which it is, where there are `others`.
    """

    def __init__(self, kernel: Kernel, hello: dict[str, Any], replica: int = 0, others: Others | None = None) -> None:
        self._kernel = kernel
        self._hello = hello
        self._replica = replica
        self._others = others
        self._group: dict[str, Any] = {"replicas": [replica], "trouble": ""}
        self._looker = Looker(kernel)
        self._readers: dict[Reader, bool] = {}  # -> whether it is behind, and is to be told everything
        self._rows: dict[Key, _Row] = {}
        self._keys: dict[int, set[Key]] = {}  # which versions each replica knew in the last round
        self._totals = [0] * COUNTED
        self._history: deque[list[Any]] = deque(maxlen=ROUNDS)
        self._timer: asyncio.TimerHandle | None = None
        self._round: _Round | None = None  # while there is one
        self._began = 0.0
        self._spent = 0.0  # of the loop's time, in this round
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
        if self._timer is None and self._round is None:
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
        self._timer = None
        self._drop_gone()
        if not self._readers:
            self._stop()
            return
        worked = thread_time()
        self._began = self._kernel.clock()
        look = self._looker.begin()
        self._round = round = _Round(look, self._replica)
        self._spent = thread_time() - worked
        self._work(round, self._seen(round), self._end if self._others is None else self._ask)

    def _work(self, round: _Round, steps: Iterator[bytes], then: Callable[[_Round], None]) -> None:
        """Take some steps of a round, and leave the rest to further turns of the loop. A step gives what is to be sent."""
        if self._round is not round:
            return
        loop, clock = self._kernel.loop, self._kernel.clock
        changed: list[bytes] = []
        began, worked, left, over = clock(), thread_time(), SLICE, False
        while left and not over:
            piece = next(steps, None)
            over = piece is None
            if piece:
                changed.append(piece)
            left = left - 1 if clock() < began + SLICE_SECONDS else 0
        round.changed += changed
        if round.changed and (over or len(round.changed) >= TOGETHER):
            changed, round.changed = round.changed, []
            self._send(b"event: rows\ndata: [%b]\n\n" % b",".join(changed))
        self._spent += thread_time() - worked  # a machine that is busy otherwise makes a look no dearer
        if over:
            then(round)
        else:
            self._timer = loop.call_later(PAUSE, self._work, round, steps, then)

    def _seen(self, round: _Round) -> Iterator[bytes]:
        """Look at our own models."""
        see, look, alone = self._looker.see, round.look, self._others is None
        while not look.is_over:
            told = []
            for seen in see(look):
                row = self._note(self._replica, seen, round)
                if alone:
                    told.append(self._show((seen.name, seen.version), row, round))
            yield b",".join(filter(None, told))

    def _ask(self, round: _Round) -> None:
        assert self._others is not None
        self._others(lambda found, trouble: self._told(round, found, trouble))

    def _told(self, round: _Round, found: Mapping[int, list[Seen]] | None, trouble: str) -> None:
        """The others have told what they see; None: they have not, and what they have told last holds."""
        if self._round is round:
            if found is None:
                for number, keys in self._keys.items():
                    round.keys.setdefault(number, keys)
            group = {"replicas": sorted({*round.keys, *(found or ())}), "trouble": trouble}
            if group != self._group:
                self._group = group
                self._send(event("group", group))
            self._work(round, self._together(round, found or {}), self._end)

    def _together(self, round: _Round, found: Mapping[int, list[Seen]]) -> Iterator[bytes]:
        """Add what others see to what we do."""
        for number, every in found.items():
            round.keys[number] = set()
            for seen in every:
                self._note(number, seen, round)
                yield b""
        self._drop(round)
        loaded = {name for name, version in self._rows if version}
        for key, row in list(self._rows.items()):
            if not key[1] and key[0] in loaded:  # not loaded at one, while it is at another
                shown, row.shown, row.told = row.shown, b"", ()  # before it is sent: who is told everything is not told this
                if shown:
                    self._send(event("gone", [key]))
                yield b""
            else:
                yield self._show(key, row, round)

    def _note(self, number: int, seen: Seen, round: _Round) -> _Row:
        """Note what a replica has seen of a version, and count what is new."""
        key = (seen.name, seen.version)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row()
        round.keys[number].add(key)
        before = row.parts.get(number)
        if before is not seen:
            row.parts[number] = seen
            if seen.figures is not None:
                self._count(seen.figures, None if before is None else before.figures)
            if seen.took:
                weight = seen.answered / len(seen.took)
                row.took += [(one, weight) for one in seen.took]
        return row

    def _count(self, figures: Figures, before: Figures | None) -> None:
        """Add what is new in a version's figures to those of all."""
        if before is None or before is figures:
            return  # it was not looked at so far
        if figures[0] < before[0] or figures[4] < before[4]:
            before = (0,) * len(figures)  # it was made anew
        if figures[:COUNTED] != before[:COUNTED]:
            self._totals = [total + now - then for total, now, then in zip(self._totals, figures, before)]

    def _show(self, key: Key, row: _Row, round: _Round) -> bytes:
        """Add a version to the round; return what has changed of it, as JSON."""
        parts = row.parts
        if self._others is None:
            seen = parts[self._replica]
            state, reason, figures = seen.state, seen.reason, seen.figures
        else:
            state, reason, figures = merged(parts, len(round.keys))
        if figures is not None:
            round.pending += figures[PENDING]
            round.running += figures[RUNNING]
            round.age = max(round.age, figures[AGE])
            row.grow_older(figures)
        round.known += 1
        round.ready += state == "READY"
        round.broken += state == "UNAVAILABLE" and reason not in ("", "unloaded")
        if row.took:
            took, row.took = sorted(row.took), []
            round.took += took
            row.quantiles = weighted_quantiles(took) if len(parts) > 1 else quantiles([one for one, _ in took])
        told = (*key, state, reason, figures, row.quantiles)
        if told == row.told:
            return b""
        row.told = told
        row.shown = _encode(told)
        return row.shown

    def _end(self, round: _Round) -> None:
        kernel = self._kernel
        now = kernel.clock()
        if self._others is None:
            self._drop(round)  # else that was before the sums
        round.took.sort()
        totals = [
            round_ms(now + kernel.epoch_offset), *self._totals, round.pending, round.running, round.age,
            weighted_quantiles(round.took), round.ready, round.known, round.broken,
        ]  # fmt: skip
        self._history.append(totals)
        self._send(event("round", totals))
        self._round = None
        period = min(max(PERIOD, self._spent / SHARE), LONGEST)
        self._timer = kernel.loop.call_later(max(PAUSE, self._began + period - now), self._begin)

    def _drop(self, round: _Round) -> None:
        """Forget what a replica does not know any more, and replicas that are not there any more."""
        before, self._keys = self._keys, round.keys
        gone = []
        for number, keys in before.items():
            for key in keys - round.keys.get(number, frozenset()):
                row = self._rows[key]
                row.parts.pop(number, None)
                if not row.parts:
                    del self._rows[key]
                    gone.append(key)
        if gone:
            self._send(event("gone", sorted(gone)))

    # -- readers -------------------------------------------------------------------------------------------------------

    def _tell_all(self, reader: Reader) -> None:
        rows = b",".join([row.shown for row in self._rows.values() if row.shown])
        reader.send(
            event("hello", {**self._hello, "now": round_ms(self._kernel.clock() + self._kernel.epoch_offset)})
            + (event("group", self._group) if self._others is not None else b"")
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
        self._round = None


class _Round:
    """One look at all models, and what is added up on the way. `keys`: the versions that each replica knows."""

    def __init__(self, look: Look, replica: int) -> None:
        self.look = look
        self.keys: dict[int, set[Key]] = {replica: set()}
        self.changed: list[bytes] = []  # what is to be sent of it
        self.took: list[tuple[float, float]] = []  # latencies, each with how many requests it stands for
        self.pending = self.running = self.age = self.known = self.ready = self.broken = 0


def round_ms(seconds: float) -> int:
    return int(seconds * 1000)
