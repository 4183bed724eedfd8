"""Operations on what is loaded: start, load, unload, what a look at the disk has found, stop; and which models take part.

The law: an operation claims all models it may touch (claims.py), reads what their files say (reading.py), and carries that out
(operation.py); ensembles that are not named follow their models. Tables are catalog.py's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from kernel.errors import Code, NotLoaded, ServingError, clipped
from kernel.interfaces import Backend, Observer
from kernel.models import Model, Readiness, Runtime, warmup_of
from kernel.registry.catalog import Catalog, not_ready
from kernel.registry.claims import Claims
from kernel.registry.dependents import related_to
from kernel.registry.entries import Failure, ModelIndex
from kernel.registry.held_requests import HeldRequests
from kernel.registry.loading import Loader
from kernel.registry.on_demand import OnDemand
from kernel.registry.operation import Operation
from kernel.registry.pending_loads import Coming, PendingLoads
from kernel.registry.reading import LoadRequest, PlanReader
from kernel.registry.rollout import Rollout
from kernel.repository import LoadPlan, Repository, StartFailed, behind, check_model_name, remove_left_behind
from kernel.requests import InferenceRequest
from kernel.rules import Budget

__all__ = ["LoadRequest", "ModelIndex", "Registry"]

log = logging.getLogger("kernel")

#: How long sequences may be silent at most while everything stops: who has left one holds nobody up.
SILENCE_SECONDS = 2.0

FINALIZE_SECONDS = 5.0  # what the models' `finalize` may take at least when all are stopped


class Registry:
    """What is loaded in one kernel. `catalog` says what that is."""

    def __init__(
        self,
        kernel: Runtime,
        repositories: Sequence[Repository],
        backends: Mapping[str, Backend],
        budget: Budget | None,
    ) -> None:
        """`budget`: of models in mode on-demand. Raises ServingError where there is one in another mode."""
        self._kernel = kernel
        options = self._options = kernel.options
        self.loader = Loader(kernel, repositories, backends)
        self.catalog = Catalog(kernel, namespacing=options.namespacing)
        self._rollout = Rollout(kernel, self.catalog, self.loader)
        self._reader = PlanReader(self.catalog, self.loader, brings_along=options.explicit, parallel=options.load_threads)
        self._claims = Claims()
        self.pending_loads = PendingLoads()
        self.held = HeldRequests(kernel)
        self.broken: ServingError | None = None  # why there is nothing at all; with `exit_on_error` that is raised
        self._readiness = Readiness()
        self._followers: list[asyncio.Task[None]] = []  # what looks at the disk now and then
        self._demand: OnDemand | None = None
        if budget is not None and not options.on_demand:
            raise ServingError(Code.INVALID_ARG, "a budget of models wants the model control mode 'on-demand'")
        if options.on_demand:
            self._demand = OnDemand(self, lambda: kernel.clock(), budget or Budget())
            self.catalog.away = self._demand.away
        catalog = self.catalog
        self.lookup, self.ready_models = catalog.lookup, catalog.ready_models
        self.statistics = catalog.statistics

    def observe(self, ask: Callable[[Model], Observer | None]) -> None:
        """Ask for an observer of each version that serves and, from now on, of each that is loaded."""
        supervision = self._kernel.supervision
        supervision.observers = (*supervision.observers, ask)
        for model in self.ready_models():
            model.find_observers()

    def all_well(self) -> bool:
        """Whether every model that is to be there is (lifecycle, section 7). On demand those are the ones named at the start."""
        return self.catalog.all_well() if self._demand is None else self.catalog.all_well(self._demand.is_fleeting)

    def is_ready(self, name: str, version: str) -> bool:
        """Whether a version is READY, by default the newest; or may be asked for, where that has it loaded."""
        return self.catalog.is_ready(name, version) or self._may_come(name)

    def _may_come(self, name: str) -> bool:
        return self._demand is not None and not self.catalog.copies(name) and self._demand.may_come(name)

    def ask_ready(self, name: str, version: str, reply: Callable[[bool], None]) -> None:
        """As `is_ready`, but a model that can say so itself is asked; `reply` is told, once, perhaps before this returns."""
        if not self.catalog.is_ready(name, version):
            reply(self.is_ready(name, version))
        else:
            self._readiness.ask(self.lookup(name, version).scheduler.instances, reply)

    def index(self, ready: bool) -> list[ModelIndex]:
        self._check_usable()
        listing = self.loader.listing()
        if self._demand is not None:
            self._demand.know(listing)
        return self.catalog.index(ready, listing)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is to be loaded at start-up, ensembles after what they consist of."""
        try:
            names = found = await self.loader.in_thread(self.loader.names)
        except ServingError as missing:
            if self._options.exit_on_error:
                raise
            log.error("nothing is served, and the server is neither live nor ready: %s", missing.message)
            self.broken = missing
            self.catalog.broken = True
            return
        for words in await self.loader.in_thread(self.loader.strays):
            log.info("%s", words)
        if self._options.explicit:
            await self.loader.in_thread(remove_left_behind)
            names = {one for name in self._options.load_models for one in self.loader.repositories.meant_by(name)}
            if "*" in names:
                if len(names) > 1:
                    raise ServingError(
                        Code.INVALID_ARG,
                        "Wildcard model name '*' must be the ONLY startup model if specified at all.",
                    )
                names = found
        if self._demand is not None:
            self._demand.start(found, names)
            self.follow(self._demand.look_for_idle())
        failures = await self.bring_up({name: LoadRequest() for name in sorted(names)})
        for name, error in failures.items():
            self.catalog.entry(name)
            log.error("model '%s' failed to load: %s", name, error.message, extra=behind(error))
        if failures and self._options.exit_on_error:
            hints = await self.loader.in_thread(self.loader.mistaken)
            raise StartFailed(failures, hints, set(names) > failures.keys()) from next(iter(failures.values()))

    def follow(self, looking: Coroutine[Any, Any, None]) -> None:
        """Have somebody look at the disk until the end is near."""
        self._followers.append(asyncio.ensure_future(looking))

    @property
    def retiring(self) -> bool:
        """Whether nothing begins to serve any more."""
        return self._rollout.stopping

    def retire(self, silence: float | None = None) -> None:
        """Nothing begins to serve any more; what serves goes on. `silence`: sequences until they are silent for so many seconds,
        and no other begins.
        """
        if silence is not None:
            for model in self.catalog.ready_models():
                model.begin_no_sequence(silence)
        self._rollout.stopping = True
        for follower in self._followers:
            follower.cancel()
        if self._demand is not None:
            self._demand.stop()

    async def stop(self, timeout: float) -> None:
        """Refuse what is new, finish what was accepted, with all that it still calls, then finalize everything."""
        catalog = self.catalog
        self.retire()
        self.pending_loads.give_up()
        self.loader.stop()
        deadline = self._kernel.clock() + timeout
        for model in catalog.ready_models():
            model.stop(SILENCE_SECONDS)
        busy: list[Model] = []
        try:
            async with asyncio.timeout(timeout):
                # A request in flight may still call any model: nobody goes before all are idle.
                while busy := [model for model in catalog.alive() if not model.is_idle]:
                    await busy[0].drain()
        except TimeoutError:
            log.warning("%d models still had requests in flight when the time to finish them was over", len(busy))
        closing = [asyncio.ensure_future(model.close(0.0)) for model in catalog.alive()]
        if closing:
            patience = max(FINALIZE_SECONDS, deadline - self._kernel.clock())
            _, hanging = await asyncio.wait(closing, timeout=patience)
            if hanging:
                log.warning("finalize of %d models took longer than %.0f s and was left at that", len(hanging), patience)
                for task in hanging:
                    task.cancel()
        catalog.clear()
        if catalog.background:
            await asyncio.wait(catalog.background, timeout=max(0.1, deadline - self._kernel.clock()))
        self.loader.close()

    # -- load ----------------------------------------------------------------------------------------------------------

    async def load(self, name: str, load: LoadRequest, within: str) -> None:
        """Load one model as a client asks for it. `within`: the model whose own load makes this call."""
        self._check_usable()
        self.check_mode()
        if self._rollout.stopping:
            raise _exiting()
        check_model_name(name)
        names = [name]
        if self.loader.repositories.namespacing and not load.files:  # elsewhere the claim is made before anybody else's turn
            names = await self.loader.in_thread(self.loader.repositories.meant_by, name)
        failures = await self.bring_up(dict.fromkeys(names, load), within)
        for one in names:
            if one not in failures:
                log.info("model '%s' is loaded: version %s", one, self._versions(one))
                continue
            serving = self._versions(one)
            goes_on = f"version {serving} goes on serving" if serving else "nothing serves"
            error = failures[one]
            log.error("model '%s' is not loaded, %s: %s", clipped(one), goes_on, error.message, extra=behind(error))
        for error in failures.values():
            raise error

    def _versions(self, name: str) -> str:
        return ", ".join(map(str, sorted(self.catalog.copies(name))))

    async def update(self, names: Collection[str]) -> dict[str, ServingError]:
        """Load models whose files have changed, each as it was last asked for; return why which ones failed."""
        entries = self.catalog.entries
        return await self.bring_up({name: LoadRequest(entries[name].config if name in entries else None) for name in names})

    def groups(self, names: Collection[str]) -> list[set[str]]:
        """Return the names in groups of which none can touch another. With a model that is new there is one: who knows."""
        entries = self.catalog.entries
        if any(name not in entries or entries[name].plan is None for name in names):
            return [set(names)]
        groups: list[tuple[set[str], set[str]]] = []  # members, and all that is related to them
        for name in names:
            members, related = {name}, self._related([name])
            for group in [one for one in groups if not one[1].isdisjoint(related)]:
                groups.remove(group)
                members |= group[0]
                related |= group[1]
            groups.append((members, related))
        return [members for members, _ in groups]

    async def bring_up(self, asked: Mapping[str, LoadRequest], within: str = "") -> dict[str, ServingError]:
        """Load several models, some at a time, and what follows from that; return why which ones failed."""
        with self.pending_loads.expecting(asked) as coming:
            failures = await self._bring_up(asked, within, coming)
        return {name: error for name, error in failures.items() if name in asked}

    async def _bring_up(self, asked: Mapping[str, LoadRequest], within: str, coming: Coming) -> dict[str, ServingError]:
        names = self._related(asked)
        while True:
            if within and (taken := self._claims.taken_with(within, names)):
                words = f"a related model '{min(taken)}' to a load/unload request is currently loading or unloading"
                raise ServingError(Code.UNAVAILABLE, words)
            async with self._claims.hold(names):
                if self._rollout.stopping:
                    raise _exiting()
                work = await self._reader.read(asked)
                related = self._related({*asked, *work.plans}, work.plans)
                if related <= names:
                    parallel = self._options.load_threads
                    await Operation(self.catalog, self._rollout, self.pending_loads, work, coming, parallel).run()
                    break
            work.discard()  # more names are related than are claimed: all is read again once they are
            names |= related
        failures = work.failures
        for name in {*asked, *failures} & self.catalog.entries.keys():
            failed = failures.get(name)
            self.catalog.concluded(name, None if failed is None else Failure.of(failed))
        for name in failures.keys() & work.composing:
            log.warning("model '%s', which an ensemble needs, failed to load: %s", name, failures[name].message)
        return failures

    def _related(self, names: Iterable[str], plans: Mapping[str, LoadPlan] | None = None) -> set[str]:
        """Return the names and all that an operation on them may touch, by what is known and what was planned."""
        planned = {name: plan.config for name, plan in (plans or {}).items()}
        return related_to(names, [self.catalog.configs(), planned])

    def hold(
        self, request: InferenceRequest, error: ServingError, submit: Callable[[InferenceRequest], None]
    ) -> ServingError | None:
        """Keep a request whose model is not there, as `error` says, if it is worth waiting for, and submit it again then.

        Return None if so, else the error to answer it with.
        """
        told: ServingError | None = error
        if request.parent is not None and error.code is not Code.INVALID_ARG:
            told = self.pending_loads.hold(request, error, submit)
            if isinstance(told, NotLoaded) and (told is not error) and (taken := self._taken_by_caller(request)):
                words = f"{error.message}; the load of '{taken}' has claimed it, and would wait for itself"
                told = ServingError(Code.UNAVAILABLE, words)
        if isinstance(told, NotLoaded):
            self.held.hold(request, told, submit)
            return None
        return told

    def _taken_by_caller(self, request: InferenceRequest) -> str:
        """Return the model whose warmup makes a call, if its own load has claimed what a load of the called one would claim."""
        caller = warmup_of(request)
        if caller is None or not self._claims.taken_with(caller, self._related([request.model_name])):
            return ""
        return caller

    # -- on demand -----------------------------------------------------------------------------------------------------

    async def bring(self, name: str) -> ServingError | None:
        """Load a model since a request asks for it; return why it can't be."""
        error = (await self.bring_up({name: LoadRequest()})).get(name)
        if error is not None:
            log.error("model '%s' was asked for and is not loaded: %s", clipped(name), error.message, extra=behind(error))
        return error

    async def dismiss(self, name: str) -> None:
        """Take a model out of service, with what was only loaded for it; return when it is finalized."""
        async with self._claims.hold(self._related([name])):
            if not self._rollout.stopping:
                self._unload_now(name, True)
        await self.unloaded(name, None)

    def parts(self) -> set[str]:
        """Return the models that ensembles which serve consist of."""
        plans = [entry.plan for entry in self.catalog.entries.values() if entry.serves and entry.plan is not None]
        return {step.model_name for plan in plans for step in plan.config.ensemble or ()}

    # -- unload --------------------------------------------------------------------------------------------------------

    def unload(self, name: str, *, dependents: bool) -> asyncio.Task[None] | None:
        """Take a model out of service now. An operation on it that is under way is followed by another unload: returned, too."""
        self._check_usable()
        self.check_mode()
        turns = [self._unload(one, dependents) for one in self.catalog.meant_by(name)]
        waiting = [turn for turn in turns if turn is not None]
        return self.catalog.later(_all_over(waiting)) if len(waiting) > 1 else waiting[0] if waiting else None

    def _unload(self, name: str, dependents: bool) -> asyncio.Task[None] | None:
        touched = self._related([name])
        turn = None
        if self._claims.taken(touched):
            turn = self.catalog.later(self._unload_in_turn(name, self._claims.hold(touched), dependents))
        elif (entry := self.catalog.entries.get(name)) is None or not (entry.serves or entry.failed):
            log.warning("unload of model '%s', which is not loaded", clipped(name))
        self._unload_now(name, dependents)
        return turn

    async def unloaded(self, name: str, turn: asyncio.Task[None] | None) -> None:
        """Return when all versions of a model that were retired are finalized. `turn`: an unload that is still to come."""
        if turn is not None:
            await asyncio.wait([turn])
        entry = self.catalog.entries.get(name)
        background = self.catalog.background
        while entry is not None and background and any(version.leaving for version in entry.versions.values()):
            await asyncio.wait(set(background), return_when=asyncio.FIRST_COMPLETED)

    async def _unload_in_turn(self, name: str, turn: AbstractAsyncContextManager[None], dependents: bool) -> None:
        async with turn:
            if not self._rollout.stopping:
                self._unload_now(name, dependents)

    async def withdraw(self, name: str, problem: str = "") -> None:
        """Take a model out of service that is not in the repository any more, or is in two of them."""
        async with self._claims.hold(self._related([name])):
            if self._rollout.stopping:
                return
            sighting = (await self.loader.in_thread(self.loader.sight, [name]))[name]
            if len(sighting.paths) != 1:
                self._unload_now(name, False)
                self.catalog.gone(name, sighting, problem)

    def _unload_now(self, name: str, dependents: bool) -> None:
        """Retire a model and the ensembles that use it; with `dependents` also what was only loaded for it."""
        catalog = self.catalog
        entry = catalog.entries.get(name)
        if entry is None:
            return
        catalog.unwant(name)
        if entry.serves:
            log.info("model '%s' is unloaded", name)
        catalog.retire_all(name)
        for other in sorted(self._ensembles_of(name)):
            if catalog.copies(other):
                log.info("ensemble '%s' is unloaded with model '%s', which it needs", other, name)
            catalog.retire_all(other)
        if not dependents or entry.plan is None:
            return
        for step in entry.plan.config.ensemble or ():
            composing = catalog.entries.get(step.model_name)
            needed = any(catalog.copies(other) for other in self._ensembles_of(step.model_name))
            if composing is not None and composing.implicit and composing.wanted and not needed:
                self._unload_now(step.model_name, True)

    def _ensembles_of(self, name: str) -> set[str]:
        return related_to([name], [self.catalog.configs()], down=False) - {name}

    def _check_usable(self) -> None:
        if self.broken is not None:
            raise not_ready()

    def check_mode(self) -> None:
        """Raise ServingError where clients may not load and unload."""
        if not self._options.explicit:
            words = "explicit model load / unload is not allowed if polling is enabled"  # the reference's, polling or not
            mode = f"the model control mode is '{self._options.control_mode}', wanted is 'explicit'"
            raise ServingError(Code.UNAVAILABLE, f"{words} ({mode})")


async def _all_over(tasks: Collection[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


def _exiting() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "Server exiting")
