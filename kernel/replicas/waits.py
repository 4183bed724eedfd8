"""What requests at other replicas wait for: asked where a circle of calls is suspected, and remembered for a moment.

The law: what was told is passed on as it was; whether it makes a circle is decided in kernel/circles. Nothing of it is on a
request's way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernel.circles.lookout import Behind
from kernel.replicas.forms import AskWaits, Waits, write

__all__ = ["FarWaits", "Stretch", "refs_of"]

#: For how long it is not asked again, of what can't go on and of what can. The former stays so until what it waits for is
#: answered.
STUCK_SECONDS = 1.0
FREE_SECONDS = 0.05

#: Who has a request, who has handed it over, and by which number.
_Ref = tuple[str, str, int]


class FarPeer(Protocol):
    """Another replica. `taken`: its requests that are here, by number."""

    @property
    def taken(self) -> dict[int, Any]: ...

    @property
    def link(self) -> Any: ...


class FarPeers(Protocol):
    """The other replicas. `owners.own`: the name of this one."""

    @property
    def owners(self) -> Any: ...

    def named(self, name: str) -> FarPeer | None: ...


@dataclass(frozen=True)
class Stretch:
    """Models whose executions at another replica wait, one for the next, the last for a request that `holder` has of `giver`."""

    beyond: FarWaits = field(compare=False, repr=False)
    holder: str
    giver: str
    number: int
    names: tuple[str, ...]

    def awaited(self, told: Callable[[], None]) -> Sequence[Any] | None:
        """Return what has to go on first at its end; None: nothing, or it is asked for, and `told` called."""
        return self.beyond.awaited(self.holder, self.giver, self.number, told)


class FarWaits:
    """What the others have said."""

    def __init__(self, peers: FarPeers, clock: Callable[[], float]) -> None:
        self._peers = peers
        self._clock = clock
        self._said: dict[_Ref, tuple[float, tuple[Stretch, ...] | None]] = {}
        self._asked: dict[_Ref, Callable[[], None]] = {}  # who wants to hear of it

    def awaited(self, holder: str, giver: str, number: int, told: Callable[[], None]) -> Sequence[Any] | None:
        """Return what has to go on before a request can that `holder` has of `giver`; None: nothing, nobody knows, or `holder` is
        asked, and `told` called when it has said so.
        """
        if holder == self._peers.owners.own:
            other = self._peers.named(giver)
            request = None if other is None else other.taken.get(number)
            return None if request is None else (request,)
        other = self._peers.named(holder)
        if other is None:
            return None
        ref = holder, giver, number
        self._forget()
        if ref in self._said:
            return self._said[ref][1]
        if ref not in self._asked:
            other.link.send(write(AskWaits(giver, number)))
        self._asked[ref] = told
        return None

    def said(self, holder: str, waits: Waits) -> None:
        """`holder` has answered."""
        ref = holder, waits.giver, waits.number
        told = self._asked.pop(ref, None)
        if told is not None:
            behind = waits.behind
            found = None if behind is None else tuple(Stretch(self, who, holder, k, tuple(names)) for who, k, names in behind)
            self._said[ref] = self._clock(), found
            told()

    def gone(self, holder: str) -> None:
        """One has gone, and answers nothing any more."""
        for ref in [ref for ref in self._asked if ref[0] == holder]:
            del self._asked[ref]

    def _forget(self) -> None:
        """Forget what was said too long ago."""
        now = self._clock()
        for ref, (when, said) in list(self._said.items()):
            if now - when > (FREE_SECONDS if said is None else STUCK_SECONDS):
                del self._said[ref]


def refs_of(behind: Behind) -> list[tuple[str, int, list[str]]] | None:
    """Return what `Lookout.look_beyond` has found as Waits has it."""
    if behind is None:
        return None
    found = []
    for request, names in behind:
        there = request.model.scheduler.at(request)
        if there is None:
            return None  # it has just been answered
        peer, number = there
        found.append((peer.load.name, number, names))
    return found
