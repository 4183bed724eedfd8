"""`kernel replay`: what is the same and what is not, who is asked how, when, and how that is told; what perf_analyzer reads."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from virtual import BASE, TestBackend, echo, write_repository

from kernel import Batch, Code, InferenceResponse, RecordedError, RecordedRequest, Result, ServingError, Tensor
from kernel.cli.replay import replay as command
from kernel.cli.replaying import ONLY_BY_STREAMS, InProcess, OverHttp, replay
from kernel.recording import Told, Tolerance, answer_of, body_of, differences, message_of, path_of
from kernel.recording.file import RecordingFile
from kernel.recording.form import FORM, VERSION, Head
from kernel_grpc.schemas import grpc_service_pb2


@pytest.fixture(autouse=True)
def log_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sends the whole process's log elsewhere: other tests look at theirs."""
    monkeypatch.setattr("kernel.cli.replay.set_up_log", lambda options: None)


def floats(*values: float, name: str = "Y", datatype: str = "FP32") -> Tensor:
    kind = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}[datatype]
    return Tensor(name, datatype, np.array(values, kind))


def strings(*values: bytes, name: str = "T") -> Tensor:
    return Tensor(name, "BYTES", np.array([*values, None], dtype=object)[:-1])


def told(id: str = "1", x: Sequence[float] = (1.0,), y: Sequence[float] | None = None, **more: Any) -> Told:
    more = {"answers": [[floats(*(x if y is None else y))]], "inputs": [floats(*x, name="X")], "seconds": 0.01, **more}
    return RecordedRequest(**{"model": "m", "version": 1, "arrived": float(id), "waited": 0.0, "executed": 0.0, "id": id, **more})


def written(path: Path, requests: Sequence[Told], **head: Any) -> Path:
    recording = RecordingFile(open(path, "w+b"), Head(FORM, VERSION, **{"tensors": True, **head}), 2**20)
    for request in requests:
        recording.add(request, 0)
    recording.close(0, "stopped")
    return path


# -- what is the same ------------------------------------------------------------------------------------------------------

LOOSE = Tolerance(0.1, 0.5)
SAME = [
    (floats(1.0, float("nan"), float("inf")), floats(1.0, float("nan"), float("inf"))),
    (floats(100.0), floats(109.0)),
    (floats(0.0), floats(0.4)),
    (floats(100.0, datatype="FP16"), floats(109.0, datatype="FP16")),
    (Tensor("Y", "BF16", np.array([0x3F80], np.uint16)), Tensor("Y", "BF16", np.array([0x3F81], np.uint16))),
    (strings(b"a", b""), strings(b"a", b"")),
    (Tensor("Y", "FP32", np.float32(1).reshape(())), Tensor("Y", "FP32", np.float32(1).reshape(()))),
    (Tensor("Y", "FP32", np.zeros((0, 3), np.float32)), Tensor("Y", "FP32", np.zeros((0, 3), np.float32))),
]
DIFFERENT = [
    (
        floats(1.0, 100.0, 3.0), floats(2.0, 300.0, 3.0),
        r"output 'Y': 2 of 3 elements differ; the worst one is 300.0 at \[1\], expected was 100.0",
    ),
    (floats(float("inf")), floats(float("-inf")), "1 of 1 elements differ"),
    (floats(float("nan")), floats(1.0), "the first one is 1.0"),
    (floats(1e30), floats(float("inf")), "the first one is inf"),
    (floats(1.0), floats(1.0, datatype="FP64"), r"output 'Y' is FP64\[1\], expected was FP32\[1\]"),
    (floats(1.0), floats(1.0, 2.0), r"output 'Y' is FP32\[2\], expected was FP32\[1\]"),
    (floats(1.0), floats(1.0, name="Z"), "output 'Y' is missing"),
    (strings(b"a", b"b"), strings(b"a", b"\xff"), r"the first one is b'\\xff' at \[1\], expected was b'b'"),
    (Tensor("Y", "INT64", np.array([2**62])), Tensor("Y", "INT64", np.array([2**62 + 1])), "1 of 1 elements differ"),
    (Tensor("Y", "BOOL", np.array([[True, False]])), Tensor("Y", "BOOL", np.array([[True, True]])), r"at \[0, 1\]"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(SAME)))
