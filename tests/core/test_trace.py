"""Traces on virtual time: which requests are traced, what is noted of them and when, and what the files hold."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Behaviour, Client, TestBackend, answer, echo, run, sleeping, write_repository

from kernel import Batch, InferenceRequest, InferenceResponse, Kernel, Result, ServingError, Tensor, TraceOptions
from kernel.observability.sampling import Sampler
from kernel.observability.trace import Trace
from kernel.observability.trace_file import fragments, tensor_text

CORE = ["REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE"]
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
WHOLE = [*CORE, *COMPUTE, "REQUEST_END"]
ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "T" } },
  { model_name: "m" model_version: -1 input_map { key: "X" value: "T" } output_map { key: "Y" value: "Y" } } ] }
"""


class Traces:
    """A kernel that traces into a folder, and what it wrote."""

    def __init__(self, folder: Path, models: dict[str, str], behaviours: dict[str, Behaviour], **options: Any) -> None:
        write_repository(folder / "models", models)
        self.path = folder / "traces"
        options = {"level": ("TIMESTAMPS",), "rate": 1, "file": str(self.path), **options}
        self.kernel = Kernel(
            folder / "models",
            plugins=[TestBackend(behaviours)],
            control_mode="explicit",
            load_models=["*"],
            trace=TraceOptions(**options),
        )

    def send(self, client: Client, model: str, id: str, value: Sequence[float] = (1.0,), **fields: Any) -> InferenceRequest:
        """Send as a front end does: what is traced is told to arrive."""
        request = InferenceRequest(model, {"X": Tensor("X", "FP32", np.array(value, np.float32))}, _ignore, id=id, **fields)
        found = self.kernel.model(model)
        found.check(request)
        if found.tracing is not None:
            found.tracing.arrived(request, "HTTP")
        found.enqueue(request)
        return request

    def files(self) -> dict[str, list[Any]]:
        found = sorted(self.path.parent.glob("traces*"))
        return {path.name.removeprefix("traces"): json.loads(path.read_text()) for path in found}

    def ids(self) -> dict[str, list[str]]:
        """Return by file the ids of the requests whose traces are in it."""
        return {name: [one["request_id"] for one in content if "model_name" in one] for name, content in self.files().items()}


def _ignore(response: InferenceResponse | None, final: bool) -> None:
    pass


def names(content: list[Any], id: int) -> list[str]:
    """Return the names of a trace's moments, and of its tensors' activities, in order."""
    return [
        one["timestamps"][0]["name"] if "timestamps" in one else one["activity"]
        for one in content
        if one["id"] == id and "model_name" not in one
    ]


def moments(content: list[Any], id: int) -> dict[str, float]:
    """Return a trace's moments as seconds since the start."""
    stamps = [one["timestamps"][0] for one in content if one["id"] == id and "timestamps" in one]
    return {stamp["name"]: stamp["ns"] / 1e9 - 1000 for stamp in stamps}


def traced(tmp_path: Path, story: Any, models: dict[str, str] | None = None, behaviours: Any = None, **options: Any) -> Traces:
    """Run `story(traces, client)` in a kernel that traces; return what was written when it has stopped."""
    traces = Traces(tmp_path, models or {"m": BASE}, behaviours or {}, **options)

    async def main() -> None:
        async with traces.kernel as kernel:
            await story(traces, Client(kernel))

    run(main())
    return traces


def test_a_request_s_moments(tmp_path: Path) -> None:
    async def story(traces: Traces, client: Client) -> None:
        traces.send(client, "m", "a")
        traces.send(client, "m", "b")
        await asyncio.sleep(10)

    content = traced(tmp_path, story, behaviours={"m": sleeping(2.0)}).files()[""]
    assert [one for one in content if "model_name" in one] == [
        {"id": 1, "model_name": "m", "model_version": 1, "request_id": "a"},
        {"id": 2, "model_name": "m", "model_version": 1, "request_id": "b"},
    ]
    front = ["HTTP_RECV_START", "HTTP_RECV_END"], ["HTTP_SEND_START", "HTTP_SEND_END"]
    assert names(content, 1) == names(content, 2) == [*front[0], *WHOLE, *front[1]]
    assert content[2] == {"id": 1, "model_name": "m", "model_version": 1, "request_id": "a"}  # behind what the front end noted
    second = moments(content, 2)
    assert [second[name] for name in ("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END")] == [
        pytest.approx(moment) for moment in (0, 0, 2, 4, 4)
    ]


