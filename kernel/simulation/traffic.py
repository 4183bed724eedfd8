"""What requests are like, besides when they come: rows, contents, priorities, time-outs, sequences. One seed gives one traffic.

Nothing is drawn before it is needed, so that what a simulation keeps does not depend on how its requests differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.models import Model
from kernel.requests import InferenceRequest, Respond
from kernel.simulation.arrivals import Arrivals
from kernel.simulation.forms import Forms, Shapes
from kernel.simulation.numbers import number, wrong

__all__ = ["CONTENTS", "Mix", "SimulatedTraffic", "read_contents", "read_priorities", "read_shapes"]

CONTENTS = 10_000_000  # different ones at most
DRAWN = 4096  # at a time

START, END = 1, 2  # flags of a sequence's first and last request


@dataclass(frozen=True)
class Mix:
    """What requests are like where the arrivals do not say it.

    `rows`: of each. `contents`: how many different ones there are; 0: all are alike; `skew`: the k-th comes 1/k^skew as often as
    the first. `priorities`: level and weight. `timeout`: the request parameter of that name, in seconds, 0.0 for none;
    `deadline`: likewise, seconds after which no answer is of use. `sequence_length`: requests of a sequence on average,
    `length_variation`: and by which share they may be more or fewer; `sequences`: how many go on at a time. `shapes`: of inputs
    and outputs.
    """

    rows: int = 1
    contents: int = 0
    skew: float = 0.0
    priorities: tuple[tuple[int, float], ...] = ()
    timeout: float = 0.0
    deadline: float = 0.0
    sequence_length: int = 20
    length_variation: float = 0.2
    sequences: int = 4
    shapes: Shapes = field(default_factory=dict)


def read_contents(text: str) -> tuple[int, float]:
    """Read `--distinct`: `N` or `N,SKEW`. Raises ServingError."""
    count, comma, skew = text.partition(",")
    if not (count.isascii() and count.isdigit() and 1 <= int(count) <= CONTENTS):
        raise wrong(f"--distinct is '{text}', wanted is N or N,SKEW, where N is an integer from 1 to {CONTENTS}")
    return int(count), number(skew, "the skew in --distinct") if comma else 0.0


def read_priorities(text: str) -> tuple[tuple[int, float], ...]:
    """Read `--priority`: `2`, or levels with weights: `1:20,2:80`. Raises ServingError."""
    found: dict[int, float] = {}
    for part in text.split(","):
        level, colon, weight = part.strip().partition(":")
        if not (level.isascii() and level.isdigit() and int(level) < 2**32) or int(level) in found:
            raise wrong(f"--priority is '{text}', wanted is a level, or levels with weights such as 1:20,2:80")
        found[int(level)] = number(weight, f"the weight of level {level} in --priority") if colon else 1.0
    if not sum(found.values()):
        raise wrong(f"--priority is '{text}': all weights are 0")
    return tuple(found.items())


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read `--shape`: `NAME:D,D`. Raises ServingError."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, dims = text.rpartition(":")
        sizes = dims.split(",")
        if not name or not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
            raise wrong(f"--shape is '{text}', wanted is NAME:D,D, with integers of at least 1")
        found[name] = tuple(map(int, sizes))
    return found


class SimulatedTraffic:
    """Makes the requests of a model. `plain`: all are alike. `levels`: the priority of each so far, None where none has any."""

    def __init__(self, model: Model, arrivals: Arrivals | None, mix: Mix, seed: int, sequential: bool) -> None:
        """`arrivals`: what a file says of each request; None where there is no file. `sequential`: they are of sequences."""
        self.model = model
        self.forms = Forms(model, mix.shapes)
        self._mix = mix
        columns = arrivals or Arrivals(np.zeros(1))
        self._count = 0 if arrivals is None else len(arrivals.offsets)
        draw = _Drawn(seed)
        self._rows = _column(columns.rows)
        self._contents = _column(columns.contents) or draw.contents(mix)
        priorities = _column(columns.priorities) or draw.priorities(mix)
        self._priorities = priorities
        self._timeouts = _column(columns.timeouts)
        self._sequences, self._flags = _column(columns.sequences), _column(columns.flags)
        self._streams = _Streams(model, mix, draw) if sequential and self._sequences is None else None
        self.slots = mix.sequences
        self.levels: list[int] | None = [] if priorities else None
        said = (self._rows, self._contents, priorities, self._timeouts, self._sequences, self._streams)
        alike = not (any(one is not None for one in said) or mix.timeout or mix.deadline)
        self.plain = alike and not self.forms.owned and not model.is_cached and not model.decoupled
        if self._rows is None:
            self.forms.of(mix.rows, mix.contents)  # raises what would be wrong with each of them

    @property
    def rows(self) -> int:
        """How many rows each request has, where nothing says it of each."""
        return self._mix.rows

    def make(self, answer: Respond, index: int, slot: int, now: float) -> InferenceRequest:
        """Make the next request. `index`: how many came before; `slot`: whose it is, of those that send sequences."""
        mix = self._mix
        rows = mix.rows if self._rows is None else next(self._rows)
        inputs, form = self.forms.of(rows, 0 if self._contents is None else next(self._contents))
        priority, timeout_us = 0, round(mix.timeout * 1e6)
        if self._priorities is not None:
            priority = next(self._priorities)
            assert self.levels is not None
            self.levels.append(priority)
        if self._timeouts is not None:
            timeout_us = next(self._timeouts)
        id: int | str = 0
        flags = 0
        if self._streams is not None:
            id, flags = self._streams.next(slot, last=0 < self._count <= index + mix.sequences)
        elif self._sequences is not None:
            id, flags = next(self._sequences), next(self._flags) if self._flags is not None else 0
        deadline = now + mix.deadline if mix.deadline else None
        return InferenceRequest(
            self.model.name, inputs, answer, "", "", None, None, priority, timeout_us, deadline, id, flags, None, None, form
        )

    def goes_on(self, slot: int) -> bool:
        """Whether the last request of `slot` was not the end of its sequence."""
        return self._streams is not None and self._streams.left[slot] > 0


class _Drawn:
    """What is drawn by chance, some at a time."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def _endless(self, number: int, draw: Callable[[np.random.Generator], NDArray[Any]]) -> Iterator[Any]:
        generator = np.random.default_rng((self._seed, number))
        while True:
            yield from draw(generator).tolist()

    def contents(self, mix: Mix) -> Iterator[int] | None:
        """Return which content comes next, from 1 on."""
        if not mix.contents:
            return None
        if not mix.skew:
            return self._endless(1, lambda generator: generator.integers(1, mix.contents + 1, DRAWN))
        shares = np.cumsum(np.arange(1, mix.contents + 1, dtype=np.float64) ** -mix.skew)
        return self._endless(1, lambda generator: np.searchsorted(shares, generator.random(DRAWN) * shares[-1]) + 1)

    def priorities(self, mix: Mix) -> Iterator[int] | None:
        if not mix.priorities:
            return None
        levels, weights = (np.array(column) for column in zip(*mix.priorities))
        shares = weights / weights.sum()
        return self._endless(2, lambda generator: generator.choice(levels, DRAWN, p=shares))

    def lengths(self, mix: Mix) -> Iterator[int]:
        low = max(1, round(mix.sequence_length * (1 - mix.length_variation)))
        high = max(low, round(mix.sequence_length * (1 + mix.length_variation)))
        return self._endless(3, lambda generator: generator.integers(low, high + 1, DRAWN))


