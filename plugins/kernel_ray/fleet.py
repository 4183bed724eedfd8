"""The actors of one model: as many as are wanted, each started anew with back-off when it has died, all ended at the end.

Each place has a task that keeps one actor in it. Knows no Ray: who starts actors is asked by `Starter`, and what they are is an
`Actor`; the model that sends requests there is told of each that comes and goes. On the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

from kernel import Code, ServingError
from kernel_remote.elastic import ElasticModel, Link

__all__ = ["Actor", "Fleet", "Starter"]

log = logging.getLogger("kernel_ray")

#: Seconds until an actor is started anew that did not start, or has died soon; doubled each time up to the longest.
BACKOFF = 0.5
LONGEST = 30.0

#: Seconds after which an actor that dies has served well: the next one is started at once.
STABLE = 10.0

#: Failures in a row after which nobody should wait for an actor.
HOPELESS = 3

#: Seconds that an actor has for what is in flight when it is ended, and at most for its sequences.
DRAIN_SECONDS = 30.0
LOOK_SECONDS = 0.05


class Actor(Protocol):
    """One that serves. `link`: how it is reached; `config`: the model's, completed there, as a protobuf message."""

    link: Link
    config: bytes

    async def ended(self) -> str:
        """Return why it has ended, once it has; as said of it, such as `has died: …`."""

    async def stop(self, seconds: float) -> None:
        """End it: what is in flight there has so many seconds. Never raises."""

    def kill(self) -> None:
        """End it at once, in whatever state it is. Never raises."""


class Starter(Protocol):
    """Starts actors of one model."""

    def __call__(self) -> Awaitable[Actor]:
        """Return one that serves. Raises ServingError; nothing is left then, nor where it is cancelled."""


class Fleet:
    """The actors of one model version. `least`, `most`: how many there may be; there are `least` until `resize`."""

    def __init__(self, name: str, start: Starter, least: int, most: int) -> None:
        self.name = name
        self.least, self.most = least, most
        self.size = least
        self._start = start
        self._first: Actor | None = None
        self._model: ElasticModel | None = None
        self._places: list[_Place] = []
        self._leaving: set[asyncio.Task[None]] = set()

    async def first(self) -> Actor:
        """Start the first actor, which is kept for `attach`. Raises ServingError where it doesn't start."""
        if self._first is None:
            self._first = await self._start()
        return self._first

    def attach(self, model: ElasticModel) -> None:
        """Serve a model from now on: with the first actor, and with the others as they come up."""
        self._model = model
        first, self._first = self._first, None
        for _ in range(self.size):
            self._add(first)
            first = None

    def resize(self, size: int) -> int:
        """Have so many actors, within the bounds; return how many. Those that go finish what they have."""
        size = max(self.least, min(self.most, size))
        self.size = size
        if self._model is not None:
            while len(self._places) < size:
                self._add(None)
            while len(self._places) > size:
                place = self._places.pop(self._worst())
                self._see_off(place)
        return size

    @property
    def serving(self) -> int:
        """How many actors serve."""
        return sum(place.actor is not None for place in self._places)

    def unreachable(self, link: Link, why: str) -> None:
        """An actor can't be connected to any more: it is ended, and another one started."""
        for place in self._places:
            if place.actor is not None and place.actor.link == link:
                place.lose(why)

    async def close(self) -> None:
        """End all actors; returns when that has been done."""
        places, self._places = self._places, []
        first, self._first = self._first, None
        if first is not None:
            await first.stop(0.0)
        await asyncio.gather(*(place.close(0.0) for place in places))
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def kill(self) -> None:
        """End all actors at once."""
        for place in self._places:
            if place.actor is not None:
                place.actor.kill()

    def troubled(self) -> None:
        """A place has no actor and won't have one soon; where none has, nobody should wait."""
        if self._model is not None and all(place.problem is not None for place in self._places):
            self._model.refuse(self._places[0].problem or ServingError(Code.UNAVAILABLE, ""))

    def _worst(self) -> int:
        """Return which place goes first: one without an actor, else the last."""
        empty = [index for index, place in enumerate(self._places) if place.actor is None]
        return empty[-1] if empty else len(self._places) - 1

    def _add(self, first: Actor | None) -> None:
        assert self._model is not None
        self._places.append(_Place(self, self._model, self._start, first))

    def _see_off(self, place: _Place) -> None:
        task = asyncio.ensure_future(place.close(DRAIN_SECONDS))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class _Place:
    """Where one actor is to be. `problem`: why there is none, where nobody should wait for one."""

    def __init__(self, fleet: Fleet, model: ElasticModel, start: Starter, first: Actor | None) -> None:
        self.actor: Actor | None = None
        self.problem: ServingError | None = None
        self._fleet = fleet
        self._model = model
        self._start = start
        self._failures = 0
        self._lost: asyncio.Future[str] | None = None
        if first is not None:
            self._serve(first)
        self._task = asyncio.ensure_future(self._keep(first))

    async def _keep(self, actor: Actor | None) -> None:
        """Have an actor here, one after the other."""
        loop = asyncio.get_running_loop()
        while True:
            if actor is None:
                try:
                    actor = await self._start()
                except ServingError as error:
                    self._failed(error)
                    await asyncio.sleep(self._pause())
                    continue
                self._serve(actor)
            since = loop.time()
            why = await self._end_of(actor)
            self.actor = None
            self._model.drop(actor.link, why)
            actor.kill()
            actor = None
            if loop.time() - since >= STABLE:
                self._failures = 0
            pause = self._pause() if self._failures else 0.0
            self._failures += 1
            await asyncio.sleep(pause)

    def _serve(self, actor: Actor) -> None:
        self.actor, self.problem = actor, None
        self._lost = asyncio.get_running_loop().create_future()
        self._model.add(actor.link)
        log.info("model '%s' is served at %s", self._fleet.name, actor.link.shown)

    async def _end_of(self, actor: Actor) -> str:
        """Return why an actor serves no more, once it doesn't."""
        assert self._lost is not None
        ended = asyncio.ensure_future(actor.ended())
        try:
            await asyncio.wait((ended, self._lost), return_when=asyncio.FIRST_COMPLETED)
            why = ended.result() if ended.done() else self._lost.result()
        finally:
            ended.cancel()
        log.warning("model '%s': endpoint %s %s; another one is started", self._fleet.name, actor.link.shown, why)
        return why

    def lose(self, why: str) -> None:
        """The actor can't be reached: its requests go elsewhere at once."""
        if self.actor is not None and self._lost is not None and not self._lost.done():
            self._lost.set_result(why)
            self._model.drop(self.actor.link, why)

    def _failed(self, error: ServingError) -> None:
        self._failures += 1
        log.warning("model '%s': %s; tried again in %g s", self._fleet.name, error.message, self._pause())
        if self._failures >= HOPELESS:
            self.problem = error
            self._fleet.troubled()

    def _pause(self) -> float:
        return min(LONGEST, BACKOFF * 2.0 ** min(self._failures - 1, 10))

    async def close(self, seconds: float) -> None:
        """End the actor here, and have no other. `seconds`: for what is in flight, at most."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        actor, self.actor = self.actor, None
        if actor is None:
            return
        loop = asyncio.get_running_loop()
        limit = loop.time() + seconds
        try:
            self._model.retire(actor.link)
            while self._model.outstanding(actor.link) and loop.time() < limit:  # noqa: ASYNC110 - the model tells nobody
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._model.drop(actor.link, "is ended")
            await actor.stop(0.0)
