"""`kernel simulate`: the real scheduler on virtual time, what executions cost, when requests come, and how it is told."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from kernel import ServingError
from kernel.cli.asking import ask
from kernel.cli.chart import Chart, bars, spark
from kernel.cli.simulate import simulate as command
from kernel.simulation import Simulated, read_arrivals, read_costs, simulate

CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "placement" value { string_value: "thread" } }
"""
BATCHING = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 10000 }"


@pytest.fixture(autouse=True)
def log_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sends the whole process's log elsewhere: other tests look at theirs."""
    monkeypatch.setattr("kernel.cli.simulate.set_up_log", lambda options: None)


def write(folder: Path, name: str, more: str = "", config: str = CONFIG) -> str:
    """Write a model whose code would fail; return the repository."""
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config + more)
    (folder / name / "1" / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): 1 / 0\n")
    return str(folder)


def run(repository: str, offsets: list[float], cost: str = "5ms", *, file: Path, **more: Any) -> Simulated:
    file.write_text("\n".join(f"{one}" for one in offsets))
    return simulate(repository, "", read_arrivals(str(file)), read_costs([cost]), **more)


def near(*values: float) -> Any:
    return pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("placement", ["thread", "loop", "process"])
def test_requests_wait_for_the_only_instance(tmp_path: Path, placement: str) -> None:
    repository = write(tmp_path / "r", "m", config=CONFIG.replace('"thread"', f'"{placement}"'))
    result = run(repository, [0, 0.001, 0.1], file=tmp_path / "a")
    assert tuple(result.latencies) == near(0.005, 0.009, 0.005)
    assert result.works[0].batches == {1: 3} and result.works[0].busy == pytest.approx(0.015 / 0.105)
    assert (result.requests, result.refused, result.seconds) == (3, {}, pytest.approx(0.105))


