"""`kernel simulate`: what requests may be like: clients that wait, sequences, priorities, contents, calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel import ServingError
from kernel.cli.simulate import simulate as command
from kernel.simulation import (
    Mix,
    Simulated,
    read_arrivals,
    read_contents,
    read_costs,
    read_priorities,
    read_shapes,
    simulate,
)

CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
BATCHING = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 10000 } "
CORRID = 'control_input [ { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] } ]'


@pytest.fixture(autouse=True)
def log_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sends the whole process's log elsewhere: other tests look at theirs."""
    monkeypatch.setattr("kernel.cli.simulate.set_up_log", lambda options: None)


def write(folder: Path, name: str, more: str = "", placement: str = "thread", config: str = CONFIG) -> str:
    """Write a model whose code would fail; return the repository."""
    (folder / name / "1").mkdir(parents=True)
    more += f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}'
    (folder / name / "config.pbtxt").write_text(config + more)
    (folder / name / "1" / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): 1 / 0\n")
    return str(folder)


def offsets(folder: Path, *offsets: float) -> Any:
    (folder / "arrivals").write_text("\n".join(f"{one}" for one in offsets))
    return read_arrivals(str(folder / "arrivals"))


def objects(folder: Path, *lines: dict[str, Any]) -> Any:
    (folder / "arrivals.jsonl").write_text("\n".join(json.dumps(one) for one in lines))
    return read_arrivals(str(folder / "arrivals.jsonl"))


def near(*values: float) -> Any:
    return pytest.approx(values, abs=1e-9)


def batches(result: Simulated) -> dict[str, dict[int, int]]:
    return {work.model: work.batches for work in result.works}


# -- clients that wait -----------------------------------------------------------------------------------------------------


