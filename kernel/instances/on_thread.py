"""Instances that run on a thread of their own.

One thread does everything of one instance: it makes the executor, executes, finalizes. An idle thread is handed a *run*: as
many batches as it should finish within about a millisecond, since a hop between threads costs more than most glue models
compute. Each batch is still one `execute`; what is cancelled meanwhile is skipped; completions wake the loop once for many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from kernel.forking import guard, put_away_loop
from kernel.instances.blocked_call import BlockedCall
from kernel.instances.instance import AsyncInstance, ModelInstance, all_gone
from kernel.instances.mailbox import Mailbox
from kernel.instances.own_loop import OwnLoop
from kernel.instances.run_length import READY_SECONDS, RUN_SECONDS, RunLength
from kernel.instances.thread import InstanceThread
from kernel.interfaces import Executor
from kernel.requests import LATER, SKIPPED, Batch, InferenceRequest, InferenceResponse, RequestState

__all__ = ["ThreadInstance", "ThreadTaskInstance"]

RELEASED = RequestState.RELEASED


class ThreadInstance(ModelInstance):
    """Executes on its own thread. `limit` is the length of a run, from the measured time of an execution."""

    inline = False

    def __init__(
        self, name: str, executor: Executor, clock: Callable[[], float], thread: InstanceThread, mailbox: Mailbox
    ) -> None:
        super().__init__(name, executor, clock)
        self._thread = thread
        self._mailbox = mailbox
        self._inbox = thread.inbox
        self.start = thread.put  # type: ignore[assignment,method-assign]  # no method of ours: a frame less for each execution
        self._execute = executor.execute
        self._cancelled: Callable[[Batch, InferenceRequest], None] | None = getattr(executor, "cancelled", None)
        self.length = RunLength()
        self._first_left = 0.0  # when the oldest end was left in the mailbox that the loop was not woken for; 0.0: there is none
        self.limit = 1
        thread.serve = self._serve

    def allow_runs(self, allowed: bool) -> None:
        super().allow_runs(allowed)
        self.length.forget()

    def take_back(self) -> list[Batch]:
        # The run took longer than its length was reckoned for: the next one is a single execution, whose time is measured.
        self.length.forget(READY_SECONDS)
        self.limit = 1
        taken: list[Batch] = []
        while True:
            try:
                work = self._inbox.popleft()
            except IndexError:
                return taken
            assert isinstance(work, Batch), "only an idle instance is told to finalize"
            taken.append(work)

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        if self._cancelled is not None:
            self._cancelled(batch, request)

    def fit(self) -> None:
        """Let the next runs be as long as what was learnt allows. On the instance's thread."""
        if self.runs:
            self.limit = self.length.on_thread(batches=self.owner.rule is not None)  # type: ignore[union-attr]

    def _serve(self, batch: Batch) -> None:
        """Execute one batch. On the instance's thread."""
        result: object
        clock, execute, owner = self.clock, self._execute, self.owner
        batch.started = started = clock()
        request = batch.requests[0]
        try:
            result = SKIPPED if request.state is RELEASED and all_gone(batch) else execute(batch)
        except BaseException as error:
            result = error
        batch.ended = ended = clock()
        if result is not SKIPPED:
            if self.length.learn(ended - started):
                self.fit()
        mailbox = self._mailbox
        mailbox.leave((owner.finished, (self, batch, result)))  # type: ignore[union-attr]
        if type(call := request.respond) is BlockedCall and type(result) is list and len(result) == 1:
            # A thread waits for this very answer, and gets it from here. The loop counts it before whatever that thread asks for
            # next: that comes behind it in the mailbox.
            self._hand_over(request, call, result[0])
        if not self._inbox or (self._first_left and ended - self._first_left > RUN_SECONDS):
            self._first_left = 0.0
            mailbox.wake()
        elif not self._first_left:
            self._first_left = ended

    def _hand_over(self, request: InferenceRequest, call: BlockedCall, response: InferenceResponse | None) -> None:
        owner = self.owner
        assert owner is not None
        # An error goes by the loop, which counts it first: a call that fails is told otherwise where the model has executed it.
        if response is not None and response.error is None and request.state is not RELEASED:
            owner.sign(request, response)
            if owner.output_check is not None and owner.output_check.strict:
                owner.output_check((request,), (response,))
            if response.error is None:
                call(response, True)

    def abandon(self) -> None:
        # The execution under way finds this in the inbox, so it does not wake the loop when it ends; this does.
        self._thread.put(self._mailbox.wake)
        self._thread.stop()

    async def close(self) -> None:
        try:
            await self._thread.call(self.executor.finalize)
        finally:
            self._thread.stop()


class ThreadTaskInstance(AsyncInstance):
    """Runs its tasks on an asyncio loop of its own, in its own thread."""

    inline = False

    def __init__(
        self, name: str, executor: Executor, clock: Callable[[], float], thread: InstanceThread, mailbox: Mailbox
    ) -> None:
        super().__init__(name, executor, clock, OwnLoop())
        self.own_loop = self._loop
        self.report = partial(mailbox.post, self.finished)
        self._thread = thread
        self._begin = super().start
        guard(self)
        thread.put(self._serve)

    def start(self, batch: Batch) -> object:
        self._loop.call_soon_threadsafe(self._begin, batch)
        return LATER

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._end_tasks())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        asyncio.set_event_loop(None)

    def forked(self) -> None:
        """In a forked child: the loop's descriptors are the server's, too, so its copy is not closed, but put away."""
        if not self._loop.is_closed():
            put_away_loop(self._loop)

    async def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        try:
            await self._thread.call(self.executor.finalize)
        finally:
            self._thread.stop()
