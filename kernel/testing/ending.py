"""The end of a kit's models, and what may not be left of them: executions, threads, tasks, modules, instances not finalized.

Compares what there is with what there was when the kit was made; what the kit itself, the loop or the process has is no leak.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel.server import Kernel
from kernel.testing.errors import Unanswered
from kernel.testing.frames import frames_of_task, place_of
from kernel.testing.loop import KitLoop, patience
from kernel.testing.threads import Threads, where

__all__ = ["LogOfClose", "Snapshot", "drain", "shut_down", "tasks_left"]

DRAIN_SECONDS = 5.0  # real seconds that a test waits at its end for what it has sent and not waited for
PATIENCE = 1.0  # real seconds that threads have to end when they have been told to


async def drain(kernel: Kernel, explain: Callable[[], str]) -> None:
    """Refuse new requests and wait until all executions have ended. Raises Unanswered when they don't."""
    loop = asyncio.get_running_loop()
    models = kernel.models()
    for model in models:
        model.stop()
    limit: float | None = DRAIN_SECONDS
    if isinstance(loop, KitLoop):  # which sees by itself when nothing comes; a timer would be something to wait for
        loop.renew(DRAIN_SECONDS)
        limit = None
    try:
        async with asyncio.timeout(limit):
            while busy := [model for model in models if not model.scheduler.is_idle]:
                await busy[0].scheduler.drain.wait()
    except TimeoutError:
        raise Unanswered(f"no end {DRAIN_SECONDS:g} s after the end of the test\n{explain()}") from None


async def shut_down(loop: KitLoop) -> None:
    """End what the kit's own loop has besides tasks."""
    await loop.shutdown_asyncgens()
    with patience(loop):
        await loop.shutdown_default_executor()


class Snapshot:
    """What there was before the first model was loaded."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._modules = frozenset(sys.modules)

    def leaks(self, folders: Sequence[Path], pool: Any = None) -> Iterator[str]:
        """Yield what of the models in `folders` is left. `pool`: of the loop, whose threads are its own."""
        for thread in self._threads.left(PATIENCE, tuple(getattr(pool, "_threads", ()))):
            yield f"thread '{thread.name}' still runs, at {where(thread, folders)}"
        for name, module in sorted(sys.modules.copy().items()):
            if name not in self._modules:
                path = next((one for one in _paths(module) for folder in folders if one.is_relative_to(folder)), None)
                if path is not None:
                    yield f"module '{name}' ({path}) is still in sys.modules"


def tasks_left(loop: asyncio.AbstractEventLoop, folders: Sequence[Path]) -> Iterator[str]:
    """Yield the tasks that still wait on a loop of which the kit is the only user."""
    this = asyncio.current_task()
    for task in asyncio.all_tasks(loop):
        if task is not this and not task.done():
            yield f"task '{task.get_name()}' still waits, at {place_of(frames_of_task(task), folders)}"


def _paths(module: object) -> Iterator[Path]:
    for path in (getattr(module, "__file__", None), *_path_of(module)):
        if isinstance(path, str):
            yield Path(path)


def _path_of(module: object) -> list[Any]:
    try:
        return list(getattr(module, "__path__", None) or ())
    except Exception:  # a lazy module may do anything when it is asked
        return []


class LogOfClose(logging.Handler):
    """Collects what the kernel and its plugins warn about while models go, such as instances that could not be finalized."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        self.lines.append(f"{text}: {type(error).__name__}: {error}" if error is not None else text)

    def __enter__(self) -> LogOfClose:
        self._loggers = [
            logger
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger) and (name == "kernel" or name.startswith("kernel_")) and "." not in name
        ]
        for logger in self._loggers:
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)
