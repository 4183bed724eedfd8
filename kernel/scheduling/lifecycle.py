"""Answers: what becomes of the requests that a scheduler has accepted, and of those that it refuses.

The law: every accepted request gets exactly one final answer, through `release` (or `_answer_alone`, which is `release` for what
most executions come to) and nothing else: its execution's, its sender's, or the error that cancelled it. Decides nothing about
who executes when; that is the Scheduler's, which is built upon this.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kernel.config import ModelConfig
from kernel.errors import Code, Reason, ServingError
from kernel.instances.instance import SKIPPED, ModelInstance
from kernel.observability.statistics import StatisticsCounter
from kernel.requests.request import Batch, InferenceRequest, InferenceResponse, RequestState, log_ids, nobody
from kernel.rules.deadlines import Deadlines
from kernel.rules.queueing import RequestQueue
from kernel.scheduling.output_check import OutputWatch
from kernel.tensor import Tensor

__all__ = ["Answering"]

log = logging.getLogger("kernel")

EXECUTING, RELEASED = RequestState.EXECUTING, RequestState.RELEASED

_NOTHING: dict[str, Tensor] = {}


class Answering:
    """The outgoing half of a scheduler. Everything here runs on the loop, but for `sign`.

    Per model: `name`, `version`, `decoupled`. Of the moment: `queue`, `in_flight` (accepted and not released), `stopping`.
    """

    queue: RequestQueue

    def __init__(self, config: ModelConfig, version: int, clock: Callable[[], float]) -> None:
        self.name = config.name
        self.version = version
        self.version_text = str(version)
        self.clock = clock
        self.decoupled = config.decoupled
        self.statistics = StatisticsCounter()
        #: Looks at the answers before they are counted and given out, as long as somebody is to (output_check.py).
        self.watch: OutputWatch | None = None
        self.in_flight = 0
        self.stopping = False  # only calls of accepted requests are accepted
        self.warming: dict[ModelInstance, Any] = {}  # instances that are warmed up before they take requests, and by whom
        batching = config.dynamic_batching
        self._is_ensemble = config.is_ensemble
        self._ordered: deque[InferenceRequest] | None = (
            deque() if batching and batching.preserve_ordering and not config.decoupled else None
        )
        self._simple = not (self.decoupled or self._is_ensemble or self._ordered is not None)
        self._deadlines = Deadlines()
        self._open: set[InferenceRequest] = set()  # executed, but still to be answered by a sender

    def _tell_drained(self) -> None:
        """The last of what was accepted may be over."""
        raise NotImplementedError

    # -- of executions ---------------------------------------------------------------------------------------------------

    def _answer_alone(self, batch: Batch, request: InferenceRequest, response: InferenceResponse) -> None:
        """Count and release the one request of an execution that has ended with nothing but its answer.

        What `_conclude` and `release` come to then, in one piece.
        """
        if not batch.input_ended:
            batch.input_ended = batch.started
        if not batch.output_started:
            batch.output_started = batch.ended
        now = self.clock() if self._is_ensemble else batch.ended  # an ensemble's batch holds sums, not moments
        self.statistics.executed_one(batch, request.enqueued, now)
        self.in_flight -= 1
        request.state = RELEASED
        request.counted = True
        self._give_out(request, batch, response)
        request.inputs = _NOTHING

    def _conclude(self, batch: Batch, result: Any) -> None:
        """Answer the requests of an execution with its result, and count it."""
        requests = batch.requests
        if result is SKIPPED:
            pass
        elif type(result) is list and self._simple and _all_answered(requests, result):
            self.statistics.executed_all(batch)
            for request, response in zip(requests, result):
                self.release(request, response)
        elif result is None or type(result) is list or type(result) is tuple:
            self.statistics.executed(batch)
            if self.decoupled:
                self._count_decoupled(batch)
            if result is None:
                self._open.update(request for request in requests if request.state is not RELEASED)
            elif len(result) == len(requests):
                answer = self.release if self._ordered is None else self._answer
                for request, response in zip(requests, result):
                    if request.state is RELEASED:
                        continue
                    if isinstance(response, InferenceResponse):
                        answer(request, response)
                    elif response is None:
                        self._open.add(request)
                    else:
                        kind = type(response).__name__
                        raise TypeError(f"its executor returned {kind} where a response was wanted")
            else:
                self._fail_batch(
                    batch,
                    ServingError(
                        Code.INTERNAL,
                        f"the executor of model '{self.name}' returned {len(result)} responses for {len(requests)} requests",
                    ),
                )
        else:
            if not self._is_ensemble:  # whose failed execution is its step's (reference behaviour)
                self.statistics.executed(batch)
            self._fail_batch(batch, self._as_error(result, batch))

    def _fail_batch(self, batch: Batch, error: ServingError) -> None:
        answer = self.release if self._ordered is None else self._answer
        for request in batch.requests:
            if request.state is not RELEASED:
                answer(request, InferenceResponse([], error=error))

    def _as_error(self, problem: object, batch: Batch) -> ServingError:
        if isinstance(problem, ServingError):
            return problem
        if not isinstance(problem, BaseException):
            problem = TypeError(f"its executor returned {type(problem).__name__}, not a list of responses")
        if isinstance(problem, asyncio.CancelledError):
            return ServingError(Code.CANCELLED, f"the execution of model '{self.name}' was cancelled", Reason.BACKEND)
        log.error("%smodel '%s' failed", log_ids(batch.requests), self.name, exc_info=problem)
        return ServingError(
            Code.INTERNAL, f"model '{self.name}' failed: {type(problem).__name__}: {problem}", Reason.BACKEND
        )

    def _count_decoupled(self, batch: Batch) -> None:
        """A decoupled request counts when its execute returns, not when its last response has gone (reference behaviour)."""
        for request in batch.requests:
            if not request.counted and request.error is None:
                request.counted = True
                now = self.clock() if self._is_ensemble else batch.ended
                self.statistics.succeeded(request.batch_size, request.enqueued, batch, now)

    def _answer(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Release with the model's own answer, when those that were taken before it have theirs."""
        if self.warming and request.batch is not None and request.batch.instance in self.warming:
            self.release(request, response)
            return
        request.outcome = response
        self._flush()

    def _flush(self) -> None:
        """Let out the answers in front that are there; those that were released otherwise just leave."""
        ordered = self._ordered
        assert ordered is not None
        while ordered:
            head = ordered[0]
            if head.state is not RELEASED:
                if head.outcome is None:
                    return
                outcome, head.outcome = head.outcome, None
                ordered.popleft()
                self.release(head, outcome)
            else:
                ordered.popleft()

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Pass on a response that a running execution gives before, or instead of, its return."""
        if request.state is RELEASED:
            return
        if self.watch is not None and response is not None:
            self.watch((request,), (response,))
        if self.decoupled and response is not None and self.statistics.observers and not request.heard:
            request.heard = True
            self.statistics.first_response(self.clock() - request.enqueued)
        if final:
            if response is not None and self._ordered is not None:
                self._answer(request, response)
            else:
                self.release(request, response)
        elif response is not None:
            try:
                request.respond(self.sign(request, response), False)
            except Exception:
                log.exception("%sthe receiver of a response of model '%s' failed", request.log_id, self.name)

    # -- the one way out -------------------------------------------------------------------------------------------------

    def release(self, request: InferenceRequest, response: InferenceResponse | None) -> None:
        """Give the final answer: the one way to RELEASED for a request that was accepted."""
        if request.state is RELEASED:
            return
        request.state = RELEASED
        self.in_flight -= 1
        if self._open:
            self._open.discard(request)
        batch = request.batch
        if not request.counted:
            self._count(request, batch, response)
        elif response is not None and response.error is not None and request.error is None:
            request.error = _by_backend(response.error)
        self._give_out(request, batch, response)
        if batch is None or batch.ended:
            request.inputs = _NOTHING  # what still refers to the request (a deadline, a client) need not keep its tensors
        if self._ordered and self._ordered[0].state is RELEASED:
            self._flush()
        if self.stopping:
            self._tell_drained()

    def _give_out(self, request: InferenceRequest, batch: Batch | None, response: InferenceResponse | None) -> None:
        """Take a request that has its answer out of the tree of calls, and make the last call of its `respond`."""
        if request.deadline is not None:
            self._deadlines.released()
        if batch is not None and batch.children:
            self._cancel_children(batch)
        parent = request.parent
        if parent is not None:
            request.parent = None
            if parent.children is not None:
                parent.children.discard(request)
        respond, request.respond = request.respond, nobody
        if response is not None:
            response.model_name = self.name
            response.model_version = self.version_text
            response.id = request.id
        try:
            respond(response, True)
        except Exception:
            log.exception("%sthe receiver of an answer of model '%s' failed", request.log_id, self.name)
        request.batch = None  # only now: an ensemble reads the times of its steps there

    def _count(self, request: InferenceRequest, batch: Batch | None, response: InferenceResponse | None) -> None:
        """Enter a final answer into the statistics, and why it is none into the request."""
        error = response.error if response is not None else None
        statistics = self.statistics
        if error is not None:
            if request.error is None:  # an execution's answer; it may be the error of another request that was cancelled
                request.error = error if error.reason is Reason.BACKEND else _by_backend(error)
            reason, seconds = request.error.reason, self.clock() - request.enqueued
            if self._is_ensemble and reason is Reason.BACKEND:
                statistics.failed(Reason.OTHER, seconds, times=2)  # as the reference counts them
            else:
                statistics.failed(reason, seconds)
        elif batch is None:
            return
        elif batch.ended:
            now = self.clock() if self._is_ensemble else batch.ended  # its batch holds sums, not moments
            statistics.succeeded(request.batch_size, request.enqueued, batch, now)
        else:  # answered by a sender before execute has returned
            now = self.clock()
            times = batch.input_ended, batch.output_started
            batch.ended = now
            batch.input_ended = times[0] or batch.started
            batch.output_started = times[1] or now
            statistics.succeeded(request.batch_size, request.enqueued, batch, now)
            batch.ended = 0.0  # it goes on
            batch.input_ended, batch.output_started = times
        request.counted = True

    def sign(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """Write on a response whose it is. Any thread."""
        response.model_name = self.name
        response.model_version = self.version_text
        response.id = request.id
        return response

    def _refuse(self, request: InferenceRequest, error: ServingError) -> None:
        """Answer a request that was never accepted; the reference counts it nowhere (observability, section 1.2)."""
        self.statistics.refused += 1
        request.state = RELEASED
        request.error = error
        respond, request.respond = request.respond, nobody
        respond(self.sign(request, InferenceResponse([], error=error)), True)

    # -- trees of calls, and their end -----------------------------------------------------------------------------------

    def _adopt(self, request: InferenceRequest, parent: Batch) -> None:
        """Enter the call of a model into the tree under its parent, whose end is to be its end too."""
        for one in parent.requests:
            if one.state is not RELEASED:
                break
        else:
            self.cancel(request)  # the parent has ended while the call was begun
            return
        children = parent.children
        if children is None:
            parent.children = {request}
        else:
            children.add(request)

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        """Release a request for which nobody waits any more, with what it has called; a running model sees `is_cancelled`."""
        if request.state is RELEASED:
            return
        if error is None:
            error = ServingError(Code.CANCELLED, f"{request.log_id}Request cancelled", Reason.CANCELED)
        batch = request.batch
        if request.state is not EXECUTING:
            self.queue.remove(request)
        request.error = error
        if batch is None:
            self.release(request, InferenceResponse([], error=error))
            return
        children: set[InferenceRequest] | None = None
        if batch.children and all(one is request or one.state is RELEASED for one in batch.requests):
            # Who executes elsewhere hears of it before what it has called answers that it was cancelled, too.
            children, batch.children = batch.children, None
        self.release(request, InferenceResponse([], error=error))
        batch.instance.cancelled(batch, request)
        for child in children or ():
            child.model.scheduler.cancel(child)

    def _cancel_children(self, batch: Batch) -> None:
        """The calls of an execution that nobody waits for any more are of no use either."""
        if all(request.state is RELEASED for request in batch.requests):
            children, batch.children = batch.children or (), None
            for child in list(children):
                child.model.scheduler.cancel(child)


def _all_answered(requests: Sequence[InferenceRequest], result: list[Any]) -> bool:
    """Whether an execution has come to an answer for each of its requests, and nobody has been answered otherwise."""
    if len(result) != len(requests):
        return False
    for request, response in zip(requests, result):
        if type(response) is not InferenceResponse or response.error is not None:
            return False
        if request.state is RELEASED or request.counted:
            return False
    return True


def _by_backend(error: ServingError) -> ServingError:
    """The same error, counted as the backend's: it came as the answer of an execution."""
    return ServingError(error.code, error.message, Reason.BACKEND)