def test_same(number: int) -> None:
    expected, actual = SAME[number]
    assert differences([expected, floats(1.0, name="Z")], [floats(1.0, name="Z"), actual], LOOSE) == []


@pytest.mark.parametrize("number", range(len(DIFFERENT)))
def test_different(number: int) -> None:
    expected, actual, words = DIFFERENT[number]
    found = differences([expected], [actual], LOOSE)
    assert re.search(words, found[0].words), found
    assert differences([], [actual], LOOSE)[0].words.endswith("was not expected")


# -- as it goes over the wire ----------------------------------------------------------------------------------------------


def test_what_is_asked_is_what_was_asked() -> None:
    request = told(
        x=(1.0, 2.0), outputs=["Y"], parameters={"a": 1}, priority=2, timeout_us=5, correlation_id="s", flags=1, model="a/b"
    )
    request.inputs.append(strings(b"ab"))
    headers, body = body_of(request)
    length = int(headers["Inference-Header-Content-Length"])
    sequence = {"sequence_id": "s", "sequence_start": True, "sequence_end": False}
    assert json.loads(body[:length]) == {
        "id": "1",
        "parameters": {"a": 1, **sequence, "priority": 2, "timeout": 5},
        "inputs": [
            {"name": "X", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
            {"name": "T", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}},
        ],
        "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
    }
    assert body[length:] == np.array([1, 2], np.float32).tobytes() + b"\x02\0\0\0ab"
    assert path_of("a/b", "2") == "/v2/models/a%2Fb/versions/2/infer" and path_of("m") == "/v2/models/m/infer"


def as_answer(outputs: Any, binary: bytes = b"", **headers: str) -> list[Tensor]:
    head = json.dumps({"outputs": outputs}).encode()
    return answer_of(200, {"inference-header-content-length": str(len(head)), **headers} if binary else headers, head + binary)


