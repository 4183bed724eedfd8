"""How much has been executed by calls within one turn of the loop. One per kernel, shared by its schedulers.

Executions on the loop may start one another, each inside its caller; these are the bounds that keep that from going on forever.
"""

from __future__ import annotations

import asyncio

__all__ = ["CALLS_SECONDS", "NESTED", "STREAK", "TURN_SECONDS", "Turn"]

NESTED = 16  # executions within executions on the loop, before the next one has to wait for its turn
TURN_SECONDS = 0.001  # how long executions from the queue may follow one another within one turn of the loop
CALLS_SECONDS = 0.004  # how long calls of models may run at once within one turn of the loop …
STREAK = 1000  # … and how many of them at most: on virtual time they take no time


class Turn:
    """`depth`: executions within executions. `ends`: until when calls may run at once; 0.0 before the first one in this turn.

    `left`: how many more may begin then. `cant_wait`: the innermost execution runs without a greenlet, so it can't wait.
    """

    __slots__ = ("_loop", "cant_wait", "depth", "ends", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.depth = 0
        self.ends = 0.0
        self.left = 0
        self.cant_wait = False

    def begin(self, now: float) -> bool:
        """Whether a call may run at once though `ends` is over: that of the turn before, as the first one begins the next."""
        if self.ends:
            return False
        self.ends = now + CALLS_SECONDS
        self.left = STREAK
        self._loop.call_soon(self._next)
        return True

    def _next(self) -> None:
        """The next turn of the loop has begun."""
        self.ends = 0.0
