"""BLS: a model calls another model. Builds the core's request, waits or gives a future, turns the outcome into a response.

Whatever goes wrong at the called model is a response with an error, in the reference's words; only a call where none may be made
raises (contract: python_backend, 1.4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Any

from kernel import Batch, Code, Model, ServingError, WaitView, nobody
from kernel import InferenceRequest as CoreRequest
from kernel import InferenceResponse as CoreResponse
from kernel import Tensor as CoreTensor
from kernel_python import waiting
from kernel_python.api.asked import Asked
from kernel_python.api.copies import COPIES
from kernel_python.api.iterator import ResponseIterator
from kernel_python.api.memory import SMALL, Handover, hand_over
from kernel_python.api.responses import InferenceResponse, response_of
from kernel_python.calling import Instance, bls_site
from kernel_python.faults import TritonModelException

_DECOUPLED = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using the decoupled transaction "
    "policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'"
)

__all__ = [
    "call",
    "call_and_iterate",
    "call_async",
    "call_async_and_iterate",
    "failed",
    "refusal_of_decoupled",
    "refusal_of_memory",
]

CALLED = Handover("called", takes=True)
_USE_ASYNC = "use `await request.async_exec()` there"


def call(request: Asked, holders: int) -> InferenceResponse:
    """Call the model and wait for its response. `holders`: the reference count of `request` where the model calls."""
    instance, batch = bls_site(request._site)
    kernel = instance.kernel
    if waiting.is_helper(instance):
        return _call_by_helper(instance, batch, request, holders)
    core = _core_request(instance, batch, request, holders, nobody)
    model = _target(kernel, core)
    if request._memory is not None or (model is not None and model.decoupled):
        refusal = _refusal(model, request, core)
        if refusal is not None:
            return response_of(refusal, False)
    if not instance.on_loop and get_ident() != instance.thread:
        batch = None  # a thread of the model's waits; whether its execution can't go on meanwhile, is for the lookout to see
    try:
        response = kernel.wait(core, batch, model)
    except RuntimeError as error:
        problem = waiting.refusal(instance, error, _USE_ASYNC)
        if problem is not error:
            raise problem from error
        return response_of(failed(core, ServingError(Code.INTERNAL, str(error))), False)  # the kernel has stopped
    if response is not None and response.error is None:
        return response_of(response, instance.zero_copy)
    return _outcome(instance, core, response)


def _call_by_helper(
    instance: Instance, batch: Batch | None, request: Asked, holders: int
) -> InferenceResponse:
    """Call, and wait, on a thread of a model that runs on the loop: its `execute` must not wait for that thread there."""
    kernel = instance.kernel
    core = _core_request(instance, batch, request, holders, nobody)
    refusal = _refusal(_target(kernel, core), request, core)
    if refusal is not None:
        return response_of(refusal, False)
    responses: list[CoreResponse] = []
    given_up = False

    def submit(wake: Callable[[], None]) -> None:
        def respond(response: CoreResponse | None, final: bool) -> None:
            if response is not None:
                responses.append(response)
            if final:
                wake()

        if given_up:
            return  # before the loop came to it: to begin it now would have the next thread wait for the loop
        core.respond = respond
        kernel.submit(core)
        if batch is None:
            kernel.supervision.lookout.keep_looking_at(core)

    ident = get_ident()
    WaitView.blocked[ident] = core
    try:
        waiting.wait_as_helper(instance, submit)
    except TritonModelException:
        given_up = True
        kernel.call_soon(kernel.cancel, core)
        raise
    except RuntimeError as error:  # the kernel has stopped
        return response_of(failed(core, ServingError(Code.INTERNAL, str(error))), False)
    finally:
        del WaitView.blocked[ident]
    return _outcome(instance, core, responses[0] if responses else None)


def call_and_iterate(request: Asked, holders: int) -> ResponseIterator:
    """Call the model and return at once the iterator of its responses."""
    instance, batch = bls_site(request._site)
    kernel = instance.kernel
    iterator = ResponseIterator(instance, failed)
    core = iterator._request = _core_request(instance, batch, request, holders, iterator._respond)
    if (refusal := _memory_refusal(request, core)) is not None:
        iterator._respond(refusal, True)
    else:
        try:
            kernel.call_in_order(kernel.submit, core)
        except RuntimeError as error:  # the kernel has stopped
            iterator._respond(CoreResponse([], error=ServingError(Code.INTERNAL, str(error))), True)
    return iterator


def call_async(request: Asked, holders: int) -> asyncio.Future[Any]:
    """Call the model and return a future of its response."""
    try:
        instance, batch = bls_site(request._site)
    except TritonModelException:
        asyncio.get_running_loop()  # outside of a loop, Python's own error about that says better what is wrong
        raise
    kernel = instance.kernel
    # Whose thread the loop's is runs in it; asking asyncio costs a system call.
    loop = kernel.loop if get_ident() == kernel.loop_thread else asyncio.get_running_loop()
    return _submit(instance, batch, request, holders, loop)


def call_async_and_iterate(request: Asked, holders: int) -> asyncio.Future[Any]:
    """Call the model and return a future of the iterator of its responses."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(call_and_iterate(request, holders))
    return future


