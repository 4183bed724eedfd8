"""The lives of the requests that one scheduler has accepted: what comes of an execution, and the one final answer.

The law: what an execution gives, its sender, or the error that cancelled or refused a request becomes its one final answer, which
`release` (release.py) gives. Decides nothing about who executes when. What only some models need (sequences, answers in
order, the output check, resources) are stages, which are asked here where they want to be; the others do not pay for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernel.config import ModelConfig
from kernel.errors import Code, Reason, ServingError
from kernel.instances import all_gone
from kernel.observability import ModelHistory, StatisticsCounter
from kernel.requests import RESCHEDULED, SKIPPED, Batch, InferenceRequest, InferenceResponse, RequestState, log_ids
from kernel.scheduling.ordering import Ordering
from kernel.scheduling.output_check import OutputCheck
from kernel.scheduling.release import Release

__all__ = ["DecoupledLifecycle", "Lifecycle", "error_for"]

log = logging.getLogger("kernel")

PENDING, EXECUTING, RELEASED = RequestState.PENDING, RequestState.EXECUTING, RequestState.RELEASED


class WaitingRequests(Protocol):
    """The queue, as it is needed here."""

    def withdraw(self, request: InferenceRequest) -> Sequence[InferenceRequest]:
        """Take a request out that is not executing; return those that can't be executed without it."""


