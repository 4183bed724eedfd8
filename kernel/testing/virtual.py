"""Virtual time at its simplest: an asyncio loop whose clock jumps to the next timer, for code that stays on the loop.

An hour passes in a millisecond, and a hung request is a failing test at once ("deadlock"). Work for threads is done in place, so
the order of things is always the same. Models with threads of their own need KitLoop (loop.py), whose time stands still while a
thread is at work.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kernel.testing.errors import Deadlock

__all__ = ["VirtualLoop", "run"]

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Deadlock("deadlock: nothing is ready and no timer is due")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, starting at 1000 s. Work for threads is done in place."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """The present moment, in seconds."""
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `function` here and now; the future has what it returned or raised."""
        future = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a fresh virtual loop; errors that nobody fetched fail the test."""
    problems: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        result = runner.run(main)
    assert not problems, problems
    return result
