"""What an app asks: arrays become a request, and its responses a future or a stream, on whatever thread and loop the app runs.

Knows of the kernel only how requests are handed in and given up. Arrays are copied, so that an app may go on using its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from threading import get_ident
from typing import Any, Protocol

import numpy as np

from kernel.config import TensorSpec
from kernel.errors import Code, NotLoaded, Reason, ServingError
from kernel.frontends import declared_tensor
from kernel.instances import Mailbox
from kernel.interfaces import Host
from kernel.observability import APP, Tracer
from kernel.requests import InferenceRequest, InferenceResponse, Respond
from kernel.tensor import Tensor

__all__ = [
    "AppKernel",
    "Collected",
    "NotStarted",
    "answered",
    "answered_elsewhere",
    "check_running",
    "inferred",
    "make_request",
    "responses",
]

Future = asyncio.Future[InferenceResponse]


class AppKernel(Host, Protocol):
    """The kernel, as the calls of an app need it."""

    exiting: bool
    live: bool
    loop_thread: int
    mailbox: Mailbox
    tracer: Tracer


# -- from arrays to a request --------------------------------------------------------------------------------------------------


def make_request(
    kernel: AppKernel,
    model: str,
    inputs: Mapping[str, Any],
    respond: Respond,
    version: int | str,
    outputs: Sequence[str] | None,
    timeout: float | None,
    **fields: Any,
) -> InferenceRequest:
    """Return the request that an app asks for; arguments as for `Kernel.infer`. Raises ServingError for what are no tensors."""
    check_running(kernel)
    return InferenceRequest(
        model,
        _tensors(kernel, model, str(version), inputs),
        respond,
        model_version=str(version),
        requested_outputs=outputs,
        deadline=None if timeout is None else kernel.clock() + timeout,
        trace=APP if kernel.tracer.active else None,
        **fields,
    )


def _tensors(kernel: AppKernel, model: str, version: str, inputs: Any) -> dict[str, Tensor]:
    """Make tensors of what the caller gave; copies, so that nobody else can see or change them."""
    if not isinstance(inputs, Mapping):
        words = f"the inputs for model '{model}' are a {type(inputs).__name__}, wanted a mapping of names to values"
        raise ServingError(Code.INVALID_ARG, words)
    specs: Mapping[str, TensorSpec] | None = None
    tensors = {}
    for name, value in inputs.items():
        datatype = None
        if not isinstance(value, np.ndarray) or value.dtype == np.float64:
            if specs is None:
                specs = _input_specs(kernel, model, version)
            datatype = specs[name].datatype if name in specs else None
        try:
            tensors[name] = declared_tensor(name, value, datatype, f"model '{model}'")
        except ValueError as error:
            raise ServingError(Code.INVALID_ARG, f"input {error}") from None
    return tensors


def _input_specs(kernel: AppKernel, model: str, version: str) -> Mapping[str, TensorSpec]:
    try:
        specs: Mapping[str, TensorSpec] = kernel.model(model, version).input_specs
        return specs
    except NotLoaded:
        raise
    except ServingError:
        return {}  # the request will be told so


# -- from responses to a future ------------------------------------------------------------------------------------------------


class Collected:
    """The continuation of a request whose one response is wanted as a future. `future`: of asyncio, or of another thread."""

    __slots__ = ("_model", "_responses", "future")

    def __init__(self, model: str) -> None:
        self.future: asyncio.Future[InferenceResponse] | concurrent.futures.Future[InferenceResponse]
        self._model = model
        self._responses: list[InferenceResponse] = []

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        responses = self._responses
        if response is not None and (response.error is not None or response.outputs or not final or not responses):
            responses.append(response)
        if final:
            self._settle()

    def _settle(self) -> None:
        future, responses = self.future, self._responses
        if isinstance(future, concurrent.futures.Future):
            if not future.set_running_or_notify_cancel():
                return
        elif future.done():
            return
        error = next((response.error for response in responses if response.error is not None), None)
        if len(responses) == 1 and error is None:
            future.set_result(responses[0])
            return
        words = f"model '{self._model}' gave {len(responses)} responses where exactly one was wanted; use stream()"
        future.set_exception(error or ServingError(Code.UNSUPPORTED, words))


def inferred(
    kernel: AppKernel,
    model: str,
    inputs: Mapping[str, Any],
    version: int | str,
    outputs: Sequence[str] | None,
    timeout: float | None,
    **fields: Any,
) -> Future:
    """Ask for one inference, arguments as for `Kernel.infer`; return the future of its response."""
    collected = Collected(model)
    try:
        request = make_request(kernel, model, inputs, collected, version, outputs, timeout, **fields)
    except NotLoaded as away:  # only its config says what the inputs are

        def ask(inputs: Mapping[str, Any], timeout: float | None) -> Future:
            return inferred(kernel, model, inputs, version, outputs, timeout, **fields)

        return _inferred_once_loaded(kernel, away, inputs, timeout, ask)
    return answered(kernel, request, collected)


def _inferred_once_loaded(
    kernel: AppKernel,
    away: NotLoaded,
    inputs: Mapping[str, Any],
    timeout: float | None,
    ask: Callable[[Mapping[str, Any], float | None], Future],
) -> Future:
    """Return the future of a request that can only be made once its model is there: `ask` makes it then, of a copy of `inputs`
    and with what is left of the `timeout`.

    Raises NotLoaded where it is not asked for on the kernel's loop.
    """
    if get_ident() != kernel.loop_thread:
        raise away
    outer: Future = kernel.loop.create_future()
    kept = copy.deepcopy(dict(inputs))
    began = kernel.clock()
    words = "the request's time was over before its model was loaded"
    late = ServingError(Code.UNAVAILABLE, words, Reason.REJECTED)
    timer = None if timeout is None else kernel.loop.call_later(max(0.0, timeout), _fail, outer, late)

    def then(error: ServingError | None) -> None:
        if timer is not None:
            timer.cancel()
        if outer.done():
            return  # nobody waits any more
        if error is not None:
            outer.set_exception(error)
            return
        try:
            inner = ask(kept, None if timeout is None else timeout - (kernel.clock() - began))
        except ServingError as problem:
            outer.set_exception(problem)
            return
        outer.add_done_callback(lambda done: inner.cancel())
        inner.add_done_callback(lambda done: _copy_outcome(done, outer))

    away.wait(then, lambda: not outer.done(), False)
    return outer


def _fail(future: Future, error: ServingError) -> None:
    if not future.done():
        future.set_exception(error)


def _copy_outcome(done: Future, outer: Future) -> None:
    if outer.done():
        return
    if done.cancelled():
        outer.cancel()
    elif (error := done.exception()) is not None:
        outer.set_exception(error)
    else:
        outer.set_result(done.result())


def answered(kernel: AppKernel, request: InferenceRequest, collected: Collected) -> asyncio.Future[InferenceResponse]:
    """Submit a request that `collected` is the continuation of; return the future of its response, of the loop that runs here."""
    if get_ident() != kernel.loop_thread:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ServingError(
                Code.UNSUPPORTED,
                "Kernel.infer was called on a thread without a running event loop, and not on the one of the kernel's loop; "
                f"there it is kernel.infer_threadsafe('{request.model_name}', ...).result()",
            ) from None
        return asyncio.wrap_future(answered_elsewhere(kernel, request, collected), loop=loop)
    future = collected.future = kernel.loop.create_future()
    kernel.submit(request)
    if not future.done():
        future.add_done_callback(lambda done: kernel.cancel(request) if done.cancelled() else None)
    return future


def answered_elsewhere(
    kernel: AppKernel, request: InferenceRequest, collected: Collected
) -> concurrent.futures.Future[InferenceResponse]:
    """As `answered`, from another thread than the loop's."""
    future: concurrent.futures.Future[InferenceResponse] = concurrent.futures.Future()
    collected.future = future
    _post(kernel, kernel.submit, request)
    future.add_done_callback(lambda done: _give_up(kernel, request) if done.cancelled() else None)
    return future


