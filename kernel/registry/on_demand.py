"""Control mode `on-demand`: who is asked for is loaded, and who is not asked for makes room.

The law: a request for a model that is not there waits for its load, and is then served as any other, or answered with why it
could not be loaded. It never waits without end, and a budget is a goal for which no request is lost: what another model calls is
loaded at once, above the budget, since the caller can't go before it has its answer. Who goes says rules/residency.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kernel.config import idle_limit_of
from kernel.errors import Code, NotLoaded, ServingError, clipped
from kernel.registry.footprint import bytes_in_use
from kernel.repository import check_model_name
from kernel.rules import Budget, Resident, idle_for_long, retry_seconds, who_goes

if TYPE_CHECKING:
    from kernel.models import Model
    from kernel.registry.catalog import Catalog
    from kernel.registry.loading import Loader

__all__ = ["OnDemand"]

log = logging.getLogger("kernel")

#: Told why a model could not be had, or None: it is there.
Then = Callable[[ServingError | None], None]

#: How many models may be on their way at a time, and how many requests may wait for them.
MOST_LOADS = 256
MOST_WAITING = 16_384

#: Of how many models it is known that their loads have failed; the oldest are forgotten first.
MOST_FAILURES = 1024

#: How often it is looked whether room can be made, and for how long before a model is loaded above the budget; seconds.
LOOK_SECONDS = 0.02
MOST_PATIENCE = 10.0

#: How long it takes at most until what a model has left behind is given back to the system; seconds.
MOST_RETURN = 2.0

#: How often it is looked who was idle for too long, at most; seconds.
IDLE_LOOK_SECONDS = 1.0


@dataclass(slots=True)
class _Failed:
    """`times` in a row; the next request after `until` tries again."""

    error: ServingError
    times: int
    until: float


class Loads(Protocol):
    """What loads and unloads: the registry."""

    catalog: Catalog
    loader: Loader

    @property
    def retiring(self) -> bool: ...

    async def bring(self, name: str) -> ServingError | None: ...

    async def dismiss(self, name: str) -> None: ...

    def parts(self) -> set[str]: ...


class OnDemand:
    """Loads the models of a registry as they are asked for, within `budget`."""

    def __init__(self, registry: Loads, clock: Callable[[], float], budget: Budget) -> None:
        self._registry = registry
        self._clock = clock
        self._budget = budget
        self._waiting: dict[str, list[Then]] = {}  # models on their way -> who waits for them
        self._count = 0  # of those who wait
        self._coming: set[str] = set()  # models that have their room and are not there yet
        self._loaded: dict[str, float] = {}  # when models were loaded
        self._sizes: dict[str, int] = {}  # by how much the process grew by their last loads, in bytes
        self._failed: dict[str, _Failed] = {}
        self._room = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: frozenset[str] = frozenset()
        self.kept: frozenset[str] = frozenset()  # who was loaded at the start by name, and stays

    def start(self, known: set[str], kept: set[str]) -> None:
        """`known`: the models that lie in the repositories."""
        self._known = frozenset(known)
        self.kept = frozenset(kept)

    # -- who is asked for ------------------------------------------------------------------------------------------------

    def may_come(self, name: str) -> bool:
        """Whether a model that does not serve would be loaded for a request."""
        return name in self._known and name not in self._failed

    def is_fleeting(self, name: str) -> bool:
        """Whether a model comes and goes as it is asked for, instead of being there from the start."""
        return name not in self.kept

    def away(self, name: str, error: ServingError) -> ServingError:
        """Return what to raise for a model that does not serve: NotLoaded where it is worth waiting for, else why it is not.

        `error`: what is said without this mode.
        """
        registry = self._registry
        entry = registry.catalog.entries.get(name)
        if registry.retiring or error.code is Code.INVALID_ARG or (entry is not None and entry.serves):
            return error  # such as a version that it doesn't have
        try:
            check_model_name(name)
        except ServingError:
            return error  # no model can have that name
        failed = self._failed.get(name)
        if failed is not None and (left := failed.until - self._clock()) > 0:
            if failed.error.code is Code.NOT_FOUND:
                return failed.error
            words = f"{failed.error.message} (the load is tried again in {left:.1f} s at the earliest)"
            return ServingError(failed.error.code, words)
        if self._count >= MOST_WAITING or (name not in self._waiting and len(self._waiting) >= MOST_LOADS):
            words = f"model '{clipped(name)}' is not loaded, and too many requests wait for models that are being loaded"
            return ServingError(Code.UNAVAILABLE, words)
        words = f"model '{clipped(name)}' is not loaded; a request for it has it loaded"
        return NotLoaded(words, partial(self._wait, name))

    def _wait(self, name: str, then: Then, called: bool) -> None:
        """Have `then` told when the model is there. `called`: a model makes the call."""
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = []
            task = asyncio.ensure_future(self._bring(name, called))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif called:
            self._coming.add(name)  # where it still waits for room it does so no longer
        waiting.append(then)
        self._count += 1

    # -- loads -----------------------------------------------------------------------------------------------------------

    async def _bring(self, name: str, called: bool) -> None:
        error: ServingError | None = None
        try:
            if called:
                self._coming.add(name)
            error = await self._load(name)
        except ServingError as problem:
            error = problem
        except Exception as problem:
            log.exception("model '%s' could not be loaded", clipped(name))
            error = ServingError(Code.INTERNAL, f"model '{name}' could not be loaded: {type(problem).__name__}: {problem}")
        finally:
            self._coming.discard(name)
        self._note(name, error)
        self._tell(name, error)
        if self._budget.limits:
            async with self._room:  # it may have brought others along, or be larger than was known
                await self._make_room(None)

    def _tell(self, name: str, error: ServingError | None) -> None:
        """Have those go on who wait for a model."""
        waiting = self._waiting.pop(name, [])
        self._count -= len(waiting)
        for then in waiting:
            try:
                then(error)
            except Exception:
                log.exception("a request that waited for model '%s' can't go on", clipped(name))

    async def _load(self, name: str) -> ServingError | None:
        registry = self._registry
        loader = registry.loader
        sighting = (await loader.in_thread(loader.sight, [name]))[name]
        if not sighting.paths:
            return ServingError(Code.NOT_FOUND, f"Request for unknown model: '{clipped(name)}' is not found")
        if self._budget.limits and name not in self._coming:
            async with self._room:
                await self._make_room(name)
                self._coming.add(name)
        before = await self._taken()
        error = await registry.bring(name)
        if error is not None:  # no mistake of who asks
            return ServingError(Code.UNAVAILABLE, f"model '{name}' can't be loaded: {error.message.strip()}")
        self._loaded[name] = self._clock()
        if self._budget.size:
            self._sizes[name] = max(0, await self._taken() - before)
        log.info("model '%s' was asked for and is loaded", name)
        return None

    def _note(self, name: str, error: ServingError | None) -> None:
        """Remember how a load has ended."""
        before = self._failed.pop(name, None)
        if error is not None:
            times = 1 if before is None else before.times + 1
            again = retry_seconds(1 if error.code is Code.NOT_FOUND else times)
            self._failed[name] = _Failed(error, times, self._clock() + again)
            if len(self._failed) > MOST_FAILURES:
                del self._failed[next(iter(self._failed))]

    # -- room ------------------------------------------------------------------------------------------------------------

    async def _make_room(self, name: str | None) -> None:
        """Have models go until there is room for `name`; None: until what is there fits."""
        began = self._clock()
        while True:
            waited = self._clock() - began
            taken = await self._taken()
            there = self._residents()
            coming = len(self._coming.difference(one.name for one in there)) + (name is not None)
            size = self._sizes.get(name, 0) if name is not None else 0
            go = who_goes(there, self._budget, coming, size, taken, waited)
            if go == [] or (name is not None and name in self._coming):
                return
            if go is None:
                if name is None:
                    return  # who comes next makes room
                if waited >= MOST_PATIENCE:
                    log.warning("model '%s' is loaded above the budget: nobody made room for %.0f s", name, waited)
                    return
                await asyncio.sleep(LOOK_SECONDS)
                continue
            for one in go:
                await self._dismiss(one, "makes room")
            if self._budget.size:
                await self._until_less(taken, sum(self._sizes.get(one, 0) for one in go))

    async def _dismiss(self, name: str, why: str) -> None:
        used = self._used(name)
        log.info("model '%s' %s: it was last asked for %.1f s ago", name, why, self._clock() - used)
        self._loaded.pop(name, None)
        await self._registry.dismiss(name)

    async def _until_less(self, taken: int, size: int) -> None:
        """Return when about `size` bytes have been given back of those that were taken, which may be a little after the end."""
        for _ in range(round(MOST_RETURN / LOOK_SECONDS)):
            if await self._taken() <= taken - size // 2:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _taken(self) -> int:
        return await self._registry.loader.in_thread(bytes_in_use) if self._budget.size else 0

    def _residents(self) -> list[Resident]:
        registry = self._registry
        parts = registry.parts()
        found = []
        for name, entry in registry.catalog.entries.items():
            if not entry.serves:
                continue
            models = list(registry.catalog.copies(name).values())
            found.append(
                Resident(
                    name,
                    self._used(name),
                    self._sizes.get(name, 0),
                    any(_is_busy(model) for model in models),
                    name in self.kept or name in self._coming,
                    name in parts,
                    max((idle_limit_of(model.config.parameters, self._budget.idle_seconds) for model in models), default=0.0),
                )
            )
        return found

    def _used(self, name: str) -> float:
        """Return when a model was last asked for, or loaded."""
        used = self._loaded.get(name, 0.0)
        for model in self._registry.catalog.copies(name).values():
            statistics = model.scheduler.statistics
            statistics.settle()
            used = max(used, statistics.last_inference)
        return used

    # -- now and then -----------------------------------------------------------------------------------------------------

    async def look_for_idle(self) -> None:
        """Have those go that nobody asks for, and those that were loaded above the budget, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_LOOK_SECONDS)
            if self._budget.limits and not self._room.locked():
                async with self._room:
                    await self._make_room(None)
            for name in idle_for_long(self._residents(), self._clock()):
                await self._dismiss(name, "goes")

    def stop(self) -> None:
        """Nothing is loaded any more: tell those who wait."""
        for task in list(self._tasks):
            task.cancel()
        for name in list(self._waiting):
            self._tell(name, ServingError(Code.UNAVAILABLE, "Server exiting"))


def _is_busy(model: Model) -> bool:
    return not model.scheduler.is_idle or model.scheduler.queue.has_sequences
