"""From a trace to its spans. Pure.

The tree: `InferRequest`, from the first byte of the request to the last of its answer; below it the model by its name; below that
`queue`, while the request waited, `compute`, while it was executed, and the models that it called. The first, the models and
`compute` are the reference's, with its events and attributes; `queue` is ours. (Contract: observability, section 3.3.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from kernel import Trace
from kernel_opentelemetry.context import Ids, new_span

__all__ = ["spans_of"]

SCOPE = InstrumentationScope("triton-server")
SAMPLED = TraceFlags(TraceFlags.SAMPLED)

#: The moments that are events of a model's own span, and of `compute`; all others are the first span's.
MODEL = ("REQUEST_START", "QUEUE_START", "REQUEST_END")
COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


def spans_of(top: Trace, resource: Resource, nanoseconds: Callable[[float], int]) -> Iterable[ReadableSpan]:
    """Yield the spans of a tree, those below before those above. `nanoseconds`: from the kernel's clock to the epoch's."""
    for trace in top.walk():
        yield from _Spans(trace, resource, nanoseconds).all()


class _Spans:
    """Makes the spans of one trace."""

    def __init__(self, trace: Trace, resource: Resource, nanoseconds: Callable[[float], int]) -> None:
        self.trace = trace
        self.ids: Ids = trace.ids
        self.resource = resource
        self.nanoseconds = nanoseconds
        self.moments = [(name, what) for name, what in trace.events if isinstance(what, float) and name]
        self.at = dict(reversed(self.moments))  # of several by one name the first

    def all(self) -> Iterable[ReadableSpan]:
        ids, at = self.ids, self.at
        status = Status(StatusCode.ERROR, self.trace.failed) if self.trace.failed else Status(StatusCode.UNSET)
        begun = at.get("COMPUTE_START")
        if begun is not None:
            yield self._span("compute", new_span(), ids.span, begun, at["COMPUTE_END"], COMPUTE)
        queued = begun if begun is not None else at["REQUEST_END"]
        if begun is not None or not self.trace.children:  # an ensemble's request never waits
            yield self._span("queue", new_span(), ids.span, at["QUEUE_START"], queued, ())
        attributes: dict[str, str | int] = {
            "triton.model_name": self.trace.model_name,
            "triton.model_version": self.trace.model_version,
            "triton.trace_id": self.trace.id,
            "triton.trace_parent_id": self.trace.parent.id if self.trace.parent is not None else 0,
        }
        if self.trace.request_id:
            attributes["triton.request_id"] = self.trace.request_id
        yield self._span(
            self.trace.model_name, ids.span, ids.root or ids.parent, at["REQUEST_START"], at["REQUEST_END"], MODEL,
            attributes=attributes, status=status,
        )  # fmt: skip
        if ids.root:
            others = tuple({name: None for name, _ in self.moments if name not in MODEL and name not in COMPUTE})
            yield self._span(
                "InferRequest", ids.root, ids.parent, self.moments[0][1], max(self.at_last(), at["REQUEST_END"]), others,
                kind=SpanKind.SERVER, status=status, is_remote=ids.is_remote,
            )  # fmt: skip

    def at_last(self) -> float:
        return max(moment for _, moment in self.moments)

    def _span(
        self,
        name: str,
        id: int,
        parent: int,
        start: float,
        end: float,
        events: tuple[str, ...],
        *,
        attributes: dict[str, str | int] | None = None,
        status: Status | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        is_remote: bool = False,
    ) -> ReadableSpan:
        trace_id, nanoseconds = self.ids.trace_id, self.nanoseconds
        return ReadableSpan(
            name,
            context=SpanContext(trace_id, id, False, SAMPLED),
            parent=SpanContext(trace_id, parent, is_remote, SAMPLED) if parent else None,
            resource=self.resource,
            attributes=attributes,
            events=[Event(key, timestamp=nanoseconds(moment)) for key, moment in self.moments if key in events],
            kind=kind,
            status=status or Status(StatusCode.UNSET),
            start_time=nanoseconds(start),
            end_time=nanoseconds(end),
            instrumentation_scope=SCOPE,
        )