def test_what_comes_is_read() -> None:
    one = {"name": "Y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    two = {"name": "T", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
    found = as_answer([one, two], np.array([1, 2], np.float32).tobytes() + b"\x01\0\0\0a")
    assert [tensor.array.tolist() for tensor in found] == [[[1.0, 2.0]], [b"a"]]
    (found_one,) = as_answer([{"name": "Y", "datatype": "INT8", "shape": [2, 1], "data": [[1], [2]]}])
    assert found_one.array.tolist() == [[1], [2]]
    (found_one,) = as_answer([{"name": "Y", "datatype": "BYTES", "shape": [1], "data": ["ö"]}])
    assert found_one.array.tolist() == ["ö".encode()]


@pytest.mark.parametrize(
    "outputs",
    [
        7, [7], [{}], [{"name": "Y", "datatype": "FP33", "shape": [1], "data": [1]}],
        [{"name": "Y", "datatype": "FP32", "shape": [2], "data": [1]}],
        [{"name": "Y", "datatype": "FP32", "shape": [-1], "data": []}],
        [{"name": "Y", "datatype": "FP32", "shape": [2**40, 2**40], "parameters": {"binary_data_size": 4}}],
        [{"name": "Y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 400}}],
        [{"name": "Y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": -4}}],
        [{"name": "Y", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 4}}],
        [{"name": "Y", "datatype": "FP32", "shape": [1], "data": ["x"]}],
        [{"name": "Y", "datatype": "FP32", "shape": [2], "data": [[1], 2]}],
        [{"name": "Y", "datatype": "UINT8", "shape": [1], "data": [2**70]}],
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_together_is_none(outputs: Any) -> None:
    with pytest.raises(ServingError, match="the answer is none of the protocol"):
        as_answer(outputs, b"\0\0\0\0")


def test_errors_are_those_of_the_protocol() -> None:
    for status, body, code, words in (
        (400, b'{"error":"no"}', Code.INVALID_ARG, "no"), (503, b"<html>", Code.UNAVAILABLE, "<html>"),
        (418, b"", Code.UNKNOWN, ""),
    ):  # fmt: skip
        with pytest.raises(ServingError) as caught:
            answer_of(status, {}, body)
        assert (caught.value.code, caught.value.message) == (code, words)
    with pytest.raises(ServingError, match="Content-Length is '900'"):
        answer_of(200, {"inference-header-content-length": "900"}, b"{}")


# -- replay ----------------------------------------------------------------------------------------------------------------


class Scripted:
    """Answers X as Y, and notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.under_way: set[str] = set()
        self.together: set[frozenset[str]] = set()
        self._lock = threading.Lock()

    def ask(self, request: Told) -> list[list[Tensor]]:
        with self._lock:
            self.asked.append((request.id, time.monotonic()))
            self.under_way.add(request.id)
            self.together.add(frozenset(self.under_way))
        time.sleep(0.002)
        with self._lock:
            self.under_way.discard(request.id)
        if request.inputs[0].array[0] < 0:
            raise ServingError(Code.INVALID_ARG, "negative")
        return [[Tensor("Y", "FP32", request.inputs[0].array)]]

    def close(self) -> None:
        return


def test_each_is_judged() -> None:
    reports: list[Any] = []
    requests = [told("1"), told("2", y=(2.0,)), told("3", x=(-1.0,))]
    for id, x, code in (("4", -1.0, "INVALID_ARG"), ("5", -1.0, "INTERNAL"), ("6", 1.0, "INTERNAL"), ("7", 1.0, "UNAVAILABLE")):
        requests.append(told(id, x=(x,), answers=[], error=RecordedError(code, "n")))
    requests.append(told("8", answers=[[floats(1.0)]] * 2))
    result = replay(requests, Scripted(), speed=0.0, report=reports.append)
    outcome = result.models["m"]
    assert (outcome.sent, outcome.same, outcome.differ, outcome.failed, outcome.not_compared.total()) == (8, 2, 4, 1, 1)
    assert {one.id: one.words for one in reports} == {
        "2": "output 'Y': 1 of 1 elements differ; the worst one is 1.0 at [0], expected was 2.0",
        "3": "it fails: INVALID_ARG: negative",
        "5": "it fails otherwise: INVALID_ARG: negative, expected was INTERNAL",
        "7": "it had failed for a reason of that moment (UNAVAILABLE)",
        "6": "it succeeds, expected was INTERNAL: n",
        "8": "it has 1 responses, expected were 2",
    }
    assert len(outcome.after) == len(outcome.before) == 3


def test_what_can_only_be_asked_by_streams_is_not_compared() -> None:
    """Whatever had come of it then: how it failed says nothing of a model that can't be asked at all."""

    class Decoupled(Scripted):
        def ask(self, request: Told) -> list[list[Tensor]]:
            words = "HTTP end point doesn't support models with decoupled transaction policy"
            raise ServingError(Code.UNSUPPORTED, words)

    requests = [told("1"), told("2", answers=[], error=RecordedError("INTERNAL", "n"))]
    outcome = replay(requests, Decoupled(), speed=0.0).models["m"]
    assert outcome.not_compared == {ONLY_BY_STREAMS: 2} and not (outcome.differ or outcome.failed)


@pytest.mark.parametrize(
    "more", [{"parameters": {"a": 10**30}}, {"priority": -1}, {"timeout_us": 10**30}, {"correlation_id": 10**30}]
)
def test_a_number_without_room_in_a_message_is_told(more: dict[str, Any]) -> None:
    with pytest.raises(ServingError, match="what was recorded can't be asked over gRPC: Value out of range"):
        message_of(grpc_service_pb2, told(**more))


@pytest.mark.parametrize("value", ["inf", "nan", "0", "-1", "1e300", "x"])
def test_a_timeout_is_one(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command([str(written(tmp_path / "a.zip", [told()])), "--against", "localhost:1", f"--timeout={value}"])
    assert f"Got {value} — '{value}' is no number above 0, 1000000 at most" in capsys.readouterr().err


def test_requests_leave_at_their_pace() -> None:
    answering = Scripted()
    replay([told("1"), told("1.2"), told("1.4")], answering, speed=4.0)
    first, second, third = (when for _, when in sorted(answering.asked, key=lambda each: each[1]))
    assert second - first > 0.04 and third - first > 0.09


def test_those_of_a_sequence_go_one_after_another() -> None:
    answering = Scripted()
    requests = [told(str(number), correlation_id=number % 3 + 1) for number in range(1, 40)]
    replay(requests, answering, speed=0.0, concurrency=8)
    for sequence in range(3):
        ids = [id for id, _ in answering.asked if int(id) % 3 == sequence]
        assert ids == sorted(ids, key=int) and len(ids) == 13
        assert not any(len({id for id in together if int(id) % 3 == sequence}) > 1 for together in answering.together)


def test_a_mistake_of_ours_is_told() -> None:
    class Broken(Scripted):
        def ask(self, request: Told) -> list[list[Tensor]]:
            raise KeyError("oh")

    with pytest.raises(KeyError):
        replay([told(str(number)) for number in range(1, 100)], Broken(), speed=0.0)


def twice(batch: Batch) -> Result:
    for request in batch.requests:
        for final in (False, True):
            request.model.kernel.send(request, InferenceResponse([Tensor("Y", "FP32", request.inputs["X"].array)]), final)
    return None


def test_models_in_this_process(tmp_path: Path) -> None:
    models = {"m": BASE, "d": BASE + "model_transaction_policy { decoupled: true }", "broken": BASE + "nonsense: 1"}
    answering = InProcess(
        str(write_repository(tmp_path, models)), 30.0, plugins=[TestBackend({"m": echo, "d": twice})]
    )
    try:
        requests = [told("1"), told("2", model="d", answers=[[floats(1.0)]] * 2), told("3", model="broken")]
        result = replay(requests, answering, speed=0.0)
    finally:
        answering.close()
    assert {name: (one.same, one.failed) for name, one in result.models.items()} == {"m": (1, 0), "d": (1, 0), "broken": (0, 1)}
    with pytest.raises(ServingError):
        InProcess(str(tmp_path / "none"), 30.0)


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, Mapping[str, str]]]] = []

    def do_POST(self) -> None:
        self.asked.append((self.path, dict(self.headers)))
        self.rfile.read(int(self.headers["Content-Length"]))
        if "decoupled" in self.path:
            self.answer(501, b'{"error":"HTTP end point doesn\'t support models with decoupled transaction policy"}')
        else:
            self.answer(200, b'{"outputs":[{"name":"Y","datatype":"FP32","shape":[1],"data":[1.0]}]}')

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = "closing" in self.path

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Server.asked = []
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_is_asked(url: str) -> None:
    answering = OverHttp(f"{url}/prefix/", 30.0, "recorded", {"X-Key": "k"})
    requests = [told("1"), told("2", model="decoupled"), told("3", model="closing"), told("4")]
    result = replay(requests, answering, concurrency=1, speed=0.0)
    answering.close()
    assert result.models["m"].same == 2 and result.models["closing"].same == 1
    assert result.models["decoupled"].not_compared == {ONLY_BY_STREAMS: 1}
    assert Server.asked[0][0] == "/prefix/v2/models/m/versions/1/infer" and Server.asked[0][1]["X-Key"] == "k"


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="is no address"):
        OverHttp("http://:x", 1.0)
    answering = OverHttp("http://127.0.0.1:1", 1.0)
    result = replay([told()], answering)
    answering.close()
    assert result.models["m"].failed == 1 and "can't be asked: ConnectionRefusedError" in result.told[0].words


