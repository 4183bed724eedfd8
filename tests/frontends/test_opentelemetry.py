"""From traces to spans: one tree, whoever began it; and what a model is told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from kernel import Batch, Trace
from kernel_opentelemetry.context import below, context_of, continued, first
from kernel_opentelemetry.spans import spans_of

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.mark.parametrize("header", [TRACEPARENT, TRACEPARENT[:-1] + "0", f"cc{TRACEPARENT[2:]}-more"])
def test_traceparents(header: str) -> None:
    assert continued(header) == (int(TRACE_ID, 16), int(SPAN_ID, 16))
    ids = first(header)
    assert (ids.trace_id, ids.parent, ids.is_remote) == (int(TRACE_ID, 16), int(SPAN_ID, 16), True)
    assert json.loads(context_of(ids)) == {"traceparent": f"00-{TRACE_ID}-{ids.span:016x}-01"}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        TRACEPARENT.upper(),
        f"ff{TRACEPARENT[2:]}",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"{TRACEPARENT}x",
    ],
)
def test_what_is_no_traceparent_begins_a_tree(header: str) -> None:
    assert continued(header) is None
    ids, other = first(header), first(header)
    assert ids.parent == 0 and not ids.is_remote
    assert len({ids.trace_id, ids.root, ids.span, other.trace_id, other.root, other.span}) == 6


def trace(id: int, name: str, parent: Trace | None, start: float, *, compute: bool = True, failed: str = "") -> Trace:
    """Return a trace that took a second, of which it was executed from 0.25 to 0.75."""
    one = Trace(id, parent, None, times=True, tensors=False, protocol="" if parent else "HTTP")
    one.ids = first(TRACEPARENT) if parent is None else below(parent.ids)
    if parent is None:
        one.arrived(start - 0.5, start)
    one.accepted(name, 3, "r" if parent is None else "", start)
    batch = Batch([], 1)
    batch.started, batch.input_ended, batch.output_started, batch.ended = (start + k / 4 for k in (1, 1.5, 2, 3))
    one.answered(start + 1)
    one.executed(batch if compute else None, start + 1)
    one.failed = failed
    if parent is None:
        one.note("HTTP_SEND_START", start + 1)
        one.note("HTTP_SEND_END", start + 1.5)
    return one


def spans(top: Trace) -> dict[tuple[str, int], ReadableSpan]:
    """Return the spans by name and by how many of that name came before."""
    found: dict[tuple[str, int], ReadableSpan] = {}
    for span in spans_of(top, Resource({}), lambda moment: round(moment * 1e9)):
        found[span.name, sum(name == span.name for name, _ in found)] = span
    return found


def parent_of(span: ReadableSpan) -> int:
    return span.parent.span_id if span.parent is not None else 0


def events(span: ReadableSpan) -> list[tuple[str, float]]:
    return [(event.name, event.timestamp / 1e9) for event in span.events]


def during(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None and span.end_time is not None
    return span.start_time / 1e9, span.end_time / 1e9


def test_a_request_s_spans() -> None:
    found = spans(trace(7, "m", None, 10.0))
    assert list(found) == [("compute", 0), ("queue", 0), ("m", 0), ("InferRequest", 0)]
    compute, queue, model, root = found.values()
    assert parent_of(root) == int(SPAN_ID, 16) and root.parent is not None and root.parent.is_remote
    assert parent_of(model) == root.context.span_id
    assert parent_of(compute) == parent_of(queue) == model.context.span_id
    assert {span.context.trace_id for span in found.values()} == {int(TRACE_ID, 16)}
    assert all(span.context.trace_flags.sampled and span.instrumentation_scope.name == "triton-server" for span in found.values())
    assert [span.kind for span in found.values()] == [SpanKind.INTERNAL] * 3 + [SpanKind.SERVER]
    assert [during(span) for span in found.values()] == [(10.25, 10.75), (10.0, 10.25), (10.0, 11.0), (9.5, 11.5)]
    assert events(model) == [("REQUEST_START", 10.0), ("QUEUE_START", 10.0), ("REQUEST_END", 11.0)]
    assert [name for name, _ in events(compute)] == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert events(root) == [
        ("HTTP_RECV_START", 9.5),
        ("HTTP_RECV_END", 10.0),
        ("INFER_RESPONSE_COMPLETE", 11.0),
        ("HTTP_SEND_START", 11.0),
        ("HTTP_SEND_END", 11.5),
    ]
    assert dict(model.attributes or {}) == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.trace_id": 7,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }
    assert not root.attributes and root.status.status_code is StatusCode.UNSET


def test_calls_are_below_their_caller() -> None:
    top = trace(1, "outer", None, 10.0)
    inner = trace(2, "inner", top, 10.3)
    found = spans(top)
    assert sum(name == "InferRequest" for name, _ in found) == 1
    caller, call = found["outer", 0], found["inner", 0]
    assert parent_of(call) == caller.context.span_id and call.context.trace_id == caller.context.trace_id
    assert call.attributes is not None and call.attributes["triton.trace_parent_id"] == 1
    assert "triton.request_id" not in call.attributes
    assert json.loads(context_of(inner.ids))["traceparent"] == f"00-{TRACE_ID}-{call.context.span_id:016x}-01"


def test_an_ensemble_neither_waits_nor_computes() -> None:
    top = trace(1, "e", None, 10.0, compute=False)
    trace(2, "step", top, 10.0)
    assert [name for name, _ in spans(top)] == ["compute", "queue", "step", "e", "InferRequest"]


def test_a_request_that_was_never_executed_has_waited_to_its_end() -> None:
    found = spans(trace(1, "m", None, 10.0, compute=False, failed="too late"))
    assert [name for name, _ in found] == ["queue", "m", "InferRequest"]
    assert during(found["queue", 0]) == (10.0, 11.0)
    for name in ("m", "InferRequest"):
        status: Any = found[name, 0].status
        assert (status.status_code, status.description) == (StatusCode.ERROR, "too late")
