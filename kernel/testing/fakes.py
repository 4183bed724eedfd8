"""Models that a test makes up: a function stands in for a model that is not there, or that is too heavy to load.

To whoever calls it a fake is a model like others: it is looked up, checked, queued and counted. With a config it is also held to
it, calls and answers alike; without one it takes whatever it is sent. Every call is kept for the test to look at.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from google.protobuf import text_format

from kernel.config import Message, ModelConfig, read_message
from kernel.errors import Code, Reason, ServingError
from kernel.hookspecs import hookimpl
from kernel.interfaces import InstanceContext, Placement
from kernel.models import Model
from kernel.requests import Batch, InferenceRequest, InferenceResponse
from kernel.server import Kernel
from kernel.tensor import Array
from kernel.testing.values import as_tensor

__all__ = ["Fake", "FakeBackend", "FakeCall"]

BACKEND = "fake"


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One call of a fake. `fake_call["X"]` is the input X.

    `inputs`: arrays of their full shapes, by name. `parameters`, `id`, `requested_outputs`: of the call.
    """

    inputs: dict[str, Array]
    parameters: dict[str, Any]
    id: str
    requested_outputs: tuple[str, ...]

    def __getitem__(self, name: str) -> Array:
        """Return the input called `name`; KeyError names those that there are."""
        try:
            return self.inputs[name]
        except KeyError:
            raise KeyError(f"the call had no input '{name}'; it had {', '.join(self.inputs) or 'none'}") from None


@dataclass(eq=False)
class Fake:
    """A made-up model, called `name`. `calls`: what it was sent so far, oldest first. `config`: see `Kit.fake_model`, which
    makes it.

    `answer`: a function of the inputs, by name, that returns the outputs as a mapping; it may be a coroutine function, and as
    a generator it is a decoupled model. A parameter that is positional only gets the FakeCall. Or the outputs themselves, or
    an exception. `failures`: assertions that have failed in it.

    The core's own: `write`, `loaded`, `respond`.
    """

    name: str
    answer: Any
    config: str | Path | Mapping[str, Any] | None = None
    calls: list[FakeCall] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        function = inspect.unwrap(self.answer) if callable(self.answer) else None
        self.decoupled = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self._datatypes: dict[str, str] = {}

    # -- as a model ----------------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write the model folder of the fake. Raises ServingError for a config that can't be read."""
        (folder / "1").mkdir(parents=True)
        target = folder / "config.pbtxt"
        message = Message()
        if isinstance(self.config, Mapping):
            message, _ = read_message(folder, override=json.dumps(self.config))
        elif self.config is not None:
            source = _config_text(self.config)
            target.write_text(source)
            message, _ = read_message(folder)
        kept = Message(name=self.name, backend=BACKEND, max_batch_size=message.max_batch_size)
        kept.input.extend(message.input)
        kept.output.extend(message.output)
        for output in kept.output:
            output.ClearField("label_filename")
        kept.model_transaction_policy.decoupled = self.decoupled or message.model_transaction_policy.decoupled
        kept.instance_group.add(kind=2, count=1)  # KIND_CPU
        target.write_text(text_format.MessageToString(kept))

    def loaded(self, model: Model) -> None:
        """Without a config, let the model take everything and answer anything."""
        self._datatypes = {spec.name: spec.datatype for spec in model.config.outputs}
        if self.config is None:
            model.check = _Anything(model)
            model.accept_any_output()

    # -- its answers ---------------------------------------------------------------------------------------------------

    async def respond(self, request: InferenceRequest, kernel: Kernel) -> InferenceResponse | None:
        """Answer one request; None where its responses were sent one by one."""
        call = FakeCall(
            {name: tensor.array for name, tensor in request.inputs.items()},
            dict(request.parameters or {}),
            request.id,
            tuple(request.requested_outputs or ()),
        )
        self.calls.append(call)
        try:
            result = self._result(call)
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, Iterator | AsyncIterator):
                await self._send(result, request, kernel)
                return None
            response = self._response(result, request)
            if not request.model.decoupled:
                return response
            kernel.send(request, response, True)
            return None
        except AssertionError as error:
            self.failures.append(error)
            problem: Exception = error
        except Exception as error:
            problem = error
        response = InferenceResponse([], error=self._as_error(problem))
        if not request.model.decoupled:
            return response
        kernel.send(request, response, True)
        return None

    def _result(self, call: FakeCall) -> Any:
        answer = self.answer
        if isinstance(answer, BaseException):
            raise answer
        if not callable(answer):
            return answer
        first = [call] if _takes_call(answer) else []
        try:
            inspect.signature(answer).bind(*first, **call.inputs)
        except TypeError as error:
            came = ", ".join(call.inputs) or "no inputs"
            raise AssertionError(
                f"the fake of '{self.name}' was sent {came}, which its function does not take: {error} "
                f"(it is {getattr(answer, '__name__', 'the function')}{inspect.signature(answer)})"
            ) from None
        return answer(*first, **call.inputs)

    async def _send(self, results: Any, request: InferenceRequest, kernel: Kernel) -> None:
        if isinstance(results, Iterator):
            for result in results:
                kernel.send(request, self._response(result, request), False)
        else:
            async for result in results:
                kernel.send(request, self._response(result, request), False)
        kernel.send(request, None, True)

    def _response(self, result: Any, request: InferenceRequest) -> InferenceResponse:
        if isinstance(result, InferenceResponse):
            return result
        if not isinstance(result, Mapping):
            raise AssertionError(
                f"the fake of '{self.name}' answered with {type(result).__name__}, wanted a mapping of outputs: "
                "{'NAME': values, ...}"
            )
        whose = f"the fake of '{self.name}'"
        wanted = request.requested_outputs
        try:
            return InferenceResponse(
                [
                    as_tensor(name, value, self._datatypes.get(name), whose)
                    for name, value in result.items()
                    if not wanted or name in wanted or (self.config is not None and name not in self._datatypes)
                ]
            )
        except ValueError as error:
            raise AssertionError(str(error)) from None

    def _as_error(self, problem: Exception) -> ServingError:
        if isinstance(problem, ServingError):
            return ServingError(problem.code, problem.message, Reason.BACKEND)
        return ServingError(
            Code.INTERNAL, f"the fake of '{self.name}' raised {type(problem).__name__}: {problem}", Reason.BACKEND
        )


