"""What the core's own tests share: virtual time (of kernel.testing), and a backend that does what a test tells it.

An hour passes in a millisecond, a hung request is a failing test at once ("deadlock"), and nothing ever sleeps.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernel import (
    Batch,
    InferenceRequest,
    InferenceResponse,
    InstanceContext,
    Kernel,
    ModelConfig,
    Placement,
    RequestState,
    Result,
    Tensor,
    hookimpl,
)
from kernel.requests.request import TRANSITIONS
from kernel.testing import Deadlock, VirtualLoop, run

__all__ = [
    "BASE",
    "Behaviour",
    "Client",
    "Deadlock",
    "LateLoop",
    "TestBackend",
    "TestExecutor",
    "VirtualLoop",
    "Watched",
    "answer",
    "echo",
    "run",
    "sleeping",
    "write_repository",
]


#: What a test model does with a batch: a function or a coroutine function, given the batch.
Behaviour = Callable[[Batch], Result | Awaitable[Result]]


def echo(batch: Batch) -> Result:
    """Answer Y = X."""
    return [answer(request) for request in batch.requests]


def answer(request: InferenceRequest, **arrays: Any) -> InferenceResponse:
    """Return the response with the given outputs, or with Y = X."""
    if not arrays:
        return InferenceResponse([Tensor("Y", tensor.datatype, tensor.array) for tensor in request.inputs.values()][:1])
    return InferenceResponse([Tensor(name, "FP32", np.asarray(array, np.float32)) for name, array in arrays.items()])


def sleeping(seconds: float, then: Behaviour = echo) -> Behaviour:
    """Return a behaviour that takes `seconds` and then does what `then` does."""

    async def execute(batch: Batch) -> Result:
        await asyncio.sleep(seconds)
        return then(batch)  # type: ignore[return-value]

    return execute


class LateLoop(VirtualLoop):
    """Virtual time, in which the work of threads is done at once, and is known `delay()` seconds later."""

    def __init__(self, delay: Callable[[], float]) -> None:
        super().__init__()
        self._delay = delay

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = super().run_in_executor(executor, function, *args)
        delay = self._delay()
        if not delay:
            return done
        late = self.create_future()

        def settle() -> None:
            if not late.done():
                error = done.exception()
                if error is None:
                    late.set_result(done.result())
                else:
                    late.set_exception(error)

        done.exception()  # fetched
        self.call_later(delay, settle)
        return late


class TestExecutor:
    __test__ = False
    may_wait = True

    def __init__(self, behaviour: Behaviour, context: InstanceContext, log: list[tuple[float, str, Any]]) -> None:
        self.behaviour = behaviour
        self.placement = Placement.TASK if inspect.iscoroutinefunction(behaviour) else Placement.LOOP
        self.capacity = int(context.config.parameters.get("max_concurrency", "1"))
        self.context = context
        self.log = log
        self.log.append((context.kernel.loop.time(), "initialize", context.instance_name))

    def execute(self, batch: Batch) -> Any:
        now = self.context.kernel.loop.time()
        self.log.append((now, self.context.config.name, [request.id for request in batch.requests]))
        return self.behaviour(batch)

    def finalize(self) -> None:
        self.log.append((self.context.kernel.loop.time(), "finalize", self.context.instance_name))


class TestBackend:
    """Serves `backend: "test"`: each model does what `behaviours` says under its name."""

    __test__ = False
    name = "test"
    creates_on_loop = True

    def __init__(self, behaviours: Mapping[str, Behaviour]) -> None:
        self.behaviours = behaviours
        #: (virtual time, model or "initialize"/"finalize", request ids or instance name), in order
        self.log: list[tuple[float, str, Any]] = []

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return

    def create(self, context: InstanceContext) -> TestExecutor:
        return TestExecutor(self.behaviours.get(context.config.name, echo), context, self.log)

    @hookimpl
    def register_backends(self, kernel: Kernel) -> Mapping[str, Any]:
        return {"test": self}

    def executions(self, model: str) -> list[Any]:
        """Return the request ids of each execution of `model`."""
        return [ids for _, name, ids in self.log if name == model]


BASE = """
backend: "test"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


def write_repository(folder: Path, models: Mapping[str, str], versions: tuple[int, ...] = (1,)) -> Path:
    """Write a model repository: name -> config text."""
    for name, config in models.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(config)
        for version in versions:
            (folder / name / str(version)).mkdir(exist_ok=True)
    return folder


class Watched(InferenceRequest):
    """A request that asserts the table of states at every move."""

    __slots__ = ("_state",)

    @property  # type: ignore[override]
    def state(self) -> RequestState:
        return self._state

    @state.setter
    def state(self, new: RequestState) -> None:
        old: RequestState | None = getattr(self, "_state", None)
        assert old is None or new in TRANSITIONS[old], f"{old!r} to {new!r}"
        self._state = new


class Client:
    """Sends requests to a kernel and keeps what became of them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.answers: dict[str, list[tuple[float, InferenceResponse | None, bool]]] = {}
        self.requests: dict[str, InferenceRequest] = {}

    def send(self, model: str, id: str, value: Any = (1.0,), **fields: Any) -> InferenceRequest:
        """Submit one request with input X and remember its answers under `id`."""
        answers = self.answers.setdefault(id, [])
        loop = self.kernel.loop

        def respond(response: InferenceResponse | None, final: bool) -> None:
            answers.append((loop.time() - 1000.0, response, final))

        tensor = Tensor("X", "FP32", np.array(value, np.float32))
        request = Watched(model, {"X": tensor}, respond, id=id, **fields)
        self.requests[id] = request
        self.kernel.submit(request)
        return request

    def outcome(self, id: str) -> tuple[float, str]:
        """Return when the request got its one final answer, and "ok" or the error's words."""
        finals = [(when, response) for when, response, final in self.answers[id] if final]
        assert len(finals) == 1, f"request {id} got {len(finals)} final answers"
        when, response = finals[0]
        error = response.error if response is not None else None
        return round(when, 6), error.message if error is not None else "ok"

    def outcomes(self) -> dict[str, tuple[float, str]]:
        return {id: self.outcome(id) for id in self.answers}
