"""Requests for models that are being loaded since somebody has asked for them: they wait outside of any queue.

The law: each is submitted again when its model is there, or has its answer from here: why there is no model, that its deadline
has passed, that nobody waits for it any more. Everything on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kernel.errors import Code, NotLoaded, Reason, ServingError
from kernel.models import Away, Runtime
from kernel.requests import InferenceRequest
from kernel.scheduling import Release

__all__ = ["HeldRequests"]


class HeldRequests:
    """The requests of one kernel that wait for their models to be loaded, each with the timer of its deadline."""

    def __init__(self, kernel: Runtime) -> None:
        self._kernel = kernel
        self._held: dict[InferenceRequest, asyncio.TimerHandle | None] = {}

    def hold(self, request: InferenceRequest, away: NotLoaded, submit: Callable[[InferenceRequest], None]) -> None:
        """Keep a request until its model is there, and have it submitted then."""
        timer = None
        if request.deadline is not None:
            left = request.deadline - self._kernel.clock()
            timer = self._kernel.loop.call_later(max(0.0, left), self._expire, request)
        self._held[request] = timer

        def then(error: ServingError | None) -> None:
            if not self._let_go(request):
                return  # it has its answer
            if error is None:
                submit(request)
            else:
                self._end(request, error)

        away.wait(then, lambda: request in self._held, request.parent is not None)

    def cancel(self, request: InferenceRequest, error: ServingError | None) -> None:
        """Nobody waits for a request any more, which may be held here, or be another replica's."""
        if self._let_go(request):
            words = f"{request.log_id}Request cancelled"
            self._end(request, error or ServingError(Code.CANCELLED, words, Reason.CANCELED))
        elif request.model is not None and isinstance(away := request.model.scheduler, Away):
            away.cancel(request, error)

    def _expire(self, request: InferenceRequest) -> None:
        words = f"{request.log_id}deadline of the request to model '{request.model_name}' passed before it was loaded"
        self.cancel(request, ServingError(Code.UNAVAILABLE, words, Reason.REJECTED))

    def _let_go(self, request: InferenceRequest) -> bool:
        """Whether the request was held; it is no longer."""
        if request not in self._held:
            return False
        timer = self._held.pop(request)
        if timer is not None:
            timer.cancel()
        return True

    def _end(self, request: InferenceRequest, error: ServingError) -> None:
        Release(request.model_name).end(request, error)