class Lifecycle(Release):
    """The outgoing half of a scheduler. Everything here runs on the loop, but for `sign`.

    Per model: `name`, `decoupled`, `statistics`, and `history`, which keeps what has failed; None: nobody does. Of the moment:
    `deadlines`, and `open`: executed, and still to be answered by a sender.

    The stages: `on_result(batch, result)` returns the result as the next one is to see it, `on_response(request, response)`
    sees each response that is given before its execution ends, `on_release(request)` hears of each final answer.
    """

    def __init__(self, config: ModelConfig, version: int, clock: Callable[[], float], queue: WaitingRequests) -> None:
        batching = config.dynamic_batching
        super().__init__(config.name, str(version))
        self.decoupled = config.decoupled
        self.statistics = StatisticsCounter()
        self.history: ModelHistory | None = None
        self.ordering: Ordering | None = None
        self.output_check: OutputCheck | None = None
        self.on_result: tuple[Callable[[Batch, Any], Any], ...] = ()
        self.on_response: tuple[Callable[[InferenceRequest, InferenceResponse], None], ...] = ()
        self._clock = clock
        self._queue = queue
        self._is_ensemble = config.is_ensemble
        self._answer: Callable[[InferenceRequest, InferenceResponse], None] = self.release
        if batching is not None and batching.preserve_ordering and not config.decoupled:
            self.ordering = Ordering(self.release)
            self._answer = self.ordering.answer
            self.on_release = (self.ordering.released,)
        self.conclude: Callable[[Batch, Any], None]
        self.choose()

    def choose(self) -> None:
        """Decide how executions are concluded. To be called when a stage has come or gone."""
        each = not (self.decoupled or self.on_result or self.ordering is not None or self.output_check is not None)
        self.conclude = self._answer_each if each else self._sort_out

    def check_outputs(self, check: OutputCheck | None) -> None:
        """Have the answers looked at before they are counted and given out, from now on; None: no longer."""
        self.output_check = check
        self.choose()

    @property
    def owes(self) -> bool:
        """Whether there are requests that were executed and have no final answer."""
        return bool(self.open or self.ordering)

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Executions have not begun after all: what is left of their requests waits again."""
        for batch in batches:
            self._touched.discard(batch)
            for request in batch.requests:
                if request.state is EXECUTING:
                    request.put_back()
        if self.ordering is not None:
            self.ordering.put_back()

    # -- of executions ---------------------------------------------------------------------------------------------------

    def _answer_each(self, batch: Batch, result: Any) -> None:
        """Answer the requests of an execution with its result, and count both: nobody else wants to see it before."""
        requests = batch.requests
        count = len(requests)
        if type(result) is list and len(result) == count and not (self._touched and batch in self._touched):
            for response in result:
                if type(response) is not InferenceResponse or response.error is not None:
                    break
            else:
                # An ensemble's batch holds sums of times, not moments.
                ended = self._clock() if self._is_ensemble else batch.ended
                if count == 1:  # as most are: a `zip` would cost a tenth of what the core does for them
                    request = requests[0]
                    self.statistics.answered_alone(request, batch, ended)
                    request.counted = True
                    self.release(request, response)
                    return
                self.statistics.answered(batch, ended)
                for request, answer in zip(requests, result):
                    request.counted = True
                    self.release(request, answer)
                return
        self._sort_out(batch, result)

    def _sort_out(self, batch: Batch, result: Any) -> None:
        """Do with the result of an execution whatever it may be: let the stages see it, count, answer."""
        requests = batch.requests
        if self.history is not None and (self.decoupled or batch in self._touched) and not self._is_ensemble:
            self.history.ran(batch)
        self._touched.discard(batch)
        for stage in self.on_result:
            result = stage(batch, result)
        answers = type(result) is list or type(result) is tuple
        if self.output_check is not None and answers:
            self.output_check(requests, result)
        if result is SKIPPED:
            return
        if result is not None and not answers:
            if not self._is_ensemble:  # an ensemble's failure is counted at its step (reference behaviour)
                self.statistics.executed(batch)
            self.fail(batch, result)
            return
        self.statistics.executed(batch)
        if self.decoupled:
            self._count_decoupled(batch)
        if result is None:
            self.open.update(request for request in requests if request.state is not RELEASED)
        elif len(result) == len(requests):
            for request, response in zip(requests, result):
                if request.state is not RELEASED:
                    self._take(request, batch, response)
        else:
            words = f"the executor of model '{self.name}' returned {len(result)} responses for {len(requests)} requests"
            self.fail(batch, ServingError(Code.INTERNAL, words))

    def _take(self, request: InferenceRequest, batch: Batch, response: Any) -> None:
        """Do with what an execution has given for one of its requests whatever it may be."""
        if isinstance(response, InferenceResponse):
            self._answer(request, response)
        elif response is None:
            self.open.add(request)
        elif response is RESCHEDULED and request.state is PENDING:  # as its sequence's stage has seen to
            if not request.counted:  # each execution counts (reference behaviour)
                self.statistics.succeeded(request, batch, batch.ended)
            request.counted = False
            request.enqueued = batch.ended
        else:
            raise TypeError(f"its executor returned {type(response).__name__} where a response was wanted")

    def fail(self, batch: Batch, problem: object) -> None:
        """Answer what is left of an execution with an error: the problem, or what an executor has given that is no result."""
        error = self._as_error(problem, batch)
        for request in batch.requests:
            if request.state is not RELEASED:
                self._answer(request, InferenceResponse([], error=error))

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
                now = self._clock() if self._is_ensemble else batch.ended
                self.statistics.succeeded(request, batch, now)

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Pass on a response that a running execution gives before, or instead of, its return."""
        if request.state is RELEASED:
            return
        if response is not None:
            for stage in self.on_response:
                stage(request, response)
            if self.output_check is not None:
                self.output_check((request,), (response,))
            if final and request.counted and response.error is not None and request.error is None:
                request.error = _by_backend(response.error)
            if self.decoupled and self.statistics.observers and not request.responded:
                request.responded = True
                self.statistics.first_response(self._clock() - request.enqueued)
        if final:
            if response is not None:
                self._answer(request, response)
            else:
                self.release(request, None)
        elif response is not None:
            try:
                request.respond(self.sign(request, response), False)
            except Exception:
                log.exception("%sthe receiver of a response of model '%s' failed", request.log_id, self.name)

    # -- ends -----------------------------------------------------------------------------------------------------------

    def refuse(self, request: InferenceRequest, error: ServingError) -> None:
        """Answer a request that is not accepted. The reference counts it nowhere (observability, section 1.2)."""
        self.statistics.refused += 1
        request.order = 0  # it is none of those that were accepted
        self.end(request, error)

    def answer_kept(self, request: InferenceRequest, response: InferenceResponse, started: float, now: float) -> None:
        """Answer a checked request that needs no execution, as its answer is known. `started`: the look-up."""
        request.enqueued = started
        request.deadline = None  # an answer that is there already meets any
        request.counted = True
        self.statistics.hit(request, started, now)
        self.release(request, response)

    def _count(self, request: InferenceRequest, batch: Batch | None, response: InferenceResponse | None) -> None:
        """Enter a final answer into the statistics, and why it is none into the request."""
        error = response.error if response is not None else None
        statistics = self.statistics
        if error is not None and self.history is not None:
            execution = ("", 0.0, 0.0) if batch is None else (batch.instance.name, batch.started, batch.ended)
            refused, called = batch is None and not request.order, request.parent is not None
            self.history.failed(request.id, error, request.enqueued, self._clock(), execution, refused=refused, called=called)
        if batch is None and not request.order:
            return  # refused
        if error is not None:
            if request.error is None:  # an execution's answer; it may be the error of another request that was cancelled
                request.error = error if error.reason is Reason.BACKEND else _by_backend(error)
            reason, seconds = request.error.reason, self._clock() - request.enqueued
            if self._is_ensemble and reason is Reason.BACKEND:
                statistics.failed(Reason.OTHER, seconds, times=2)  # as the reference counts them
            else:
                statistics.failed(reason, seconds)
        elif batch is None:
            return
        elif batch.ended:
            now = self._clock() if self._is_ensemble else batch.ended  # its batch holds sums, not moments
            late = self.ordering is not None or request in self.open
            statistics.succeeded(request, batch, now, self._clock() if late else now)
        else:  # answered by a sender before execute has returned
            now = self._clock()
            times = batch.input_ended, batch.output_started
            batch.ended = now
            batch.input_ended = times[0] or batch.started
            batch.output_started = times[1] or now
            statistics.succeeded(request, batch, now)
            batch.ended = 0.0  # it goes on
            batch.input_ended, batch.output_started = times
        request.counted = True

    # -- trees of calls, and their end -----------------------------------------------------------------------------------

    def adopt(self, request: InferenceRequest, parent: Batch) -> None:
        """Enter the call of a model into the tree under its parent, whose end is to be its end too."""
        if parent.requests[0].state is RELEASED and all_gone(parent):  # it has ended while the call was begun
            request.model.scheduler.cancel(request)
            return
        children = parent.children
        if children is None:
            parent.children = {request}
        else:
            children.add(request)

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        """Release a request for which nobody waits any more, with what it has called; a running model sees `is_cancelled`.

        What can't be executed without it goes, too.
        """
        if request.state is RELEASED:
            return
        if error is None:
            error = ServingError(Code.CANCELLED, f"{request.log_id}Request cancelled", Reason.CANCELED)
        behind = self._queue.withdraw(request) if request.state is not EXECUTING else ()
        batch = request.batch
        children: set[InferenceRequest] | None = None
        if batch is not None and batch.children and all(one is request or one.state is RELEASED for one in batch.requests):
            # Who executes elsewhere hears of it before what it has called answers that it was cancelled, too.
            children, batch.children = batch.children, None
        self.end(request, error)
        if batch is not None:
            batch.instance.cancelled(batch, request)
        for child in children or ():
            child.model.scheduler.cancel(child)
        for one in behind:
            words = f"{one.log_id}Request cancelled: a request before it in its sequence was given up"
            self.end(one, ServingError(Code.CANCELLED, words, Reason.CANCELED))

    def pass_deadlines(self, now: float) -> bool:
        """Release those whose deadlines have passed; return whether there were any."""
        passed = False
        while (request := self.deadlines.due(now)) is not None:
            passed = True
            where, reason = ("queued", Reason.REJECTED) if request.state is PENDING else ("executing", Reason.CANCELED)
            words = (
                f"{request.log_id}deadline of the request to model '{self.name}' passed after "
                f"{now - request.enqueued:.3f} s while it was {where}"
            )
            self.cancel(request, ServingError(Code.UNAVAILABLE, words, reason))
        return passed


class DecoupledLifecycle(Lifecycle):
    """Of a model whose requests have any number of responses. They count when their execution ends (reference behaviour)."""

    def release(self, request: InferenceRequest, response: InferenceResponse | None) -> None:
        """As ever; how long a request took is known only now."""
        if self.history is not None and request.state is not RELEASED:
            self.history.answered(request, response, self._clock())
        super().release(request, response)


def _by_backend(error: ServingError) -> ServingError:
    """The same error, counted as the backend's: it came as the answer of an execution."""
    return ServingError(error.code, error.message, Reason.BACKEND)


def error_for(request: InferenceRequest, error: ServingError) -> ServingError:
    """Return the same error, told about one request."""
    return ServingError(error.code, f"{request.log_id}{error.message}", Reason.REJECTED)
