"""One operation carried out: the plans of several models, and the ensembles that follow from what has changed.

The law: a model waits for nobody, an ensemble for what it consists of; one that uses what has changed is made anew, and goes out
of service where that fails. Each name is settled when it is done with, so that who waits for it goes on. On the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from kernel.errors import ServingError
from kernel.registry.catalog import Catalog
from kernel.registry.dependents import by_dependency
from kernel.registry.pending_loads import Coming, PendingLoads
from kernel.registry.reading import Work
from kernel.registry.rollout import Rollout
from kernel.repository import LoadPlan

__all__ = ["Operation"]

log = logging.getLogger("kernel")


class Operation:
    """One load request carried out. `coming`: the names that are not settled yet, each with the models that it, an ensemble,
    consists of; others wait for them by it. `work.failures` gets the error of each plan that fails.
    """

    def __init__(
        self, catalog: Catalog, rollout: Rollout, pending_loads: PendingLoads, work: Work, coming: Coming, parallel: int
    ) -> None:
        """`parallel`: how many versions may be made at a time."""
        self._catalog = catalog
        self._rollout = rollout
        self._pending_loads = pending_loads
        self._work = work
        self._coming = coming
        self._planned = work.ensembles()
        self._limit = asyncio.Semaphore(parallel)
        self._changed: set[str] = set()  # names under which other copies serve by now

    async def run(self) -> None:
        """Carry out the plans, ensembles after what they consist of."""
        known = {name: config for name, config in self._catalog.configs().items() if config.is_ensemble}
        ensembles = {**known, **self._planned}
        coming, tasks = self._coming, dict[str, asyncio.Task[None]]()
        for name, plan in self._work.plans.items():
            if name not in self._planned:
                coming[name] = set()
                tasks[name] = asyncio.ensure_future(self._model(plan))
        for name in by_dependency(ensembles):
            steps = coming[name] = {step.model_name for step in ensembles[name].ensemble or ()}
            # It waits for its own steps alone: another model may call this very ensemble in its warmup, and wait for it.
            before = [tasks[step] for step in steps & tasks.keys()]
            tasks[name] = asyncio.ensure_future(self._ensemble(name, steps, before))
        for name in coming.keys() - tasks.keys():
            self._pending_loads.settle(coming, name)  # it was asked for and has no plan: it is as it was, or can't be read
        await asyncio.gather(*tasks.values())

    async def _model(self, plan: LoadPlan) -> None:
        await self._carry_out(plan)
        self._pending_loads.settle(self._coming, plan.config.name)

    async def _ensemble(self, name: str, steps: set[str], before: Collection[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        catalog = self._catalog
        uses_changed = not self._changed.isdisjoint(steps)
        entry = catalog.entry(name)
        plan = self._work.plans.get(name)
        problem = ""
        if plan is not None:
            problem = await self._carry_out(plan, uses_changed)
        elif uses_changed and entry.plan is not None and (entry.wanted or entry.serves):
            problem = await self._carry_out(entry.plan, True)
        if uses_changed and problem and entry.serves:
            log.warning("ensemble '%s' is unavailable: %s", name, problem)
            catalog.retire_all(name, problem)
        self._pending_loads.settle(self._coming, name)

    async def _carry_out(self, plan: LoadPlan, anew: bool = False) -> str:
        """Carry out one plan; return why it failed, or nothing."""
        catalog, name = self._catalog, plan.config.name
        before = catalog.copies(name)
        problem = ""
        try:
            await self._rollout.carry_out(plan, self._planned, self._work.failures, self._limit, anew=anew)
            catalog.concluded(name, None)
        except ServingError as error:
            self._work.failures[name] = error
            problem = error.message
        if catalog.copies(name) != before:
            self._changed.add(name)
        return problem
