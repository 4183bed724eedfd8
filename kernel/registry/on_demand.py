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
from kernel.repository import Listing, may_be_model
from kernel.rules import Budget, Resident, idle_for_long, retry_seconds, who_goes

if TYPE_CHECKING:
    from kernel.models import Model
    from kernel.registry.catalog import Catalog
    from kernel.registry.loading import Loader

__all__ = ["OnDemand"]

log = logging.getLogger("kernel")

#: Told why a model could not be had, or None: it is there.
Then = Callable[[ServingError | None], None]

#: Whether somebody still waits.
Waits = Callable[[], bool]

#: How many models may be on their way at a time, and how many requests may wait for them.
MOST_LOADS = 256
MOST_WAITING = 16_384

#: Of how many models it is known that their loads have failed, and of how many names that there is no model; the oldest are
#: forgotten first.
MOST_FAILURES = 1024
MOST_UNKNOWN = 1024

#: How often it is looked whether room can be made, and for how long before a model is loaded above the budget, also while who
#: makes room does not come to its end; seconds.
LOOK_SECONDS = 0.02
MOST_PATIENCE = 10.0

#: How long it takes at most until what a model has left behind is given back to the system; seconds.
MOST_RETURN = 2.0

#: How often it is looked who was idle for too long, and who still waits, at most; seconds.
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
        self._waiting: dict[str, list[tuple[Then, Waits]]] = {}  # models on their way -> who waits for them
        self._count = 0  # of those who wait
        self._coming: set[str] = set()  # models that have their room and are not there yet
        self._making: dict[str, asyncio.Task[None]] = {}  # models that room is made for
        self._going: dict[str, asyncio.Task[None]] = {}  # models that make room, until they have come to their end
        self._loaded: dict[str, float] = {}  # when models were loaded, or first seen, of those that are there
        self._sizes: dict[str, int] = {}  # by how much the process grew by their last loads, in bytes
        self._failed: dict[str, _Failed] = {}
        self._unknown: dict[str, float] = {}  # names of no model, and until when nobody looks again
        self._room = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: frozenset[str] = frozenset()
        self.kept: frozenset[str] = frozenset()  # who was loaded at the start by name, and stays

    def start(self, known: set[str], kept: set[str]) -> None:
        """`known`: the models that lie in the repositories."""
        self._known = frozenset(known)
        self.kept = frozenset(kept)

    def know(self, listing: Listing) -> None:
        """Somebody has looked what lies in the repositories."""
        self._known = frozenset(listing.names) | (self._known if listing.incomplete else frozenset())

    # -- who is asked for ------------------------------------------------------------------------------------------------

    def may_come(self, name: str) -> bool:
        """Whether a model that does not serve would be loaded for a request."""
        return name in self._known and name not in self._failed and name not in self._unknown

    def is_fleeting(self, name: str) -> bool:
        """Whether a model comes and goes as it is asked for, instead of being there from the start."""
        return name not in self.kept

    def away(self, name: str, error: ServingError) -> ServingError:
        """Return what to raise for a model that does not serve: NotLoaded where it is worth waiting for, else why it is not.

        `error`: what is said without this mode.
        """
        registry = self._registry
        entry = registry.catalog.entries.get(name)
        if error.code is Code.INVALID_ARG or (entry is not None and entry.serves) or not may_be_model(name):
            return error  # such as a version that it doesn't have, or a name that no model can have
        if registry.retiring:  # another server would have it loaded
            return ServingError(Code.UNAVAILABLE, "Server exiting") if name in self._known else error
        if self._unknown.get(name, 0.0) > self._clock():
            return _unknown(name)
        failed = self._failed.get(name)
        if failed is not None and (left := failed.until - self._clock()) > 0:
            words = f"{failed.error.message} (the load is tried again in {left:.1f} s at the earliest)"
            return ServingError(failed.error.code, words)
        if self._count >= MOST_WAITING:
            self._forget_those_gone()
        if self._count >= MOST_WAITING or (name not in self._waiting and self._is_crowded(name in self._known)):
            words = f"model '{clipped(name)}' is not loaded, and too many requests wait for models that are being loaded"
            return ServingError(Code.UNAVAILABLE, words)
        words = f"model '{clipped(name)}' is not loaded; a request for it has it loaded"
        return NotLoaded(words, partial(self._wait, name))

    def _is_crowded(self, known: bool) -> bool:
        """Whether as many models are on their way as may be; of names that nobody knows half as many, which keep no other out."""
        if len(self._waiting) < MOST_LOADS // 2:
            return False
        several = sum((one in self._known) == known for one in self._waiting)
        return several >= (MOST_LOADS if known else MOST_LOADS // 2)

    def _wait(self, name: str, then: Then, waits: Waits, called: bool) -> None:
        """Have `then` told when the model is there, if it still waits. `called`: a model makes the call."""
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = []
            task = asyncio.ensure_future(self._bring(name, called))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif called:
            self._coming.add(name)
            if (making := self._making.get(name)) is not None:
                making.cancel()  # who makes the call may be the one that is to make room, and can't before it has its answer
        waiting.append((then, waits))
        self._count += 1

    def _forget_those_gone(self) -> None:
        """Let go of what is held for those who do not wait any more: a load may take long, and inputs be large."""
        for waiting in self._waiting.values():
            waiting[:] = [one for one in waiting if one[1]()]
        self._count = sum(map(len, self._waiting.values()))

    # -- loads -----------------------------------------------------------------------------------------------------------

    async def _bring(self, name: str, called: bool) -> None:
        error: ServingError | None = ServingError(Code.UNAVAILABLE, f"the load of model '{name}' was given up")
        try:
            if called:
                self._coming.add(name)
            error = await self._load(name)
        except ServingError as problem:
            error = problem
        except Exception as problem:
            log.exception("model '%s' could not be loaded", clipped(name))
            error = ServingError(Code.INTERNAL, f"model '{name}' could not be loaded: {type(problem).__name__}: {problem}")
        finally:  # also where code of a model has cancelled all tasks that it could find
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
        for then, waits in waiting:
            try:
                if waits():
                    then(error)
            except Exception:
                log.exception("a request that waited for model '%s' can't go on", clipped(name))

    async def _load(self, name: str) -> ServingError | None:
        registry = self._registry
        loader = registry.loader
        sighting = (await loader.in_thread(loader.sight, [name]))[name]
        if not sighting.paths:
            return _unknown(name)
        if self._budget.limits and name not in self._coming:
            making = self._making[name] = asyncio.ensure_future(self._in_turn(name))
            try:
                await asyncio.wait([making])
            finally:
                making.cancel()
                del self._making[name]
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
        self._unknown.pop(name, None)
        if error is None:
            self._known |= {name}
        elif error.code is Code.NOT_FOUND:  # apart from those that have failed: anybody can think of names
            self._known -= {name}
            self._unknown[name] = self._clock() + retry_seconds(1)
            if len(self._unknown) > MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
        else:
            times = 1 if before is None else before.times + 1
            self._failed[name] = _Failed(error, times, self._clock() + retry_seconds(times))
            if len(self._failed) > MOST_FAILURES:
                del self._failed[next(iter(self._failed))]

    # -- room ------------------------------------------------------------------------------------------------------------

    async def _in_turn(self, name: str) -> None:
        """Have room made for a model, which counts as coming from then on; cancelled where it can't wait any longer."""
        async with self._room:
            await self._make_room(name)
            self._coming.add(name)

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
            if go == [] or (go is None and name is None):
                return  # who comes next makes room
            if waited >= MOST_PATIENCE:
                if name is not None:
                    log.warning("model '%s' is loaded above the budget: there was no room for %.0f s", name, waited)
                return
            if go is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            one = go[0]  # the next one may be asked for while this one goes
            await self._dismiss(one, "makes room")
            if self._budget.size:
                await self._until_less(taken, self._sizes.get(one, 0))

    async def _dismiss(self, name: str, why: str) -> None:
        used = self._used(name)
        log.info("model '%s' %s: it was last asked for %.1f s ago", name, why, self._clock() - used)
        self._loaded.pop(name, None)
        going = self._going[name] = asyncio.ensure_future(self._registry.dismiss(name))
        going.add_done_callback(partial(self._gone, name))
        await asyncio.wait([going], timeout=MOST_PATIENCE)
        if not going.done():
            log.warning("model '%s' has not come to its end within %.0f s, and is waited for no longer", name, MOST_PATIENCE)

    def _gone(self, name: str, going: asyncio.Task[None]) -> None:
        del self._going[name]
        if not going.cancelled() and (error := going.exception()) is not None:
            log.error("a model that was to go could not be unloaded", exc_info=error)

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
            if not entry.serves or name in self._going:
                self._loaded.pop(name, None)
                continue
            self._loaded.setdefault(name, self._clock())  # somebody else has it loaded
            models = list(registry.catalog.copies(name).values())
            whole = self._whole(name)
            there = [model for one in whole for model in registry.catalog.copies(one).values()]
            found.append(
                Resident(
                    name,
                    max(self._used(one) for one in whole),
                    self._sizes.get(name, 0),
                    any(_is_busy(model) for model in there),
                    any(model.scheduler.queue.has_sequences for model in there),
                    name in self.kept or name in self._coming,
                    name in parts,
                    max((idle_limit_of(model.config.parameters, self._budget.idle_seconds) for model in models), default=0.0),
                )
            )
        return found

    def _whole(self, name: str) -> set[str]:
        """Return a model and, of an ensemble, what it consists of, which would go with it."""
        found, new = {name}, {name}
        while new:
            entries = [entry for one in new if (entry := self._registry.catalog.entries.get(one)) is not None]
            steps = {step.model_name for one in entries if one.plan is not None for step in one.plan.config.ensemble or ()}
            new = steps - found
            found |= new
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
            try:
                await self._look()
            except Exception:
                log.exception("a look at which models are idle failed")

    async def _look(self) -> None:
        self._forget_those_gone()
        if self._budget.limits and not self._room.locked():
            async with self._room:
                await self._make_room(None)
        while idle := idle_for_long(self._residents(), self._clock()):
            await self._dismiss(idle[0], "goes")  # the next one may be asked for while this one goes

    def stop(self) -> None:
        """Nothing is loaded any more: tell those who wait."""
        for task in (*self._tasks, *self._going.values()):
            task.cancel()
        for name in list(self._waiting):
            self._tell(name, ServingError(Code.UNAVAILABLE, "Server exiting"))


def _unknown(name: str) -> ServingError:
    return ServingError(Code.NOT_FOUND, f"Request for unknown model: '{clipped(name)}' is not found")


def _is_busy(model: Model) -> bool:
    return not model.is_idle or model.scheduler.queue.has_sequences
