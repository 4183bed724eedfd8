"""Executions in a child: from the message, through the executor, to what came of it.

Of executions that were handed over together the server may take back those that have not begun. So each (but one that found
us idle) has a ticket in a pipe that both sides may read: the side that reads the ticket has the execution.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kernel import RESCHEDULED, RequestState, ServingError, Tensor, WaitView
from kernel_python.executor import AsyncExecutor, ModelExecutor
from kernel_python.process import wire
from kernel_python.process.child.remote import Continuation, Execution, Kernel, Request
from kernel_python.process.pool import Loans

__all__ = ["Executions"]

SEND_SECONDS = 70e-6  # how long results may wait for those of the next executions: the server gives these out while we go on
GLANCE_SECONDS = 0.001  # how often to look what the server says meanwhile
RELEASED = RequestState.RELEASED
TICKET = struct.Struct("<I")
_NOTHING: dict[str, Tensor] = {}


class Executions:
    """Carries out executions by one executor."""

    def __init__(self, kernel: Kernel, executor: ModelExecutor, loans: Loans, tickets: int) -> None:
        self._kernel = kernel
        self._channel = kernel.channel
        self._executor = executor
        self._model_name = executor.instance.model_name
        self._kept = executor.instance.kept  # outputs that hold a sequence's state are needed whatever a client asks for
        self._outputs = executor.instance.outputs | self._kept
        self._loans = loans
        self._tickets = tickets
        self._ticket: int | None = None  # a ticket that was read, of a later execution than the one whose ticket was looked for
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0  # of the execution that is going on, of a plain execute
        self._began = 0.0  # when it did

    # -- a plain execute -------------------------------------------------------------------------------------------------

    def serve(self, inbox: deque[tuple[Any, ...]], over: Callable[[], bool]) -> None:
        """Execute what comes into the inbox until it is over."""
        channel = self._channel
        clock = time.monotonic
        execute = self._executor.execute
        looked = 0.0
        while True:
            if not inbox:
                channel.wait(lambda: inbox or over())
                if not inbox:
                    return
            message = inbox.popleft()
            number = message[1]
            if not message[2] and not self._is_ours(number):
                continue
            execution = self._read(number, message[3])
            execution.started = self._began = clock()
            self._number = number
            result: Any
            try:
                result = execute(execution) if self._is_wanted(execution) else wire.SKIPPED
            except ServingError as error:
                result = error
            now = execution.ended = clock()
            self._number = 0
            self._post(execution, result)
            del execution, result, message
            channel.flush_old(now, SEND_SECONDS)
            if now - looked > GLANCE_SECONDS:
                looked = now
                if inbox:
                    channel.glance()  # takes in which of its requests were cancelled meanwhile

    def _is_ours(self, number: int) -> bool:
        """Whether the execution has not been taken back."""
        ticket = self._ticket
        if ticket is None:
            try:
                data = os.read(self._tickets, 4)
            except BlockingIOError:
                return False
            (ticket,) = TICKET.unpack(data)
        if ticket != number & 0xFFFFFFFF:
            self._ticket = ticket
            return False
        self._ticket = None
        return True

    # -- an async execute ------------------------------------------------------------------------------------------------

    def begin(self, loop: asyncio.AbstractEventLoop, message: tuple[Any, ...]) -> None:
        """Execute in a task of its own. In the loop's thread."""
        task = loop.create_task(self._run(loop, message[1], message[3]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, loop: asyncio.AbstractEventLoop, number: int, requests: Any) -> None:
        assert isinstance(self._executor, AsyncExecutor)
        execution = self._read(number, requests)
        execution.started = time.monotonic()
        result: Any
        try:
            result = await self._executor.execute(execution) if self._is_wanted(execution) else wire.SKIPPED
        except ServingError as error:
            result = error
        except asyncio.CancelledError:  # given up: nobody waits
            return
        execution.ended = time.monotonic()
        self._post(execution, result)
        self._channel.flush_later(loop)

    async def give_up(self, seconds: float) -> None:
        """Cancel the tasks that are left."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def awaited(self, number: int, main: int) -> list[Any] | None:
        """Return the calls without which an execution can't go on, None where it may. `main`: the thread that executes."""
        view = WaitView()
        for task in self._tasks:
            frame = task.get_coro().cr_frame  # type: ignore[union-attr]
            if frame is not None and frame.f_locals.get("number") == number:
                return None if view.ends_in_time(task) else view.of_task(task)
        return view.of_thread(main) if number == self._number else None

    def lasting(self, since: float, main: int, folder: str) -> list[tuple[int, str]]:
        """Return the executions that have gone on since then, and where each is: in code of that folder, if there is any.

        On any thread. `main`: the thread that executes.
        """

        def place(frames: list[Any]) -> str:
            return WaitView.place_in(frames, lambda frame: frame.f_code.co_filename.startswith(folder))

        found = []
        for task in list(self._tasks):
            frame = task.get_coro().cr_frame  # type: ignore[union-attr]
            execution = None if frame is None else frame.f_locals.get("execution")
            if execution is not None and execution.started <= since:
                holds = task.get_coro().cr_running  # type: ignore[union-attr]  # the loop, and doesn't wait
                frames = WaitView.frames_of(WaitView.innermost().get(main)) if holds else WaitView.frames_of_task(task)
                found.append((execution.number, place(frames)))
        number = self._number
        if number and self._began <= since:
            frames = WaitView.frames_of(WaitView.innermost().get(main))
            if number == self._number:  # else they are of the next
                found.append((number, place(frames)))
        return [(number, place) for number, place in found if place]

    # -- in and out --------------------------------------------------------------------------------------------------------

    def _read(self, number: int, written: Any) -> Execution:
        requests: list[Any] = []
        for index, (id, correlation, flags, timeout, parameters, version, outputs, trace, tensors) in enumerate(written):
            inputs = {tensor.name: tensor for tensor in wire.read_tensors(tensors, self._loans)}
            respond = Continuation(self._channel, number, index)
            request = Request(self._model_name, inputs, respond, version, id, outputs)
            request.parameters = parameters
            request.timeout_us = timeout
            request.correlation_id = correlation
            request.flags = flags
            request.wanted = self._kept.union(outputs) if outputs else self._outputs
            if trace is not None:
                request.trace = SimpleNamespace(context=trace or None, origin=(number, index))
            requests.append(request)
        execution = Execution(requests, len(requests))
        execution.number = number
        self._kernel.begun(execution)
        return execution

    @staticmethod
    def _is_wanted(execution: Execution) -> bool:
        for request in execution.requests:
            if request.state is not RELEASED:
                return True
        return False

    def _post(self, execution: Execution, result: Any) -> None:
        """Put down to be sent what came of an execution."""
        requests, number = execution.requests, execution.number
        pool = self._kernel.pool
        outcome: Any
        is_open = False
        try:
            if type(result) is list:
                outcome = []
                for request, response in zip(requests, result):
                    if response is RESCHEDULED:
                        outcome.append(wire.AGAIN)
                        request.state = RELEASED
                    elif response is None:
                        is_open = is_open or request.state is not RELEASED
                        outcome.append(None)
                    else:
                        outcome.append(None if request.state is RELEASED else wire.write_response(response, pool))
                        request.state = RELEASED
            elif result is None:
                outcome = wire.OPEN
                is_open = self._is_wanted(execution)
            elif result is wire.SKIPPED:
                outcome = wire.SKIPPED
            else:
                outcome = (result.code.name, result.message)
        except ValueError as error:
            outcome = ("INTERNAL", str(error))
        if isinstance(outcome, tuple):
            for request in requests:
                request.state = RELEASED
        if not is_open:
            self._kernel.executions.pop(number, None)
        for request in requests:
            if request.state is RELEASED:
                request.inputs = _NOTHING
        times = execution.started, execution.input_ended, execution.output_started or execution.ended, execution.ended
        self._channel.put_off((wire.DONE, number, *times, outcome))
