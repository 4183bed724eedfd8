"""May this code wait, and how? A thread may, on a lock; code on the loop may where its greenlet can be left; all else is refused.

Answered here and nowhere else (`may_leave`); backends only say which greenlets of theirs can be left (`Leavable`), and add what
they know of their own threads. What is waited for, and who may wait for whom (circles/), is decided by others.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from greenlet import getcurrent

from kernel.circles.wait_view import WaitView
from kernel.instances import BlockedCall, Leavable, Mailbox, Turn
from kernel.requests import Batch, InferenceRequest, InferenceResponse, Respond, nobody
from kernel.server.supervision import Supervision

__all__ = ["WaitingKernel", "may_leave", "wait", "wait_for"]

_blocked = WaitView.blocked
_BLOCKS = "waiting here would block the event loop"


class WaitingKernel(Protocol):
    """The kernel, as code that waits needs it."""

    loop_thread: int
    mailbox: Mailbox
    supervision: Supervision
    turn: Turn

    def cancel(self, request: InferenceRequest) -> None: ...

    def submit(self, request: InferenceRequest) -> None: ...

    def submit_to(self, model: Any, request: InferenceRequest) -> None: ...


def may_leave(kernel: WaitingKernel) -> Leavable | None:
    """Return where the calling code would wait: the greenlet that it leaves, or None on a thread that may block.

    Raises RuntimeError where it may not wait: on the loop, where it can't be left.
    """
    if get_ident() != kernel.loop_thread:
        return None
    leaving = getcurrent()
    # An execution that is called without a greenlet of its own may stand on somebody else's.
    if not isinstance(leaving, Leavable) or kernel.turn.cant_wait:
        raise RuntimeError(_BLOCKS)
    return leaving


def wait_for(kernel: WaitingKernel, step: Callable[[Callable[[], None]], None]) -> None:
    """As `Kernel.wait_for`."""
    leaving = may_leave(kernel)
    if leaving is not None:
        leaving.leave(step)
        return
    call = BlockedCall(_nothing)
    kernel.mailbox.post(step, lambda: call(None, True))
    call.wait()


def wait(kernel: WaitingKernel, request: InferenceRequest, batch: Batch | None, model: Any) -> InferenceResponse | None:
    """As `Kernel.wait`."""
    leaving = may_leave(kernel)
    if leaving is None:
        ident = get_ident()
        call = request.respond = BlockedCall(request.respond)
        _blocked[ident] = request
        if batch is not None:
            batch.blocked_on = request
        try:
            kernel.mailbox.post(kernel.submit, request)
            if batch is None or batch.instance.own_loop is not None:
                # When it is enqueued nobody sees that it may hold up more than this call: a thread's own loop, say.
                kernel.mailbox.post(kernel.supervision.lookout.keep_looking_at, request)
            call.wait()
            return call.response
        finally:
            del _blocked[ident]
            if batch is not None:
                batch.blocked_on = None
    if not leaving.whole:
        batch = None
    if batch is not None:
        batch.blocked_on = request
    try:
        waker = request.respond = _Waker(request.respond)
        if kernel.mailbox.calls:
            kernel.mailbox.post(kernel.submit, request)
        elif model is None:
            kernel.submit(request)
        else:
            kernel.submit_to(model, request)
        if not waker.done:
            leaving.leave(waker.wait)
        return waker.response
    except BaseException:  # the task was cancelled, or the instance is closed
        kernel.cancel(request)
        raise
    finally:
        if batch is not None:
            batch.blocked_on = None


class _Waker:
    """The continuation of a request that an execution on the loop waits for, if it is not answered at once."""

    __slots__ = ("_respond", "_wake", "done", "response")

    def __init__(self, respond: Respond) -> None:
        self._respond = None if respond is nobody else respond
        self.response: InferenceResponse | None = None  # the first one
        self._wake: Callable[[], None] | None = None
        self.done = False

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        if self.response is None:
            self.response = response
        if self._respond is not None:
            self._respond(response, final)
        if final:
            self.done = True
            if self._wake is not None:
                self._wake()

    def wait(self, wake: Callable[[], None]) -> None:
        self._wake = wake


def _nothing(response: InferenceResponse | None, final: bool) -> None:
    """What a thread collects that only waits to be woken."""
