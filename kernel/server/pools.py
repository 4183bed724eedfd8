"""Threads for what would hold the loop: loads of models, and what of a request is too large."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

__all__ = ["Pools"]


class Pools:
    """Executors for `loop.run_in_executor`.

    `load`: of loads. `aside`: one thread, for what of a request is too large for the loop.
    """

    def __init__(self, loads: int) -> None:
        self.load = ThreadPoolExecutor(loads, thread_name_prefix="kernel-load")
        self.aside = ThreadPoolExecutor(1, thread_name_prefix="kernel-aside")

    def shutdown(self) -> None:
        """Begin nothing more; what runs is not waited for."""
        for pool in (self.load, self.aside):
            pool.shutdown(wait=False, cancel_futures=True)
