"""What `kernel bench` sends and measures: loads on virtual time against servers of this file, inputs, windows, words."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual import run

from kernel import ServingError, Tensor, TensorSpec
from kernel.cli.bench import bench, headers_of, loads_of, windows_of
from kernel.cli.bench_words import report
from kernel.loadtest import (
    ClosedLoop,
    Described,
    Load,
    OpenLoop,
    Plan,
    Result,
    Window,
    datasets_of,
    given_inputs,
    histogram,
    is_address,
    made_inputs,
    measure,
    ratios,
    steady,
)
from kernel.loadtest.described import described, read_json_config
from kernel.loadtest.http_target import HttpTarget
from kernel.loadtest.target import Done, TargetOptions

X = TensorSpec("X", "FP32", (2,))
MODEL = Described("m", "1", (X,), max_batch_size=4)
REQUEST = {"X": Tensor("X", "FP32", np.zeros((1, 2), np.float32))}


class Server:
    """Executes one request after the other, each for `takes` seconds; `stalls`: it does nothing in that span of time."""

    responses = 0

    def __init__(self, takes: float, model: Described = MODEL, stalls: tuple[float, float] = (0, 0), fails: str = "") -> None:
        self.address = "here"
        self.model = model
        self.sent: list[dict[str, Any]] = []
        self.free = 0.0
        self._takes, self._stalls, self._fails = takes, stalls, fails
        self._loop = asyncio.get_running_loop()

    def encode(self, inputs: Mapping[str, Tensor], parameters: Mapping[str, bool | int | str]) -> bytes:
        return json.dumps(dict(parameters)).encode()

    def send(self, message: bytes, done: Done) -> None:
        now = self._loop.time()
        self.sent.append({**json.loads(message), "at": now})
        begin = max(now, self.free)
        if self._stalls[0] <= begin - 1000 < self._stalls[1]:
            begin = 1000 + self._stalls[1]
        self.free = begin + self._takes
        self._loop.call_at(self.free, self._answer, done)

    def _answer(self, done: Done) -> None:
        self.responses += 1
        done(self._fails, 0.0)

    async def close(self) -> None:
        return


def measured(load: Load, plan: Plan, *servers: Any, count: int = 1) -> tuple[list[Result], list[Server]]:
    """Measure servers, which are made by functions, on virtual time."""

    async def main() -> tuple[list[Result], list[Server]]:
        made = [server() for server in servers]
        data = [[[REQUEST] * 3] * count for _ in made]
        (results,) = await measure(made, [load], data, plan, lambda words, part: None, asyncio.get_running_loop().time)
        return results, made

    return run(main())


def test_clients_send_again_when_they_have_an_answer() -> None:
    (result,), _ = measured(ClosedLoop(4), Plan(), partial(Server, 0.01))
    assert result.is_steady and len(result.windows) == 3
    assert result.rate == pytest.approx(100, rel=0.02)
    assert result.latency(50) == pytest.approx(0.04) and not result.notes


def test_an_open_loop_does_not_wait_and_latencies_begin_where_requests_were_to_be_sent() -> None:
    """A second without answers is in the latencies of all that would have come in it; a closed loop has one late request."""
    plan = Plan(warm_up=1, window=4, most=3, tolerance=1)
    stalled = partial(Server, 0.001, stalls=(6.0, 7.0))
    (result,), _ = measured(OpenLoop("constant", 100), plan, stalled)
    late = result.latencies[result.latencies > 0.05]
    assert 90 <= late.size <= 110 and late.max() == pytest.approx(1.0, abs=0.02), "each has waited for what was left of it"
    (result,), _ = measured(ClosedLoop(1), plan, stalled)
    assert (result.latencies > 0.05).sum() == 1


def test_a_rate_that_can_not_be_kept_up_is_told() -> None:
    (result,), _ = measured(OpenLoop("poisson", 200), Plan(most=4), partial(Server, 0.01))
    assert not result.is_steady
    (note,) = result.notes
    assert note.startswith("of 200 requests a second 100 were answered; ") and "latencies grow" in note


def test_sequences_are_in_order_one_at_a_time_and_ended() -> None:
    model = Described("m", "1", (X,), max_batch_size=4, stateful=True)
    plan = Plan(warm_up=0.1, window=0.3, most=3, length=4, lanes=3)
    for load in (ClosedLoop(3), OpenLoop("poisson", 500)):
        (result,), (server,) = measured(load, plan, partial(Server, 0.01, model))
        assert result.latencies.size
        by_id: dict[int, list[tuple[bool, bool]]] = {}
        for one in server.sent:
            by_id.setdefault(one["sequence_id"], []).append((one["sequence_start"], one["sequence_end"]))
        assert len(by_id) > 10
        for flags in by_id.values():
            assert flags[0] == (True, False) and flags[-1] == (False, True)
            assert all(one == (False, False) for one in flags[1:-1]) and len(flags) <= 4
    # As long as their lists in a file are.
    _, (server,) = measured(ClosedLoop(1), plan, partial(Server, 0.01, model), count=2)
    assert server.sent[2]["sequence_end"] and not server.sent[1]["sequence_end"]


def test_failures_count_by_their_reasons_and_end_it() -> None:
    (result,), _ = measured(ClosedLoop(2), Plan(), partial(Server, 0.01, fails="503: no"))
    assert len(result.windows) == 1 and result.errors.keys() == {"503: no"} and not result.latencies.size
    assert result.notes == ["no request was answered"]
    lines = list(report(["m"], [], [[result]]))
    assert any(line.endswith(" failed: 503: no") for line in lines)
    assert result.as_json()["errors"] == dict(result.errors)


def test_two_targets_in_turns() -> None:
    results, (first, second) = measured(ClosedLoop(1), Plan(), partial(Server, 0.01), partial(Server, 0.02))
    assert [one.rate for one in results] == pytest.approx([100, 50], rel=0.02)
    assert ratios(*results)["rate"].middle == pytest.approx(0.5, rel=0.03)
    assert ratios(*results)["p50"].middle == pytest.approx(2, rel=0.01)
    spans = [(one[0]["at"], one[-1]["at"]) for one in (first.sent, second.sent)]
    assert spans[0][0] < spans[1][0] < spans[0][1] < spans[1][1]
    lines = list(report(["one", "two"], [], [results]))
    assert lines[:2] == ["A: one", "B: two"] and any(line.split()[:2] == ["B/A", "0.50"] for line in lines)


# -- pure --------------------------------------------------------------------------------------------------------------


def window(latencies: Sequence[float], **more: Any) -> Window:
    given: dict[str, Any] = {"firsts": np.array([]), "errors": Counter(), "responses": 0, "waiting": 0, "busy": 0.1, "held": 0.0}
    return Window(1.0, np.array(latencies), **{**given, "lags": np.array([]), **more})


def test_windows_that_are_alike() -> None:
    same = [window([0.1] * 100)] * 3
    assert steady(same, 0.1) and not steady(same[:2], 0.1)
    assert steady([window([9.0]), *same], 0.1), "what was before does not matter"
    assert not steady([*same[:2], window([0.1] * 120)], 0.1)
    assert not steady([*same[:2], window([0.2] * 100)], 0.1)
    assert not steady([*same[:2], window([])], 0.1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"busy": 0.95}, "the client used 0.95 of a core"),
        ({"lags": np.full(100, 0.02)}, "the client sent up to 20 ms late"),
        ({"held": 0.05}, "the client had to wait for its processor, up to 50 ms at a time"),
        ({"lags": np.full(100, 0.009), "held": 0.009}, ""),
    ],
)
def test_a_client_that_is_slow_says_so(more: dict[str, Any], words: str) -> None:
    result = Result("t", "l", (window([0.1] * 100, **more),) * 3, True)
    assert [note[: len(words)] for note in result.notes] == ([words] if words else [])


def test_the_histogram_has_all() -> None:
    values = np.array([0.001, 0.0011, 0.0015, 0.02, 3.0])
    found = histogram(values)
    assert sum(found.counts) == 5 and found.edges[0] < 0.001 and found.edges[-1] == 3.0
    assert found.counts[found.edges.index(0.0015) - 1] == 2 and found.counts[0] == 1
    assert histogram(np.array([0.005])).counts == (1,) and histogram(np.array([])).counts == ()
    assert sum(histogram(np.array([0.0, 1e-7])).counts) == 2


def test_loads_as_flags_say_them() -> None:
    def clients(text: str) -> list[int]:
        return [one.clients for one in loads_of(text, None) if isinstance(one, ClosedLoop)]

    assert clients("8") == [8] and clients("1:32") == [1, 2, 4, 8, 16, 32] and clients("1:20") == [1, 2, 4, 8, 16, 20]
    assert clients("1:32:8") == [1, 9, 17, 25] and clients("1,3,20") == [1, 3, 20] and clients("4:4") == [4]
    assert loads_of(None, "500") == [OpenLoop("poisson", 500)]
    assert loads_of(None, "constant:1,2.5") == [OpenLoop("constant", 1), OpenLoop("constant", 2.5)]
    for concurrency, rate, words in (
        ("0", None, "'0' is no integer from 1 to 10000"),
        ("4:2", None, "goes from 4 down to 2"),
        ("1:2:3:4", None, "is of no known form"),
        (None, "fast:3", "'fast' is unknown, there are poisson:RATE and constant:RATE"),
        (None, "0", "wanted is a number from 0.01"),
        (None, "x", "--rate is 'x', wanted is a number"),
    ):
        with pytest.raises(ServingError, match=words):
            loads_of(concurrency, rate)
    assert headers_of(["x-key: a:b"]) == {"x-key": "a:b"}
    with pytest.raises(ServingError, match="is not of the form"):
        headers_of(["x-key: a\r\nb: c"])


def test_addresses_and_repositories() -> None:
    for text in ("localhost:8000", "http://a", "https://a:1", "grpc://a:1", "grpcs://a", "[::1]:8000", "10.0.0.1:1"):
        assert is_address(text), text
    for text in ("repository/", "/models", "s3://bucket/models", "models:new", "./a:1/b"):
        assert not is_address(text), text


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_what_a_server_says_of_a_model() -> None:
    config = read_json_config({
        "max_batch_size": 8, "unknown": 1, "input": [{"name": "A", "dims": ["3"]}, {"name": "B", "optional": True}],
        "sequence_batching": {}, "model_transaction_policy": {"decoupled": True},
    })  # fmt: skip
    found = described("m", "2", [("A", "FP32", [-1, 3]), ("B", "BYTES", [-1, 1])], config)
    assert [one.dims for one in found.inputs] == [(3,)] and [one.name for one in found.optional] == ["B"]
    assert found.max_batch_size == 8 and found.stateful and found.decoupled
    assert described("m", "2", [("A", "FP32", [-1, 3])], None).inputs[0].dims == (-1, 3), "another server's"
    with pytest.raises(ServingError, match="input 'A' of model 'm' has the datatype 'COMPLEX'; there are BOOL"):
        described("m", "2", [("A", "COMPLEX", [1])], None)


def test_inputs_by_chance() -> None:
    kinds = ("BOOL", "INT8", "UINT64", "FP16", "BF16", "FP32", "BYTES")
    model = Described("m", "1", tuple(TensorSpec(kind, kind, (2, -1)) for kind in kinds), (TensorSpec("O", "FP32", (1,)),), 8)
    made, notes = made_inputs(model, {"INT8": (2, 5)}, 3, "random", 7)
    assert len(made) == 16 and made[0].keys() == set(kinds)
    assert {name: tensor.shape for name, tensor in made[0].items()} == {one: (3, 2, 5 if one == "INT8" else 1) for one in kinds}
    assert notes[0] == "input 'BOOL' has dims [2, -1]; [2, 1] is sent, --shape BOOL:2,16 sends more" and len(notes) == 6
    again, _ = made_inputs(model, {"INT8": (2, 5)}, 3, "random", 7)
    assert all((one[name].array == two[name].array).all() for one, two in zip(made, again) for name in kinds)
    assert not (made[0]["FP32"].array == made[1]["FP32"].array).all()
    (zero,), _ = made_inputs(model, {"O": (1,)}, 1, "zero", 0)
    assert not zero["FP32"].array.any() and zero["BYTES"].array.ravel().tolist() == [b"", b""] and "O" in zero
    with pytest.raises(ServingError, match=r"--shape INT8:3,1: its dims are \[2, -1\]"):
        made_inputs(model, {"INT8": (3, 1)}, 1, "zero", 0)
    with pytest.raises(ServingError, match="unexpected inference input 'Z'"):
        made_inputs(model, {"Z": (1,)}, 1, "zero", 0)
    with pytest.raises(ServingError, match="takes no requests of 9 rows: its max_batch_size is 8"):
        made_inputs(model, {}, 9, "zero", 0)


def test_inputs_that_are_given() -> None:
    given = Tensor("X", "FP32", np.array([1, 2], np.float32))
    (request,) = given_inputs(MODEL, [given], [REQUEST], 3)
    assert request["X"].array.tolist() == [[1, 2]] * 3
    whole = Tensor("X", "FP32", np.ones((2, 2), np.float32))
    assert given_inputs(MODEL, [whole], [REQUEST], 1)[0]["X"].shape == (2, 2)
    with pytest.raises(ServingError, match=r"input 'X' of model 'm' has shape \[3\], wanted is \[batch, 2\]"):
        given_inputs(MODEL, [Tensor("X", "FP32", np.ones(3, np.float32))], [REQUEST], 1)


def written(folder: Path, document: Any) -> Path:
    path = folder / "data.json"
    path.write_text(json.dumps(document))
    return path


def test_files_of_perf_analyzer(tmp_path: Path) -> None:
    strings = TensorSpec("S", "BYTES", (-1,))
    model = Described("m", "1", (X,), (strings,), max_batch_size=4)
    raw = base64.b64encode(struct.pack("<2f", 5, 6)).decode()
    two = base64.b64encode(b"\1\0\0\0a\2\0\0\0bc").decode()
    entries = [
        {"X": [1, 2], "S": ["a", "b"]}, {"X": {"content": [3, 4], "shape": [2]}, "S": {"b64": two}},
        {"X": {"b64": raw}, "S": {"content": {"b64": base64.b64encode(b"\xff").decode()}}},
    ]  # fmt: skip
    (requests,) = datasets_of(written(tmp_path, {"data": entries, "validation_data": []}), model, {}, 1)
    assert [one["X"].array.tolist() for one in requests] == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert [one["S"].array.tolist() for one in requests] == [[[b"a", b"b"]], [[b"a", b"bc"]], [[b"\xff"]]]
    (requests,) = datasets_of(written(tmp_path, {"data": [{"X": one["X"]} for one in entries]}), model, {}, 2)
    assert [one["X"].array.tolist() for one in requests] == [[[1, 2], [3, 4]], [[5, 6], [1, 2]]], "filled up from the first"
    streams = [[{"X": [1, 2]}] * 3, [{"X": [3, 4]}]]
    assert [len(one) for one in datasets_of(written(tmp_path, {"data": streams}), model, {}, 1)] == [3, 1]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"dat": []}, "has no entries; wanted is"),
        ({"data": [{"Y": [1]}]}, r"data\[0\] has no input 'X', which model 'm' needs"),
        ({"data": [{"X": [1, 2], "Z": [1]}]}, "unexpected inference input 'Z'"),
        ({"data": [{"X": [1, 2]}, {"X": [1]}]}, r"data\[1\].X has 1 elements, its shape \[2\] has 2"),
        ({"data": [{"X": ["a", "b"]}]}, r"data\[0\].X is no FP32: wanted are numbers"),
        ({"data": [{"X": {"content": [1, 2], "shape": [1, 2]}}]}, r"data\[0\].X has shape \[1, 2\], wanted is \[2\]"),
        ({"data": [{"X": {"content": [1, 2], "shape": "2"}}]}, r'has the shape "2", wanted is a list of sizes'),
        ({"data": [{"X": {"b64": "!"}}]}, r"data\[0\].X is no base64"),
        ({"data": [{"X": {"b64": "YWE="}}]}, r"data\[0\].X has 2 bytes, an element of FP32 has 4"),
        ({"data": [[{"X": [1, 2]}], []]}, r"data\[1\] is no list of entries"),
        ({"data": [7]}, r"data\[0\] is 7, wanted is an object of inputs"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(document: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=words):
        datasets_of(written(tmp_path, document), MODEL, {}, 1)


def test_integers_in_a_file_are_not_cut(tmp_path: Path) -> None:
    model = Described("m", "1", (TensorSpec("I", "INT8", (1,)),))
    for value, words in ((300, "out of bounds"), (1.5, "wanted are integers"), (None, "no INT8")):
        with pytest.raises(ServingError, match=words):
            datasets_of(written(tmp_path, {"data": [{"I": [value]}]}), model, {}, 1)


def test_how_long_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert windows_of(None, None, None) == (1.0, 10)
    assert windows_of(None, "200ms", 1) == (pytest.approx(0.2), 3)
    window, count = windows_of("6s", None, None)
    assert window * count == pytest.approx(6.0)
    (result,), _ = measured(ClosedLoop(1), Plan(0.1, window, count, tolerance=0.0), partial(Server, 0.01))
    assert result.seconds == pytest.approx(6.0), "all of it is told"
    for line, words in (
        ("--duration=2", "--duration is '2', wanted is a number with its unit: s, ms or us"),
        ("--duration=0s", "--duration is '0s', wanted is a time above 0"),
        ("--duration=2s --window=1s", "--window and --windows until when windows are alike; one of both is wanted"),
    ):
        with pytest.raises(SystemExit) as ended:
            bench(["localhost:1", "m", *line.split()])
        assert ended.value.code == 2 and words in capsys.readouterr().err


def test_a_server_that_lies_of_its_model_is_told_as_that() -> None:
    def looked(document: Any) -> Described:
        async def main() -> Described:
            target = HttpTarget("http://localhost:1", TargetOptions())
            try:
                await target.look("m", lambda _, path, headers: (404, "", {}) if path.endswith("config") else (200, "", document))
                return target.model
            finally:
                await target.close()

        return asyncio.run(main())

    one = {"name": "X", "datatype": "FP32", "shape": [1]}
    for document, words in (
        ({"versions": 7, "inputs": [one]}, "otherwise than KServe v2 does: TypeError"),
        ({"inputs": [{**one, "shape": [float("inf")]}]}, "otherwise than KServe v2 does: OverflowError"),
        ({"inputs": [{**one, "datatype": {"a": 1}}]}, "has the datatype '{'a': 1}'; there are"),
        ({"inputs": 3}, "otherwise than KServe v2 does: TypeError"),
    ):
        with pytest.raises(ServingError, match=re.escape(words)):
            looked(document)
    large = looked({"versions": {"a": 1}, "inputs": [{**one, "shape": [2**40]}]})
    assert large.version == "a"
    with pytest.raises(ServingError, match="a request for model 'm' would have 4398046511104 bytes, 1073741824 at most are made"):
        made_inputs(large, {}, 1, "random", 0)
