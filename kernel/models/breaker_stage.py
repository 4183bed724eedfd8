"""A circuit breaker in front of a model whose config asks for one: failures in a row have further requests refused at once.

When is decided in kernel/rules/breaker.py; here requests pass, and what became of them is told there. A stage chosen when the
model is loaded: other models know nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kernel.config import CIRCUIT_BREAKER, BreakerRule, ModelConfig
from kernel.errors import Overloaded, Reason, shortened
from kernel.requests import InferenceRequest
from kernel.rules import Breaker
from kernel.scheduling import Scheduler

__all__ = ["BreakerStage", "breaker_of"]

log = logging.getLogger("kernel")

WHY = 500  # characters that are told of the last failure


def breaker_of(config: ModelConfig) -> Breaker | None:
    """Return the breaker that a model's config asks for, None for none."""
    text = config.parameters.get(CIRCUIT_BREAKER)
    return None if text is None else Breaker(BreakerRule.parse(text))


class BreakerStage:
    """The breaker of one model version; `enqueue` takes what is let in."""

    def __init__(
        self,
        breaker: Breaker,
        scheduler: Scheduler,
        enqueue: Callable[[InferenceRequest], None],
        clock: Callable[[], float],
    ) -> None:
        self._breaker = breaker
        self._name = scheduler.name
        self._life = scheduler.life
        self._enqueue = enqueue
        self._clock = clock
        self._inside: set[InferenceRequest] = set()
        scheduler.life.on_release = (*scheduler.life.on_release, self._released)

    def enqueue(self, request: InferenceRequest) -> None:
        """Let a checked request in, or refuse it; also the call of another model, which would only learn later that it fails."""
        breaker = self._breaker
        if breaker.is_open and (seconds := breaker.wait(self._clock())):
            words = (
                f"model '{self._name}' has failed {breaker.failures} times in a row (its parameter circuit_breaker), and is "
                f"tried again in {seconds:.3g} s at the latest; it said last: {breaker.why}"
            )
            self._life.refuse(request, Overloaded(f"{request.log_id}{words}"))
            return
        breaker.enter(request)
        self._inside.add(request)
        self._enqueue(request)

    def _released(self, request: InferenceRequest) -> None:
        if request not in self._inside:
            return
        self._inside.discard(request)
        breaker, error = self._breaker, request.error
        before = breaker.is_open
        if error is None:
            breaker.succeeded(request)
        elif error.reason is Reason.BACKEND:
            breaker.failed(request, shortened(error.message, WHY), self._clock())
        else:
            breaker.left(request)
        if breaker.is_open and not before:
            log.warning(
                "model '%s' has failed %d times in a row: requests are refused for %g s; it said last: %s",
                self._name, breaker.failures, breaker.rule.seconds, breaker.why,
            )  # fmt: skip
        elif before and not breaker.is_open:
            log.info("model '%s' answers again: requests are let in", self._name)
