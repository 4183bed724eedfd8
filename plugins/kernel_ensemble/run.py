"""One request's walk through the graph of an ensemble. All on the loop; no task, no future, no set.

The law: the run ends (`batch.instance.finished`, once) when no step runs and none can be started. After an error, or once
nobody waits for the answer, no step is started any more; those that run are awaited. The first error is the answer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Model, Reason, RequestState, ServingError, Tensor
from kernel_ensemble.bound import Bound
from kernel_ensemble.frame import Frame, Walk
from kernel_ensemble.graph import Plan, Step
from kernel_ensemble.sequence import override, parameters_of
from kernel_ensemble.words import absent_output, deadlock, step_error

__all__ = ["Run"]

log = logging.getLogger("kernel")

RELEASED = RequestState.RELEASED
_GIVEN: dict[str, Tensor] = {}  # stands for a step's inputs once its request has them


class WalkedEnsemble(Protocol):
    """The ensemble whose request is walked; executor.py has it."""

    name: str
    batches: bool

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Answer a request whose execution has not ended, or is about to."""

    @property
    def soon(self) -> Callable[..., object]:
        """Call back in the next turn of the loop."""

    def submit(self, model: Model, request: InferenceRequest) -> None:
        """Give a step its request."""

    def tell_once(self, output: str, message: str) -> None:
        """Log that an output is missing, the first time that this one is."""


class Call:
    """One step that runs: the continuation of its request.

    Not a kind of request itself: a second type of requests would slow the core's code down by more than this object costs.
    """

    __slots__ = ("frame", "request", "run", "step", "taken")

    request: InferenceRequest

    def __init__(self, run: Run, frame: Frame, step: Step) -> None:
        self.run = run
        self.frame = frame
        self.step = step
        self.taken = False

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        run = self.run
        try:
            run.take(self, response, final)
        except Exception as error:
            run.broken(error, self)
        if final:
            run.active -= 1
        if not run.advancing:
            run.advance()


