"""What a test holds in its hands: a loaded model or repository, in the form for plain tests and in the one for async tests.

The two forms have the same methods; in async tests they are awaited. Inputs are given by name, `model.infer(A=[1, 2])`, or as a
mapping; lists become the declared datatype, numpy arrays stay what they are. Keywords that name no input of the model may be
options: outputs, parameters, id, timeout (in seconds), priority, correlation_id and flags, as for `kernel.Kernel.infer`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, TypeVar

from kernel.config import ModelConfig
from kernel.models import Model
from kernel.observability import ModelStatistics
from kernel.requests import InferenceResponse
from kernel.server import Kernel
from kernel.testing.calls import Request
from kernel.testing.kit_protocol import KitProtocol

__all__ = ["AsyncCall", "AsyncModel", "AsyncRepository", "Call", "LoadedModel", "LoadedRepository"]

Inputs = Mapping[str, Any] | None


class _Common:
    """What needs no waiting. `kit`: the kit that has loaded it; `name`, `version`: the model's."""

    def __init__(self, kit: KitProtocol, name: str, version: int) -> None:
        self.kit = kit
        self.name = name
        self.version = version

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} version {self.version}>"

    @property
    def kernel(self) -> Kernel:
        """The kernel that it is loaded into."""
        return self.kit.kernel

    @property
    def loaded(self) -> Model:
        """The kernel's own object."""
        return self.kernel.model(self.name, self.version)

    @property
    def config(self) -> ModelConfig:
        """Its config, completed."""
        return self.loaded.config

    @property
    def statistics(self) -> ModelStatistics:
        """What has been counted since it was loaded."""
        return self.loaded.statistics()

    def _request(self, inputs: Inputs, named: dict[str, Any]) -> Request:
        return Request(self.kit, self.loaded, inputs or {}, named)


class LoadedModel(_Common):
    """A model in a plain test; `name` and `version`. Made by `Kit.load_model`.

    Inputs are given by name, or in a mapping: arrays of the tensor's full shape, or lists, which become the datatype that the
    config declares. What is no input's name is an option of the request: `outputs` (names), `id`, `parameters`, `timeout`
    (seconds), `priority`, `correlation_id`, `flags`.
    """

    def infer(self, inputs: Inputs = None, /, **named: Any) -> InferenceResponse:
        """Run one inference and return the response.

        Raises ServingError for what a client would be told, Deadlock or Unanswered when there is no answer.
        """
        __tracebackhide__ = True
        return self.submit(inputs, **named).result()

    def stream(self, inputs: Inputs = None, /, **named: Any) -> Iterator[InferenceResponse]:
        """Run one inference and yield its responses as they come; leaving the loop cancels the request."""
        return self.submit(inputs, **named).stream()

    def submit(self, inputs: Inputs = None, /, **named: Any) -> Call:
        """Send a request and go on; `.result()` waits. All that are sent before the test waits for something arrive together."""
        __tracebackhide__ = True
        self.kit.prepare()
        request = self._request(inputs, named)
        self.kit.loop.call_soon(request.send)
        return Call(self.kit, request)


class _Submitted:
    """A request that was submitted, as far as it needs no waiting."""

    def __init__(self, request: Request) -> None:
        self._request = request

    @property
    def responses(self) -> list[InferenceResponse]:
        """The responses so far."""
        return self._request.responses

    @property
    def done(self) -> bool:
        """Whether the final answer is there."""
        return self._request.done


class Call(_Submitted):
    """A request of a plain test that was submitted. Made by `LoadedModel.submit`."""

    def __init__(self, kit: KitProtocol, request: Request) -> None:
        super().__init__(request)
        self._kit = kit

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._kit.run(_soon(self._request.cancel))

    def result(self) -> InferenceResponse:
        """Wait for the final answer and return the one response."""
        __tracebackhide__ = True
        response: InferenceResponse = self._kit.run(self._request.one(), self._request)
        return response

    def all(self) -> list[InferenceResponse]:
        """Wait for the final answer and return the responses."""
        __tracebackhide__ = True
        responses: list[InferenceResponse] = self._kit.run(self._request.all(), self._request)
        return responses

    def stream(self) -> Iterator[InferenceResponse]:
        """Yield the responses as they come; leaving the loop cancels the request."""
        __tracebackhide__ = True
        responses = self._request.each()
        try:
            while True:
                try:
                    response = self._kit.run(_next(responses), self._request)
                except StopAsyncIteration:
                    return
                yield response
        finally:
            self._kit.run(_close(responses))


class AsyncModel(_Common):
    """A model in an async test: as LoadedModel, awaited. Made by `Kit.load_model`."""

    async def infer(self, inputs: Inputs = None, /, **named: Any) -> InferenceResponse:
        """Run one inference and return the response; see LoadedModel.infer. Cancelling the await cancels the request."""
        __tracebackhide__ = True
        return await (await self._sent(inputs, named)).one()

    async def stream(self, inputs: Inputs = None, /, **named: Any) -> AsyncIterator[InferenceResponse]:
        """Run one inference and yield its responses as they come; leaving the iteration cancels the request."""
        responses = (await self._sent(inputs, named)).each()
        try:
            async for response in responses:
                yield response
        finally:
            await _close(responses)

    async def submit(self, inputs: Inputs = None, /, **named: Any) -> AsyncCall:
        """Send a request and go on; `await call.result()` waits."""
        return AsyncCall(await self._sent(inputs, named))

    async def _sent(self, inputs: Inputs, named: dict[str, Any]) -> Request:
        await self.kit.catch_up()
        request = self._request(inputs, named)
        request.send()
        return request


class AsyncCall(_Submitted):
    """A request of an async test that was submitted."""

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._request.cancel()

    async def result(self) -> InferenceResponse:
        """Wait for the final answer and return the one response."""
        __tracebackhide__ = True
        return await self._request.one()

    async def all(self) -> list[InferenceResponse]:
        """Wait for the final answer and return the responses."""
        __tracebackhide__ = True
        return await self._request.all()


M = TypeVar("M", bound=_Common)


class _Repository(Mapping[str, M]):
    """The models of a repository by name."""

    def __init__(self, kit: KitProtocol, models: Mapping[str, M]) -> None:
        self.kit = kit
        self._models = dict(models)

    @property
    def kernel(self) -> Kernel:
        """The kernel that they are loaded into."""
        return self.kit.kernel

    def __getitem__(self, name: str) -> M:
        """Return the model called `name`; KeyError names those that there are."""
        try:
            return self._models[name]
        except KeyError:
            raise KeyError(f"no model '{name}' was loaded; there are {', '.join(self._models) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


class LoadedRepository(_Repository[LoadedModel]):
    """The models of a repository in a plain test, by name."""


class AsyncRepository(_Repository[AsyncModel]):
    """The models of a repository in an async test, by name."""


async def _soon(function: Any) -> None:
    function()


async def _next(responses: AsyncIterator[InferenceResponse]) -> InferenceResponse:
    return await anext(responses)


async def _close(responses: Any) -> None:
    await responses.aclose()
