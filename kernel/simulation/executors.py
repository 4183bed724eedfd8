"""Executors that take the time which an execution is said to cost, make the calls that it is said to make, and compute nothing.

One that the config puts on the loop holds that while it executes; one that runs there as it only waits, or elsewhere, goes on
while the loop does other work.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from heapq import heappush
from itertools import repeat
from typing import Any

from kernel.config import ModelConfig
from kernel.errors import ServingError
from kernel.instances import READY_SECONDS, RemoteInstance, RunLength
from kernel.interfaces import Host, Placement
from kernel.requests import LATER, SKIPPED, Batch, InferenceRequest, InferenceResponse, RequestState, Respond
from kernel.simulation.cost import ModelCall
from kernel.simulation.forms import Forms, Shapes, tensor_of
from kernel.simulation.loop import SimulationLoop

__all__ = ["Beside", "Caller", "CallsBeside", "CallsOnLoop", "CallsOnThread", "OnLoop", "OnThread", "Worked", "Zeros"]

Takes = Callable[[int], float]


class Worked:
    """What the instances of one model have done. `batches`: rows -> executions. `seconds`: that these took in all."""

    __slots__ = ("batches", "capacity", "instances", "seconds")

    def __init__(self) -> None:
        self.instances = 0
        self.capacity = 0  # executions that they may have at a time
        self.batches: defaultdict[int, int] = defaultdict(int)
        self.seconds = 0.0

    def note(self, rows: int, seconds: float) -> None:
        """Count one execution."""
        self.batches[rows] += 1
        self.seconds += seconds


class Zeros:
    """The answers of a model: zeros of the right form. `apart`: each request has its own, as somebody takes them to pieces."""

    def __init__(self, config: ModelConfig, shapes: Shapes) -> None:
        #: By name, as the state of a sequence may be an output, too.
        self._specs = {spec.name: spec for spec in (*config.outputs, *config.kept_outputs)}
        self._batches = config.max_batch_size > 0
        self._shapes = shapes
        self.apart = any(spec.reshape is not None for spec in config.outputs) or bool(config.kept_outputs)
        self._kept: dict[int, InferenceResponse] = {}
        self._lists: dict[int, list[InferenceResponse]] = {}  # for requests of one row each, by how many they are

    def __call__(self, batch: Batch) -> list[InferenceResponse]:
        requests = batch.requests
        if self.apart:
            return [self._made(request.batch_size) for request in requests]
        if batch.size == len(requests):
            found = self._lists.get(batch.size)
            if found is None:
                found = self._lists[batch.size] = [self._of(1)] * batch.size
            return found
        return [self._of(request.batch_size) for request in requests]

    def _of(self, rows: int) -> InferenceResponse:
        response = self._kept.get(rows)
        if response is None:
            response = self._kept[rows] = self._made(rows)
        return response

    def _made(self, rows: int) -> InferenceResponse:
        first = rows if self._batches else 0
        return InferenceResponse([tensor_of(spec, first, self._shapes, inside=True) for spec in self._specs.values()])


class OnLoop:
    """Executes on the loop, which does nothing else meanwhile."""

    placement = Placement.LOOP
    capacity = 1
    may_wait = False

    def __init__(self, answers: Zeros, worked: Worked, takes: Takes, loop: SimulationLoop) -> None:
        self._answers = answers
        self._worked = worked
        self._takes = takes
        self._loop = loop

    def execute(self, batch: Batch) -> list[InferenceResponse]:
        seconds = self._takes(batch.size)
        self._worked.note(batch.size, seconds)
        self._loop.now += seconds
        return self._answers(batch)

    def finalize(self) -> None:
        return


class Beside:
    """Executes beside the loop: `capacity` at a time, in the order in which they come."""

    placement = Placement.REMOTE
    may_wait = False

    def __init__(self, answers: Zeros, worked: Worked, takes: Takes, loop: SimulationLoop, capacity: int) -> None:
        self.capacity = capacity
        self._answers = answers
        self._worked = worked
        self._takes = takes
        self._loop = loop
        self._running = 0
        self._waiting: deque[Batch] = deque()

    def attach(self, instance: RemoteInstance) -> None:
        """It never goes down."""
        instance.start = self.start  # type: ignore[method-assign]  # which does not fail: a frame less for each execution

    def execute(self, batch: Batch) -> None:
        self.start(batch)

    def start(self, batch: Batch) -> object:
        """Begin with an execution, or have it wait. All in one, as it is done for each execution."""
        if self._running >= self.capacity:
            self._waiting.append(batch)
            return LATER
        self._running += 1
        loop, worked, rows = self._loop, self._worked, batch.size
        batch.started = now = loop.now
        seconds = self._takes(rows)
        worked.batches[rows] += 1
        worked.seconds += seconds
        heappush(loop.later, (now + seconds, loop.number(), self._end, batch))
        return LATER

    def _end(self, batch: Batch) -> None:
        self._finish(batch, self._answers(batch))

    def _finish(self, batch: Batch, result: object) -> None:
        self._running -= 1
        batch.ended = self._loop.now
        if self._waiting:
            self._go_on()
        batch.instance.finished(batch, result)

    def _go_on(self) -> None:
        while self._waiting and self._running < self.capacity:
            batch = self._waiting.popleft()
            if all(one.state is RequestState.RELEASED for one in batch.requests):
                batch.started = batch.ended = self._loop.now
                self._loop.call_soon(batch.instance.finished, batch, SKIPPED)
            else:
                self.start(batch)

    def take_back(self) -> list[Batch]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """What goes on is finished all the same."""

    def kill(self) -> None:
        """There is no process."""

    async def close(self) -> None:
        return

    def finalize(self) -> None:
        return


class OnThread(Beside):
    """Executes on a thread of this process: as that gets in the way of what comes in, bursts are gathered first."""

    instance: RemoteInstance

    def attach(self, instance: RemoteInstance) -> None:
        super().attach(instance)
        instance.apart = False
        self.instance = instance
        self.length = RunLength()

    def _end(self, batch: Batch) -> None:
        # As `_finish`, whose frame would cost as much as what it does.
        self._running -= 1
        instance = self.instance
        owner: Any = instance.owner
        batch.ended = ended = self._loop.now
        if self.length.learn(ended - batch.started) and instance.runs:
            instance.limit = self.length.on_thread(batches=owner.rule is not None)
        if self._waiting:
            self._go_on()
        owner.finished(instance, batch, self._answers(batch))

    def _finish(self, batch: Batch, result: object) -> None:
        self._running -= 1
        instance, owner = self.instance, self.instance.owner
        assert owner is not None
        batch.ended = ended = self._loop.now
        if self.length.learn(ended - batch.started) and instance.runs:
            instance.limit = self.length.on_thread(batches=owner.rule is not None)
        if self._waiting:
            self._go_on()
        owner.finished(instance, batch, result)

    def take_back(self) -> list[Batch]:
        taken = super().take_back()
        self.length.forget(READY_SECONDS)
        self.instance.limit = 1
        return taken


# -- executions that call other models -------------------------------------------------------------------------------------

#: What an execution waits for: seconds, or the answers to requests, each with the one who takes it.
Wanted = float | list[InferenceRequest]


class Caller:
    """What executions do that call other models. `steps`: how long each takes, or what it calls."""

    def __init__(self, kernel: Host, shapes: Shapes, steps: list[Takes | tuple[ModelCall, ...]]) -> None:
        self.kernel = kernel
        self._shapes = shapes
        self._steps = steps
        self._forms: dict[str, Forms] = {}

    @staticmethod
    def no_time(rows: int) -> float:
        """What an execution takes by itself, as its steps say all of it."""
        return 0.0

    def walk(self, batch: Batch) -> Generator[Wanted, None, None]:
        """Yield what an execution waits for, one after another. Raises ServingError where a call has failed."""
        failed: list[ServingError] = []
        for step in self._steps:
            if not isinstance(step, tuple):
                yield step(batch.size)
                continue
            calls = self._calls(step, batch, failed)
            if len(step) > 1:
                if together := list(calls):
                    yield together
            else:
                for request in calls:
                    yield [request]
                    if failed:
                        break
            if failed:
                raise failed[0]

    def _calls(self, calls: tuple[ModelCall, ...], batch: Batch, failed: list[ServingError]) -> Iterator[InferenceRequest]:
        for request in batch.requests:
            for call in calls:
                for _ in repeat(None, call.times):
                    if request.state is not RequestState.RELEASED:
                        yield self._call(call, request, batch, failed)

    def _call(self, call: ModelCall, request: InferenceRequest, batch: Batch, failed: list[ServingError]) -> InferenceRequest:
        forms = self._forms.get(call.model)
        if forms is None:
            forms = self._forms[call.model] = Forms(self.kernel.model(call.model), self._shapes)  # type: ignore[arg-type]
        rows = call.rows
        if rows is None:
            rows = request.batch_size if forms.batches else 1
        inputs, form = forms.of(rows)

        def taken(response: InferenceResponse | None, final: bool) -> None:
            if response is not None and response.error is not None:
                error = response.error
                words = f"a call of model '{call.model}' has failed: {error.message}"
                failed.append(ServingError(error.code, words, error.reason))

        return InferenceRequest(
            call.model, inputs, taken, "", request.id, None, None, 0, 0, None, request.correlation_id, request.flags, batch,
            None, form,
        )  # fmt: skip


def _begin_calls(requests: list[InferenceRequest], batch: Batch, done: Callable[[], None]) -> None:
    """Make calls; `done()` when all have their answers, which may be before this returns."""
    left = len(requests)
    if left == 1:
        batch.blocked_on = requests[0]

    def answered(taken: Respond, response: InferenceResponse | None, final: bool) -> None:
        nonlocal left
        taken(response, final)
        if final:
            left -= 1
            if not left:
                batch.blocked_on = None
                done()

    for request in requests:
        request.respond = partial(answered, request.respond)
        request.model.enqueue(request)


class CallsOnLoop(OnLoop):
    """Executes on the loop, and leaves it to others while it waits for what it has called."""

    may_wait = True

    def __init__(self, answers: Zeros, worked: Worked, caller: Caller, loop: SimulationLoop) -> None:
        super().__init__(answers, worked, caller.no_time, loop)
        self._caller = caller

    def execute(self, batch: Batch) -> list[InferenceResponse]:
        loop, kernel = self._loop, self._caller.kernel
        began = loop.now
        try:
            for wanted in self._caller.walk(batch):
                if isinstance(wanted, float):
                    loop.now += wanted
                else:
                    kernel.wait_for(partial(_begin_calls, wanted, batch))
        finally:
            self._worked.note(batch.size, loop.now - began)
        return self._answers(batch)


class CallsBeside(Beside):
    """Executes beside the loop; an execution that waits for what it has called keeps its place."""

    def __init__(self, answers: Zeros, worked: Worked, caller: Caller, loop: SimulationLoop, capacity: int) -> None:
        super().__init__(answers, worked, caller.no_time, loop, capacity)
        self._caller = caller

    def start(self, batch: Batch) -> object:
        if self._running < self.capacity:
            self._running += 1
            batch.started = self._loop.now
            self._walk_on(batch, self._caller.walk(batch))
        else:
            self._waiting.append(batch)
        return LATER

    def _walk_on(self, batch: Batch, walk: Generator[Wanted, None, None]) -> None:
        """Go on with an execution until it has to wait, or is over."""
        result: object
        try:
            for wanted in walk:
                if isinstance(wanted, float):
                    self._loop.end_at(self._loop.now + wanted, partial(self._walk_on, batch), walk)
                    return
                # Zeros may come before all is asked for: then this goes on, so that no stack grows.
                waiting = _Waiting(partial(self._walk_on, batch, walk))
                _begin_calls(wanted, batch, waiting.done)
                if waiting.leaves():
                    return
            result = self._answers(batch)
        except ServingError as error:
            result = error
        self._worked.note(batch.size, self._loop.now - batch.started)
        self._finish(batch, result)


class _Waiting:
    """Whether an execution waits for its calls, and how it goes on."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on
        self._left = self._done = False

    def done(self) -> None:
        self._done = True
        if self._left:
            self._go_on()

    def leaves(self) -> bool:
        self._left = not self._done
        return self._left


class CallsOnThread(CallsBeside, OnThread):
    """As CallsBeside, on a thread."""