class Run(Walk):
    """The walk of one request.

    `active`: steps that have not given their final response. `error`: the answer, once something failed. `input`, `infer`,
    `output`: seconds, sums of the steps. `held`: a response that is complete, and goes as the final one if it turns out at
    once that it was the last.
    """

    __slots__ = (
        "active",
        "advancing",
        "batch",
        "ensemble",
        "error",
        "held",
        "infer",
        "input",
        "output",
        "request",
    )

    def __init__(self, ensemble: WalkedEnsemble, batch: Batch, plan: Plan, bound: dict[int, Bound]) -> None:
        super().__init__(plan, bound, ensemble.batches)
        self.ensemble = ensemble
        self.batch = batch
        self.request = batch.requests[0]
        self.active = 0
        self.advancing = False
        self.error: ServingError | None = None
        self.held: InferenceResponse | None = None
        self.input = self.infer = self.output = 0.0

    def begin(self) -> None:
        request = self.request
        try:
            self.spread(self, self.plan.feed, request.inputs, self.batches)
            request.inputs = {}  # handed over: whoever is seen to hold an array makes the steps copy it
        except Exception as error:
            self.broken(error)
        self.advance()

    # -- forward -------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Start what can be started, send what can be sent; end when nothing runs any more."""
        self.advancing = True
        try:
            ready = self.ready
            while True:
                for frame, step in ready:  # grows meanwhile, when a step answers before its submission returns
                    if self.error is not None or self.request.state is RELEASED:
                        break
                    self._start(frame, step)
                ready.clear()
                if self.plan.depth:
                    self._send(self, 0)
                if not ready:
                    break
        except Exception as error:
            self.broken(error)
        self.advancing = False
        if not self.active:
            self._end()
        elif self.held is not None:
            if self.plan.follows:
                self.ensemble.soon(self._let_go)
            else:
                self._let_go()

    def _start(self, frame: Frame, step: Step) -> None:
        request, index = self.request, step.index
        bound = self.bound[index]
        correlation_id, flags = request.correlation_id, request.flags
        if frame.sequence is not None:
            for source in step.sources:
                if source in frame.sequence:
                    correlation_id, flags = frame.sequence[index] = frame.sequence[source]
                    break
        call = Call(self, frame, step)
        inputs, frame.inputs[index] = frame.inputs[index], _GIVEN
        call.request = InferenceRequest(
            step.model_name,
            inputs,
            call.respond,
            bound.version,
            request.id,
            bound.requested,
            request.parameters,
            request.priority,
            request.timeout_us,
            None,  # deadline: the ensemble's end is its end
            correlation_id,
            flags,
            self.batch,
            request.trace,
        )
        self.active += 1
        self.ensemble.submit(bound.model, call.request)

    def take(self, call: Call, response: InferenceResponse | None, final: bool) -> None:
        """Take in what a step answers: its tensors go to their takers, who may be ready to run then."""
        request, step, frame = call.request, call.step, call.frame
        if final and (batch := request.batch) is not None and batch.ended:
            self._add_times(batch)
            if not step.spawns:
                request.inputs = {}  # it has been executed; held here, arrays that it passes on would look shared and be copied
        if self.request.state is RELEASED:
            return
        if response is None or response.error is not None or step.spawns or call.taken:
            meant = self._frame_for(call, response, final)
            if meant is None:
                return
            frame = meant
        call.taken = True
        if call.frame.sequence is not None or (response is not None and response.parameters):
            self._note_sequence(call, frame, response)
        outputs = () if response is None else response.outputs
        single, batches = step.feed.single, self.bound[step.index].batches
        if single is not None and len(outputs) == 1 and (tensor := outputs[0]).name == single[0]:
            self.give(frame, single[1], single[2], tensor, batches)
        else:
            self.spread(frame, step.feed, {tensor.name: tensor for tensor in outputs}, batches)

    def _frame_for(self, call: Call, response: InferenceResponse | None, final: bool) -> Frame | None:
        """Return the frame in which an answer is handed on that is not a step's one response; None where none of it is."""
        if response is not None and response.error is not None:
            self.broken(response.error, call)
            return None
        if call.step.spawns:
            call.frame.closed = final
            return None if response is None else self._begin_iteration(call.frame)
        # Without a response its takers are told that nothing comes; what follows the first response goes nowhere.
        return call.frame if final and not call.taken else None

    def _note_sequence(self, call: Call, frame: Frame, response: InferenceResponse | None) -> None:
        """Note what a step has said of its sequence, or what was said to it: it holds for the steps behind it."""
        said = override(response.parameters, call.request) if response is not None and response.parameters else None
        index = call.step.index
        if said is None and call.frame.sequence is not None:
            said = call.frame.sequence.get(index)
        if said is not None:
            if frame.sequence is None:
                frame.sequence = {}
            frame.sequence[index] = said

    def _begin_iteration(self, frame: Frame) -> Frame:
        child = Frame(self.plan)
        if frame.children is None:
            frame.children = deque()
        frame.children.append(child)
        return child

    # -- out -----------------------------------------------------------------------------------------------------------

    def _send(self, frame: Frame, depth: int) -> bool:
        """Send the iterations under `frame` that are complete, in order; return whether all are sent and no more come.

        The last of them is held: nobody waits for more once it is out with the final flag. The flag is known where it came
        with the response of the decoupled step. Where other steps follow that one, it comes while they compute, so the rest of
        the loop's turn is left to it; where none do, a flag sent by itself stays by itself. (Reference: the same, by race.)
        """
        if depth == self.plan.depth:
            if frame.left:
                return False
            self._let_go()
            self.held = self._response(frame)
            return True
        children = frame.children
        while children:
            if not self._send(children[0], depth + 1):
                return False
            children.popleft()
        return frame.closed

    def _let_go(self) -> None:
        """Send the response that is held, as one that others may follow."""
        held, self.held = self.held, None
        if held is not None:
            self.ensemble.send(self.request, held, False)

    def _response(self, frame: Frame) -> InferenceResponse:
        outputs = [tensor for tensor in frame.outputs if tensor is not None]
        parameters = parameters_of(self.request, frame.sequence, self.plan.sources) if outputs else None
        if len(outputs) != len(frame.outputs):
            parameters = parameters or {}
            absent = [name for name, tensor in zip(self.plan.outputs, frame.outputs) if tensor is None]
            parameters["warning"] = absent_output(self.plan, absent)
            for name in absent:
                self.ensemble.tell_once(name, absent_output(self.plan, [name]))
        return InferenceResponse(outputs, parameters=parameters)

    def _end(self) -> None:
        """Report the end of the execution; it is the last thing a run does."""
        batch, request = self.batch, self.request
        if self.input or self.infer or self.output:
            batch.input_ended = batch.started + self.input
            batch.output_started = batch.input_ended + self.infer
            batch.ended = batch.output_started + self.output
        result: object
        if self.error is not None:
            result = self.error
        elif request.state is RELEASED:
            result = ServingError(Code.CANCELLED, f"{request.log_id}Request cancelled", Reason.CANCELED)
        elif self.left if not self.plan.depth else self.children or not self.closed:
            result = deadlock(self.ensemble.name, request, self.plan.outputs)
        elif self.plan.depth:
            result = None
        else:
            result = [self._response(self)]
        if result is not None:
            self._let_go()
        batch.instance.finished(batch, result)
        if result is None:
            last, self.held = self.held, None
            self.ensemble.send(request, last, True)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def broken(self, problem: Exception, call: Call | None = None) -> None:
        """Note what a step has answered, or an exception of our own: the request still gets its one answer."""
        if self.error is not None:
            return
        name = self.ensemble.name
        if not isinstance(problem, ServingError):
            log.error("%sensemble '%s' failed", self.request.log_id, name, exc_info=problem)
            self.error = ServingError(Code.INTERNAL, f"in ensemble '{name}', {type(problem).__name__}: {problem}")
        elif call is None:
            self.error = problem
        else:
            self.error = step_error(name, self.plan, call.step, problem, call.request)

    def _add_times(self, batch: Batch) -> None:
        """Add a step's times: those of an ensemble are the sums of its steps'."""
        self.input += batch.input_ended - batch.started
        self.infer += batch.output_started - batch.input_ended
        self.output += batch.ended - batch.output_started
