"""What a server sees of its own models, round after round and a few at a time. Sends nothing, and adds nothing up.

What can't have changed is not looked at again: of a model that is READY in all its versions the states are asked for when another
model serves some name, and now and then, as a load that has begun changes nothing yet. What has not changed is the same object as
before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kernel_dashboard.figures import Figures, figures_of, latencies, sendable

if TYPE_CHECKING:
    from kernel import Kernel, Model

__all__ = ["Key", "Look", "Looker", "Seen"]

Key = tuple[str, str]

#: Latencies are looked at of so many models in a round, of the others in the next ones; of each at most so many requests, the
#: newest.
LATENCIES = 32
NEWEST = 256

#: Of more models than so many, the states of those that are READY are asked for in one of so many rounds.
FEW = 64
SELDOM = 4


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """A version as it was seen; `figures`: None where it is not READY. `took`: latencies of what it has answered since they were
    looked at last, milliseconds, ascending, which stand for `answered` requests; empty where they were not looked at.
    """

    name: str
    version: str
    state: str
    reason: str
    figures: Figures | None
    took: tuple[float, ...] = ()
    answered: int = 0


class _Version:
    """`told`: how many requests had succeeded when its latencies were last looked at, and `at` when that was."""

    __slots__ = ("at", "seen", "served", "told")

    def __init__(self) -> None:
        self.served: Model | None = None
        self.seen: Seen | None = None
        self.told = 0
        self.at = 0.0


class _Known:
    """The versions of a name. `steady`: all are READY."""

    __slots__ = ("steady", "versions")

    def __init__(self) -> None:
        self.steady = False
        self.versions: dict[str, _Version] = {}


class Look:
    """One look at all models: `number` of those before it, how far it has come."""

    def __init__(self, number: int, names: list[str], models: int) -> None:
        self.number = number
        self.at = 0
        self._names = names
        self.stride = -(-models // LATENCIES) or 1  # latencies are looked at in one of so many rounds
        self.often = SELDOM if models > FEW else 1

    def take(self) -> str:
        """Return the name of the next model, of which there is one."""
        self.at += 1
        return self._names[self.at - 1]

    @property
    def is_over(self) -> bool:
        return self.at >= len(self._names)


class Looker:
    """Looks at the models of a kernel. On its loop."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._generation = -1  # of the kernel, when it was last looked what serves
        self._models: dict[Key, Model] = {}
        self._known: dict[str, _Known] = {}
        self._count = 0

    def begin(self) -> Look:
        """Begin another round."""
        kernel = self._kernel
        names = kernel.known()
        if self._generation != kernel.generation:
            self._generation = kernel.generation
            self._models = {(one.name, str(one.version)): one for one in kernel.models()}
            there = set(names)
            self._known = {name: known for name, known in self._known.items() if name in there}
            for known in self._known.values():
                known.steady = False
        self._count += 1
        return Look(self._count, names, len(self._models))

    def see(self, look: Look) -> list[Seen]:
        """Return what is seen of the versions of the next model."""
        name = look.take()
        turn = look.at + look.number
        known = self._known.get(name)
        if known is None or not known.steady or turn % look.often == 0:
            known = self._asked(name, known)
        latencies_too = turn % look.stride == 0
        return [self._seen(one, look, latencies_too) for one in known.versions.values()]

    def _asked(self, name: str, known: _Known | None) -> _Known:
        """Ask for the states of a name's versions."""
        if known is None:
            known = self._known[name] = _Known()
        before, known.versions = known.versions, {}
        known.steady = True
        for line in self._kernel.states(name):
            one = known.versions[line.version] = before.get(line.version) or _Version()
            one.served = self._models.get((name, line.version)) if line.state == "READY" else None
            if one.served is None:
                known.steady = False
            seen, reason = one.seen, sendable(line.reason)
            if seen is None or (seen.state, seen.reason, seen.figures is None) != (line.state, reason, one.served is None):
                one.seen = Seen(name, line.version, line.state, reason, None)
        return known

    def _seen(self, one: _Version, look: Look, latencies_too: bool) -> Seen:
        seen, model = one.seen, one.served
        assert seen is not None
        if model is None:
            return seen
        figures = figures_of(model, self._kernel.clock(), seen.figures)
        if figures is not seen.figures:
            seen = one.seen = Seen(seen.name, seen.version, seen.state, seen.reason, figures)
        if latencies_too:
            success = figures[0]
            answered, since = success - one.told, one.at
            one.told, one.at = success, self._kernel.clock()
            if answered > 0 and since:  # what came before anybody looked is not of this moment
                took = latencies(self._kernel.recent(model, NEWEST // look.stride or 1, since))
                if took:
                    return Seen(seen.name, seen.version, seen.state, seen.reason, figures, tuple(took), answered)
        return seen