def test_an_app_s_own_requests_are_traced(tmp_path: Path) -> None:
    async def story(traces: Traces, client: Client) -> None:
        await traces.kernel.infer("m", {"X": np.ones(2, np.float32)}, id="own")
        async for _ in traces.kernel.stream("m", {"X": np.ones(2, np.float32)}):
            pass

    content = traced(tmp_path, story).files()[""]
    assert names(content, 1) == names(content, 2) == WHOLE
    assert "request_id" not in next(one for one in content if one["id"] == 2)


def test_the_steps_of_an_ensemble_are_children_and_stand_before_it(tmp_path: Path) -> None:
    async def story(traces: Traces, client: Client) -> None:
        await traces.kernel.infer("e", {"X": np.ones(2, np.float32)}, id="r")

    content = traced(tmp_path, story, {"m": BASE, "e": ENSEMBLE}).files()[""]
    assert [one for one in content if "model_name" in one] == [
        {"id": 3, "model_name": "m", "model_version": 1, "request_id": "r", "parent_id": 1},
        {"id": 2, "model_name": "m", "model_version": 1, "request_id": "r", "parent_id": 1},
        {"id": 1, "model_name": "e", "model_version": 1, "request_id": "r"},
    ]
    assert names(content, 1) == [*CORE, "REQUEST_END"]
    assert names(content, 2) == names(content, 3) == [*CORE[:2], *COMPUTE, "REQUEST_END"]


def calling(kernels: list[Kernel], trace: bool) -> Behaviour:
    """Return a behaviour that calls `m`, with or without its own trace."""

    async def execute(batch: Batch) -> Result:
        (request,) = batch.requests
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = InferenceRequest(
            "m",
            {"X": Tensor("X", "FP32", np.ones(1, np.float32))},
            lambda response, final: future.set_result(response),
            id="call",
            parent=batch,
            trace=request.trace if trace else None,
        )
        kernels[0].submit(call)
        await future
        return echo(batch)

    return execute


@pytest.mark.parametrize("trace", [True, False])
def test_calls_are_children_where_they_carry_the_trace(tmp_path: Path, trace: bool) -> None:
    kernels: list[Kernel] = []

    async def story(traces: Traces, client: Client) -> None:
        kernels.append(traces.kernel)
        traces.kernel.trace_settings.update({"trace_level": ["OFF"]}, "m")  # counts for what comes from outside
        await traces.kernel.infer("outer", {"X": np.ones(1, np.float32)}, id="r")
        await traces.kernel.infer("m", {"X": np.ones(1, np.float32)}, id="not traced")

    content = traced(tmp_path, story, {"m": BASE, "outer": BASE}, {"outer": calling(kernels, trace)}).files()[""]
    outer = {"id": 1, "model_name": "outer", "model_version": 1, "request_id": "r"}
    call = {"id": 2, "model_name": "m", "model_version": 1, "request_id": "call", "parent_id": 1}
    assert [one for one in content if "model_name" in one] == ([call, outer] if trace else [outer])


