"""Instead of kernel_python.api.bls: a model in a child calls another model.

The call goes out as it is; whether it may be made, and how its errors read, is decided where the models are (calls.py).
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from kernel import InferenceResponse as CoreResponse
from kernel import Tensor as CoreTensor
from kernel import WaitView
from kernel_python.api.asked import Asked
from kernel_python.api.iterator import ResponseIterator
from kernel_python.api.responses import InferenceResponse, response_of
from kernel_python.calling import Instance, bls_site
from kernel_python.process import wire
from kernel_python.process.child.waiting import call_in

__all__ = ["call", "call_and_iterate", "call_async", "call_async_and_iterate"]

ONE, BLOCKING, MANY = 0, 1, 2  # how a call waits: for one response; for one, in a thread; for any number


class Call:
    """One response, when it is there."""

    __slots__ = ("number", "response")

    def __init__(self) -> None:
        self.number = 0
        self.response: CoreResponse | None = None

    def settle(self, response: CoreResponse | None, final: bool) -> None:
        if self.response is None:
            self.response = response if response is not None else CoreResponse([])


class _Future(asyncio.Future[Any]):
    """The future of a response. Cancelling it cancels the request."""

    number = 0
    instance: Instance

    @property
    def request(self) -> _Future:
        """The call, for who looks what a task waits for."""
        return self

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        self.instance.kernel.cancel(self)
        return True

    def settle(self, response: CoreResponse | None, final: bool) -> None:
        call_in(self.get_loop(), self._set, response)

    def _set(self, response: CoreResponse | None) -> None:
        if not self.done():
            self.set_result(response_of(response or CoreResponse([]), self.instance.zero_copy))


def call(request: Asked, holders: int) -> InferenceResponse:
    """Call the model and wait for its response."""
    one = Call()
    ident = threading.get_ident()
    instance = bls_site(request._site)[0]
    # Where a thread of the model's waits, its execution may go on meanwhile.
    _call(one, one.settle, request, BLOCKING if ident == instance.thread else ONE)
    WaitView.blocked[ident] = one
    try:
        instance.kernel.channel.wait(lambda: one.response is not None, soon=True)
    finally:
        del WaitView.blocked[ident]
    assert one.response is not None
    return response_of(one.response, instance.zero_copy)


def call_and_iterate(request: Asked, holders: int) -> ResponseIterator:
    """Call the model and return at once the iterator of its responses."""
    one = Call()
    iterator = ResponseIterator(bls_site(request._site)[0], _as_it_is)
    iterator._request = one  # type: ignore[assignment]
    instance = _call(one, iterator._respond, request, MANY)
    instance.kernel.channel.flush()
    return iterator


def call_async(request: Asked, holders: int) -> asyncio.Future[Any]:
    """Call the model and return a future of its response."""
    loop = asyncio.get_running_loop()
    future = _Future(loop=loop)
    instance = future.instance = _call(future, future.settle, request, ONE)
    channel = instance.kernel.channel
    channel.attach(loop)
    future.add_done_callback(lambda _: channel.detach(loop))
    channel.flush_later(loop)
    return future


def call_async_and_iterate(request: Asked, holders: int) -> asyncio.Future[Any]:
    """Call the model and return a future of the iterator of its responses."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(call_and_iterate(request, holders))
    return future


def _as_it_is(request: Any, error: Any) -> CoreResponse:
    return CoreResponse([], error)


def _call(one: Any, respond: Any, request: Asked, wait: int) -> Instance:
    """Put the call down to be sent; return who makes it."""
    instance, batch = bls_site(request._site)
    kernel = instance.kernel
    tensors = [CoreTensor(tensor._name, tensor._datatype, tensor._array) for tensor in request._inputs]
    trace = request._trace
    number = one.number = next(kernel.numbers)
    message = (
        wire.CALL,
        number,
        None if batch is None else batch.number,  # type: ignore[attr-defined]
        wait,
        request._memory is None or request._memory.is_cpu,
        request._model,
        request._version,
        request._id,
        [str(name) for name in request._outputs] or None,
        wire.builtin_values(request._parameters),
        int(request._timeout),
        wire.builtin_value(request._correlation),
        int(request._flags),
        getattr(trace._trace, "origin", None) if trace is not None else None,
        wire.write_tensors(tensors, kernel.pool),
    )
    kernel.calls[number] = respond
    try:
        kernel.channel.post(message)
    except ValueError:
        del kernel.calls[number]
        raise
    return instance
