"""Runs `execute` of one model instance and holds it to its contract (contract: python_backend, 2.4, 2.5).

Whatever a model returns or forgets, each request of the batch gets an answer: here, or by its sender. Where the code runs is
the core's business; the two kinds of executor differ only in how `execute` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from threading import get_ident
from typing import Any, ClassVar

from kernel import RESCHEDULED, Batch, Placement, Result, ServingError, log_ids
from kernel import InferenceResponse as CoreResponse
from kernel_python import waiting
from kernel_python.api.received import Received
from kernel_python.api.responses import InferenceResponse, answers, small_answer
from kernel_python.background import BackgroundLoop
from kernel_python.calling import EXECUTION, Instance, retired, serving
from kernel_python.faults import TritonModelException, describe, execution_error, public_names
from kernel_python.readiness import question_of
from kernel_python.staying import look_later
from kernel_python.waiting import GreenletExit

__all__ = ["AsyncExecutor", "ModelExecutor", "SyncExecutor"]

log = logging.getLogger("kernel_python")

_MISMATCH = (
    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
    "InferenceRequest(s) size is:{}, and InferenceResponse(s) size is:{}\n"
)
_NOT_CONFIGURED = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such "
    "a flag."
)
_WANTED = (
    " (execute returns a list with one pb_utils.InferenceResponse([pb_utils.Tensor(name, array), ...]) for each request; this "
    "is logged once)"
)
_TOO_LATE = (
    "execute of model '{0}' has returned a coroutine, which can't be awaited in the middle of this execution: nothing in the "
    "model's files looked like it. The next ones are awaited; `async def execute` always is"
)
_TWICE = "Unable to send response. Non-decoupled model cannot send more than one response."
RESCHEDULE = 2


class ModelExecutor:
    """One instance of a python model: `model` is the user's object, `instance` who it is to pb_utils."""

    placement: Placement
    capacity: int
    may_wait = True

    def __init__(self, instance: Instance, model: Any, placement: Placement, capacity: int) -> None:
        self.instance = instance
        self.model = model
        self.placement = placement
        self.capacity = capacity
        self._execute: Callable[[list[Received]], Any] = model.execute
        self._clock: Callable[[], float] = instance.kernel.clock
        self._copies_small = not (instance.decoupled or instance.zero_copy)
        self.is_ready = question_of(instance, model)
        self._told: set[str] = set()  # kinds of wrong results of `execute` that the log has told once
        instance.on_loop = placement is Placement.LOOP or placement is Placement.TASK
        instance.thread = 0 if instance.on_loop else get_ident()  # this thread makes it, and executes
        serving(instance)

    def execute(self, batch: Batch) -> Result | Awaitable[Result]:
        """Run one batch; see kernel.Executor."""
        raise NotImplementedError

    def finalize(self) -> None:
        """Call the model's `finalize`, whose exceptions are only logged, and take its modules away."""
        instance = self.instance
        instance.phase = "finalize"
        retired(instance)
        token = EXECUTION.set(instance.idle)
        try:
            finalize = getattr(self.model, "finalize", None)
            if finalize is not None:
                finalize()
        except BaseException:  # a model's SystemExit is not our end
            log.exception("finalize of model instance '%s' failed", instance.name)
        finally:
            self.model = self._execute = self.is_ready = None  # type: ignore[assignment]
            EXECUTION.reset(token)
            self._leave()
            if instance.modules is not None:
                instance.modules.remove()
                look_later(instance)

    def _leave(self) -> None:
        """Put away what was needed to execute. After `finalize`, whatever came of that."""

    # -- what came of an execution -------------------------------------------------------------------------------------

    def _conclude(self, batch: Batch, requests: list[Received], result: Any) -> list[CoreResponse | None] | None:
        """Return the core's responses for what `execute` returned. Raises ServingError where it fails the whole batch."""
        instance = self.instance
        if instance.decoupled:
            if result is not None:
                raise self._failure(requests, self._not_none())
            return self._rescheduled(requests)
        one_each = type(result) is list and len(result) == len(requests)
        if one_each:
            for request, response in zip(requests, result):
                if type(response) is not InferenceResponse or request._sender is not None or request._release:
                    one_each = False
                    break
        if one_each:
            # `answers` counts who else holds the responses and their arrays (memory.py): `result` has to be our only reference.
            del request, response
            requests.clear()
            return answers(instance, batch.requests, result)  # type: ignore[return-value]
        return self._sort_out(batch, requests, result)

    def _not_none(self) -> ServingError:
        name = self.instance.name
        message = f"Python model '{name}' is using the decoupled mode and the execute function must return None."
        return execution_error(name, message)

    def _rescheduled(self, requests: list[Received]) -> list[CoreResponse | None] | None:
        """Return what becomes of the requests of a decoupled model: some are to come again, the others answer themselves."""
        for request in requests:
            if request._release == RESCHEDULE:
                break
        else:
            return None
        if not self.instance.iterative:
            log.error("model instance '%s': %s", self.instance.name, _NOT_CONFIGURED)
            return None
        return [self._once_more(request) if request._release == RESCHEDULE else None for request in requests]

    @staticmethod
    def _once_more(request: Received) -> Any:
        """The request comes again, with a sender of its own: there is nothing for this one to make good for."""
        if request._sender is not None:
            request._sender._settle()
        return RESCHEDULED

    def _sort_out(self, batch: Batch, requests: list[Received], result: Any) -> list[CoreResponse | None]:
        """Conclude an execution in which not every request was simply answered by a response in the list."""
        instance = self.instance
        if result is not None:
            self._check_list(requests, result)
        out: list[CoreResponse | None] = []
        for index, (request, core) in enumerate(zip(requests, batch.requests)):
            response = result[index] if result is not None else None
            sender = request._sender
            if request._release == RESCHEDULE and response is not None and not core.is_cancelled:
                message = (
                    "Expected a None object in the execute function return list for reschduled request, "
                    f"found type '{type(response)}'."
                )
                raise self._failure(requests, execution_error(instance.name, message))
            if isinstance(response, InferenceResponse):
                if sender is not None and sender._sent:
                    log.error("model instance '%s': %s", instance.name, _TWICE)
                    out.append(None)
                else:
                    out.extend(answers(instance, [core], [response]))
            elif request._release == RESCHEDULE and instance.iterative and not core.is_cancelled:
                out.append(self._once_more(request))
                continue
            elif core.is_cancelled or (response is None and sender is not None):
                out.append(None)  # nobody waits, or the sender answers; one that is dropped without an answer sends an error
                continue
            elif response is None:
                out.append(CoreResponse([], error=self._misused(self._unanswered(request, result, index), "nothing")))
            else:
                message = (
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )
                raise self._failure(requests, self._misused(message, "a response"))
            if sender is not None:
                sender._close()
        return out

    def _check_list(self, requests: list[Received], result: Any) -> None:
        """Raise ServingError unless `execute` has returned a list with as many entries as there are requests."""
        if not isinstance(result, list):
            if asyncio.iscoroutine(result):
                result.close()
            message = f"Expected a list in the execute return, found type '{type(result)}'."
            raise self._failure(requests, self._misused(message, "a list"))
        if len(result) != len(requests):
            message = _MISMATCH.format(len(requests), len(result))
            raise self._failure(requests, self._misused(message, "its length"))

    def _misused(self, message: str, kind: str) -> ServingError:
        """Return the error for what `execute` has returned; the log has the first one of each kind."""
        name, modules = self.instance.name, self.instance.modules
        if modules is not None:
            message = public_names(message, modules.main, modules.shown)
        if kind not in self._told:
            self._told.add(kind)
            log.error("model instance '%s': %s%s", name, message.rstrip(), _WANTED)
        return execution_error(name, message)

    def _unanswered(self, request: Received, result: Any, index: int) -> str:
        if request._release == RESCHEDULE:
            return _NOT_CONFIGURED
        if result is None:
            return (
                f"Expected a list in the execute return, found type '{type(None)}', and no response sender has sent a response "
                f"for the request at index {index}."
            )
        return (
            "Expected an 'InferenceResponse' object in the execute function return list, "
            f"found type '{type(None)}' at index {index}, and no response sender has sent a response for that request."
        )

    def _raised(self, requests: list[Received], error: BaseException) -> ServingError:
        """Return the error of a batch whose `execute` raised."""
        instance = self.instance
        modules = instance.modules
        text = describe(error) if modules is None else modules.describe(error)
        ids = log_ids([request._core for request in requests])
        # Where nobody waits any more, an exception is no news: the execution's own calls were cancelled with it.
        level = logging.DEBUG if all(request._core.is_cancelled for request in requests) else logging.ERROR
        log.log(level, "%sexecute of model instance '%s' raised", ids, instance.name, exc_info=error)
        return self._failure(requests, execution_error(instance.name, text))

    def _failure(self, requests: list[Received], error: ServingError) -> ServingError:
        """The core answers all requests of the batch with `error`: their senders have nothing to make good for."""
        for request in requests:
            if request._sender is not None:
                request._sender._settle()
        return error


