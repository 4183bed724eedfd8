"""How code waits for the loop without holding it: a thread on a lock, an execution on the loop by leaving its greenlet.

Elsewhere on the loop nothing may wait, and is refused. What is waited for, and who may wait for whom, is decided by others.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from greenlet import getcurrent

from kernel.circles.lookout import Lookout
from kernel.circles.wait_view import WaitView
from kernel.instances.handover import BlockedCall
from kernel.instances.instance import Worker
from kernel.instances.mailbox import Mailbox
from kernel.instances.turn import Turn
from kernel.requests.request import Batch, InferenceRequest, InferenceResponse, Respond, nobody

__all__ = ["Waited", "wait", "wait_for"]

_BLOCKS = "waiting here would block the event loop"


class Waited(Protocol):
    """The kernel, as those who wait need it."""

    loop_thread: int
    lookout: Lookout
    mailbox: Mailbox
    turn: Turn

    def submit(self, request: InferenceRequest) -> None: ...

    def submit_to(self, model: Any, request: InferenceRequest) -> None: ...


def wait_for(kernel: Waited, step: Callable[[Callable[[], None]], None]) -> None:
    """As `Kernel.wait_for`."""
    if get_ident() != kernel.loop_thread:
        call = BlockedCall(_nothing)
        kernel.mailbox.post(step, lambda: call(None, True))
        call.wait()
    else:
        _worker(kernel).instance.wait(step)


def wait(kernel: Waited, request: InferenceRequest, batch: Batch | None, model: Any) -> InferenceResponse | None:
    """As `Kernel.wait`."""
    if batch is not None:
        batch.blocked_on = request
    try:
        if (ident := get_ident()) != kernel.loop_thread:
            return _block(kernel, request, batch, ident)
        worker = _worker(kernel)
        waker = request.respond = _Waker(request.respond)
        if kernel.mailbox.calls:
            kernel.mailbox.post(kernel.submit, request)
        elif model is None:
            kernel.submit(request)
        else:
            kernel.submit_to(model, request)
        if not waker.done:
            worker.instance.wait(waker.wait)
        return waker.response
    finally:
        if batch is not None:
            batch.blocked_on = None


def _block(kernel: Waited, request: InferenceRequest, batch: Batch | None, ident: int) -> InferenceResponse | None:
    call = BlockedCall(request.respond)
    request.respond = call
    WaitView.blocked[ident] = request
    try:
        kernel.mailbox.post(kernel.submit, request)
        if batch is None or batch.instance.own_loop is not None:
            kernel.mailbox.post(kernel.lookout.watch, request)  # what else it holds up is not seen when it is enqueued
        call.wait()
    finally:
        del WaitView.blocked[ident]
    return call.response


def _worker(kernel: Waited) -> Worker:
    """Return the greenlet that runs here and may be left. Raises RuntimeError where there is none."""
    worker = getcurrent()
    if type(worker) is not Worker or kernel.turn.cant_wait:
        raise RuntimeError(_BLOCKS)
    return worker


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