def test_each_response_of_a_decoupled_model_is_noted(tmp_path: Path) -> None:
    def execute(batch: Batch) -> Result:
        (request,) = batch.requests
        kernel = request.model.kernel
        for value in (1.0, 2.0):
            kernel.send(request, answer(request, Y=[value]), False)
        kernel.send(request, None, True)
        return None

    async def story(traces: Traces, client: Client) -> None:
        traces.send(client, "m", "r")

    decoupled = BASE + "model_transaction_policy { decoupled: true }\n"
    content = traced(tmp_path, story, {"m": decoupled}, {"m": execute}).files()[""]
    one = ["INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
    first = ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START"]
    assert names(content, 1) == [*first, *one, *one, "INFER_RESPONSE_COMPLETE", *COMPUTE, "REQUEST_END"]


def test_what_never_executes_has_no_compute(tmp_path: Path) -> None:
    async def story(traces: Traces, client: Client) -> None:
        traces.send(client, "m", "long")
        traces.send(client, "m", "late", deadline=traces.kernel.clock() + 1.0)
        await asyncio.sleep(10)

    traces = traced(tmp_path, story, behaviours={"m": sleeping(5.0)})
    content = traces.files()[""]
    assert traces.ids() == {"": ["late", "long"]}  # as they ended
    assert names(content, 2)[2:-2] == [*CORE, "REQUEST_END"]
    assert moments(content, 2)["REQUEST_END"] == pytest.approx(1.0)


def test_a_failed_execution_has_its_moments(tmp_path: Path) -> None:
    def execute(batch: Batch) -> Result:
        raise ValueError("no")

    async def story(traces: Traces, client: Client) -> None:
        with pytest.raises(ServingError, match="no"):
            await traces.kernel.infer("m", {"X": np.ones(1, np.float32)})

    assert names(traced(tmp_path, story, behaviours={"m": execute}).files()[""], 1) == WHOLE


def test_tensors_are_noted_as_they_were_then(tmp_path: Path) -> None:
    def execute(batch: Batch) -> Result:
        (request,) = batch.requests
        response = answer(request, Y=[5.0])
        request.inputs["X"].array[:] = 7  # models may write to what is theirs
        return [response]

    async def story(traces: Traces, client: Client) -> None:
        response = await traces.kernel.infer("m", {"X": np.array([1, 2.5], np.float32)}, id="r")
        response["Y"][:] = 9

    content = traced(tmp_path, story, behaviours={"m": execute}, level=("TENSORS",)).files()[""]
    assert content == [
        {
            "id": 1,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "X", "data": "1,2.5", "shape": "2", "dtype": "FP32"},
        },
        {
            "id": 1,
            "activity": "TENSOR_BACKEND_OUTPUT",
            "tensor": {"name": "Y", "data": "5", "shape": "1", "dtype": "FP32"},
        },
    ]


@pytest.mark.parametrize(
    ("datatype", "array", "text"),
    [
        ("FP32", np.array([1, 2.5, 3.1415926, 1e10], np.float32), "1,2.5,3.14159,1e+10"),
        ("FP64", np.array([[0.123456789], [1e300]]), "0.123457,1e+300"),
        ("FP16", np.array([0.5], np.float16), "0.5"),
        ("INT8", np.array([65, -1], np.int8), "65,-1"),
        ("UINT64", np.array([2**63], np.uint64), str(2**63)),
        ("BOOL", np.array([True, False]), "1,0"),
        ("BYTES", np.array([b"abc", b"d,e", b'"', b"\xff"], object), '"abc","d,e",""","\ufffd"'),
        ("FP32", np.zeros((0, 2), np.float32), ""),
    ],
)
def test_how_tensors_are_written(datatype: str, array: Any, text: str) -> None:
    assert tensor_text(Tensor("X", datatype, array)) == text


def test_fragments_are_json_whatever_a_request_is_called() -> None:
    trace = Trace(1, None, None, times=True, tensors=True, protocol="GRPC")
    trace.arrived(1.0, 2.0)
    trace.accepted('m"\n', 3, "\u00e9\\", 2.0)
    trace.note_tensors("TENSOR_QUEUE_INPUT", [Tensor('"', "BYTES", np.array([b'a"\n'], object))])
    first, second, header, *_, tensor = [json.loads(text) for text in fragments(trace)]
    assert first["timestamps"] == [{"name": "GRPC_WAITREAD_START", "ns": 1_000_000_000}]
    assert second["timestamps"] == [{"name": "GRPC_WAITREAD_END", "ns": 2_000_000_000}]
    assert header == {"id": 1, "model_name": 'm"\n', "model_version": 3, "request_id": "\u00e9\\"}
    assert tensor["tensor"] == {"name": '"', "data": '"a"\n"', "shape": "1", "dtype": "BYTES"}


# -- which requests, and which files -----------------------------------------------------------------------------------


