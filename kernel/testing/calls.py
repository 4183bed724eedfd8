"""One request of a test, from its values to what became of it.

Makes the tensors, submits, collects the responses. Raises what a client would be told as ServingError, and what is wrong with the
test or its fakes as what it is.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from kernel.errors import Code, ServingError
from kernel.requests import InferenceRequest, InferenceResponse, RequestState
from kernel.testing.errors import Unanswered
from kernel.testing.kit_protocol import KitProtocol
from kernel.testing.values import as_tensor

if TYPE_CHECKING:
    from kernel.models import Model

__all__ = ["OPTIONS", "Request"]


#: Keywords that say something about a request, where the model has no input of that name.
OPTIONS = frozenset({"correlation_id", "flags", "id", "outputs", "parameters", "priority", "timeout"})


class Request:
    """A request. `responses`: those so far. `done`: the final answer is there."""

    def __init__(self, kit: KitProtocol, model: Model, inputs: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        self.responses: list[InferenceResponse] = []
        self.done = False
        self._kit = kit
        self._model = model
        self._news = asyncio.Event()
        datatypes = {name: spec.datatype for name, spec in model.input_specs.items()}
        options = {name: value for name, value in named.items() if name in OPTIONS and name not in datatypes}
        values = {**inputs, **{name: value for name, value in named.items() if name not in options}}
        if len(values) + len(options) < len(inputs) + len(named):
            twice = ", ".join(sorted(inputs.keys() & named.keys()))
            raise TypeError(f"{twice} of model '{model.name}' came twice: in the mapping and by name")
        whose = f"model '{model.name}'"
        tensors = {name: as_tensor(name, value, datatypes.get(name), whose) for name, value in values.items()}
        self._hint = _unknown_inputs(tensors, datatypes)
        timeout = options.pop("timeout", None)
        self._request = InferenceRequest(
            model.name,
            tensors,
            self._respond,
            model_version=str(model.version),
            requested_outputs=options.pop("outputs", None),
            deadline=None if timeout is None else kit.kernel.clock() + timeout,
            **options,
        )

    def send(self) -> None:
        """Submit it. While the loop runs."""
        self._kit.kernel.submit(self._request)

    def _respond(self, response: InferenceResponse | None, final: bool) -> None:
        if response is not None:
            self.responses.append(response)
        self.done = self.done or final
        self._news.set()

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._kit.kernel.cancel(self._request)

    def give_up(self) -> None:
        """The kit has said that there is no answer, and need not say it again."""
        if self._request.state is not RequestState.RELEASED:
            self._request.model.scheduler.cancel(self._request)

    async def each(self) -> AsyncIterator[InferenceResponse]:
        """Yield the responses as they come. Raises ServingError instead of an error response."""
        __tracebackhide__ = True
        index = 0
        try:
            while True:
                while index < len(self.responses):
                    response = self.responses[index]
                    index += 1
                    if response.error is not None:
                        raise self._as_raised(response.error)
                    yield response
                if self.done:
                    self._kit.raise_failures()
                    return
                await self._more()
        finally:
            self.cancel()

    async def all(self) -> list[InferenceResponse]:
        """Wait for the final answer and return the responses that carry data."""
        __tracebackhide__ = True
        responses = []
        async for response in self.each():
            responses.append(response)
        return responses

    async def one(self) -> InferenceResponse:
        """Wait for the final answer and return the one response. Raises ServingError where there are several, or none."""
        __tracebackhide__ = True
        responses = await self.all()
        given = [response for response in responses if response.outputs] or responses
        if len(given) == 1:
            return given[0]
        raise ServingError(
            Code.UNSUPPORTED,
            f"model '{self._model.name}' gave {len(given)} responses where exactly one was wanted; use stream()",
        )

    async def _more(self) -> None:
        __tracebackhide__ = True
        self._news.clear()
        limit = self._kit.limit_elsewhere
        if limit is None:  # the kit's own loop sees by itself when nothing comes
            self._kit.loop.renew()
            await self._news.wait()
            return
        try:
            await asyncio.wait_for(self._news.wait(), limit)
        except TimeoutError:
            text = f"no final answer within {limit:g} s\n{self._kit.explain()}".rstrip()
            self._kit.hung, self._kit.told = True, self._kit.reasons()
            self.give_up()
            raise Unanswered(text) from None

    def _as_raised(self, error: ServingError) -> Exception:
        __tracebackhide__ = True
        self._kit.raise_failures()
        for note in (self._hint, self._kit.hint(error.message)):
            if note:
                error.add_note(note)
        return error


def _unknown_inputs(given: Mapping[str, object], declared: Mapping[str, object]) -> str:
    unknown = [name for name in given if name not in declared]
    if not unknown:
        return ""
    near = difflib.get_close_matches(unknown[0], declared, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"The model has no input '{unknown[0]}', its inputs are {', '.join(declared) or 'none'}{hint}"
