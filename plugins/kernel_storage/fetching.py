"""Gets contents into the cache: several objects at a time, and several parts of a large one.

The law: memory is bounded by `WORKERS` and `PART`, whatever the sizes; the first error ends the rest of its model's; a content
that is not the one that was listed comes nowhere. On threads of its own, which the loop never waits for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial

from kernel import Code, ServingError
from kernel_storage.cache import Cache, failed
from kernel_storage.stores import Object, Store, part_of

__all__ = ["Fetcher"]

WORKERS = 8  # for objects, and as many for parts of those that have several
PART = 8 * 2**20  # bytes


class Fetcher:
    """Fetches from one store into one cache."""

    def __init__(self, store: Store, cache: Cache) -> None:
        self._store = store
        self._cache = cache
        self._objects = ThreadPoolExecutor(WORKERS, thread_name_prefix="kernel-storage")
        self._parts = ThreadPoolExecutor(WORKERS, thread_name_prefix="kernel-storage-part")
        self._closed = threading.Event()

    def fetch(self, wanted: Mapping[str, Object]) -> int:
        """Have objects in the cache, each by its digest; return how many bytes were fetched for that. Raises ServingError."""
        given_up = threading.Event()
        return sum(_all(self._objects, given_up, [partial(self._one, one, digest, given_up) for digest, one in wanted.items()]))

    def _one(self, one: Object, digest: str, given_up: threading.Event) -> int:
        with self._cache.fetching(digest, given_up):
            if self._cache.has(one, digest):
                return 0  # another server has fetched it meanwhile
            with self._cache.draft(one, digest) as file:
                begins = range(0, one.size, PART)
                if len(begins) > 1:
                    _all(self._parts, given_up, [partial(self._part, file, one, begin, given_up) for begin in begins])
                elif begins:
                    self._part(file, one, 0, given_up)
        return one.size

    def _part(self, file: int, one: Object, begin: int, given_up: threading.Event) -> int:
        if given_up.is_set() or self._closed.is_set():
            raise _closed()
        content = part_of(self._store, one, begin, min(begin + PART, one.size))
        written = 0
        try:
            while written < len(content):
                written += os.pwrite(file, content[written:], begin + written)
        except OSError as error:
            raise failed(f"write the object '{one.key}' into the cache", error) from None
        return written

    def close(self) -> None:
        """Nothing more is fetched; what is under way ends with the part that it is at."""
        self._closed.set()
        for pool in (self._objects, self._parts):
            pool.shutdown(wait=False, cancel_futures=True)


def _all(pool: ThreadPoolExecutor, given_up: threading.Event, steps: Sequence[Callable[[], int]]) -> list[int]:
    """Run all steps and return their results, or raise the first error once none of them runs any more.

    Raises ServingError where the pool is shut down before, while, or after they are handed to it.
    """
    jobs: list[Future[int]] = []
    try:
        for step in steps:
            jobs.append(_submitted(pool, step))
        return [job.result() for job in jobs]
    except BaseException as error:
        given_up.set()
        wait([job for job in jobs if not job.cancel()])  # of one that is cancelled nobody might ever tell that it is over
        if isinstance(error, CancelledError):
            raise _closed() from None
        raise


def _submitted(pool: ThreadPoolExecutor, step: Callable[[], int]) -> Future[int]:
    try:
        return pool.submit(step)
    except RuntimeError:  # what a pool that is shut down says
        raise _closed() from None


def _closed() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "the fetch was given up")