# -- the command -----------------------------------------------------------------------------------------------------------


def test_command(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path / "a.zip", [told("1"), told("1.01"), told("1.02", caller=("x", 1.0), y=(7.0,))]))
    assert command([path, "--against", url]) == 0
    head, row = capsys.readouterr().out.strip().splitlines()
    assert head.split()[:6] == ["model", "sent", "same", "differ", "failed", "not"]
    assert row.split()[:5] == ["m", "2", "2", "0", "0"]
    assert command([path, "--against", url.removeprefix("http://"), "--json", "--speed", "max", "--slower", "1e9"]) == 0
    assert json.loads(capsys.readouterr().out)["models"]["m"]["same"] == 2
    assert command([path, "--against", url, "--slower", "1e-9"]) == 1


def test_command_tells_what_differs(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path / "a.zip", [told(str(number), y=(2.0,)) for number in range(1, 13)], redaction="hash"))
    report = tmp_path / "report.jsonl"
    assert command([path, "--against", url, "--speed", "max", "--report", str(report)]) == 1
    out, err = capsys.readouterr()
    assert "request '1' of model 'm': output 'Y': 1 of 1 elements differ" in out and "(12 requests in all)" in out
    assert "written with --record-redaction hash" in err
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(lines) == 12 and lines[0].keys() == {"model", "id", "arrived", "output", "expected", "actual", "words"}
    assert command([path, "--against", url, "--speed", "max", "--absolute", "1"]) == 0