class _Call(asyncio.Future[Any]):
    """The future of a response. Cancelling it cancels the request."""

    __slots__ = ("instance", "request")

    request: CoreRequest
    instance: Instance

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        kernel = self.instance.kernel
        kernel.call_in_order(kernel.cancel, self.request)
        return True

    def settle(self, response: CoreResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            outcome = response_of(response, self.instance.zero_copy)
        else:
            outcome = _outcome(self.instance, self.request, response)
        try:
            self.set_result(outcome)
        except asyncio.InvalidStateError:
            pass  # cancelled


def _submit(
    instance: Instance, batch: Batch | None, request: Asked, holders: int, loop: asyncio.AbstractEventLoop
) -> _Call:
    future = _Call(loop=loop)
    future.instance = instance
    kernel = instance.kernel
    if loop is not kernel.loop:
        return _submit_from_afar(future, batch, request, holders, loop)
    core = future.request = _core_request(instance, batch, request, holders, future.settle)
    try:
        find = kernel.find
        model = find(core.model_name, core.model_version)
    except ServingError:
        kernel.submit(core)  # has the words for a model that is not there, or waits for one that is being loaded
        return future
    if model.decoupled or request._memory is not None:
        refusal = _refusal(model, request, core)
        if refusal is not None:
            future.set_result(response_of(refusal, False))
            return future
    if kernel.mailbox.calls:  # what threads have told the loop before comes first
        kernel.mailbox.post(kernel.submit, core)
    else:
        kernel.submit_to(model, core)
    return future


def _submit_from_afar(
    future: _Call, batch: Batch | None, request: Asked, holders: int, loop: asyncio.AbstractEventLoop
) -> _Call:
    """Submit from the loop of an instance's own thread."""
    instance = future.instance
    kernel = instance.kernel

    def respond(response: CoreResponse | None, final: bool) -> None:
        try:
            loop.call_soon_threadsafe(future.settle, response, final)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    core = future.request = _core_request(instance, batch, request, holders, respond)
    refusal = _refusal(_target(kernel, core), request, core)
    if refusal is not None:
        future.set_result(response_of(refusal, False))
        return future
    try:
        kernel.call_soon(kernel.submit, core)
    except RuntimeError as error:  # the kernel has stopped
        future.settle(CoreResponse([], error=ServingError(Code.INTERNAL, str(error))), True)
    return future


def _core_request(
    instance: Instance, batch: Batch | None, call: Asked, holders: int, respond: Any
) -> CoreRequest:
    """Return the core's request. Its arrays are the called model's own: what the caller could still change is copied."""
    inputs: dict[str, CoreTensor] = {}
    for tensor in call._inputs:
        array, name, datatype = tensor._array, tensor._name, tensor._datatype
        if array.nbytes <= SMALL and datatype != "BYTES" and not instance.zero_copy:
            COPIES.small += 1
            array = array.copy()
        else:
            del array
            array = hand_over(tensor, holders, CALLED, None, instance.zero_copy)
        inputs[name] = CoreTensor(name, datatype, array)
    version = call._version
    trace = call._trace
    return CoreRequest(
        call._model,
        inputs,
        respond,
        "" if version == -1 else str(version),
        call._id,
        call._outputs or None,
        call._parameters,
        0,  # priority
        call._timeout,
        None,  # deadline: the parent's end is its end
        call._correlation,
        call._flags,
        batch,
        None if trace is None else trace._trace,
    )


# -- outcomes ----------------------------------------------------------------------------------------------------------


def _outcome(instance: Instance, core: CoreRequest, response: CoreResponse | None) -> InferenceResponse:
    if response is None:
        return response_of(CoreResponse([]), False)
    if response.error is not None:
        response = failed(core, response.error)
    return response_of(response, instance.zero_copy)


def failed(core: CoreRequest, error: ServingError) -> CoreResponse:
    """Return the error response in the reference's words: what failed before it was executed says so in front."""
    message = error.message
    if not core.counted:
        if core.model is None and error.code in (Code.NOT_FOUND, Code.UNAVAILABLE):
            message = f"Failed for execute the inference request. Model '{core.model_name}' is not ready. {message}"
        message = f"Model {core.model_name} - Error when running inference: {message}"
    return CoreResponse([], error=ServingError(error.code, message, error.reason))


def _target(kernel: Any, core: CoreRequest) -> Model | None:
    """Return the model that is called, None when there is none: submit has the words for that."""
    try:
        model: Model = kernel.find(core.model_name, core.model_version)
    except ServingError:
        return None
    return model


def _refusal(model: Model | None, call: Asked, core: CoreRequest) -> CoreResponse | None:
    """Return why a call for one response can't be made, None when it can: a decoupled model, or memory that is not there."""
    if model is not None and model.decoupled:
        return refusal_of_decoupled(core)
    return None if call._memory is None else _memory_refusal(call, core)


def _memory_refusal(call: Asked, core: CoreRequest) -> CoreResponse | None:
    return None if call._memory is None or call._memory.is_cpu else refusal_of_memory(core)


def refusal_of_decoupled(core: CoreRequest) -> CoreResponse:
    """Return what a call for one response gets from a decoupled model."""
    return failed(core, ServingError(Code.INTERNAL, _DECOUPLED.format(core.model_name)))


def refusal_of_memory(core: CoreRequest) -> CoreResponse:
    """Return what a call gets that wants its outputs where there is no memory."""
    message = "the outputs were asked for in GPU memory (preferred_memory), which this server does not have"
    return failed(core, ServingError(Code.INTERNAL, message))
