"""kernel_opentelemetry: the trace mode `opentelemetry`, whose spans go to a collector by OTLP over HTTP.

Registers without the OpenTelemetry SDK, which comes with the extra `opentelemetry`; only a server that is to trace in this mode
can't start then.
"""

from __future__ import annotations

from kernel import Code, Kernel, ServingError, TraceOptions, TraceSink, hookimpl, how_to_install

__all__ = ["make_trace_sink"]


@hookimpl
def make_trace_sink(kernel: Kernel, options: TraceOptions) -> TraceSink | None:
    if options.mode != "opentelemetry":
        return None
    try:
        from kernel_opentelemetry.sink import SpanSink
    except ImportError as error:
        raise ServingError(
            Code.UNAVAILABLE,
            f"trace mode 'opentelemetry' needs a package that is not installed ({error}): {how_to_install('opentelemetry')}",
        ) from error
    return SpanSink(kernel, options)
