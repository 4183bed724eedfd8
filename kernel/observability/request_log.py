"""What the verbose log says of each request that comes from outside: that it came, and what has become of it.

Front ends tell of a request where its model's `tracing` is not None. While the log is verbose that is a RequestLog, which tells
the tracer; so a log that isn't verbose costs requests nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from kernel.requests import InferenceRequest, InferenceResponse, Respond

__all__ = ["RequestLog", "RequestTracing"]

log = logging.getLogger("kernel")


class RequestTracing(Protocol):
    """What a model's `tracing` is: told of each request that comes in from outside."""

    def arrived(
        self, request: InferenceRequest, protocol: str = "", began: float = 0.0, traceparent: str = ""
    ) -> None:
        """A checked request has come from outside, and is about to be enqueued.

        `protocol`: of the front end, the first word of its moments in a trace, as in HTTP_RECV_START; `began`: when it began to
        come in, on the kernel's clock, 0.0 for just now.
        `traceparent`: the W3C header by that name.
        """


class RequestLog:
    """Writes a line about each request that comes, and one about its end; passes it on to `tracing` where that is not None."""

    __slots__ = ("_clock", "_tracing")

    def __init__(self, tracing: RequestTracing | None, clock: Callable[[], float]) -> None:
        self._tracing = tracing
        self._clock = clock

    def arrived(
        self, request: InferenceRequest, protocol: str = "", began: float = 0.0, traceparent: str = ""
    ) -> None:
        if self._tracing is not None:
            self._tracing.arrived(request, protocol, began, traceparent)
        model = request.model
        log.debug(
            "%srequest by %s to model '%s' version %d, batch size %d, inputs %s",
            request.log_id,
            protocol or "the app",
            model.name,
            model.version,
            request.batch_size,
            ", ".join(f"{name} {tensor.datatype}{list(tensor.array.shape)}" for name, tensor in request.inputs.items()),
        )
        request.respond = _LoggedRespond(request, request.respond, self._clock)


class _LoggedRespond:
    """The continuation of a logged request, around that of who waits for the answer (`inner`)."""

    __slots__ = ("_clock", "_request", "_responses", "inner")

    def __init__(self, request: InferenceRequest, inner: Respond, clock: Callable[[], float]) -> None:
        self._request = request
        self._clock = clock
        self._responses = 0
        self.inner = inner

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        request = self._request
        if response is not None:
            self._responses += 1
        if final:
            now, batch = self._clock(), request.batch
            begun = batch.started if batch is not None and batch.started else now
            error = response.error if response is not None else None
            log.debug(
                "%smodel '%s': %s after %.6f s, of which %.6f s in the queue%s",
                request.log_id,
                request.model.name,
                "failed" if error is not None else f"{self._responses} response{'' if self._responses == 1 else 's'}",
                now - request.enqueued,
                begun - request.enqueued,
                f": {error.message}" if error is not None else "",
            )
        self.inner(response, final)