def test_every_third_up_to_a_count_in_files_of_two(tmp_path: Path) -> None:
    """The reference's story, name by name: what is counted begins anew with each update, and what is left is written."""

    async def story(traces: Traces, client: Client) -> None:
        def send(name: str, count: int) -> None:
            for number in range(1, count + 1):
                traces.send(client, "m", f"{name}{number}")

        settings = traces.kernel.trace_settings
        send("a", 7)
        assert settings.shown()["trace_count"] == "3"
        settings.update({"trace_rate": ["2"]})
        assert settings.shown()["trace_count"] == "5"
        send("b", 5)
        settings.update({"log_frequency": ["0"], "trace_count": ["3"], "trace_rate": ["1"]})
        send("c", 2)
        settings.update({"trace_count": ["1"]})
        send("d", 3)
        assert settings.shown()["trace_count"] == "0"
        settings.update({"trace_rate": ["1"], "trace_count": ["2"]}, "m")
        send("e", 3)
        assert (settings.shown("m")["trace_count"], settings.shown()["trace_count"]) == ("0", "0")
        settings.update({"trace_rate": None, "trace_count": None}, "m")
        assert settings.shown("m")["trace_count"] == "0"
        settings.update({"trace_count": ["-1"]})
        send("f", 2)

    ids = traced(tmp_path, story, rate=3, count=5, log_frequency=2).ids()
    assert ids == {
        ".0": ["a3", "a6"],
        ".1": ["b2", "b4"],
        "": ["c1", "c2", "f1", "f2"],
        ".2": ["d1"],  # a count that is used up makes a file, too
        ".3": ["e1", "e2"],
    }


def test_what_began_before_an_update_is_written_with_its_own(tmp_path: Path) -> None:
    async def story(traces: Traces, client: Client) -> None:
        traces.send(client, "m", "a")
        traces.send(client, "m", "b")
        await asyncio.sleep(1.5)
        traces.kernel.trace_settings.update({"trace_rate": ["1"]})
        traces.send(client, "m", "c")
        await asyncio.sleep(10)

    assert traced(tmp_path, story, behaviours={"m": sleeping(1.0)}, log_frequency=9).ids() == {
        ".0": ["a", "b"],
        ".1": ["c"],
    }


def test_a_model_of_its_own_and_one_that_is_left_out(tmp_path: Path) -> None:
    async def story(traces: Traces, client: Client) -> None:
        kernel = traces.kernel
        kernel.trace_settings.update({"trace_level": ["OFF"]}, "quiet")
        assert kernel.model("quiet").tracing is None
        for name in ("quiet", "m"):
            traces.send(client, name, f"{name}1")
        await kernel.load("quiet")  # settings are by name, and outlive what they are for
        traces.send(client, "quiet", "quiet2")
        kernel.trace_settings.update({"trace_level": ["OFF"]})
        kernel.trace_settings.update({"trace_level": ["TIMESTAMPS"]}, "quiet")
        traces.send(client, "m", "m2")
        traces.send(client, "quiet", "quiet3")

    assert traced(tmp_path, story, {"m": BASE, "quiet": BASE}).ids() == {"": ["m1", "quiet3"]}


def test_untraced_requests_are_left_alone(tmp_path: Path) -> None:
    async def story(traces: Traces, client: Client) -> None:
        assert traces.kernel.model("m").tracing is None
        request = client.send("m", "r")
        assert request.trace is None and client.outcome("r") == (0, "ok")

    assert traced(tmp_path, story, level=("OFF",)).files() == {}


def test_a_file_that_can_t_be_written_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kernel")

    async def story(traces: Traces, client: Client) -> None:
        for _ in range(3):
            await traces.kernel.infer("m", {"X": np.ones(1, np.float32)})

    path = tmp_path / "nowhere" / "traces"
    traced(tmp_path, story, file=str(path), log_frequency=1)
    assert caplog.messages.count(f"traces can't be written to '{path}.0', and are lost: No such file or directory") == 1
    assert len(caplog.messages) == 1


def test_a_level_without_a_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kernel")

    async def story(traces: Traces, client: Client) -> None:
        await traces.kernel.infer("m", {"X": np.ones(1, np.float32)})

    traced(tmp_path, story, file="")
    assert caplog.messages == ["nothing is traced: trace file name is not given (--trace-config triton,file=<path>)"]


