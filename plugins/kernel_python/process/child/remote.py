"""The kernel, as seen from a child: what pb_utils asks of one, said through the channel.

Has the names of `kernel.Kernel` that the modules shared with the server use, and those of the child's own bls.py. The answers to
what was asked are told to `Kernel.told`, `answered` and `cancelled` by whoever reads the channel.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Reason, RequestState, ServingError
from kernel_python.process import wire
from kernel_python.process.child.channel import Channel
from kernel_python.process.child.metrics import CustomMetrics
from kernel_python.process.notes import Notes
from kernel_python.process.pool import Loans, Pool

__all__ = ["Continuation", "Execution", "Kernel", "Request"]

RELEASED = RequestState.RELEASED


class Execution(Batch):
    """A batch, and the number under which the server knows it."""

    __slots__ = ("number",)

    number: int


class Continuation:
    """What stands for the continuation of a request, which is in the server: the `index`th request of the execution `number`."""

    __slots__ = ("channel", "index", "number")

    def __init__(self, channel: Channel, number: int, index: int) -> None:
        self.channel = channel
        self.number = number
        self.index = index

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        """Not called: what `execute` returns goes with the end of the execution, what senders send through `Kernel.send`."""


class Request(InferenceRequest):
    """A request to be executed: a copy of the server's, which alone has its final answer.

    RELEASED means here that this process has nothing more to say of it: it has answered, or has heard that nobody waits.
    """

    __slots__ = ()

    respond: Continuation

    @property
    def is_cancelled(self) -> bool:
        if self.error is None and self.state is not RELEASED:
            self.respond.channel.glance()
        error = self.error
        return error is not None and error.reason is not Reason.BACKEND


class _Answer:
    """What a question waits for."""

    __slots__ = ("error", "there", "value")

    def __init__(self) -> None:
        self.there = False
        self.error: ServingError | None = None
        self.value: Any = None


class Kernel:
    """`loop` is a stand-in: code that compares it with the running loop finds that it is not on it."""

    loop = object()
    clock = staticmethod(time.monotonic)

    def __init__(self, channel: Channel, pool: Pool, loans: Loans, notes: Notes, strict_outputs: bool) -> None:
        self.channel = channel
        self._notes = notes
        self.pool = pool
        self.loans = loans
        self.strict_outputs = strict_outputs
        self.executions: dict[int, Execution] = {}  # those begun whose requests may still be answered or cancelled
        self.calls: dict[int, Callable[[InferenceResponse | None, bool], None]] = {}
        self.numbers = itertools.count(1)
        self.custom_metrics = CustomMetrics(self)
        self._questions: dict[int, _Answer] = {}
        self._latest = 0  # number of the execution that was begun last
        self._early: dict[int, list[int]] = {}  # execution that has not begun -> its requests that were cancelled already

    # -- what pb_utils uses ----------------------------------------------------------------------------------------------

    def send(self, request: Request, response: InferenceResponse | None, final: bool) -> None:
        """Answer an executing request outside of what `execute` returns. Any thread."""
        if request.state is RELEASED:
            return
        written = wire.write_response(response, self.pool)
        number = request.respond.number
        if final:
            request.state = RELEASED
            execution = self.executions.get(number)
            if execution is not None and execution.ended and all(one.state is RELEASED for one in execution.requests):
                self.executions.pop(number, None)
        self.channel.send((wire.SEND, number, request.respond.index, written, final))

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call at once: there is no loop here, and the channel takes messages from any thread."""
        callback(*args)

    call_in_order = call_soon

    def cancel(self, call: Any, error: ServingError | None = None) -> None:
        """Give up a call of another model, as bls.py has made it."""
        self.channel.send((wire.HANG_UP, call.number))

    def is_model_ready(self, name: str, version: int | str = "") -> bool:
        return bool(self.ask("is_model_ready", str(name), str(version)))

    def ask(self, what: str, *arguments: Any) -> Any:
        """Return what the server answers; raises the ServingError that it answers with."""
        answer = _Answer()
        number = next(self.numbers)
        self._questions[number] = answer
        self.channel.post((wire.ASK, number, what, arguments))
        self.channel.wait(lambda: answer.there)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def begun(self, execution: Execution) -> None:
        """An execution begins; the numbers of those that begin grow."""
        number = execution.number
        self._notes.begin(number)
        with self.channel.state:
            self._latest = number
            self.executions[number] = execution
            if self._early:
                for one in [one for one in self._early if one <= number]:
                    for index in self._early.pop(one):
                        if one == number:
                            self.cancelled(number, index)

    # -- what the server says ----------------------------------------------------------------------------------------------

    def told(self, number: int, error: tuple[str, str] | None, value: Any) -> None:
        """A question was answered."""
        answer = self._questions.pop(number)
        answer.error = None if error is None else error_of(*error)
        answer.value = value
        answer.there = True

    def answered(self, number: int, written: Any, final: bool) -> None:
        """A response to a call has come."""
        respond = self.calls.pop(number, None) if final else self.calls.get(number)
        if respond is None:
            if written is not None:
                wire.drop_tensors(written[0], self.loans)
            return
        respond(wire.read_response(written, self.loans, error_of), final)

    def cancelled(self, number: int, index: int) -> None:
        """Nobody waits for the answer of a request any more."""
        execution = self.executions.get(number)
        if execution is None:
            if number > self._latest:
                self._early.setdefault(number, []).append(index)
        elif execution.requests[index].state is not RELEASED:
            request = execution.requests[index]
            request.error = ServingError(Code.CANCELLED, "Request cancelled", Reason.CANCELED)
            request.state = RELEASED
            if execution.ended and all(one.state is RELEASED for one in execution.requests):
                self.executions.pop(number, None)


def error_of(code: str, text: str) -> ServingError:
    return ServingError(Code[code], text, Reason.BACKEND)
