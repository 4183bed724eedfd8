"""Who looks after what models do: at executions that last, at calls that wait for one another, at what the watchdog has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kernel.circles.lookout import Lookout
from kernel.models.conduct import Conduct
from kernel.server.overtime import Overtime

__all__ = ["Supervision"]


class Supervision:
    """Of the models of one kernel.

    `conduct`: what the watchdog has seen of them. From `begin` on, `lookout`: for circles among their calls; `overtime`: of
    executions that may only last for so long.
    """

    lookout: Lookout
    overtime: Overtime

    def __init__(self, clock: Callable[[], float]) -> None:
        self.conduct = Conduct(clock)

    def begin(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        limit: float,
        follow: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Look from now on. `limit`: of an execution in seconds, 0.0 for none; `follow` has a coroutine run."""
        self.lookout = Lookout(loop)
        self.overtime = Overtime(limit, clock, follow)
