"""How many requests may be in flight, of a model and of the server: those above are refused at once, with the word to try later.

The law: what was accepted is never refused, nor what it calls; each accepted request is given back once, by its final answer.
A stage in front of the scheduler, chosen when the model is loaded: where there is no limit nobody counts.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel.config import ModelConfig
from kernel.errors import Overloaded
from kernel.requests import InferenceRequest
from kernel.scheduling import Scheduler

__all__ = ["AdmissionStage", "Ceiling", "own_ceiling"]


class Ceiling:
    """The requests that are `inside`, of which there may be `most`. `whose`: of what, for people; `flag`: who has said so."""

    def __init__(self, most: int, whose: str, flag: str) -> None:
        self.most = most
        self.inside: set[InferenceRequest] = set()
        self._whose = whose
        self._flag = flag

    def refusal(self, request: InferenceRequest) -> Overloaded:
        """Return why a request is not let in."""
        words = f"{self._whose} has {len(self.inside)} requests in flight, the most that {self._flag} allows; try again later"
        return Overloaded(f"{request.log_id}{words}")


def own_ceiling(config: ModelConfig) -> list[Ceiling]:
    """Return the ceiling that a model's config asks for, if it does."""
    most = config.parameters.get("max_inflight")
    return [Ceiling(int(most), f"model '{config.name}'", "its parameter max_inflight")] if most else []


class AdmissionStage:
    """A ceiling in front of one model version; `enqueue` takes what is let in."""

    def __init__(self, ceiling: Ceiling, scheduler: Scheduler, enqueue: Callable[[InferenceRequest], None]) -> None:
        self._ceiling = ceiling
        self._inside = ceiling.inside
        self._life = scheduler.life
        self._enqueue = enqueue
        # Told of all final answers, also of those to whom it was never inside: that costs less than to ask.
        scheduler.life.on_release = (*scheduler.life.on_release, ceiling.inside.discard)

    def enqueue(self, request: InferenceRequest) -> None:
        """Let a checked request in, or refuse it. The call of a request that is inside belongs to that."""
        if request.parent is None:
            if len(self._inside) >= self._ceiling.most:
                self._life.refuse(request, self._ceiling.refusal(request))
                return
            self._inside.add(request)
        self._enqueue(request)
