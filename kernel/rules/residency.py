"""Which models make room for another one, where not all of them can be there at a time: least recently used first.

Only models that have nothing to do go, as long as there are any; who has gone is loaded anew when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel.errors import Code, ServingError

__all__ = ["Budget", "Resident", "idle_for_long", "retry_seconds", "who_goes"]

#: How long a load waits for a model that has nothing to do, before one that is busy has to finish and go; seconds.
PATIENCE = 1.0

#: How long after a load that has failed the next request tries again: doubled each time, in seconds.
FIRST_RETRY = 1.0
LAST_RETRY = 60.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How many models may be there at a time, for `Kernel(..., control_mode="on-demand")`: those used least recently make room.

    `models`: by number, and `size`: in bytes of the process and its models' processes; 0 for any. `idle_seconds`: how long a
    model stays that nobody asks for and whose config has no parameter `idle_timeout`; 0.0 for any time. Raises
    ServingError(INVALID_ARG) for what is negative.
    """

    models: int = 0
    size: int = 0
    idle_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("models", "size", "idle_seconds"):
            if not getattr(self, name) >= 0:
                words = f"a budget's {name} is {getattr(self, name)}, wanted at least 0"
                raise ServingError(Code.INVALID_ARG, words)

    @property
    def limits(self) -> bool:
        """Whether it limits what is there at a time."""
        return bool(self.models or self.size)


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that is there.

    `used`: when it was last asked for, on the kernel's clock. `size`: bytes that it takes, 0 where that is not known. `busy`: it
    has requests, or sequences that go on. `open`: it has sequences, which would be lost with it. `held`: it can't go, such as
    one that was loaded at the start by name. `part`: an ensemble that is there needs it, so that it goes with that and counts
    as that. `idle_limit`: how long it may stay without requests, in seconds, 0.0 for any time.
    """

    name: str
    used: float
    size: int = 0
    busy: bool = False
    open: bool = False
    held: bool = False
    part: bool = False
    idle_limit: float = 0.0


def who_goes(
    there: Sequence[Resident], budget: Budget, coming: int, size: int, taken: int, waited: float
) -> list[str] | None:
    """Return who makes room, perhaps nobody; None: somebody has to, and nobody can yet.

    `coming`: how many models are about to be there besides. `size`: of these in bytes, as far as it is known. `taken`: bytes in
    use. `waited`: for how many seconds room has been wanted.
    """
    there = [one for one in there if not one.part]
    count = len(there) + coming - budget.models if budget.models else 0
    excess = taken + size - budget.size if budget.size else 0
    able = sorted((one for one in there if not one.held), key=lambda one: one.used)
    if not able and coming <= 1:
        return []  # there is nobody whom one could wait for
    go: list[str] = []
    free = [one for one in able if not one.busy] or [one for one in able if waited >= PATIENCE and not one.open][:1]
    for one in free:
        if count <= 0 and excess <= 0:
            break
        go.append(one.name)
        count -= 1
        excess -= one.size
        if count <= 0 and not one.size:
            break  # what it leaves behind is only known when it has gone
    return go if go or (count <= 0 and excess <= 0) else None


def idle_for_long(there: Iterable[Resident], now: float) -> list[str]:
    """Return those that nobody has asked for as long as they may stay so."""
    able = [one for one in there if one.idle_limit and not (one.busy or one.held or one.part)]
    return [one.name for one in able if now - one.used >= one.idle_limit]


def retry_seconds(failures: int) -> float:
    """Return after how many seconds a load is tried again that has failed so many times in a row."""
    return min(LAST_RETRY, FIRST_RETRY * 2.0 ** (min(failures, 16) - 1))
