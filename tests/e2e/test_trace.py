"""Tracing as a user has it: files when the server has stopped, spans at a collector, and who is in flight."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .serving import SLEEPER, Server, serving, wait_until, write_model

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"

#: Calls `echo` with its own trace, and tells the trace's context in the file `context`.
CALLER = """\
    def execute(self, requests):
        (request,) = requests
        (Path(__file__).parent / "context").write_text(str(request.trace().get_context()))
        call = pb_utils.InferenceRequest(
            model_name="echo", requested_output_names=["Y"], inputs=request.inputs(), trace=request.trace(), request_id="call"
        )
        return [pb_utils.InferenceResponse(call.exec().output_tensors())]
"""

ENSEMBLE = """\
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "caller" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }
}
"""

PLACEMENT = 'parameters {{ key: "placement" value {{ string_value: "{}" }} }}'

Span = dict[str, Any]


def repository(folder: Path, placement: str = "loop") -> Path:
    write_model(folder, "echo")
    write_model(folder, "caller", CALLER, more=PLACEMENT.format(placement))
    (folder / "ensemble" / "1").mkdir(parents=True)
    (folder / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    return folder


def heads(path: Path) -> list[Any]:
    """Return what a trace file says of the requests in it."""
    return [one for one in json.loads(path.read_text()) if "model_name" in one]


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_a_file_holds_the_whole_tree(tmp_path: Path, placement: str) -> None:
    repository(tmp_path / "models", placement)
    path = tmp_path / "traces.json"
    flags = [f"--trace-config={flag}" for flag in (f"triton,file={path}", "level=TIMESTAMPS", "rate=1")]
    with serving(tmp_path, tmp_path / "models", *flags) as server:
        assert server.infer("ensemble", 1.0)[0] == 200
        server.signal()
        assert server.wait() == 0
    assert [(one["model_name"], one["id"], one.get("parent_id")) for one in heads(path)] == [
        ("echo", 3, 2),
        ("caller", 2, 1),
        ("ensemble", 1, None),
    ]
    assert (tmp_path / "models/caller/1/context").read_text() == "None"


def test_settings_that_change_while_it_serves(tmp_path: Path) -> None:
    repository(tmp_path / "models")
    path = tmp_path / "traces"
    with serving(tmp_path, tmp_path / "models", f"--trace-config=triton,file={path}") as server:
        server.infer("echo", 1.0)
        body = {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "log_frequency": "1", "trace_count": "2"}
        assert server.request("POST", "/v2/models/echo/trace/setting", body)[0] == 200
        for _ in range(5):
            server.infer("echo", 1.0)
        assert server.request("GET", "/v2/models/echo/trace/setting")[1]["trace_count"] == "0"
        server.signal()
        assert server.wait() == 0
    assert [heads(tmp_path / f"traces.{k}")[0]["id"] for k in range(2)] == [1, 2]
    assert sorted(found.name for found in tmp_path.glob("traces*")) == ["traces.0", "traces.1"]


# -- spans -------------------------------------------------------------------------------------------------------------


@contextmanager
def collecting() -> Iterator[tuple[str, queue.Queue[Span]]]:
    """Run a collector of spans; give its URL and what it gets."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: queue.Queue[Span] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in message.resource_spans:
                of = {one.key: one.value.string_value for one in resource.resource.attributes}
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    spans.put(
                        {
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "service": of["service.name"],
                            "events": [event.name for event in span.events],
                        }
                    )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
        finally:
            server.shutdown()
            thread.join()