def test_batches_leave_when_full_and_when_the_delay_is_over(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", BATCHING)
    offsets = [0, 0.001, 0.002, 0.003, 0.1, 0.104]
    result = run(repository, offsets, "1ms+1ms/row", file=tmp_path / "a")
    assert tuple(result.latencies) == near(0.008, 0.007, 0.006, 0.005, 0.013, 0.009)
    assert result.works[0].batches == {2: 1, 4: 1}


def test_two_instances_take_turns(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", "instance_group [ { kind: KIND_CPU count: 2 } ]")
    result = run(repository, [0, 0.001, 0.002], file=tmp_path / "a")
    assert tuple(result.latencies) == near(0.005, 0.005, 0.008)
    assert result.works[0].instances == 2


def test_who_is_refused_is_told_with_the_words_of_the_server(tmp_path: Path) -> None:
    policy = "default_queue_policy { max_queue_size: 2 default_timeout_microseconds: 6000 }"
    repository = write(tmp_path / "r", "m", f"max_batch_size: 1 dynamic_batching {{ {policy} }}")
    result = run(repository, [0, 0.001, 0.002, 0.003], file=tmp_path / "a")
    assert result.refused == {"Exceeds maximum queue size": 1, "Request timeout expired": 1}
    assert tuple(result.latencies) == near(0.005, 0.009)
    assert tuple(result.arrivals) == near(0.0, 0.001)


def test_rows_come_from_the_file_or_are_all_alike(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", BATCHING)
    (tmp_path / "a").write_text("# offset rows\n0 3\n0.1, 2\n")
    result = simulate(repository, "m", read_arrivals(str(tmp_path / "a")), read_costs(["1ms/row"]))
    assert result.works[0].batches == {2: 1, 3: 1}
    assert run(repository, [0], "1ms/row", file=tmp_path / "b", rows=4).works[0].batches == {4: 1}


def test_an_ensemble_is_a_real_one_of_stand_ins(tmp_path: Path) -> None:
    write(tmp_path / "r", "first")
    repository = write(tmp_path / "r", "second")
    step = 'step [ {{ model_name: "{0}" model_version: -1 input_map {{ key: "X" value: "{1}" }} '
    step += 'input_map {{ key: "NAME" value: "NAME" }} output_map {{ key: "Y" value: "{2}" }} }} ]'
    config = CONFIG.replace('backend: "python"', 'platform: "ensemble"').partition("parameters")[0]
    config += "ensemble_scheduling { " + step.format("first", "X", "M") + step.format("second", "M", "Y") + " }"
    write(tmp_path / "r", "both", config=config)
    (tmp_path / "a").write_text("0\n0.001\n")
    result = simulate(repository, "", read_arrivals(str(tmp_path / "a")), read_costs(["second=3ms", "5ms"]))
    assert (result.model, tuple(result.latencies)) == ("both", near(0.008, 0.012))
    assert [(work.model, work.batches) for work in result.works] == [("first", {1: 2}), ("second", {1: 2})]
    # Another model beside them: it has to be said which one is meant, and what was not asked is not told of.
    write(tmp_path / "r", "other")
    with pytest.raises(ServingError, match="has the models both, first, other, second; say which one"):
        simulate(repository, "", read_arrivals(str(tmp_path / "a")), read_costs(["5ms"]))
    works = simulate(repository, "both", read_arrivals(str(tmp_path / "a")), read_costs(["5ms"])).works
    assert [work.model for work in works] == ["first", "second"]


def test_one_seed_gives_one_result_and_another_one_another(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", BATCHING)
    (tmp_path / "c.json").write_text('{"1": {"mean": 0.001, "p99": 0.003}, "4": {"mean": 0.002, "p99": 0.004}}')

    def once(seed: int) -> Simulated:
        arrivals = read_arrivals("poisson:700,2", seed)
        return simulate(repository, "m", arrivals, read_costs([str(tmp_path / "c.json")]), seed=seed)

    one, same, other = once(1), once(1), once(2)
    assert np.array_equal(one.latencies, same.latencies) and one.works == same.works
    assert not np.array_equal(one.latencies, other.latencies)


def test_a_simulation_and_a_kernel_agree_on_how_many(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", BATCHING)
    result = simulate(repository, "m", read_arrivals("ramp:100-2000,1"), read_costs(["1ms+0.2ms/row"]))
    assert result.latencies.size == result.requests == sum(rows * count for rows, count in result.works[0].batches.items())


# -- arrivals and costs ----------------------------------------------------------------------------------------------------


def test_arrivals_by_chance_have_the_rate_that_is_asked_for() -> None:
    offsets = read_arrivals("poisson:1000,20", 3).offsets
    assert offsets.size == pytest.approx(20_000, rel=0.03) and 0 <= offsets[0] and offsets[-1] < 20
    assert np.diff(offsets).std() == pytest.approx(0.001, rel=0.05)
    ramp = read_arrivals("ramp:100-900,10", 3).offsets
    halves = (ramp < 5).sum(), (ramp >= 5).sum()
    assert halves == (pytest.approx(1500, rel=0.1), pytest.approx(3500, rel=0.1))
    assert (np.diff(ramp) >= 0).all() and ramp[-1] <= 10
    assert tuple(read_arrivals("constant:4,1").offsets) == (0, 0.25, 0.5, 0.75)


def test_intervals_are_microseconds(tmp_path: Path) -> None:
    (tmp_path / "i").write_text("1000\n500\n500\n")
    assert tuple(read_arrivals(f"intervals:{tmp_path / 'i'}").offsets) == near(0.001, 0.0015, 0.002)


def test_costs_go_on_as_a_line(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"2": 0.002, "4": 0.006, "8": 0.006}')
    cost = read_costs([str(tmp_path / "c.json")]).of("m")
    assert [cost.mean(rows) for rows in (1, 2, 3, 4, 8, 16)] == pytest.approx([0.002, 0.002, 0.004, 0.006, 0.006, 0.006])
    assert [read_costs(["2ms+300us/row"]).of("m").mean(rows) for rows in (1, 10)] == pytest.approx([0.0023, 0.005])
    (tmp_path / "d.json").write_text('{"1": {"mean": 0.01, "p99": 0.03}}')
    draw = read_costs([str(tmp_path / "d.json")]).of("m").drawing((1,))
    drawn = [draw(1) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(0.01, rel=0.03) and np.percentile(drawn, 99) == pytest.approx(0.03, rel=0.05)


@pytest.fixture
def server() -> Iterator[str]:
    """A server that has measured executions of the model m."""
    times = {"count": 2, "ns": 2_000_000}
    batch = {"batch_size": 4, "compute_input": times, "compute_infer": {"count": 2, "ns": 8_000_000}, "compute_output": times}

    class Port(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {"/v2/models/m/stats": [batch], "/v2/models/new/stats": []}
            stats = known.get(self.path)
            told = {"error": "unknown model"} if stats is None else {"model_stats": [{"batch_stats": stats}]}
            body = json.dumps(told).encode()
            self.send_response(404 if stats is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    port = HTTPServer(("127.0.0.1", 0), Port)
    thread = threading.Thread(target=port.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{port.server_port}"
    port.shutdown()
    thread.join()
    port.server_close()


def test_costs_that_a_server_has_measured(server: str) -> None:
    assert read_costs([server], ask).of("m").mean(4) == pytest.approx(0.006)
    with pytest.raises(ServingError, match="has executed nothing of model 'new' yet"):
        read_costs([server], ask).of("new")
    with pytest.raises(ServingError, match="no statistics of model 'other': 404 unknown model"):
        read_costs([server], ask).of("other")
    with pytest.raises(ServingError, match=r"--cost: http://127\.0\.0\.1:1 can't be asked: ConnectionRefusedError"):
        read_costs(["http://127.0.0.1:1"], ask).of("m")
    with pytest.raises(ServingError, match="answers with no statistics: KeyError"):
        read_costs(["http://far"], lambda url, path: (200, "OK", {})).of("m")


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ("sometimes:5", "--arrivals 'sometimes:5' is of no known form; there are poisson:RATE"),
        ("poisson:fast", "the rate in --arrivals is 'fast', wanted is a number of at least 0"),
        ("poisson:-5", "is of no known form"),
        ("poisson:0", "are 0 requests, wanted are 1 to"),
        ("poisson:inf", "the rate in --arrivals is 'inf'"),
        ("poisson:1e9,1e9", "the number of seconds in --arrivals is '1e9', wanted are at most 2678400"),
        ("poisson:5,x", "the number of seconds in --arrivals is 'x'"),
        ("ramp:100", "is of no known form"),
        ("constant:1-2", "is of no known form"),
        ("missing.txt", "missing.txt can't be read"),
        ("late.txt", "late.txt: request 2 comes at 0.5 s, before the one in front of it"),
        ("words.txt", "words.txt:2: a number is 'soon', wanted is a number of at least 0"),
        ("rows.txt", "rows.txt:1: a request has 0 rows, wanted is an integer from 1 to 1000000"),
        ("mixed.txt", "mixed.txt:2: there are 1 numbers, wanted 2"),
        ("empty.txt", "empty.txt has 0 requests, wanted are 1 to"),
    ],
)  # fmt: skip
def test_arrivals_that_can_not_be(arrivals: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"late": "1\n0.5\n", "words": "1\nsoon\n", "rows": "0 0\n", "mixed": "0 1\n1\n", "empty": "# nothing\n"}
    for name, text in files.items():
        Path(f"{name}.txt").write_text(text)
    with pytest.raises(ServingError) as raised:
        read_arrivals(arrivals)
    assert words in raised.value.message


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        (["2"], "a term of --cost '2' is '2', wanted is a number with its unit: s, ms or us, such as 2ms"),
        (["2ms/request"], "'2ms/request' is of no known form; wanted is a sum such as 2ms+0.3ms/row"),
        (["1ms", "2ms"], "--cost is given twice for all models"),
        (["m=1ms", "m=2ms"], "--cost is given twice for model 'm'"),
        (["other=1ms"], "nothing says what an execution of model 'm' costs: --cost m="),
        (["missing.json"], "--cost 'missing.json': there is no such file"),
        (["list.json"], "wanted is an object of rows to seconds"),
        (["rows.json"], "'none' is no number of rows, wanted is an integer of at least 1"),
        (["wide.json"], "of 1 rows p99 is 50.00 times the mean, wanted is 1 to 14 times"),
        (["half.json"], "of 1 rows there are ['mean'], wanted are mean and p99, or a number"),
        (["ftp://host"], "--cost: 'ftp://host' is no address, wanted is one such as http://localhost:8000"),
        (["http://[host"], "--cost: 'http://[host' is no address, wanted is one such as http://localhost:8000"),
        (["http://host:x"], "--cost: 'http://host:x' is no address, wanted is one such as http://localhost:8000"),
    ],
)  # fmt: skip
def test_costs_that_can_not_be(costs: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files: dict[str, Any] = {"list": 1, "rows": {"none": 1}, "wide": {"1": {"mean": 1, "p99": 50}}, "half": {"1": {"mean": 1}}}
    for name, told in files.items():
        Path(f"{name}.json").write_text(json.dumps(told))
    with pytest.raises(ServingError) as raised:
        read_costs(costs, ask).of("m")
    assert words in raised.value.message


# -- the command -----------------------------------------------------------------------------------------------------------


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = command([*arguments])
    told = capsys.readouterr()
    return status, told.out, told.err


def test_the_command_prints_a_table_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = write(tmp_path / "r", "m", BATCHING)
    line = [repository, "m", "--arrivals", "poisson:300,1", "--cost", "2ms+1ms/row", "--svg", str(tmp_path / "p.svg")]
    status, out, err = call(capsys, *line)
    assert status == 0 and "requests a second" in err
    assert out.startswith("m version 1: ") and "answered" in out and "p50 " in out and "p99 " in out and "% busy" in out
    assert "executions of m by rows" in out and "█" in out and "p99 over time" in out
    assert call(capsys, *line)[1] == out
    picture = ElementTree.fromstring((tmp_path / "p.svg").read_text())
    assert picture.tag.endswith("svg") and len(picture) > 20


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = write(tmp_path / "r", "m")
    status, out, _ = call(capsys, repository, "--arrivals", "constant:10,1", "--cost", "5ms", "--json")
    told = json.loads(out)
    assert (status, told["model"], told["requests"], told["answered"], told["refused"]) == (0, "m", 10, 10, {})
    assert told["latency_seconds"] == pytest.approx({"mean": 0.005, "p50": 0.005, "p90": 0.005, "p99": 0.005, "max": 0.005})
    assert told["models"]["m"]["batches"] == {"1": 10} and told["models"]["m"]["instances"] == 1


def test_the_command_says_what_it_can_not_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = write(tmp_path / "r", "m")
    line = ("--arrivals", "poisson:10", "--cost", "1ms")
    status, _, err = call(capsys, repository, "mm", *line)
    assert status == 1 and err == "error: Request for unknown model: 'mm' is not found; did you mean 'm'?\n"
    write(tmp_path / "r", "other", "sequence_batching { iterative_sequence: true }")
    _, _, err = call(capsys, repository, *line)
    assert err == "error: the repository has the models m, other; say which one the requests are for\n"
    _, _, err = call(capsys, repository, "other", *line)
    assert err.startswith("error: model 'other' has iterative_sequence: how often a request is executed is for its code to say")
    assert "its requests have no 2 rows" in call(capsys, repository, "m", *line, "--rows", "2")[2]
    assert call(capsys, repository, "m", *line, "--svg", str(tmp_path))[0] == 1
    assert call(capsys, str(tmp_path / "nowhere"), "m", *line)[0] == 1
    with pytest.raises(SystemExit):
        command([repository, "--cost", "1ms"])
    assert "--arrivals" in capsys.readouterr().err


def test_pictures() -> None:
    chart = Chart("title", [("a", 8.0, "8"), ("bb", 0.01, "small"), ("c", 0.0, "")])
    assert [line.rstrip() for line in bars(chart)] == ["title", f"   a  {'█' * 40}  8", f"  bb  ▏{' ' * 39}  small", "   c"]
    assert spark([0, 1, 2]) == "▁▄█" and spark([]) == "" and spark([0.0]) == "▁"


def test_nothing_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = "default_queue_policy { default_timeout_microseconds: 1 }"
    config = f"max_batch_size: 2 dynamic_batching {{ max_queue_delay_microseconds: 5000 {policy} }}"
    repository = write(tmp_path / "r", "m", config)
    result = run(repository, [0], file=tmp_path / "a")
    assert math.isnan(result.latency(50)) and result.refused == {"Request timeout expired": 1}
    status, out, _ = call(capsys, repository, "--arrivals", str(tmp_path / "a"), "--cost", "1ms")
    assert status == 0 and "not answered" in out


def test_an_asynchronous_model_has_many_executions_at_a_time(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", config=CONFIG.partition("parameters")[0])
    code = "class TritonPythonModel:\n    async def execute(self, requests): 1 / 0\n"
    (tmp_path / "r" / "m" / "1" / "model.py").write_text(code)
    result = run(repository, [0, 0.001, 0.002], file=tmp_path / "a")
    assert tuple(result.latencies) == near(0.005, 0.005, 0.005)


def test_a_loop_that_is_busy_with_each_request_has_a_burst_come_one_after_another(tmp_path: Path) -> None:
    repository = write(tmp_path / "r", "m", "max_batch_size: 4 dynamic_batching { }")
    burst = [0, 0, 0, 0, 0.0001, 0.0001]
    assert run(repository, burst, "5ms", file=tmp_path / "a").works[0].batches == {2: 1, 4: 1}
    # The first four are there in one turn of the loop, and what comes while it is busy with them is there in the next one.
    busy = run(repository, burst, "5ms", file=tmp_path / "b", effort=0.001)
    assert busy.works[0].batches == {2: 1, 4: 1}
    assert tuple(busy.latencies) == near(0.009, 0.009, 0.009, 0.009, 0.0139, 0.0139)
    late = run(repository, [0, 0.0001, 0.0002, 0.0003], "5ms", file=tmp_path / "c", effort=0.0015)
    assert late.works[0].batches == {1: 1, 3: 1}
