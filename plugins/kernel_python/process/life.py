"""One life of a child, as the server sees it: from the start of its process to its end.

Brings together the process, the link to it, and what goes over the link; when the process ends, says why, and which
executions had not begun. Whether another life follows is the executor's business. Everything on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernel import Batch, Code, InferenceRequest, Kernel, ModelError, Reason, ServingError
from kernel_python.process import wire
from kernel_python.process.calls import Calls, write_log
from kernel_python.process.handed import Handed, Hops
from kernel_python.process.link import Link
from kernel_python.process.pulse import LOOKS, Pulse, work_of
from kernel_python.process.spawn import Launcher, spawn

__all__ = ["Keeper", "Life"]

log = logging.getLogger("kernel_python")
_model_log = logging.getLogger("kernel_python.model")

LEAVE_SECONDS = 2.0  # a process whose model has finalized is killed if it has not ended by then


class Keeper(Protocol):
    """Who is told how a life goes."""

    def ready(self, life: Life, is_async: bool) -> None:
        """It has initialized, and takes executions."""

    def completed(self, life: Life, config: str | None) -> None:
        """It has made this of the config it was to complete."""

    def ending(self, life: Life) -> None:
        """It takes no more executions. May be said twice."""

    def ended(self, life: Life, not_begun: list[Batch]) -> None:
        """Its process has ended, for the reason in `life.why`. What had begun is failed next."""


class Life:
    """Starts when it is made; raises OSError where no process can be had.

    `why`: how it has ended, as a ServingError. `finalized`: its model has. `may_be_asked`: the model has is_ready().
    """

    def __init__(
        self, kernel: Kernel, name: str, setup: dict[str, Any], launcher: Launcher, keeper: Keeper, hops: Hops | None = None
    ) -> None:
        self.name = name
        self.why: ServingError | None = None
        self.finalized = False
        self.may_be_asked = False
        self._asked: dict[int, asyncio.Future[bool]] = {}
        self._kernel = kernel
        self._keeper = keeper
        self._process, ends = spawn(kernel.loop, launcher, self._exited)
        self._notes, self._pool = ends.notes, ends.pool
        most = max(wire.STEP, kernel.options.memory_limit_receive or wire.MOST)
        self._link = Link(kernel.loop, ends.socket, ends.tickets, self._receive, self._cut_off, most)
        self._handed = Handed(kernel, name, self._link, ends.pool, ends.loans, hops or Hops())
        self._calls = Calls(kernel, self._link.send, ends.pool, ends.loans, self._handed.batch_of)
        self._verbose = _model_log.isEnabledFor(logging.DEBUG)
        level = logging.DEBUG if self._verbose else logging.INFO
        more = {"level": level, "mapped": ends.loans.size, "environment": launcher.changes()}
        self._send((wire.SETUP, wire.GREETING, {**setup, **more}))
        self._patience, self._beat = setup["patience"], setup["beat"]
        self._pulse = Pulse()
        self._waiting = kernel.loop.call_later(self._patience, self._too_slow)

    @property
    def pid(self) -> int:
        """The id of its process; 0 as long as there is none."""
        return self._process.pid

    @property
    def has_worked(self) -> bool:
        """Whether an execution has ended in it."""
        return self._handed.has_worked

    def execute(self, batch: Batch) -> None:
        """Hand an execution over."""
        verbose = _model_log.isEnabledFor(logging.DEBUG)
        if verbose is not self._verbose:
            self._verbose = verbose
            self._send((wire.LEVEL, logging.DEBUG if verbose else logging.INFO))
        self._handed.execute(batch)

    def take_back(self) -> list[Batch]:
        """Return the batches that were handed over and have not begun; they never will."""
        return self._handed.take_back()

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """Tell the child that nobody waits for a request any more."""
        self._handed.cancelled(batch, request)

    def awaited(self, batch: Batch, told: Callable[[], None]) -> Sequence[InferenceRequest] | None:
        """Return the calls without which an execution can't go on; None: it may, or the child is asked, which calls `told`."""
        number = self._handed.number_of(batch)
        return None if number is None else self._calls.awaited(number, told)

    def holding(self) -> InferenceRequest | None:
        """Return the call that keeps the child from going on with anything, None where there is none."""
        return self._calls.holding()

    def place(self, batch: Batch) -> str:
        """Return where the child has said that an execution is, which lasts too long; "" where it has not."""
        return self._handed.place(batch)

    def end(self, reason: str) -> None:
        """End the process, since an execution does not come to its end."""
        if self.why is None:
            self.why = self._unhealthy(f"Process {self.pid} was ended: {reason}")
            self._keeper.ending(self)
            self.kill()

    def finalize(self) -> None:
        """Have the child finalize and leave; nothing is running."""
        self._send((wire.FINALIZE,))

    async def is_ready(self) -> bool:
        """Return what the model's is_ready() says, or raise why it says nothing."""
        number = len(self._asked) and max(self._asked) + 1
        future: asyncio.Future[bool] = self._kernel.loop.create_future()
        self._asked[number] = future
        self._send((wire.PROBE, number))
        return await future

    def _told(self, number: int, answer: bool | str) -> None:
        future = self._asked.pop(number)
        if not future.done():
            if isinstance(answer, bool):
                future.set_result(answer)
            else:
                future.set_exception(RuntimeError(answer))

    def _too_slow(self) -> None:
        """End a process that has not come to the model's code in time."""
        within = f"{self._patience:g} s (--backend-config=python,stub-timeout-seconds)"
        self.why = self._unhealthy(f"Process {self.pid} has not begun within {within}")
        self.kill()

    def _feel(self) -> None:
        """Look for a sign of life, and for the next one later; end a process that gives none."""
        found, work = work_of(self.pid)
        if not self._pulse.has_stopped(self._notes.beats, work):
            self._waiting = self._kernel.loop.call_later(self._beat, self._feel)
            return
        self.why = self._unhealthy(
            f"Process {self.pid} {found or 'hangs'}: it has given no sign of life for {LOOKS * self._beat:g} s "
            "(--backend-config=python,stub-hang-seconds), and is ended"
        )
        self._keeper.ending(self)
        self.kill()

    def kill(self) -> None:
        self._process.kill()

    def _unhealthy(self, why: str) -> ServingError:
        """Return the error of what was to be executed in the process, in the reference's words and then ours."""
        return ServingError(Code.INTERNAL, f"Stub process '{self.name}' is not healthy. {why}", Reason.BACKEND)

    def _send(self, message: tuple[Any, ...]) -> None:
        self._link.send(wire.frame(message))

    # -- what the child says -------------------------------------------------------------------------------------------

    def _receive(self, message: tuple[Any, ...]) -> None:
        try:
            self._take(message)
        except Exception as error:  # the process is ended: what the message was about would wait for ever
            log.exception("a message of model instance '%s' can't be dealt with", self.name)
            self.why = self._unhealthy(f"It was ended, since a message of it could not be dealt with: {error!r}")
            self.kill()

    def _take(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == wire.DONE:
            self._handed.done(*message[1:])
        elif kind == wire.CALL:
            self._calls.call(message)
        elif kind == wire.SEND:
            self._handed.answered(*message[1:])
        elif kind == wire.LOG:
            write_log(message)
        elif kind == wire.HANG_UP:
            self._calls.hang_up(message[1])
        elif kind == wire.ASK:
            self._calls.ask(*message[1:])
        elif kind == wire.COUNTED:
            self._calls.counting.counted(*message[1:])
        elif kind == wire.CLOSED_FAMILY:
            self._calls.counting.closed(message[1])
        elif kind == wire.READY:
            self._handed.overlaps = self._calls.overlaps = message[1]
            self._pool.limit(message[2])
            self.may_be_asked = message[3]
            self._keeper.ready(self, message[1])
        elif kind == wire.BEGUN:
            self._waiting.cancel()
            if self._beat:
                self._feel()
        elif kind == wire.AWAITS:
            self._calls.awaits(*message[1:])
        elif kind == wire.PLACE:
            self._handed.note_place(*message[1:])
        elif kind == wire.PROBED:
            self._told(*message[1:])
        elif kind == wire.COMPLETED:
            self._keeper.completed(self, message[1])
        elif kind == wire.FAILED:
            self.why = ServingError(Code[message[1]], message[2])
            self.why.__cause__ = ModelError.of(message[3] if len(message) > 3 else ())
            self.kill()
        elif kind == wire.CLOSED:
            self.finalized = True
            self._kernel.loop.call_later(LEAVE_SECONDS, self._process.kill)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _cut_off(self, problem: str) -> None:
        """No more messages will come. `problem`: since something came that is none."""
        if problem and self.why is None:
            self.why = self._unhealthy(
                f"Process {self.pid} was ended, since something has come from it that is no message, or nothing can come; "
                f"perhaps the model's code has written into, or closed, a descriptor that is not its own ({problem})"
            )
            self.kill()
        self._keeper.ending(self)
        self._process.look()

    def _exited(self, how: str) -> None:
        """The process has ended: what it still had to say counts, all the rest fails."""
        self._keeper.ending(self)
        self._waiting.cancel()
        handed = self._handed
        while self._link.read():
            pass
        for message in wire.messages_in(self._notes.read()):
            if message[1] in handed:  # noted as done by the child, which ended before it could send that
                handed.done(*message[1:])
        not_begun = handed.not_begun(self._notes.begun)
        self._link.close()
        self._calls.end()
        for number in list(self._asked):
            self._told(number, False)
        if self.why is None:
            self.why = self._unhealthy(f"{f'Process {self.pid}' if self.pid else 'It'} {how}")
        self._keeper.ended(self, not_begun)
        handed.fail(self.why)
        # Arrays that lie in the shared memory keep it alive; we hold it no more.
        del self._handed, self._calls, self._notes, self._pool