def infer_with_header(server: Server, model: str, over: str) -> None:
    """Send a request that belongs to a trace of the client's."""
    if over == "http":
        import tritonclient.http as triton

        client, address = triton, server.url
    else:
        import tritonclient.grpc as triton_grpc

        client, address = triton_grpc, grpc_address(server)
    import numpy as np

    tensor = client.InferInput("X", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    connection = client.InferenceServerClient(address)
    try:
        connection.infer(model, [tensor], request_id="r", headers={"traceparent": TRACEPARENT})
    finally:
        connection.close()


def grpc_address(server: Server) -> str:
    found = [line for line in server.text().splitlines() if "Started GRPCInferenceService at " in line]
    return found[0].partition(" at ")[2].rstrip('"')


@pytest.mark.parametrize(("over", "placement"), [("http", "loop"), ("http", "thread"), ("grpc", "loop"), ("http", "process")])
def test_a_client_s_trace_goes_on_through_ensemble_model_and_call(tmp_path: Path, over: str, placement: str) -> None:
    """BC72."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    repository(tmp_path / "models", placement)
    with collecting() as (url, found):
        flags = ("mode=opentelemetry", f"opentelemetry,url={url}", "level=TIMESTAMPS", "rate=1000")
        with serving(tmp_path, tmp_path / "models", *(f"--trace-config={flag}" for flag in flags)) as server:
            server.infer("echo", 1.0)  # not its turn, and nobody else traces it
            infer_with_header(server, "ensemble", over)
            server.signal()
            assert server.wait() == 0
        spans: list[Span] = []
        while not found.empty():
            spans.append(found.get())
    assert {(span["trace"], span["service"]) for span in spans} == {(TRACE_ID, "triton-inference-server")}
    by_name = {span["name"]: span for span in spans if span["name"] not in ("queue", "compute")}
    assert sorted(by_name) == ["InferRequest", "caller", "echo", "ensemble"]
    assert by_name["InferRequest"]["parent"] == SPAN_ID
    for name, parent in (("ensemble", "InferRequest"), ("caller", "ensemble"), ("echo", "caller")):
        assert by_name[name]["parent"] == by_name[parent]["id"]
    for name in ("queue", "compute"):
        below = {span["parent"] for span in spans if span["name"] == name}
        assert below == {by_name["caller"]["id"], by_name["echo"]["id"]}
    front = "HTTP_RECV_START" if over == "http" else "GRPC_WAITREAD_START"
    assert by_name["InferRequest"]["events"][0] == front
    context = json.loads((tmp_path / "models/caller/1/context").read_text())
    assert context == {"traceparent": f"00-{TRACE_ID}-{by_name['caller']['id']}-01"}


def test_a_collector_that_is_away_costs_nothing_but_spans(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    repository(tmp_path / "models")
    flags = ("mode=opentelemetry", "opentelemetry,url=http://127.0.0.1:9/v1/traces", "level=TIMESTAMPS", "rate=1")
    with serving(tmp_path, tmp_path / "models", *(f"--trace-config={flag}" for flag in flags)) as server:
        assert server.infer("echo", 1.0)[0] == 200
        server.signal()
        assert server.wait() == 0


# -- in flight ---------------------------------------------------------------------------------------------------------


def test_who_is_in_flight(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models", "sleeper", SLEEPER)
    with serving(tmp_path, tmp_path / "models") as server, ThreadPoolExecutor() as pool:
        assert server.request("GET", "/v2/inflight") == (200, {"inflight": []})
        first = pool.submit(server.infer, "sleeper", 3.0, 60.0)
        wait_until((folder / "1/started").exists)
        second = pool.submit(server.infer, "sleeper", 0.0, 60.0)
        shown: list[Any] = []

        def both() -> bool:
            shown[:] = server.request("GET", "/v2/inflight")[1]["inflight"]
            return len(shown) == 2 or first.done()

        wait_until(both)
        if len(shown) == 2:  # else this machine was too slow to look
            assert shown[0]["state"] == "EXECUTING" and shown[0]["why"].startswith("it is executed, for ")
            assert "instances are busy" in shown[1]["why"] or shown[1]["why"].startswith("handed to its instance")
            assert all(one["client"].startswith("HTTP 127.0.0.1:") and one["model"] == "sleeper" for one in shown)
        assert first.result()[0] == second.result()[0] == 200
        wait_until(lambda: server.request("GET", "/v2/inflight")[1] == {"inflight": []})
