"""From other threads to the loop: a list of calls, and one wake-up of the loop for as many as there are.

Waking a loop costs far more than a call; a thread that finishes twenty executions in a row wakes it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from kernel.forking import FORKED, guard
from kernel.instances.wake_pipe import WakePipe

__all__ = ["Mailbox"]

log = logging.getLogger("kernel")


Call = tuple[Callable[..., object], tuple[Any, ...]]


class Mailbox:
    """Calls to be made on `loop`, in the order in which they were posted. `post` and `leave` may be used by any thread.

    asyncio's own loops are woken through a socket; uvloop through an eventfd, which costs more: there it is a pipe.
    """

    __slots__ = ("__weakref__", "_after", "_loop", "_pipe", "_signalled", "_why", "calls", "closed", "draining", "leave")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.calls: deque[Call] = deque()  # not made yet: what goes to the loop now comes after them, whoever it is from
        #: `leave((callback, args))` adds a call without waking the loop: whoever leaves one has to call `wake`, or post, within
        #: about a millisecond.
        self.leave: Callable[[Call], None] = self.calls.append
        self._after: list[Callable[[], object]] = []
        self._signalled = False
        self.draining = False  # `drain` is making calls; on the loop
        self.closed = False
        self._why = "the kernel has stopped"
        self._pipe: WakePipe | None = None
        if type(loop).__module__.startswith("uvloop"):
            with contextlib.suppress(OSError):  # no more files: the eventfd is there
                self._pipe = WakePipe()
                loop.add_reader(self._pipe.fileno(), self._woken)
        guard(self)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Have `callback(*args)` called on the loop soon. Raises RuntimeError once the kernel has stopped."""
        if self.closed:
            raise RuntimeError(self._why)
        self.calls.append((callback, args))
        # The order matters: append, then look at the flag; `drain` clears the flag, then looks at the calls. So either
        # the drain under way sees this call, or this thread sees the flag cleared and wakes the loop again.
        if not self._signalled:
            self.wake()

    def wake(self) -> None:
        """Wake the loop for what was left, unless somebody has already."""
        if not self._signalled:
            self._signalled = True
            pipe = self._pipe
            if pipe is not None and not self._loop.is_closed():
                try:
                    pipe.wake()
                    return
                except OSError:
                    pass  # it is full, or the kernel has stopped, or code of a model has closed it: the loop's own way is left
            try:
                self._loop.call_soon_threadsafe(self.drain)
            except RuntimeError:  # the loop is closed: nobody is left to be told
                self.closed = True

    def _woken(self) -> None:
        assert self._pipe is not None
        try:
            self._pipe.wait()  # doesn't block: there is a byte to be read
        except OSError:
            pass  # code of a model has closed it
        self.drain()

    def drain(self) -> None:
        """Make the calls. On the loop, also within a call: then those that came after it are made first."""
        self._signalled = False
        calls, outer = self.calls, self.draining
        self.draining = True
        try:
            while calls:
                callback, args = calls.popleft()
                try:
                    callback(*args)
                except (Exception, asyncio.CancelledError):
                    log.exception("a call from another thread failed: %r", callback)
        finally:
            self.draining = outer
            if self._after and not outer:
                self._make_last()

    def _make_last(self) -> None:
        after, self._after = self._after, []
        for last in after:
            try:
                last()
            except (Exception, asyncio.CancelledError):
                log.exception("what was put off until the calls from other threads were made failed: %r", last)

    def after(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called when the calls that are there are made. On the loop, while `draining`."""
        self._after.append(callback)

    def forked(self) -> None:
        """In a child: take no calls, for there is no loop that could make them."""
        self.closed, self._why = True, FORKED

    def close(self) -> None:
        """Make the calls that are there, and take no more of them. On the loop."""
        self.closed = True
        pipe, self._pipe = self._pipe, None
        self.drain()
        if pipe is not None:
            self._loop.remove_reader(pipe.fileno())
            pipe.close()
            self._loop.call_soon(self.drain)  # a thread may have looked at `closed` and at the pipe just before
