"""The clock of a test on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from kernel.testing.kit import Kit
from kernel.testing.loop import running_loop

__all__ = ["VirtualTime"]


class VirtualTime:
    """The clock of a test on virtual time; the fixture `virtual_time`. Made by the kit."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    @property
    def now(self) -> float:
        """Seconds since some moment."""
        return self._kit.loop.time()

    def advance(self, seconds: float) -> Any:
        """Let so many seconds pass, with all that happens in them. In async tests it is awaited."""
        if not seconds >= 0:
            raise ValueError(f"time can't advance by {seconds} seconds, wanted 0 or more")
        work = asyncio.sleep(seconds)
        return work if running_loop() is not None else self._kit.run(work)
