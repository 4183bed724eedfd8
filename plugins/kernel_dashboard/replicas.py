"""The other replicas as the page asks them, and what they are answered: what each sees of its models, and its details of one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kernel import Code, ServingError
from kernel_dashboard.details import details
from kernel_dashboard.looking import Looker, Seen

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["Replicas"]

log = logging.getLogger(__name__)

_TOPIC = "dashboard"

#: How many models are looked at in one turn of the loop where others ask, and how long it is left to the rest of the server then;
#: seconds.
SLICE = 32
PAUSE = 0.004

_encode = msgspec.msgpack.encode


class Replicas:
    """`group`: what stands for all replicas (`kernel.steered`)."""

    def __init__(self, kernel: Kernel, group: Any) -> None:
        self._kernel = kernel
        self._group = group
        # By who asks: a look tells of the requests since the one before, and each is to be told of all.
        self._lookers: dict[int, Looker] = {}
        self._looking: dict[int, asyncio.Task[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        group.answer(_TOPIC, self._told)

    def see(self, then: Callable[[Mapping[int, list[Seen]] | None, str], None]) -> None:
        """Call `then` with what the others see of their models, by number; with None and why where one has not answered."""
        task = self._kernel.loop.create_task(self._see(then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see(self, then: Callable[[Mapping[int, list[Seen]] | None, str], None]) -> None:
        try:
            answers = await self._group.ask(_TOPIC, _encode(["see", self._group.replica]))
            found = dict(msgspec.msgpack.decode(answer, type=tuple[int, list[Seen]]) for answer in answers)
        except ServingError as error:
            then(None, error.message)
        except Exception as error:
            log.exception("what another replica sees can't be read")
            then(None, f"{type(error).__name__}: {error}")
        else:
            then(found, "")

    async def details(self, name: str) -> dict[int, dict[str, Any]]:
        """Return what the others know of a model, by number. Raises ServingError where one does not answer."""
        answers = [msgspec.msgpack.decode(one) for one in await self._group.ask(_TOPIC, _encode(["details", name]))]
        return {number: found for number, found in answers if found is not None}

    async def _told(self, data: bytes) -> bytes:
        what, of = msgspec.msgpack.decode(data)
        if what == "see":
            looking = self._looking.get(of)
            if looking is None or looking.done():
                looker = self._lookers.get(of) or self._lookers.setdefault(of, Looker(self._kernel))
                looking = self._looking[of] = self._kernel.loop.create_task(self._seen(looker))
            return await asyncio.shield(looking)
        try:
            return _encode([self._group.replica, details(self._kernel, of)])
        except ServingError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            return _encode([self._group.replica, None])

    async def _seen(self, looker: Looker) -> bytes:
        look = looker.begin()
        found: list[Seen] = []
        while not look.is_over:
            for _ in range(SLICE):
                if not look.is_over:
                    found += looker.see(look)
            await asyncio.sleep(PAUSE)
        return _encode([self._group.replica, found])
