"""Sends spans to a collector: the SDK's batching, on a thread of its own, and its OTLP exporter.

The loop only puts spans into the SDK's bounded queue. A collector that is slow or away costs spans, never requests, and the end
of the server waits for it only so long.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from kernel import Code, Kernel, ServingError, Trace, TraceOptions
from kernel_opentelemetry.context import below, context_of, first
from kernel_opentelemetry.spans import spans_of

__all__ = ["SpanSink"]

log = logging.getLogger(__name__)

#: What the end of the server waits for the last spans to be taken.
LAST_SECONDS = 3.0


class SpanSink:
    """The sink of mode `opentelemetry`."""

    def __init__(self, kernel: Kernel, options: TraceOptions) -> None:
        self._kernel = kernel
        self._resource = Resource.create({SERVICE_NAME: "triton-inference-server", **dict(options.resource)})
        try:
            self._processor = BatchSpanProcessor(
                OTLPSpanExporter(endpoint=options.url),
                max_queue_size=options.bsp_max_queue_size,
                schedule_delay_millis=options.bsp_schedule_delay,
                max_export_batch_size=options.bsp_max_export_batch_size,
            )
        except ValueError as error:
            raise ServingError(Code.INVALID_ARG, f"trace settings for opentelemetry: {error}") from error

    def opened(self, trace: Trace, traceparent: str) -> None:
        trace.ids = first(traceparent) if trace.parent is None else below(trace.parent.ids)
        trace.context = context_of(trace.ids)

    def completed(self, trace: Trace) -> None:
        for span in spans_of(trace, self._resource, self._nanoseconds):
            self._processor.on_end(span)

    def retired(self, sampler: Any) -> None:
        """Spans don't wait for others of the same settings."""

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        def end() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits
                return

        threading.Thread(target=end, name="kernel-trace-end", daemon=True).start()
        try:
            await asyncio.wait_for(done, LAST_SECONDS)
        except TimeoutError:
            log.warning("the collector of spans did not take the last ones within %.0f s; they are lost", LAST_SECONDS)

    def _nanoseconds(self, moment: float) -> int:
        return round(moment * 1e9) + round(self._kernel.epoch_offset * 1e9)