def test_a_mode_that_nobody_knows_stops_the_start(tmp_path: Path) -> None:
    kernel = Traces(tmp_path, {"m": BASE}, {}).kernel
    kernel.plugins.trace_sink = lambda kernel, options: None  # type: ignore[method-assign]
    kernel.tracer.__init__(kernel, Kernel(trace=TraceOptions(mode="opentelemetry")).trace_settings)  # type: ignore[misc]

    async def main() -> None:
        with pytest.raises(ServingError, match="no plugin is installed for the trace mode 'opentelemetry'"):
            await kernel.start()

    run(main())


def test_the_verbose_log_tells_of_each_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(traces: Traces, client: Client) -> None:
        log_settings = traces.kernel.log_settings
        traces.send(client, "m", "before")
        log_settings.update({"log_verbose_level": 1})
        traces.send(client, "m", "r")
        traces.send(client, "m", "", deadline=traces.kernel.clock() + 0.5)
        await asyncio.sleep(5)
        log_settings.update({"log_verbose_level": 0})
        traces.send(client, "m", "after")
        await asyncio.sleep(5)

    with caplog.at_level(logging.DEBUG, "kernel"):
        traces = traced(tmp_path, story, behaviours={"m": sleeping(1.0)}, rate=2)
    assert [line for line in caplog.messages if line.startswith("[request id: ")] == [
        "[request id: r] request by HTTP to model 'm' version 1, batch size 1, inputs X FP32[1]",
        "[request id: <id_unknown>] request by HTTP to model 'm' version 1, batch size 1, inputs X FP32[1]",
        "[request id: <id_unknown>] model 'm': failed after 0.500000 s, of which 0.500000 s in the queue: [request id: "
        "<id_unknown>] deadline of the request to model 'm' passed after 0.500 s while it was queued",
        "[request id: r] model 'm': 1 response after 2.000000 s, of which 1.000000 s in the queue",
    ]
    assert traces.ids() == {"": ["r", "after"]}  # told and traced: every second


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.integers(-1, 4), st.lists(st.booleans(), max_size=40))
def test_samplers_keep_to_rate_and_count(rate: int, count: int, forced: list[bool]) -> None:
    sampler = Sampler(rate, count, 0, times=True, tensors=False)
    taken = [sampler.take(force) for force in forced]
    assert all(taken[place] for place, force in enumerate(forced) if force)
    by_turn = [place for place in range(len(forced)) if rate and (place + 1) % rate == 0]
    if count >= 0:
        by_turn = by_turn[:count]
    assert [place for place, one in enumerate(taken) if one and not forced[place]] == [
        place for place in by_turn if not forced[place]
    ]
    assert sampler.left == (count if count < 0 else count - len(by_turn))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_trace_is_written_once_and_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever ends the requests, and whoever they call: each traced one is in the files once, from beginning to end."""
    folder = tmp_path_factory.mktemp("traces")
    frequency = data.draw(st.integers(0, 3))
    ends = data.draw(st.lists(st.tuples(st.sampled_from("me"), st.integers(0, 3), st.booleans()), max_size=12))

    async def story(traces: Traces, client: Client) -> None:
        for number, (model, pause, cancel) in enumerate(ends):
            request = traces.send(client, model, str(number), deadline=traces.kernel.clock() + 2.5)
            await asyncio.sleep(pause / 2)
            if cancel:
                traces.kernel.cancel(request)
        await asyncio.sleep(60)

    traces = traced(folder, story, {"m": BASE, "e": ENSEMBLE}, {"m": sleeping(1.0)}, log_frequency=frequency)
    content = [one for file in traces.files().values() for one in file]
    heads = [one for one in content if "model_name" in one]
    assert sorted(one["request_id"] for one in heads if "parent_id" not in one) == sorted(map(str, range(len(ends))))
    known = {one["id"]: one for one in heads}
    assert len(known) == len(heads)
    for one in heads:
        found = names(content, one["id"])
        assert found.count("REQUEST_START") == found.count("REQUEST_END") == 1
        assert known[one["parent_id"]]["model_name"] == "e" if "parent_id" in one else True
    assert all(len(file) for file in traces.files().values())
    assert not frequency or all(
        sum("model_name" in one and "parent_id" not in one for one in file) <= frequency for file in traces.files().values()
    )
