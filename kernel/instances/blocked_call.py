"""The continuation of a request that a thread waits for: whoever has the answer first hands it over, and nobody does it twice.

Mostly that is the loop, when it releases the request. But an answer that was made on a thread would go through the loop only to
wake a third thread; so that thread hands it over itself, and the loop counts it a moment later.
"""

from __future__ import annotations

import threading

from kernel.requests import InferenceResponse, Respond

__all__ = ["BlockedCall"]


class BlockedCall:
    """What `respond` is for a request whose maker blocks in `wait`. `collect` gets the responses, the final one exactly once."""

    __slots__ = ("_collect", "_lock", "_token", "response")

    def __init__(self, collect: Respond) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._lock.acquire()
        self.response: InferenceResponse | None = None  # the first one
        self._token = [True]  # who pops it has the right to hand the final answer over; list.pop is atomic

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        """Take a response. Any thread, the final one from several."""
        if not final:
            self._take(response, False)
            return
        try:
            self._token.pop()
        except IndexError:
            return  # handed over already
        self._take(response, True)
        self._lock.release()

    def _take(self, response: InferenceResponse | None, final: bool) -> None:
        if self.response is None:
            self.response = response
        self._collect(response, final)

    def wait(self) -> None:
        """Block until the final answer was handed over."""
        self._lock.acquire()
