"""Which replica has a sequence. Pure: who is there and what others have said in, a name out.

The law: all that know of the same replicas give the same answer, without asking one another; who comes or goes moves no sequence
between the others, and none that is running. What has died with a replica is unknown to all.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Mapping

__all__ = ["Owners", "rendezvous"]

#: How many that have died are remembered: whose sequences they had is told then.
GONE = 16


class Owners:
    """Who has which sequence: by rendezvous hash one of those that are there, unless another has it and keeps it to its end.

    `own`: the name of the replica that asks; "" until it is known. The others are named, too, and no name comes again. A
    sequence is a model's key and its id. Where two have one of the same id, that one is alive which has begun later:
    whoever has the other is told so, and gives it up.
    """

    def __init__(self) -> None:
        self.own = ""
        self._there: set[str] = {""}
        self._gone: deque[str] = deque(maxlen=GONE)
        self._kept: dict[tuple[str, int | str], tuple[float, str]] = {}  # by others: when they began there, and where

    def called(self, own: str) -> None:
        """This replica has a name."""
        self._there.discard(self.own)
        self.own = own
        self._there.add(own)

    def came(self, name: str) -> None:
        """Another one takes sequences from now on."""
        self._there.add(name)

    def went(self, name: str, died: bool) -> None:
        """One takes no more; where it has not `died` it keeps those that it has."""
        self._there.discard(name)
        if died:
            self.keeps(name, {})
            if name not in self._gone:
                self._gone.append(name)

    def keeps(self, name: str, sequences: Mapping[tuple[str, int | str], float]) -> None:
        """Another one has these, since when, which the hash may not give to it; of others it says nothing."""
        for sequence in [one for one, (_, who) in self._kept.items() if who == name]:
            del self._kept[sequence]
        for sequence, began in sequences.items():
            self._kept[sequence] = max((began, name), self._kept.get(sequence, (began, name)))

    def keeper(self, sequence: tuple[str, int | str]) -> str:
        """Return the name of another one that has said that it has a sequence, "" where none has."""
        return self._kept.get(sequence, (0.0, ""))[1]

    def owner(self, model: str, id: int | str) -> str:
        """Return the name of who is to have a sequence that this replica has not."""
        return self.keeper((model, id)) or self._hashed(self._there, id)

    def leaves(self) -> None:
        """This replica takes no more: all that it has are kept."""
        self._there.discard(self.own)

    def is_own(self, id: int | str, besides: str = "") -> bool:
        """Whether the hash gives a sequence to this replica. `besides`: another one that is about to be there."""
        return self._hashed({*self._there, besides} if besides else self._there, id) == self.own

    def was_lost(self, id: int | str) -> bool:
        """Whether one that has died would have had a sequence."""
        return any(self._hashed({*self._there, name}, id) == name for name in self._gone)

    def _hashed(self, names: Collection[str], id: int | str) -> str:
        return rendezvous(names, repr(id))  # the same for all models: the steps of an ensemble have the id of its sequence


def rendezvous(names: Collection[str], what: str) -> str:
    """Return one of `names`, "" where there is none: the same for the same names; it changes only with the one that was it."""
    if len(names) < 2:
        return next(iter(names), "")
    return max(names, key=lambda name: hashlib.blake2b(f"{name}\0{what}".encode(), digest_size=8).digest())
