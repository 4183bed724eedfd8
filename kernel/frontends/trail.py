"""Which models wait for a request that comes from another server: calls that lead in a circle through servers are found by that.

A trail is what a call carries in the metadata HEADER: for each model that waits for it, on whichever server, a word, with commas
between them. A word means the same on its own server only. Who passes a request on makes its trail; a front end that gets one
lets no request come back to a model that waits for it: as that may hold all its instances, it could wait for ever.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import quote, unquote

from kernel.errors import Code, ServingError
from kernel.interfaces import Host
from kernel.requests import InferenceRequest

__all__ = ["TRAIL_HEADER", "follow_trail", "trail_of"]

#: The metadata that say which models wait for a call, on other servers of this kind.
TRAIL_HEADER = "kernel-trail"

#: The most models that may wait for one request.
LONGEST = 32

_PROCESS = os.urandom(4).hex()


def follow_trail(host: Host, request: InferenceRequest, trail: str) -> None:
    """Note a trail with the request that it came with. Raises ServingError(INVALID_ARG) where it leads back to its model."""
    request.trail = trail
    if _PROCESS in trail:
        _check(host, request, trail.split(","))


def trail_of(host: Host, request: InferenceRequest) -> str:
    """Return the trail of a request that is passed on. Raises ServingError(INVALID_ARG) where there can be none."""
    words: dict[str, None] = {}
    if request.parent is not None:
        seen: set[InferenceRequest] = set()
        for one in request.parent.requests:
            _gather(host, one, words, seen)
    came = getattr(request, "trail", "")
    words.update(dict.fromkeys(came.split(",") if came else ()))
    _check(host, request, [*words])
    words[_word(host, request.model_name)] = None
    if len(words) > LONGEST:
        text = f"{request.log_id}request to model '{request.model_name}' is not passed on: {len(words)} models"
        raise ServingError(Code.INVALID_ARG, f"{text}, on this and other servers, would wait for it; {LONGEST} may")
    return ",".join(words)


def _check(host: Host, request: InferenceRequest, words: Sequence[str]) -> None:
    """Refuse a request that its own model waits for."""
    word = _word(host, request.model_name)
    if word in words:
        circle = " -> ".join(f"'{unquote(one.partition('/')[2])}'" for one in [*words[words.index(word) :], word])
        text = f"{request.log_id}request to model '{request.model_name}', which waits for it, through other servers: {circle}"
        raise ServingError(Code.INVALID_ARG, text)


def _gather(host: Host, request: InferenceRequest, words: dict[str, None], seen: set[InferenceRequest]) -> None:
    """Add the words of those that wait for a request, the outermost first, and its own model's."""
    if request in seen:
        return
    seen.add(request)
    came = getattr(request, "trail", "")
    if came:
        words.update(dict.fromkeys(came.split(",")))
    if request.parent is not None:
        for one in request.parent.requests:
            _gather(host, one, words, seen)
    words[_word(host, request.model_name)] = None


def _word(host: Host, model: str) -> str:
    return f"{_PROCESS}{id(host):x}/{quote(model, safe='')}"