class _Streams:
    """Sequences, one after another in each slot. `left`: how many requests of the one that goes on are still to come."""

    def __init__(self, model: Model, mix: Mix, draw: _Drawn) -> None:
        self.left: dict[int, int] = {}
        self._ids: dict[int, int | str] = {}
        self._lengths = draw.lengths(mix)
        self._last = 0
        batching = model.config.sequence_batching
        controls = batching.controls if batching is not None else ()
        self._text = any(one.kind == "CORRID" and one.datatype == "BYTES" for one in controls)

    def next(self, slot: int, *, last: bool) -> tuple[int | str, int]:
        """Return id and flags of the next request. `last`: none comes after it in this slot."""
        flags = 0
        left = self.left.get(slot, 0)
        if not left:
            self._last += 1
            self._ids[slot] = str(self._last) if self._text else self._last
            left, flags = next(self._lengths), START
        left = 0 if last else left - 1
        self.left[slot] = left
        return self._ids[slot], flags if left else flags | END


def _column(values: Sequence[Any] | NDArray[Any] | None) -> Iterator[Any] | None:
    """Return the values one by one, as Python's own."""
    if values is None:
        return None
    return (one for at in range(0, len(values), DRAWN) for one in np.asarray(values[at : at + DRAWN]).tolist())
