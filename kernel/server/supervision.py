"""Who looks after what models do: at executions that last, at calls that wait for one another, at what the watchdog has seen; and
how much of it there may be at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from kernel.circles.lookout import Lookout
from kernel.models import Ceiling, Conduct
from kernel.rules import ResourceLimit
from kernel.scheduling import Limits
from kernel.server.overtime import Overtime

__all__ = ["Supervision"]


class Supervision:
    """Of the models of one kernel.

    `conduct`: what the watchdog has seen of them. `ceiling`: how many of their requests may be in flight, None for any number.
    `limits`: the resources that executions may need, None where nothing is asked. From `begin` on, `lookout`: for circles among
    their calls; `overtime`: of executions that may only last for so long.
    """

    lookout: Lookout
    overtime: Overtime

    def __init__(self, clock: Callable[[], float], most: int, resources: Sequence[ResourceLimit] | None) -> None:
        """`most`: requests in flight, 0 for any number. `resources`: of which executions may need some, None for no limits."""
        self.conduct = Conduct(clock)
        self.ceiling = Ceiling(most, "the server", "--max-inflight") if most else None
        self.limits = None if resources is None else Limits(resources)

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
        if self.limits is not None:
            self.limits.loop = loop
