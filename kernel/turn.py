"""What has happened on the loop without giving others their turn. One per kernel, shared by its schedulers.

Executions on the loop may start one another in place; this is the count that keeps them from doing so without end.
"""

from __future__ import annotations

import asyncio

__all__ = ["NESTED", "STREAK", "Turn"]

NESTED = 16  # executions within executions on the loop, before the next one has to wait for its turn
STREAK = 64  # calls of models that run at once within one turn of the loop


class Turn:
    """`depth`: executions within executions. `calls`: of models that would run at once.

    `plain`: the innermost execution runs without a greenlet, so it can't wait.
    """

    __slots__ = ("_loop", "calls", "depth", "plain")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.depth = 0
        self.calls = 0
        self.plain = False

    def begin(self) -> None:
        """Have `calls` counted from zero again when others have had their turn."""
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.calls = 0