def test_clients_send_the_next_request_when_they_have_the_answer(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m")
    result = simulate(repository, "m", read_arrivals("closed:2,0.095"), read_costs(["10ms"]))
    # Two take turns at one instance: ten executions, and one that each of them has sent before the time is over.
    assert result.requests == 11 and not result.refused
    assert tuple(result.latencies) == near(0.01, *[0.02] * 10)
    assert result.seconds == pytest.approx(0.11) and result.works[0].busy == pytest.approx(1.0)
    with_batches = write(tmp_path / "b", "m", BATCHING)
    assert batches(simulate(with_batches, "m", read_arrivals("closed:4,0.995"), read_costs(["10ms"])))["m"] == {4: 100}


def test_clients_whose_answers_take_no_time_are_refused(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m")
    with pytest.raises(ServingError, match=r"clients have sent 30000 requests at the same moment.*--overhead says how long"):
        simulate(repository, "m", read_arrivals("closed:2"), read_costs(["0s"]))
    assert simulate(repository, "m", read_arrivals("closed:2,0.0995"), read_costs(["0s"]), effort=1e-3).requests == 100


def test_an_idle_loop_wakes_up_late_and_finds_more_of_a_burst(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 10 }")
    moments = offsets(tmp_path, 0, 0.1, 0.10005, 0.10009)
    at_once = simulate(repository, "m", moments, read_costs(["1ms"]))
    late = simulate(repository, "m", moments, read_costs(["1ms"]), wake=0.0001)
    assert batches(at_once) == {"m": {1: 2, 2: 1}} and batches(late) == {"m": {1: 1, 3: 1}}
    assert tuple(late.latencies) == near(0.00121, 0.00131, 0.00126, 0.00122)  # it wakes up for timers and ends, too


# -- sequences -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 2 }"])
def test_sequences_have_their_slots(tmp_path: Path, strategy: str) -> None:
    repository = write(tmp_path / "r", "m", f"max_batch_size: 2 sequence_batching {{ {strategy} {CORRID} }}")
    mix = Mix(sequence_length=5, length_variation=0.0, sequences=3)
    result = simulate(repository, "m", read_arrivals("constant:1000,0.03"), read_costs(["1ms"]), mix=mix)
    assert (result.requests, result.refused, result.latencies.size) == (30, {}, 30)
    # Two slots: the third sequence waits until one of the first two is over, which their last requests at 12 and 13 ms are.
    assert result.latencies[2] > 0.01 > result.latencies[0]


def test_sequences_of_clients_are_finished(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", "sequence_batching { direct { } }")
    mix = Mix(sequence_length=4, length_variation=0.0)
    result = simulate(repository, "m", read_arrivals("closed:2,0.05"), read_costs(["10ms"]), mix=mix)
    assert result.requests % 4 == 0 and result.latencies.size == result.requests


def test_sequences_of_a_file(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", "sequence_batching { direct { } }")
    lines = [
        {"at": 0, "sequence": 7, "start": True}, {"at": 0.001, "sequence": 8, "start": True, "end": True},
        {"at": 0.02, "sequence": 7, "end": True}, {"at": 0.03, "sequence": 9},
    ]  # fmt: skip
    result = simulate(repository, "m", objects(tmp_path, *lines), read_costs(["5ms"]))
    assert tuple(result.latencies) == near(0.005, 0.029, 0.005)
    assert list(result.refused) == [
        "inference request for sequence … to model 'm' must specify the START flag on the first request of the sequence"
    ]


def test_the_state_of_sequences(tmp_path: Path) -> None:
    state = 'state [ { input_name: "S" output_name: "T" data_type: TYPE_INT32 dims: [ 1 ] } ]'
    repository = write(tmp_path / "r", "m", f"sequence_batching {{ direct {{ }} {state} }}")
    result = simulate(repository, "m", read_arrivals("constant:100,1"), read_costs(["1ms"]))
    assert (result.latencies.size, result.refused) == (100, {})


# -- priorities, time-outs -------------------------------------------------------------------------------------------------


def test_priorities_overtake_and_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batching = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    repository = write(tmp_path / "r", "m", f"max_batch_size: 1 {batching}")
    lines = [{"at": at / 1000, "priority": level} for at, level in enumerate([2, 2, 2, 1])]
    result = simulate(repository, "m", objects(tmp_path, *lines), read_costs(["10ms"]))
    assert tuple(result.latencies) == near(0.01, 0.029, 0.038, 0.017)
    assert result.priorities is not None and result.priorities.tolist() == [2, 2, 2, 1]
    assert command([repository, "--arrivals", "poisson:90,5", "--cost", "10ms", "--priority", "1:20,2:80"]) == 0
    told = capsys.readouterr().out
    assert "priority 1 " in told and "priority 2 " in told
    assert command([repository, "--arrivals", "poisson:90,5", "--cost", "10ms", "--priority", "1:20,2:80", "--json"]) == 0
    levels = json.loads(capsys.readouterr().out)["priorities"]
    assert levels["1"]["p99"] < levels["2"]["p99"]


def test_time_outs_of_requests(tmp_path: Path) -> None:
    policy = "default_queue_policy { default_timeout_microseconds: 1000000 allow_timeout_override: true }"
    repository = write(tmp_path / "r", "m", f"max_batch_size: 1 dynamic_batching {{ {policy} }}")
    lines = [{"at": 0}, {"at": 0.001, "timeout_us": 5000}, {"at": 0.002}]
    result = simulate(repository, "m", objects(tmp_path, *lines), read_costs(["10ms"]))
    assert result.refused == {"Request timeout expired": 1} and tuple(result.latencies) == near(0.01, 0.018)
    late = simulate(repository, "m", offsets(tmp_path, 0, 0.001), read_costs(["10ms"]), mix=Mix(timeout=0.005))
    assert late.refused == {"Request timeout expired": 1}
    late = simulate(repository, "m", offsets(tmp_path, 0, 0.001), read_costs(["10ms"]), mix=Mix(deadline=0.012))
    assert late.refused == {"deadline of the request to model 'm' passed after … s while it was executing": 1}


# -- what the server's flags say -------------------------------------------------------------------------------------------


def test_the_response_cache_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = write(tmp_path / "r", "m", "response_cache { enable: true }")
    lines = [{"at": at / 100, "content": content} for at, content in enumerate([1, 2, 1, 1, 3])]
    result = simulate(repository, "m", objects(tmp_path, *lines), read_costs(["5ms"]), cache=("local", {"size": "1000000"}))
    assert tuple(result.latencies) == near(0.005, 0.005, 0, 0, 0.005) and result.works[0].hits == 2
    line = [repository, "--arrivals", "poisson:100,5", "--cost", "5ms", "--distinct", "50,1", "--json"]
    assert command([*line, "--cache-config", "local,size=1000000"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["models"]["m"]["cache_hits"] == told["requests"] - sum(told["models"]["m"]["batches"].values()) > 300
    assert command(line) == 0
    assert json.loads(capsys.readouterr().out)["models"]["m"]["cache_hits"] == 0


def test_the_rate_limiter_keeps_models_apart(tmp_path: Path) -> None:
    limiter = "rate_limiter { resources [ { name: \"R\" count: 1 } ] }"
    repository = write(tmp_path / "r", "m", f"instance_group [ {{ kind: KIND_CPU count: 2 {limiter} }} ]")
    moments = offsets(tmp_path, 0, 0)
    assert tuple(simulate(repository, "m", moments, read_costs(["5ms"])).latencies) == near(0.005, 0.005)
    limited = simulate(repository, "m", moments, read_costs(["5ms"]), rate_limit="execution_count")
    assert tuple(limited.latencies) == near(0.005, 0.010)


def test_the_limit_of_requests_in_flight(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m")
    result = simulate(repository, "m", offsets(tmp_path, 0, 0, 0), read_costs(["5ms"]), max_inflight=2)
    assert result.latencies.size == 2 and list(result.refused.values()) == [1]


# -- models that call others, decoupled ones -------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["thread", "loop", "process"])
def test_a_model_that_calls_others_waits_for_them(tmp_path: Path, placement: str) -> None:
    write(tmp_path / "r", "inner", BATCHING)
    write(tmp_path / "r", "other")
    repository = write(tmp_path / "r", "outer", placement=placement)
    (tmp_path / "c.json").write_text(json.dumps(["1ms", "other", ["inner", {"model": "inner", "times": 2}], "2ms"]))
    costs = read_costs([f"outer={tmp_path / 'c.json'}", "inner=4ms", "other=3ms"])
    result = simulate(repository, "", offsets(tmp_path, 0, 0.1), costs)
    # 1 ms, 3 ms, 10 ms until three of at most four go, 4 ms, 2 ms
    assert result.model == "outer" and tuple(result.latencies) == near(0.02, 0.02)
    assert batches(result) == {"inner": {3: 2}, "other": {1: 2}, "outer": {1: 2}}
    assert simulate(repository, "outer", offsets(tmp_path, 0, 0.1), costs).works == result.works


def test_what_a_call_can_not_do(tmp_path: Path) -> None:
    write(tmp_path / "r", "inner", 'dynamic_batching { default_queue_policy { max_queue_size: 1 } }')
    repository = write(tmp_path / "r", "outer")
    (tmp_path / "c.json").write_text(json.dumps([["inner", "inner", "inner"]]))
    result = simulate(repository, "", offsets(tmp_path, 0), read_costs([f"outer={tmp_path / 'c.json'}", "1ms"]))
    assert list(result.refused) == ["a call of model 'inner' has failed: Exceeds maximum queue size"]
    (tmp_path / "c.json").write_text(json.dumps(["outer"]))
    result = simulate(repository, "outer", offsets(tmp_path, 0), read_costs([f"outer={tmp_path / 'c.json'}"]))
    assert [words.partition(": every")[0] for words in result.refused] == [
        "a call of model 'outer' has failed: request to model 'outer' could only wait for itself"
    ]
    (tmp_path / "c.json").write_text(json.dumps(["nobody"]))
    with pytest.raises(ServingError, match="--cost says that model 'nobody' is called: Request for unknown model"):
        simulate(repository, "outer", offsets(tmp_path, 0), read_costs([f"outer={tmp_path / 'c.json'}"]))
    (tmp_path / "c.json").write_text(json.dumps([{"model": "inner", "rows": 2}]))
    with pytest.raises(ServingError, match="model 'inner' does not batch, so its requests have no 2 rows"):
        simulate(repository, "outer", offsets(tmp_path, 0), read_costs([f"outer={tmp_path / 'c.json'}", "1ms"]))


def test_many_calls_one_after_another_grow_no_stack(tmp_path: Path) -> None:
    write(tmp_path / "r", "inner", placement="loop")
    repository = write(tmp_path / "r", "outer")
    (tmp_path / "c.json").write_text(json.dumps([{"model": "inner", "times": 5000}]))
    costs = read_costs([f"outer={tmp_path / 'c.json'}", "inner=1us"])
    assert tuple(simulate(repository, "outer", offsets(tmp_path, 0), costs).latencies) == pytest.approx([0.005])


def test_a_decoupled_model_answers_at_its_end(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", "model_transaction_policy { decoupled: true }")
    result = simulate(repository, "m", offsets(tmp_path, 0, 0.001), read_costs(["5ms"]))
    assert tuple(result.latencies) == near(0.005, 0.009)


# -- one seed, one result --------------------------------------------------------------------------------------------------

LINES = {
    "closed": ("plain", "--arrivals", "closed:7,2", "--overhead", "50us"),
    "sequences": ("sequences", "--arrivals", "poisson:300,1"),
    "priorities": ("levels", "--arrivals", "poisson:300,1", "--priority", "1:1,2:3", "--timeout", "20ms", "--deadline", "40ms"),
    "contents": ("kept", "--arrivals", "poisson:300,1", "--distinct", "40,1.2", "--cache-config", "local,size=9000"),
    "limited": ("limited", "--arrivals", "poisson:300,1", "--rate-limit", "execution_count"),
    "calls": ("calling", "--arrivals", "poisson:100,2"),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_the_same_line_gives_the_same_bytes(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "r"
    limiter = "rate_limiter { resources [ { name: \"R\" count: 1 } ] }"
    policy = "default_queue_policy { default_timeout_microseconds: 1000000 allow_timeout_override: true }"
    write(folder, "plain", BATCHING)
    write(folder, "sequences", "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 4 } }")
    write(folder, "levels", f"max_batch_size: 4 dynamic_batching {{ priority_levels: 2 default_priority_level: 1 {policy} }}")
    write(folder, "kept", "response_cache { enable: true }")
    write(folder, "limited", f"instance_group [ {{ kind: KIND_CPU count: 2 {limiter} }} ]")
    write(folder, "calling")
    (tmp_path / "cost.json").write_text('{"1": {"mean": 0.002, "p99": 0.006}, "4": {"mean": 0.005, "p99": 0.01}}')
    (tmp_path / "steps.json").write_text('["1ms", "plain", ["kept", "plain"]]')
    model, *line = LINES[case]
    line = [str(folder), model, *line, "--cost", str(tmp_path / "cost.json"), "--cost", f"calling={tmp_path / 'steps.json'}"]

    def told(seed: int) -> tuple[bytes, ...]:
        picture = tmp_path / "picture"
        assert command([*line, "--seed", str(seed), "--png" if case == "calls" else "--svg", str(picture)]) == 0
        return capsys.readouterr().out.encode(), picture.read_bytes()

    first = told(1)
    assert told(1) == first and told(2) != first


# -- what can't be ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ("closed:0", "is of no known form; wanted are closed:CLIENTS"),
        ("closed:1e3", "is of no known form; wanted are closed:CLIENTS"),
        ("closed:5,0", "more than 0 seconds"),
        ("closed:5,nan", "the number of seconds in --arrivals is 'nan'"),
        ("poisson:1e300,1e-300", "is 1e+300 a second, wanted are at most 1e+09"),
        ("poisson:1e9", "are 10000000000 requests, wanted are 1 to"),
        ("a.jsonl", "a.jsonl:1: this is no JSON"),
        ("b.jsonl", "b.jsonl:2: 'rowz' is not known; wanted are at, rows, content"),
        ("c.jsonl", "c.jsonl:1: there is no object with 'at'"),
        ("d.jsonl", 'd.jsonl:1: rows is "2", wanted is an integer from 1 to'),
        ("e.jsonl", "e.jsonl: request 2 has no 'sequence', others have"),
        ("f.jsonl", "f.jsonl:1: at is 'nan', wanted is a number of at least 0"),
        ("g.jsonl", "g.jsonl: request 2 comes at 1 s, before"),
        ("h.jsonl", "h.jsonl has 0 requests"),
        ("i.jsonl", "i.jsonl:1: this is no JSON"),
        ("j.jsonl", 'j.jsonl:1: start is "yes", wanted is true or false'),
        ("", "--arrivals '' is of no known form"),
        ("far.txt", "far.txt: requests come for 1000000000 s, wanted are at most"),
    ],
)  # fmt: skip
def test_arrivals_that_can_not_be(arrivals: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "a": "{", "b": '{"at": 1}\n{"at": 2, "rowz": 1}', "c": "[1]", "d": '{"at": 1, "rows": "2"}', "h": "\n",
        "e": '{"at": 1, "sequence": 1}\n{"at": 1}', "f": '{"at": NaN}', "g": '{"at": 2}\n{"at": 1}',
        "i": "[" * 100_000, "j": '{"at": 1, "sequence": 1, "start": "yes"}',
    }  # fmt: skip
    for name, text in files.items():
        Path(f"{name}.jsonl").write_text(text)
    Path("far.txt").write_text("0\n1e9\n")
    with pytest.raises(ServingError) as raised:
        read_arrivals(arrivals)
    assert words in raised.value.message


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([], "wanted is an object of rows to seconds"),
        ([1], "step 1 is 1, wanted is a time such as"),
        (["1ms", {"model": 5}], 'step 2 is {"model": 5}'),
        ([{"model": "m", "rows": 0}], "step 1: rows is 0, wanted is an integer from 1 to"),
        ([{"model": "m", "times": True}], "step 1: times is true"),
        ([["m", ["n"]]], 'step 1 is ["n"]'),
        (["1ms+2"], "a term of --cost"),
        ({"1": 1e9}, "an execution takes 1e+09 s, wanted are at most 86400 s"),
        ({"1": 1, "01": 2}, "1 rows are there twice"),
    ],
)  # fmt: skip
def test_steps_that_can_not_be(told: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(told))
    with pytest.raises(ServingError) as raised:
        read_costs([str(tmp_path / "c.json")]).of("m")
    assert words in raised.value.message


def test_what_flags_say_that_can_not_be() -> None:
    assert read_contents("5,1.5") == (5, 1.5) and read_contents("9") == (9, 0.0)
    assert read_priorities("1:20,2:80") == ((1, 20.0), (2, 80.0)) and read_priorities("3") == ((3, 1.0),)
    assert read_shapes(["X:3,4", "a:b:1"]) == {"X": (3, 4), "a:b": (1,)}
    for read, text in [
        (read_contents, "0"), (read_contents, "x"), (read_contents, "5,-1"), (read_contents, "1e9"), (read_priorities, "a"),
        (read_priorities, "1:0"), (read_priorities, "1,1"), (read_priorities, "1:nan"), (read_priorities, ""),
    ]:  # fmt: skip
        with pytest.raises(ServingError):
            read(text)
    for text in ("X", "X:", "X:0", ":1"):
        with pytest.raises(ServingError):
            read_shapes([text])


def test_shapes_and_contents(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", "response_cache { enable: true }")
    moments, costs = offsets(tmp_path, *np.arange(100) / 100), read_costs(["1ms"])
    mix = Mix(contents=3, shapes={"X": (2, ), "Y": (100_000,)})
    kept = simulate(repository, "m", moments, costs, mix=mix, cache=("local", {"size": "10000000"}))
    assert kept.works[0].hits == 97
    # One answer has 400 kB: only two of three have room.
    less = simulate(repository, "m", moments, costs, mix=mix, cache=("local", {"size": "1000000"}))
    assert 20 < less.works[0].hits < 97
    with pytest.raises(ServingError, match="unexpected shape"):
        simulate(repository, "m", moments, costs, mix=Mix(shapes={"X": (2, 2)}))
    small = write(tmp_path / "s", "m", config=CONFIG.replace("TYPE_FP32", "TYPE_BOOL"))
    with pytest.raises(ServingError, match="too small for 2 different contents"):
        simulate(small, "m", moments, costs, mix=Mix(contents=2))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rows", "5"), "error: a request has 5 rows, model 'm' takes 4 at most (max_batch_size)"),
        (("--rows", "99999999999"), "error: a request has 99999999999 rows, model 'm' takes 4 at most"),
        (("--shape", "X:200000000"), "error: tensor 'X' of a request would have 200000000 elements, 100000000 at most"),
        (("--shape", "XX:5"), "error: --shape is said of 'XX', which no model has; did you mean 'X'?"),
        (("--cost", "mm=1ms"), "error: --cost is said of model 'mm', which the repository has not; did you mean 'm'?"),
        (("--cost", "m=nanms"), "error: a term of --cost 'nanms' is 'nanms', wanted is a number with its unit"),
        (("--overhead", "1e9s"), "error: --overhead is '1e9s', wanted are at most 60 s"),
        (("--svg", "/nowhere/x.svg"), "error: /nowhere/x.svg can't be written: "),
    ],
)  # fmt: skip
def test_what_a_stranger_tries(
    tmp_path: Path, flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = write(tmp_path / "r", "m", BATCHING)
    assert command([repository, "--arrivals", "poisson:100,1", "--cost", "1ms", *flags]) == 1
    assert capsys.readouterr().err.startswith(words)


def test_png_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    repository = write(tmp_path / "r", "m")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command([repository, "--arrivals", "poisson:10,1", "--cost", "1ms", "--png", str(tmp_path / "p.png")]) == 1
    assert "needs Pillow, which is not installed: pip install 'kernel-serve[png]'" in capsys.readouterr().err


def test_what_takes_a_day_is_waited_for(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m")
    result = simulate(repository, "m", offsets(tmp_path, 0, 0), read_costs(["86400s"]))
    assert tuple(result.latencies) == pytest.approx((86400, 172800))
