"""Models that say themselves whether they are ready: each instance is asked, by one question for all who want to know meanwhile.

An executor that has a method `is_ready` is asked; where it says no, raises, or says nothing for five seconds, the model is not
ready. Who has no such method costs nothing. Everything on the loop. (Contract: python_backend, section 2.)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from kernel.instances import DaemonThreads, ModelInstance

__all__ = ["Readiness"]

log = logging.getLogger("kernel")

ANSWER_SECONDS = 5.0  # the reference's


class Readiness:
    """Asks the instances of one kernel's models."""

    def __init__(self) -> None:
        self._asked: WeakKeyDictionary[ModelInstance, asyncio.Task[bool]] = WeakKeyDictionary()
        self._questions: WeakKeyDictionary[ModelInstance, asyncio.Task[bool]] = WeakKeyDictionary()
        self._troubled: WeakKeyDictionary[ModelInstance, str] = WeakKeyDictionary()  # what the log has said of them
        self._replies: set[asyncio.Task[None]] = set()
        self._threads = DaemonThreads()

    def ask(self, instances: Sequence[ModelInstance], reply: Callable[[bool], None]) -> None:
        """Call `reply` with whether all instances are ready; at once where none of them has anything to say."""
        asked = [self._ask(one) for one in instances if getattr(one.executor, "is_ready", None) is not None]
        if not asked:
            reply(True)
            return
        task = asyncio.ensure_future(self._reply(asked, reply))
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)

    async def _reply(self, asked: Sequence[asyncio.Task[bool]], reply: Callable[[bool], None]) -> None:
        answers = [await asyncio.shield(one) for one in asked]
        reply(all(answers))

    def _ask(self, instance: ModelInstance) -> asyncio.Task[bool]:
        task = self._asked.get(instance)
        if task is None or task.done():
            task = self._asked[instance] = asyncio.ensure_future(self._answer_of(instance))
        return task

    async def _answer_of(self, instance: ModelInstance) -> bool:
        trouble = ""
        try:
            if not await asyncio.wait_for(asyncio.shield(self._question(instance)), ANSWER_SECONDS):
                trouble = "its is_ready() says no"
        except TimeoutError:
            trouble = f"its is_ready() has said nothing for {ANSWER_SECONDS:.0f} seconds"
        except Exception as error:
            trouble = f"its is_ready() failed: {type(error).__name__}: {error}"
        if trouble and self._troubled.get(instance) != trouble:  # logged once, however often somebody asks
            log.warning("model instance '%s' is not ready: %s", instance.name, trouble)
        if trouble:
            self._troubled[instance] = trouble
        else:
            self._troubled.pop(instance, None)
        return not trouble

    def _question(self, instance: ModelInstance) -> asyncio.Task[bool]:
        """Return the question that is under way, however long, or else a new one."""
        task = self._questions.get(instance)
        if task is None or task.done():
            task = self._questions[instance] = asyncio.ensure_future(self._said(instance))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
        return task

    async def _said(self, instance: ModelInstance) -> bool:
        """Return what the executor says: a plain function on a thread of its own, another where the instance's tasks run."""
        question = getattr(instance.executor, "is_ready", None)
        if question is None:
            return True  # finalized meanwhile
        answer: bool
        if not inspect.iscoroutinefunction(question):
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, question)
        elif instance.own_loop is not None:
            answer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question(), instance.own_loop))
        else:
            answer = await question()
        return answer
