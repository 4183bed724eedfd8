"""The executions that one child was handed, and their results: answers of `execute`, answers of senders, or none.

Knows messages and memory, no process. Everything on the loop.
"""

from __future__ import annotations

from typing import Any

from kernel import (
    RESCHEDULED,
    SKIPPED,
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    Kernel,
    Reason,
    RequestState,
    ServingError,
)
from kernel_python.process import wire
from kernel_python.process.link import Link
from kernel_python.process.pool import Loans, Pool

__all__ = ["Handed", "Hops"]

RELEASED = RequestState.RELEASED
MASK = 0xFFFFFFFF


class Hops:
    """What the way to a child and back has cost: of executions that found it idle, the time that they did not execute there."""

    __slots__ = ("count", "executing", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.executing = 0.0


class _Execution:
    """`blocks`: of shared memory, that its inputs took. `open`: requests that senders are to answer, after it has ended.

    `handed`: when it was handed over to a child that was idle, else 0. `place`: where it is, as the child has said last.
    """

    __slots__ = ("batch", "blocks", "handed", "open", "place")

    def __init__(self, batch: Batch, blocks: list[int], handed: float) -> None:
        self.batch = batch
        self.blocks = blocks
        self.handed = handed
        self.open: set[int] = set()
        self.place = ""


class Handed:
    """Hands executions over. `overlaps`: the child begins each at once, whatever else it does (an `async def execute`).

    `has_worked`: one came to its end.
    """

    def __init__(self, kernel: Kernel, name: str, link: Link, pool: Pool, loans: Loans, hops: Hops) -> None:
        self.overlaps = False
        self.has_worked = False
        self._kernel = kernel
        self._name = name
        self._link = link
        self._pool = pool
        self._loans = loans
        self._hops = hops
        self._numbers = 0
        self._running: dict[int, _Execution] = {}  # oldest first
        self._open: dict[int, _Execution] = {}

    def __contains__(self, number: int) -> bool:
        """Whether the execution of that number has not ended."""
        return number in self._running

    def execute(self, batch: Batch) -> None:
        """Hand an execution over."""
        number = self._numbers = self._numbers + 1
        blocks: list[int] = []
        alone = not self._running
        at_once = self.overlaps or alone
        if at_once:
            batch.started = self._kernel.clock()  # an estimate: `done` has the child's own figure
        try:
            requests = [self._written(request, blocks) for request in batch.requests]
            message = wire.frame((wire.EXECUTE, number, at_once, requests))
        except (ValueError, TypeError) as error:
            for block in blocks:
                self._pool.withdraw(block)
            text = f"a request can't be handed to instance '{self._name}': {error}"
            self._fail(batch, ServingError(Code.INTERNAL, text))
            return
        self._running[number] = _Execution(batch, blocks, batch.started if alone else 0.0)
        self._link.send(message, 0 if at_once else number)

    def _written(self, request: InferenceRequest, blocks: list[int]) -> tuple[Any, ...]:
        outputs = request.requested_outputs
        trace = request.trace
        return (
            request.id,
            request.correlation_id and wire.builtin_value(request.correlation_id),
            request.flags,
            request.timeout_us,
            wire.builtin_values(request.parameters),
            request.model_version,
            [str(name) for name in outputs] if outputs else None,
            None if trace is None else trace.context or "",
            wire.write_tensors(request.inputs.values(), self._pool, blocks),
        )

    def batch_of(self, number: int) -> Batch | None:
        """Return the batch of an execution that has begun, as long as it may be answered."""
        execution = self._running.get(number) or self._open.get(number)
        if execution is None:
            return None
        if not execution.batch.started:
            execution.batch.started = self._kernel.clock()
        return execution.batch

    def number_of(self, batch: Batch) -> int | None:
        """Return the number of an execution that has not ended."""
        return next((number for number, one in self._running.items() if one.batch is batch), None)

    def note_place(self, number: int, place: str) -> None:
        """The child has said where an execution is."""
        if number in self._running:
            self._running[number].place = place

    def place(self, batch: Batch) -> str:
        """Return where an execution is, as `file:line`; "" where the child has not said it."""
        return next((one.place for one in self._running.values() if one.batch is batch), "")

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """Tell the child that nobody waits for a request any more."""
        for executions in (self._running, self._open):
            for number, execution in executions.items():
                if execution.batch is batch:
                    index = batch.requests.index(request)
                    self._link.send(wire.frame((wire.CANCEL, number, index)))
                    if executions is self._open:
                        self._close(number, execution, index)
                    return

    # -- what has not begun ----------------------------------------------------------------------------------------------

    def take_back(self) -> list[Batch]:
        """Return the batches whose tickets the child has not read; they never begin."""
        taken = self._link.take_back()
        return [self._withdrawn(number) for number in list(self._running) if number & MASK in taken] if taken else []

    def not_begun(self, begun: int) -> list[Batch]:
        """Return the batches that the child, which is gone, has not begun; `begun`: the number of the last one it has."""
        return [self._withdrawn(number) for number in list(self._running) if number > begun]

    def _withdrawn(self, number: int) -> Batch:
        execution = self._running.pop(number)
        for block in execution.blocks:
            self._pool.withdraw(block)
        return execution.batch

    # -- what came of them -----------------------------------------------------------------------------------------------

    def done(
        self, number: int, started: float, input_ended: float, output_started: float, ended: float, outcome: Any
    ) -> None:
        """An execution has ended."""
        execution = self._running.pop(number)
        batch = execution.batch
        batch.started, batch.input_ended, batch.output_started, batch.ended = started, input_ended, output_started, ended
        self.has_worked = True
        if execution.handed and not self._running:
            executing, hops = ended - started, self._hops
            hops.count += 1
            hops.executing += executing
            hops.seconds += max(self._kernel.clock() - execution.handed - executing, 0.0)
        if self._running and not self.overlaps:
            oldest = next(iter(self._running.values())).batch
            if not oldest.started:
                oldest.started = ended  # it begins now; the child will say when exactly
        result: Any
        try:
            if type(outcome) is list:
                loans = self._loans
                result = [
                    RESCHEDULED if one is wire.AGAIN else wire.read_response(one, loans, _by_model) for one in outcome
                ]
            elif outcome is wire.OPEN:
                result = None
            elif outcome is wire.SKIPPED:
                result = SKIPPED
            else:
                result = _by_model(*outcome)
        except Exception as error:
            result = error
        if result is None or (type(result) is list and None in result):
            self._keep_open(number, execution, result)
        batch.instance.finished(batch, result)

    def _keep_open(self, number: int, execution: _Execution, result: list[InferenceResponse | None] | None) -> None:
        for index, request in enumerate(execution.batch.requests):
            if request.state is not RELEASED and (result is None or result[index] is None):
                execution.open.add(index)
        if execution.open:
            self._open[number] = execution

    def _close(self, number: int, execution: _Execution, index: int) -> None:
        execution.open.discard(index)
        if not execution.open:
            self._open.pop(number, None)

    def answered(self, number: int, index: int, written: Any, final: bool) -> None:
        """A sender has sent something."""
        batch = self.batch_of(number)
        request = None if batch is None else batch.requests[index]
        if request is None or request.state is RELEASED:
            if written is not None:
                wire.drop_tensors(written[0], self._loans)
            return
        if final and number in self._open:
            self._close(number, self._open[number], index)
        self._kernel.send(request, wire.read_response(written, self._loans, _by_model), final)

    def fail(self, why: ServingError) -> None:
        """Fail all that has not been answered, since it never will be."""
        running, self._running = self._running, {}
        for execution in running.values():
            self._fail(execution.batch, ServingError(why.code, why.message, Reason.BACKEND))
        left, self._open = self._open, {}
        for execution in left.values():
            for index in execution.open:
                error = ServingError(why.code, why.message, Reason.BACKEND)
                self._kernel.send(execution.batch.requests[index], InferenceResponse([], error=error), True)

    def _fail(self, batch: Batch, error: ServingError) -> None:
        now = self._kernel.clock()
        batch.started = batch.started or now
        batch.ended = now
        batch.instance.finished(batch, error)


def _by_model(code: str, text: str) -> ServingError:
    return ServingError(Code[code], text, Reason.BACKEND)
