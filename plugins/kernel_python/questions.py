"""What a model may ask of the kernel besides inferences: is a model ready, load it, unload it.

Answered on the loop, for models in this process (waiting.py) and for those in others (process/calls.py). Loading takes its time:
the answer comes when it comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kernel import Code, Kernel, ServingError

__all__ = ["AT_ONCE", "Reply", "answer"]

#: Questions that are answered before `answer` returns.
AT_ONCE = frozenset(("is_model_ready", "unload_model"))

log = logging.getLogger("kernel_python")

#: Is told the answer, once: an error, or a value.
Reply = Callable[[ServingError | None, Any], None]

_loading: set[asyncio.Task[None]] = set()  # tasks under way, since the loop holds them only weakly


def answer(kernel: Kernel, what: str, arguments: tuple[Any, ...], reply: Reply) -> None:
    """Answer a question, now or later. On the loop; never raises."""
    try:
        if what == "is_model_ready":
            reply(None, bool(kernel.is_model_ready(*arguments)))
        elif what == "unload_model":
            name, dependents = arguments
            kernel.unload(name, dependents=dependents)
            reply(None, None)
        elif what == "load_model":
            name, config, files, within = arguments
            _in_background(kernel, kernel.load(name, config=config, files=files, within=within), reply)
        else:
            raise ServingError(Code.UNSUPPORTED, f"'{what}' is nothing that a model can ask for")
    except ServingError as error:
        reply(error, None)


def _in_background(kernel: Kernel, work: Coroutine[Any, Any, None], reply: Reply) -> None:
    task = kernel.loop.create_task(work)
    _loading.add(task)

    def done(task: asyncio.Task[None]) -> None:
        _loading.discard(task)
        if task.cancelled():
            reply(ServingError(Code.UNAVAILABLE, "Server exiting"), None)
            return
        error = task.exception()
        if error is not None and not isinstance(error, ServingError):
            log.error("a model's load of another failed", exc_info=error)
            error = ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}")
        reply(error, None)

    task.add_done_callback(done)
