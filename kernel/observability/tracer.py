"""What traces requests while they are served: opens a trace, listens to the answers, hands what is complete to the sink.

The law: a request that isn't traced pays for one test. Each model has `tracing`, None while nothing of it is traced; a traced
request has its `respond` wrapped, and whatever is to be known of it is still on it when that is called. A call of a traced
request is traced exactly if it carries its caller's trace, whatever the settings of the called model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernel.errors import Code, ServingError
from kernel.observability.access_log import AccessTracing
from kernel.observability.request_log import RequestLog, RequestTracing
from kernel.observability.sampling import Sampler
from kernel.observability.settings import TRITON, LogSettings, TraceOptions, TraceSettings
from kernel.observability.trace import Trace, TraceSink, moments_of
from kernel.observability.trace_file import TraceFile
from kernel.requests import InferenceRequest, InferenceResponse, Respond

__all__ = ["APP", "Traced", "Tracer", "Tracing"]

log = logging.getLogger("kernel")

#: What an app's own requests carry while anything is traced: nobody has decided yet whether they are.
APP: Any = object()


class Tracing:
    """What a model's `tracing` is while some of its requests are traced: its Sampler at work."""

    __slots__ = ("_sampler", "_tracer")

    def __init__(self, tracer: Tracer, sampler: Sampler) -> None:
        self._tracer = tracer
        self._sampler = sampler

    def arrived(self, request: InferenceRequest, protocol: str = "", began: float = 0.0, traceparent: str = "") -> None:
        """Trace the request, if it is its turn."""
        tracer, sampler = self._tracer, self._sampler
        forced = bool(traceparent) and tracer.propagates
        if not sampler.take(forced):
            return
        trace = Trace(tracer.next_id(), None, sampler, times=sampler.times, tensors=sampler.tensors, protocol=protocol)
        sampler.open += 1
        now = tracer.clock()
        trace.arrived(began or now, now)
        tracer.open(trace, request, traceparent if forced else "", now)


class Sinks(Protocol):
    """Who knows the plugins' trace sinks."""

    def trace_sink(self, kernel: Any, options: TraceOptions) -> TraceSink | None:
        """Return what takes traces in the mode that the options ask for."""


class TracedKernel(Protocol):
    """The kernel, as its traces need it."""

    clock: Callable[[], float]
    log_settings: LogSettings

    @property
    def plugins(self) -> Sinks: ...

    def models(self) -> Sequence[Any]: ...


