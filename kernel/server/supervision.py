"""Who looks after what models do: at executions that last, at calls that wait for one another, at what the watchdog has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kernel.circles.lookout import Lookout
from kernel.models.admission import Ceiling
from kernel.models.conduct import Conduct
from kernel.server.overtime import Overtime

__all__ = ["Supervision"]


class Supervision:
    """Of the models of one kernel.

    `conduct`: what the watchdog has seen of them. `ceiling`: how many of their requests may be in flight, None for any number.
    From `begin` on, `lookout`: for circles among their calls; `overtime`: of executions that may only last for so long.
    """

    lookout: Lookout
    overtime: Overtime

    def __init__(self, clock: Callable[[], float], most: int) -> None:
        """`most`: requests in flight, 0 for any number."""
        self.conduct = Conduct(clock)
        self.ceiling = Ceiling(most, "the server", "--max-inflight") if most else None

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
