"""The end of `kernel serve`: whatever models have left running in the process, it ends in time.

When everything is drained and finalized, Python still waits for threads, executors, exit handlers and child processes. Here a
thread waits no longer than a limit for all of that, and then says what is left and ends the process.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn

__all__ = ["LEFT_SECONDS", "Ending", "end_children", "leave"]

log = logging.getLogger("kernel.serve")

#: How long what models have left may take to end by itself; and how long its processes may, once they are told to; seconds.
LEFT_SECONDS = 2.0
TOLD_SECONDS = 0.5


class Ending:
    """From `start`, or within a `with`: the process ends with `status` after LEFT_SECONDS if it is still there."""

    def __init__(self, status: int) -> None:
        self._status = status
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to count."""
        threading.Thread(target=self._wait, name="kernel-ending", daemon=True).start()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()

    def _wait(self) -> None:
        if self._over.wait(LEFT_SECONDS):
            return
        alive = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
        threads = [f"thread '{one.name}'" for one in alive]
        found = ", ".join([*threads, *end_children()]) or "something that Python waits for at its end"
        if not self._over.wait(TOLD_SECONDS):  # for those who wait for these processes
            log.warning("models have left behind what does not end by itself: %s; ending without it", found)
            leave(self._status)


def end_children() -> list[str]:
    """Terminate the processes that models have started by `multiprocessing`; return what they are."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return []
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    return [f"process {child.pid}" for child in children]


def leave(status: int) -> NoReturn:
    """End the process although threads are still busy, and the processes of models with it."""
    try:
        children = end_children()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        if children:
            time.sleep(TOLD_SECONDS)
            for child in sys.modules["multiprocessing"].active_children():
                child.kill()
    finally:
        os._exit(status)
