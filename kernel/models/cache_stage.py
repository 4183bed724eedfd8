"""Where requests meet the response cache: looked up before they are queued, kept when they have been executed.

The law: only what is answered by an execution with success is kept, and a cache that fails costs a request nothing but the time
it took. Stands in front of a model's scheduler where the config and the server both ask for it; other models know nothing of it.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kernel.instances import all_gone
from kernel.interfaces import Cache
from kernel.requests import InferenceRequest, InferenceResponse, RequestState, Respond
from kernel.rules import CacheUsage, RequestKeys, StoredResponse, least_size, load_key
from kernel.scheduling import Scheduler

__all__ = ["CacheFigures", "CacheStage", "ResponseCache"]

log = logging.getLogger("kernel")

RELEASED = RequestState.RELEASED


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """What the cache has done for all models since the kernel was made (`Kernel.cache.figures()`)."""

    usage: CacheUsage  # how full it is
    hits: int  # look-ups that found an answer
    misses: int  # look-ups that did not
    lookup_seconds: float  # that all look-ups took, found or not
    insertion_seconds: float  # that keeping answers took, copies of them included

    @property
    def lookups(self) -> int:
        """How often it was asked: hits and misses."""
        return self.hits + self.misses


class ResponseCache:
    """A kernel's cache: the object that keeps the answers, and what is counted about it."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._loads = itertools.count()
        self._secret = secrets.token_bytes(32)
        self._failed = False
        self.hits = 0
        self.misses = 0
        self.lookup_seconds = 0.0
        self.insertion_seconds = 0.0

    def keys(self, name: str, version: int) -> RequestKeys:
        """Return what makes the keys of a model version that is being loaded: no other load has any of them."""
        return RequestKeys(load_key(self._secret, name, version, next(self._loads)))

    def figures(self) -> CacheFigures:
        return CacheFigures(self._cache.usage(), self.hits, self.misses, self.lookup_seconds, self.insertion_seconds)

    @property
    def largest(self) -> int:
        return self._cache.largest

    def lookup(self, key: bytes) -> StoredResponse | None:
        try:
            return self._cache.lookup(key)
        except Exception:
            self._tell("be asked")
            return None

    def insert(self, key: bytes, response: StoredResponse) -> None:
        try:
            self._cache.insert(key, response)
        except Exception:
            self._tell("keep an answer")

    def _tell(self, what: str) -> None:
        """Log the first failure; a cache that is gone fails with every request."""
        if not self._failed:
            self._failed = True
            log.exception("the response cache could not %s; requests are executed, further failures are not logged", what)


class CacheStage:
    """What stands in front of the scheduler of a model whose answers are kept.

    `enqueue`: what takes the requests that have to be executed. `outputs`: all that the model's config promises.
    """

    def __init__(
        self,
        cache: ResponseCache,
        scheduler: Scheduler,
        enqueue: Callable[[InferenceRequest], None],
        outputs: frozenset[str],
        clock: Callable[[], float],
    ) -> None:
        self.cache = cache
        self.clock = clock
        self._scheduler = scheduler
        self._enqueue = enqueue
        self._outputs = outputs
        self._keys = cache.keys(scheduler.name, scheduler.version)
        self._told = False

    def enqueue(self, request: InferenceRequest) -> None:
        """Answer a checked request with what is kept, or have it executed. Who owns it then is the scheduler, either way."""
        scheduler, cache, wanted = self._scheduler, self.cache, request.wanted
        started = self.clock()
        if _is_refused(request, scheduler, started):
            self._enqueue(request)  # the scheduler refuses it, and says why
            return
        keys = self._keys
        hashed = keys.of(request.inputs)
        key = keys.all(hashed)
        kept = cache.lookup(key)
        if kept is None and wanted != self._outputs:
            key = keys.some(hashed, wanted)
            kept = cache.lookup(key)
        if kept is not None:
            response = InferenceResponse(kept.tensors(wanted, self._outputs))
            now = self.clock()
            cache.hits += 1
            cache.lookup_seconds += now - started
            scheduler.life.answer_kept(request, response, started, now)
            return
        seconds = self.clock() - started
        cache.misses += 1
        cache.lookup_seconds += seconds
        request.respond = _Keeping(self, request, key, seconds, request.respond)
        self._enqueue(request)

    def executed(self, key: bytes, response: InferenceResponse | None, lookup_seconds: float) -> None:
        """An execution has answered what the cache could not."""
        began = self.clock()
        if response is not None and response.error is None:
            self._keep(key, response)
        now = self.clock()
        self.cache.insertion_seconds += now - began
        self._scheduler.statistics.missed(lookup_seconds + now - began, now)

    def _keep(self, key: bytes, response: InferenceResponse) -> None:
        size, largest = least_size(response.outputs), self.cache.largest
        if size <= largest:
            kept = StoredResponse.of(response.outputs)
            size = kept.size
            if size <= largest:
                self.cache.insert(key, kept)
                return
        if not self._told:
            self._told = True
            log.warning(
                "model '%s': an answer of %d bytes is too large for the response cache, which takes at most %d; "
                "this is said once a model",
                self._scheduler.name,
                size,
                largest,
            )


class _Keeping:
    """The continuation of a request that was not found, around that of who waits for the answer."""

    __slots__ = ("_key", "_request", "_respond", "_seconds", "_stage")

    def __init__(
        self, stage: CacheStage, request: InferenceRequest, key: bytes, seconds: float, respond: Respond
    ) -> None:
        self._stage: CacheStage | None = stage
        self._request: InferenceRequest | None = request
        self._key = key
        self._seconds = seconds
        self._respond = respond

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        stage, request = self._stage, self._request
        if stage is not None and request is not None:
            self._stage = self._request = None  # asked once: models whose answers are kept give one
            if request.batch is not None and not request.is_cancelled:
                try:
                    stage.executed(self._key, response, self._seconds)
                except Exception:  # outputs that are no tensors, for one; the answer goes out as it is
                    log.exception("an answer of model '%s' can't be kept", request.model_name)
        self._respond(response, final)


def _is_refused(request: InferenceRequest, scheduler: Scheduler, now: float) -> bool:
    """Whether the scheduler is going to refuse the request, however quickly it could be answered."""
    if scheduler.stopping or scheduler.refusing is not None or (request.deadline is not None and request.deadline <= now):
        return True
    parent = request.parent
    return parent is not None and all_gone(parent)