class Tracer:
    """The traces of one kernel. All on the loop."""

    def __init__(self, kernel: TracedKernel, settings: TraceSettings) -> None:
        self._kernel = kernel
        self.settings = settings
        self._sink: TraceSink | None = None
        self._id = 0
        self.clock: Callable[[], float] = kernel.clock
        self.propagates = settings.options.mode != TRITON  # a client's own trace is continued
        self.active = False  # some model has a `tracing`
        #: Puts the recording of requests as they pass in front of a model's `tracing`; None: they are not recorded.
        self.recording: Callable[[RequestTracing | None], RequestTracing] | None = None
        settings.on_change = self.refresh
        settings.on_retire = self.retire
        kernel.log_settings.on_change = self.refresh

    def start(self) -> None:
        """Be ready to trace. Raises ServingError when nobody here can do so in the mode that was asked for."""
        kernel, options = self._kernel, self.settings.options
        self.clock = kernel.clock
        if options.mode != TRITON:
            self._sink = kernel.plugins.trace_sink(kernel, options)
            if self._sink is None:
                words = f"no plugin is installed for the trace mode '{options.mode}'; mode '{TRITON}' needs none"
                raise ServingError(Code.UNSUPPORTED, words)
        elif options.file:
            self._sink = TraceFile(options.file)
        elif self.settings.shown()["trace_level"] != ["OFF"]:
            log.warning("nothing is traced: trace file name is not given (--trace-config triton,file=<path>)")
        self.refresh()

    def refresh(self) -> None:
        """Give each model the `tracing` that the settings ask for now: traces, the request log, a recording, all, or None."""
        models = self._kernel.models()
        for model in models:
            model.tracing = self.of_model(model.name)
        self.active = self.of_model("") is not None or any(model.tracing is not None for model in models)

    def of_model(self, name: str) -> RequestTracing | None:
        """Return what a model's `tracing` is to be."""
        sampler = self.settings.sampler(name) if self._sink is not None else None
        tracing: RequestTracing | None = None if sampler is None else Tracing(self, sampler)
        settings = self._kernel.log_settings
        if settings.access is not None:
            tracing = AccessTracing(tracing, settings.access, self.clock)
        if settings.options.verbose:
            tracing = RequestLog(tracing, self.clock)
        return tracing if self.recording is None else self.recording(tracing)

    def next_id(self) -> int:
        self._id += 1
        return self._id

    def go_on(self, request: InferenceRequest) -> None:
        """Trace a checked request that carries its caller's trace, as a part of that; or an app's own, if it is its turn."""
        parent = request.trace
        request.trace = None
        if parent is APP:
            if request.model.tracing is not None:
                request.model.tracing.arrived(request)
        elif type(parent) is Trace and parent.top.open:
            sampler = parent.sampler
            trace = Trace(self.next_id(), parent, sampler, times=parent.times, tensors=parent.tensors)
            self.open(trace, request, "", self.clock())

    def open(self, trace: Trace, request: InferenceRequest, traceparent: str, now: float) -> None:
        """Begin to trace a request."""
        model = request.model
        trace.accepted(model.name, model.version, request.id, now)
        trace.note_tensors("TENSOR_QUEUE_INPUT", request.inputs.values())
        assert self._sink is not None
        try:
            self._sink.opened(trace, traceparent)
        except Exception:  # no request fails of a plugin that looks on
            log.exception("the trace sink failed at a trace that was opened")
        request.trace = trace
        request.respond = Traced(self, trace, request, request.respond)

    def ended(self, trace: Trace) -> None:
        """A trace has ended: perhaps its tree is complete, perhaps nobody needs its settings any more."""
        if not trace.end():
            return
        sink, sampler = self._sink, trace.sampler
        sampler.open -= 1
        if sink is None:
            return
        try:
            sink.completed(trace.top)
        except Exception:
            log.exception("a trace is lost")
        if sampler.retired:
            self.retire(sampler)

    def retire(self, sampler: Sampler) -> None:
        """Other settings have taken over from those of `sampler`: once its last trace has ended, its traces are written."""
        if not sampler.open and self._sink is not None:
            self._sink.retired(sampler)

    async def close(self) -> None:
        """Write what is not written yet; nothing is traced any more."""
        sink, self._sink = self._sink, None
        self.refresh()
        if sink is not None:
            try:
                await sink.close()
            except Exception:
                log.exception("traces are lost")


class Traced:
    """The continuation of a traced request, around that of who waits for the answer (`inner`)."""

    __slots__ = ("_request", "_trace", "_tracer", "inner")

    def __init__(self, tracer: Tracer, trace: Trace, request: InferenceRequest, inner: Respond) -> None:
        self._tracer = tracer
        self._trace = trace
        self._request: InferenceRequest | None = request
        self.inner = inner

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        tracer, trace, request = self._tracer, self._trace, self._request
        if request is None:  # ended before
            self.inner(response, final)
            return
        now = tracer.clock()
        error = response.error if response is not None else None
        if response is not None:
            trace.note_tensors("TENSOR_BACKEND_OUTPUT", response.outputs)
        trace.answered(now)
        if error is not None:
            trace.failed = error.message
        if final:
            self._request = None
            trace.executed(None if request.model.config.is_ensemble else request.batch, now)
        try:
            if not trace.protocol or response is None:
                self.inner(response, final)
            else:
                _, _, begun, sent = moments_of(trace.protocol)
                trace.note(begun, now)
                self.inner(response, final)
                trace.note(sent, tracer.clock())
        finally:
            if final:
                tracer.ended(trace)