def test_command_says_what_it_can_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = str(written(tmp_path / "bare.zip", [told(inputs=[], answers=[])], tensors=False))
    full = str(written(tmp_path / "full.zip", [told(), told(model="other")]))
    (tmp_path / "no.zip").write_text("no")
    out = str(tmp_path / "out.json")
    for arguments, words in (
        ([bare, "--against", "x"], "bare.zip has no tensors, so there is nothing to send: it was written without"),
        ([str(tmp_path / "no.zip"), "--against", "x"], "is no recording"),
        ([str(tmp_path / "none.zip"), "--against", "x"], "none.zip can't be read: No such file"),
        ([full, "--model", "x", "--export-input-data", out], "has no requests of model 'x'; its models are 'm', 'other'"),
        ([full, "--export-input-data", out], "choose one of m, other by --model"),
        ([full, "--against", "http://a b"], "http://a b"),
        ([full, "--against", "localhost:1", "--header", "x"], "--header 'x' is not of the form"),
        ([full, "--against", "localhost:1", "--report", str(tmp_path / "no/x")], "no/x can't be written: No such file"),
    ):
        assert command(arguments) == 1
        assert words in "".join(capsys.readouterr())
    for arguments in ([full], [full, "--against", "x", "--speed", "0"], [full, "--against", "x", "--relative", "-1"]):
        with pytest.raises(SystemExit) as caught:
            command(arguments)
        assert caught.value.code == 2


# -- perf_analyzer ---------------------------------------------------------------------------------------------------------


def exported(folder: Path, requests: Sequence[Told]) -> Any:
    path = written(folder / "a.zip", requests)
    assert command([str(path), "--export-input-data", str(folder / "o.json")]) == 0
    return json.loads((folder / "o.json").read_text())


def test_rows_are_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Tensor("X", "FP32", np.array([[1, 2], [3, 4]], np.float32))
    request = told("1", inputs=[rows], answers=[[Tensor("Y", "INT8", np.array([[5], [6]], np.int8))]], batched=True, rows=2)
    bad = told("2", inputs=[strings(b"\xff")])
    assert exported(tmp_path, [request, bad]) == {
        "data": [{"X": {"content": [1.0, 2.0], "shape": [2]}}, {"X": {"content": [3.0, 4.0], "shape": [2]}}],
        "validation_data": [{"Y": {"content": [5], "shape": [1]}}, {"Y": {"content": [6], "shape": [1]}}],
    }
    out, err = capsys.readouterr()
    assert "2 entries of model 'm'" in out and "1 requests are left out: their strings are no UTF-8" in err


def test_what_json_has_no_number_for_goes_as_bytes(tmp_path: Path) -> None:
    half = floats(1.0, name="X", datatype="FP16")
    found = exported(tmp_path, [told("1", inputs=[half, floats(float("nan"), name="N"), strings(b"a")], answers=[])])
    assert found == {"data": [{
        "X": {"content": {"b64": base64.b64encode(half.array.tobytes()).decode()}, "shape": [1]},
        "N": {"content": {"b64": base64.b64encode(np.array([np.nan], np.float32).tobytes()).decode()}, "shape": [1]},
        "T": {"content": ["a"], "shape": [1]},
    }]}  # fmt: skip


def test_sequences_are_lists(tmp_path: Path) -> None:
    found = exported(tmp_path, [told(str(number), x=(number,), correlation_id=number % 2 + 1) for number in range(1, 5)])
    assert [[one["X"]["content"] for one in stream] for stream in found["data"]] == [[[1.0], [3.0]], [[2.0], [4.0]]]
    assert "validation_data" not in found
