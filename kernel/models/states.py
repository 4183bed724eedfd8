"""The states of a version, from its load to its end, and which may follow which: one table for all who are in one.

A model is in a state, and so is the version that the index shows, which goes on while one model replaces another. Both are
moved by `become`, and nobody else assigns a state.
"""

from __future__ import annotations

import enum
from typing import Protocol

__all__ = ["MOVES", "ModelState", "become"]


class ModelState(enum.Enum):
    """Where a version of a model is in its life. `UNAVAILABLE` is where it begins and ends; the index then has the reason."""

    LOADING = "LOADING"
    READY = "READY"  # it takes requests
    UNLOADING = "UNLOADING"  # it takes no new ones, and answers what it has
    UNAVAILABLE = "UNAVAILABLE"


_LOADING, _READY, _UNLOADING, _UNAVAILABLE = ModelState

#: From which state to which; everything else is a bug of the core. Where a successor is made for a version that serves, the
#: version stays READY, and is retired like any other; so the successor may find it in any state.
MOVES: dict[ModelState, frozenset[ModelState]] = {
    # It serves; it came up for a load that has failed; it did not come up.
    _LOADING: frozenset({_READY, _UNLOADING, _UNAVAILABLE}),
    # Another model serves; it is retired, or was the one to go at the end.
    _READY: frozenset({_READY, _UNLOADING}),
    # It is loaded again before it has gone; its successor serves; it has gone, or the next load has failed meanwhile.
    _UNLOADING: frozenset({_LOADING, _READY, _UNAVAILABLE}),
    # It is loaded; its successor serves, although it has gone; there is another reason.
    _UNAVAILABLE: frozenset({_LOADING, _READY, _UNAVAILABLE}),
}


class HasState(Protocol):
    """A model, or a version in the index. Its `str` names it in messages."""

    state: ModelState


def become(who: HasState, then: ModelState) -> None:
    """Move to another state, or to the same once more. Raises AssertionError where that may not follow."""
    if then not in MOVES[who.state]:
        raise AssertionError(f"{who} is {who.state.value} and can't become {then.value}")
    who.state = then
