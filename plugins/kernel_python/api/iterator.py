"""The responses of a decoupled BLS call, one by one (contract: python_backend, 1.5).

Filled on the kernel's loop, read from wherever the model runs: waiting never blocks the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel import InferenceRequest, ServingError
from kernel import InferenceResponse as CoreResponse
from kernel_python import waiting
from kernel_python.api.responses import InferenceResponse, response_of
from kernel_python.calling import Instance

__all__ = ["ResponseIterator"]

_DONE = "Iteration is done for the responses."


class ResponseIterator:
    """Iterate with `for` or `async for`. It ends after the response that carries the final flag.

    A final flag that came alone is one more response, without outputs. A loop goes on where the last one was left; once all
    responses were taken, another loop replays them, `next` does not.
    """

    __slots__ = ("_ended", "_error_of", "_instance", "_items", "_next", "_request", "_wakers")
    __module__ = "c_python_backend_utils"

    def __init__(self, instance: Instance, error_of: Callable[[InferenceRequest, ServingError], CoreResponse]) -> None:
        self._instance = instance
        self._error_of = error_of
        self._request: InferenceRequest | None = None
        self._items: list[InferenceResponse] = []
        self._ended = False  # the final flag has come
        self._next = 0
        self._wakers: list[Callable[[], None]] = []

    # -- filled by the core, on the loop -------------------------------------------------------------------------------

    def _respond(self, response: CoreResponse | None, final: bool) -> None:
        if response is None:
            response = CoreResponse([])
        elif response.error is not None and self._request is not None:
            response = self._error_of(self._request, response.error)
        self._items.append(response_of(response, self._instance.zero_copy))
        self._ended = final or self._ended
        if self._wakers:
            wakers, self._wakers = self._wakers, []
            for wake in wakers:
                wake()

    def _when_more(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is something to take, or the end. On the loop."""
        if self._next < len(self._items) or self._ended:
            wake()
        else:
            self._wakers.append(wake)

    # -- read by the model ---------------------------------------------------------------------------------------------

    def _take(self) -> InferenceResponse | None:
        """Return the next response, or None when it is not there (yet)."""
        index = self._next
        if index >= len(self._items):
            return None
        self._next = index + 1
        return self._items[index]

    def __iter__(self) -> ResponseIterator:
        if self._ended and self._next == len(self._items):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        while (item := self._take()) is None:
            if self._ended and self._next >= len(self._items):
                raise StopIteration(_DONE)
            waiting.wait_for(self._instance, self._when_more, "iterate with `async for` instead of `for`")
        return item

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        while (item := self._take()) is None:
            if self._ended and self._next >= len(self._items):
                raise StopAsyncIteration(_DONE)
            await waiting.future_for(self._instance.kernel, self._when_more)
        return item

    def cancel(self) -> None:
        """Give the request up: the called model can tell, and the iteration ends."""
        request, kernel = self._request, self._instance.kernel
        if request is not None and not self._ended:
            kernel.call_in_order(kernel.cancel, request)
