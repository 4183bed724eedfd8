"""Who looks after what models do: at executions that last, at calls that wait for one another, at what the watchdog has seen; how
much of it there may be at a time, and how many instances do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from kernel.circles.lookout import Lookout
from kernel.interfaces import Observer
from kernel.models import Ceiling, Conduct, Model, Takers
from kernel.observability import History
from kernel.rules import ResourceLimit
from kernel.scheduling import Limits
from kernel.server.explain import keep_records
from kernel.server.overtime import Overtime
from kernel.server.scaling import Scaling

__all__ = ["Supervision"]


class Supervision:
    """Of the models of one kernel.

    `conduct`: what the watchdog has seen of them. `history`: what is kept of their requests. `observers`: whom each version
    that is loaded asks for one. `ceiling`: how many requests may be in flight, None for any number. `peers`: the other replicas,
    None where there are none. `limits`: the resources that executions may need, None where nothing is asked. `ahead`: what a
    process that is to take the place of this one may do beforehand: functions, as `module:function`. From `begin` on,
    `lookout`: for circles among their calls; `overtime`: of executions that may only last for so long; `scaling`: of how many
    instances there are.
    """

    lookout: Lookout
    overtime: Overtime
    scaling: Scaling

    def __init__(self, clock: Callable[[], float], most: int, resources: Sequence[ResourceLimit] | None) -> None:
        """`most`: requests in flight, 0 for any number. `resources`: of which executions may need some, None for no limits."""
        self.conduct = Conduct(clock)
        self.history = History()
        self.observers: tuple[Callable[[Model], Observer | None], ...] = ()
        self.ceiling = Ceiling(most, "the server", "--max-inflight") if most else None
        self.peers: Takers | None = None  # the other replicas of a group; to be set before models are loaded
        self.ahead: set[str] = set()
        self.limits = None if resources is None else Limits(resources)

    def begin(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        limit: float,
        follow: Callable[[Coroutine[Any, Any, None]], object],
        models: Callable[[], Sequence[Model]],
    ) -> None:
        """Look from now on. `limit`: of an execution in seconds, 0.0 for none; `follow` has a coroutine run; `models()` serve."""
        self.lookout = Lookout(loop)
        self.overtime = Overtime(limit, clock, follow)
        self.scaling = Scaling(clock, models, follow)
        if self.limits is not None:
            self.limits.loop = loop

    def know(self, model: Model) -> None:
        """Look after a model version from now on: what becomes of its requests, its executions that last, its instances."""
        keep_records(self.history, model)
        self.overtime.know(model)
        self.scaling.know(model)