async def responses(
    kernel: AppKernel, make: Callable[[Respond], InferenceRequest]
) -> AsyncIterator[InferenceResponse]:
    """Submit the request that `make` makes, and yield its responses as they come; on the loop that runs here.

    Raises ServingError instead of giving an error response. Leaving the iteration cancels the request.
    """
    queue: asyncio.Queue[tuple[InferenceResponse | None, bool]] = asyncio.Queue()
    loop = None if get_ident() == kernel.loop_thread else asyncio.get_running_loop()

    def respond(response: InferenceResponse | None, final: bool) -> None:
        if loop is None:
            queue.put_nowait((response, final))
        elif not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, (response, final))

    request = make(respond)
    if loop is None:
        kernel.submit(request)
    else:
        _post(kernel, kernel.submit, request)
    try:
        final = False
        while not final:
            response, final = await queue.get()
            if response is not None:
                if response.error is not None:
                    raise response.error
                yield response
    finally:
        if loop is None:
            kernel.cancel(request)
        else:
            _give_up(kernel, request)


def _post(kernel: AppKernel, call: Callable[[InferenceRequest], None], request: InferenceRequest) -> None:
    """Have the loop make a call, from another thread. Raises ServingError once nobody would."""
    try:
        kernel.call_soon(call, request)
    except RuntimeError:
        raise _stopped() from None


def _give_up(kernel: AppKernel, request: InferenceRequest) -> None:
    """Cancel a request from another thread; once the kernel has stopped it has been answered."""
    with contextlib.suppress(ServingError):
        _post(kernel, kernel.cancel, request)


# -- who can't be asked ------------------------------------------------------------------------------------------------------


class NotStarted(ServingError, AttributeError):
    """Also an AttributeError, since it stands for what is not there yet."""

    def __init__(self) -> None:
        words = "this Kernel has not been started: use it in `async with Kernel(...) as kernel:`, or await kernel.start() first"
        super().__init__(Code.UNAVAILABLE, words)


def check_running(kernel: AppKernel) -> None:
    """Raise ServingError where the kernel has not been started, or has come to its end."""
    if kernel.live:
        return
    if not hasattr(kernel, "mailbox"):
        raise _stopped() if kernel.exiting else NotStarted()
    if kernel.mailbox.closed:
        raise _stopped()


def _stopped() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "this Kernel has been stopped and serves nothing any more; make a new one")