class SyncExecutor(ModelExecutor):
    """A plain `execute`, on a thread of its own or on the loop. A coroutine that it returns is awaited, as in the reference."""

    def __init__(self, instance: Instance, model: Any, placement: Placement, capacity: int) -> None:
        super().__init__(instance, model, placement, capacity)
        self._background: BackgroundLoop | None = None
        self._end_driving: Callable[[], None] | None = None

    def execute(self, batch: Batch) -> list[CoreResponse | None] | None:
        instance, execute, clock = self.instance, self._execute, self._clock
        token = EXECUTION.set((instance, batch))
        cores = batch.requests
        batch.input_ended = batch.started  # requests are wrapped, no data is moved: the statistics have no time for inputs
        request = Received(cores[0], instance)
        requests = [request] if len(cores) == 1 else [request, *[Received(core, instance) for core in cores[1:]]]
        try:
            result = execute(requests.copy())
            batch.output_started = clock()
            if self._copies_small and len(cores) == 1 and (answer := small_answer(request, result)) is not None:
                return [answer]
            if type(result) is not list and result is not None and _is_coroutine(result):
                result = self._awaited(batch, requests, result)
            held = [result]
            del result, request  # `_conclude` counts who else holds the responses
            return self._conclude(batch, requests, held.pop())
        except (ServingError, GreenletExit):
            raise
        except BaseException as error:  # a model's SystemExit is an answer, not our end
            failure = self._raised(requests, error)
        finally:
            EXECUTION.reset(token)
        raise failure  # outside of `except`: its traceback would keep the model's frames, and so its arrays, alive

    def _awaited(self, batch: Batch, requests: list[Received], coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what comes of a coroutine that `execute` has returned; where answers are sent, it goes on while others do."""
        instance = self.instance
        if self.placement is Placement.LOOP:
            if self._end_driving is None:
                self._end_driving = waiting.drive_tasks(instance)
            try:
                result = waiting.await_returned(instance, coroutine)
            except waiting.CantWait as error:
                coroutine.close()
                instance.waits()
                raise TritonModelException(_TOO_LATE.format(instance.model_name)) from error
        else:
            if self._background is None:
                self._background = BackgroundLoop(f"{instance.name} awaits")
            if instance.decoupled:
                self._background.start(coroutine, functools.partial(self._ended_later, requests))
                return None
            result = self._background.run(coroutine)
        batch.output_started = self._clock()
        return result

    def _ended_later(self, requests: list[Received], result: Any, error: BaseException | None) -> None:
        """End what a coroutine has left open that has failed after its execution."""
        unanswered = [one for one in requests if one._sender is not None and not one._sender._settled]
        if error is not None:
            failure = self._raised(requests, error)
        elif result is not None:
            failure = self._failure(requests, self._not_none())
        else:
            return
        for request in unanswered:
            with contextlib.suppress(RuntimeError):  # the kernel has stopped: nobody waits
                self.instance.kernel.send(request._core, CoreResponse([], error=failure), True)

    def _leave(self) -> None:
        if self._end_driving is not None:
            self._end_driving()
        if self._background is not None:
            self._background.close()


def _is_coroutine(result: Any) -> bool:
    """True for what can be awaited. For asyncio, before Python 3.12, any generator is a coroutine: of a plain `yield`, too."""
    return asyncio.iscoroutine(result) and inspect.isawaitable(result)


class AsyncExecutor(ModelExecutor):
    """An `async def execute`, as a task on the kernel's loop or on the loop of the instance's own thread.

    On the kernel's loop, code that mentions synchronous calls (`exec`, or the iterators of decoupled calls) is driven in a
    greenlet, so that such a call lets other tasks run; the rest is awaited directly, which costs less.
    """

    #: Names in a model's code that may mean a synchronous wait.
    SYNCHRONOUS: ClassVar[frozenset[str]] = frozenset({"exec", "decoupled", "load_model"})

    def __init__(self, instance: Instance, model: Any, placement: Placement, capacity: int) -> None:
        super().__init__(instance, model, placement, capacity)
        self._end_driving: Callable[[], None] | None = None
        if placement is Placement.TASK:
            self._is_driven()

    def _is_driven(self) -> bool:
        """Whether executions may wait in synchronous calls; what of the model is imported late may change that."""
        instance = self.instance
        modules = instance.modules
        if modules is None or modules.names.isdisjoint(self.SYNCHRONOUS):
            return False
        self._end_driving = waiting.drive_tasks(instance)
        return True

    def _leave(self) -> None:
        if self._end_driving is not None:
            self._end_driving()

    def execute(self, batch: Batch) -> Coroutine[Any, Any, list[CoreResponse | None] | None]:
        return self._run(batch)

    async def _run(self, batch: Batch) -> list[CoreResponse | None] | None:
        instance = self.instance
        EXECUTION.set((instance, batch))
        requests = [Received(request, instance) for request in batch.requests]
        batch.input_ended = batch.started
        try:
            work = self._execute(requests.copy())
            if self.placement is Placement.TASK and (instance.drivers is not None or self._is_driven()):
                work = waiting.drive(work, instance.drivers)  # type: ignore[arg-type]  # by now there are some
            result = await work
            batch.output_started = self._clock()
            if self._copies_small and len(requests) == 1 and (answer := small_answer(requests[0], result)) is not None:
                return [answer]
            held = [result]
            del result  # `_conclude` counts who else holds the responses
            return self._conclude(batch, requests, held.pop())
        except ServingError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if getattr(task, "cancelling", int)():  # in a child, Python may be older than that
                raise  # the core has given the execution up
            raise self._raised(requests, error) from None
        except BaseException as error:
            raise self._raised(requests, error) from None
