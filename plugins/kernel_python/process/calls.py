"""What a child asks of the kernel: calls of other models (BLS), questions, lines for the log. (What it counts: counting.py.)

A call becomes a request like that of any model: its parent is the execution that makes it, so cancellation, and the search for
circles, follow it through the process. Refusals have the words of api/bls.py.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, ServingError
from kernel_python.api.bls import failed, refusal_of_decoupled, refusal_of_memory
from kernel_python.process import counting, wire
from kernel_python.process.pool import Loans, Pool
from kernel_python.questions import answer

__all__ = ["Calls", "write_log"]

ONE, BLOCKING, MANY = 0, 1, 2  # how a call waits; see child/bls.py


class _Call:
    """One call under way."""

    __slots__ = ("_calls", "batch", "number", "request", "wait")

    request: InferenceRequest

    def __init__(self, calls: Calls, number: int, wait: int, batch: Batch | None) -> None:
        self._calls = calls
        self.number = number
        self.wait = wait
        self.batch = batch  # the execution that can't go on meanwhile

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        """Pass a response on to the child."""
        self._calls.respond(self, response, final)


class Calls:
    """The calls and questions of one child. `execution(number)` is its batch, None where it has ended. On the loop."""

    def __init__(
        self,
        kernel: Kernel,
        send: Callable[[bytes], None],
        pool: Pool,
        loans: Loans,
        execution: Callable[[int], Batch | None],
    ) -> None:
        self._kernel = kernel
        self._send = send
        self._pool = pool
        self._loans = loans
        self._execution = execution
        self._calls: dict[int, _Call] = {}
        self._awaited: dict[int, list[_Call]] = {}  # by executions, as the child has said; true until one is answered
        self._asked: dict[int, Callable[[], None]] = {}  # who wants to hear of it
        self.overlaps = False  # a call that blocks holds up the loop of all executions, an `async def execute`
        self.counting = counting.Counting(kernel.custom_metrics)

    def call(self, message: tuple[Any, ...]) -> None:
        """Make a call of another model."""
        (_, number, execution, wait, in_memory, model, version, id, outputs, parameters, timeout, correlation, flags,
         origin, written) = message  # fmt: skip
        batch = None if execution is None else self._execution(execution)
        inputs = {tensor.name: tensor for tensor in wire.read_tensors(written, self._loans)}
        call = self._calls[number] = _Call(self, number, wait, batch if wait == BLOCKING else None)
        core = call.request = InferenceRequest(
            model, inputs, call.respond, "" if version == -1 else str(version), id, outputs, parameters,
            0, timeout, None, correlation, flags, batch, self._trace(origin),
        )  # fmt: skip
        if not in_memory:
            self._answer(call, refusal_of_memory(core), True)
        elif wait != MANY and self._is_decoupled(core):
            self._answer(call, refusal_of_decoupled(core), True)
        else:
            if call.batch is not None:
                call.batch.blocked_on = core
            self._kernel.submit(core)
            if batch is None or (call.batch is not None and self.overlaps):
                self._kernel.supervision.lookout.keep_looking_at(core)  # what it holds up was not seen when it was enqueued

    def respond(self, call: _Call, response: InferenceResponse | None, final: bool) -> None:
        if call.number not in self._calls:
            return  # the child is gone, or has its answer
        if call.wait != MANY:
            final = True
        if call.batch is not None and call.batch.blocked_on is call.request:
            call.batch.blocked_on = None
        if response is None:
            response = InferenceResponse([])
        elif response.error is not None:
            response = failed(call.request, response.error)
        self._answer(call, response, final)

    def _answer(self, call: _Call, response: InferenceResponse, final: bool) -> None:
        if final:
            self._calls.pop(call.number, None)
            if self._awaited:
                self._awaited = {number: calls for number, calls in self._awaited.items() if call not in calls}
        try:
            written = wire.write_response(response, self._pool)
            data = wire.frame((wire.ANSWER, call.number, written, final))
        except (ValueError, TypeError) as error:
            written = ((), Code.INTERNAL.name, str(error), None)
            data = wire.frame((wire.ANSWER, call.number, written, final))
        self._send(data)

    def _is_decoupled(self, core: InferenceRequest) -> bool:
        try:
            return self._kernel.model(core.model_name, core.model_version).decoupled
        except ServingError:
            return False  # `submit` will answer with the reason

    def _trace(self, origin: tuple[int, int] | None) -> Any:
        batch = None if origin is None else self._execution(origin[0])
        return None if batch is None or origin is None else batch.requests[origin[1]].trace

    def hang_up(self, number: int) -> None:
        """Cancel a call that the child has given up."""
        call = self._calls.get(number)
        if call is not None:
            self._kernel.cancel(call.request)

    # -- what executions wait for ----------------------------------------------------------------------------------------

    def holding(self) -> InferenceRequest | None:
        """Return the call that keeps the child's loop from going on with anything, None where there is none."""
        if self.overlaps:
            for call in self._calls.values():
                if call.wait == BLOCKING:
                    return call.request
        return None

    def awaited(self, execution: int, told: Callable[[], None]) -> Sequence[InferenceRequest] | None:
        """Return the calls without which an execution can't go on; None: it may, or the child is asked, which calls `told`."""
        calls = self._awaited.get(execution)
        if calls is not None:
            return [call.request for call in calls]
        if execution not in self._asked:
            self._send(wire.frame((wire.LOOK, execution)))
        self._asked[execution] = told
        return None

    def awaits(self, execution: int, numbers: Sequence[int]) -> None:
        """The child has said what an execution waits for."""
        told = self._asked.pop(execution, None)
        calls = [self._calls.get(number) for number in numbers]
        known = [call for call in calls if call is not None]
        if known and len(known) == len(calls):  # else one was answered meanwhile
            self._awaited[execution] = known
            if told is not None:
                told()

    def ask(self, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        """Answer a question, now or later."""
        if what not in counting.QUESTIONS:
            answer(self._kernel, what, arguments, functools.partial(self._reply, number))
            return
        try:
            value = self.counting.answer(what, arguments)
        except ServingError as problem:
            self._reply(number, problem, None)
        else:
            self._reply(number, None, value)

    def _reply(self, number: int, error: ServingError | None, value: Any) -> None:
        told = None if error is None else (error.code.name, error.message)
        self._send(wire.frame((wire.REPLY, number, told, value)))

    def end(self) -> None:
        """The child is gone: nobody waits for what it has called, nobody holds its metrics."""
        self.counting.end()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._kernel.cancel(call.request)


def write_log(message: tuple[Any, ...]) -> None:
    """Log what was logged in a child, as if here."""
    _, level, name, text, path, line, function, trace, instance = message
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        extra = None if instance is None else {"model_instance": instance}
        record = logger.makeRecord(name, level, path, line, "%s", (text,), None, function, extra)
        record.exc_text = trace
        logger.handle(record)