def _config_text(config: str | Path | Any) -> str:
    """Return the text of a config that was given as text, as a file, or as the folder of a model."""
    if isinstance(config, str) and ("{" in config or ":" in config or "\n" in config):
        return config
    path = Path(config)
    return (path / "config.pbtxt" if path.is_dir() else path).read_text()


def _takes_call(function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    return bool(parameters) and parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY


class _Anything:
    """Instead of Model.check: no config says what a request has to be."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, request: InferenceRequest) -> None:
        request.model = self._model
        request.wanted = frozenset(request.requested_outputs or ())


class FakeExecutor:
    placement = Placement.TASK
    capacity = 1024
    may_wait = False

    def __init__(self, fake: Fake, kernel: Kernel) -> None:
        self._fake = fake
        self._kernel = kernel

    async def execute(self, batch: Batch) -> list[InferenceResponse | None]:
        return [await self._fake.respond(request, self._kernel) for request in batch.requests]

    def finalize(self) -> None:
        return


class FakeBackend:
    """Serves the fakes of one kit; a plugin of its kernel."""

    name = BACKEND
    creates_on_loop = True

    def __init__(self, fakes: Mapping[str, Fake]) -> None:
        self._fakes = fakes

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return

    def create(self, context: InstanceContext) -> Any:
        return FakeExecutor(self._fakes[context.config.name], cast(Kernel, context.kernel))

    @hookimpl
    def register_backends(self, kernel: Kernel) -> dict[str, Any]:
        return {BACKEND: self}
