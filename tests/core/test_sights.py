"""Whoever looks at what threads are doing keeps nothing of what they have in hand, not even until the collector comes."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

from kernel.registry.progress import _places
from kernel.watchdog import Watchdog


class Body:
    """What a request has brought, in the hands of a thread."""


def test_a_look_at_the_threads_keeps_nothing() -> None:
    watchdog = Watchdog(SimpleNamespace())  # type: ignore[arg-type]
    has, may_end = threading.Event(), threading.Event()
    refs: list[weakref.ref[Any]] = []

    def hold() -> None:
        body = Body()
        refs.append(weakref.ref(body))
        has.set()
        may_end.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait(10)
    gc.collect()
    gc.disable()
    try:
        watchdog._sights()
        _places([])
        may_end.set()
        thread.join()
        assert refs[0]() is None
    finally:
        gc.enable()
