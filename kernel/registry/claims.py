"""In which order operations on related models are carried out: first come, first served.

The law: an operation claims every model that it may touch, all at once, and begins when those that came before it and claim one
of them are over. Nobody ever holds one model and waits for another, so there is no way to block each other; operations on
unrelated models don't wait at all. Everything on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

__all__ = ["Claims"]


@dataclass(eq=False, slots=True)
class _Claim:
    names: frozenset[str]
    over: asyncio.Future[None]


class Claims:
    """The operations that are under way or wait for their turn, in the order of their arrival."""

    def __init__(self) -> None:
        self._line: dict[_Claim, None] = {}

    def hold(self, names: Collection[str]) -> AbstractAsyncContextManager[None]:
        """Wait for all earlier operations on one of `names`, and keep later ones waiting until the end of the block.

        What comes after this call is later, also where the block begins only in another task; it has to begin.
        """
        claim = _Claim(frozenset(names), asyncio.get_running_loop().create_future())
        earlier = [one for one in self._line if one.names & claim.names]
        self._line[claim] = None
        return self._held(claim, earlier)

    @asynccontextmanager
    async def _held(self, claim: _Claim, earlier: list[_Claim]) -> AsyncIterator[None]:
        try:
            for one in earlier:
                await asyncio.shield(one.over)  # others may wait for it, too
            yield
        finally:
            del self._line[claim]
            claim.over.set_result(None)

    def taken(self, names: Collection[str]) -> set[str]:
        """Return those of `names` that an operation is at, or is to be at."""
        return {name for one in self._line for name in one.names}.intersection(names)

    def taken_with(self, name: str, names: Collection[str]) -> set[str]:
        """Return those of `names` that an operation on `name` has claimed."""
        return {one for claim in self._line if name in claim.names for one in claim.names}.intersection(names)
