"""`kernel bench` against real servers: both wires, models of all kinds, what a new user gets wrong; of `kernel tune` the last."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.bench import bench

from .serving import BROKEN, Server, run, serving, write_model

QUICK = ("--warm-up=0.05s", "--window=0.1s", "--windows=3")

MANY = """\
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for k in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([k], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

#: Refuses what is out of order: the first of a sequence brings START, the others come after it.
STATEFUL = """\
    def initialize(self, args):
        self.known = set()

    def execute(self, requests):
        answers = []
        for request in requests:
            id = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.known.add(id)
            error = None if id in self.known else pb_utils.TritonError("out of order")
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                self.known.discard(id)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())], error))
        return answers
"""

REFUSES = """\
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("I will not")) for r in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bench")
    repository = folder / "models"
    write_model(repository, "echo")
    write_model(repository, "many", MANY, more="model_transaction_policy { decoupled: true }")
    write_model(repository, "stateful", STATEFUL, more="sequence_batching { }")
    write_model(repository, "refuses", REFUSES)
    with serving(folder, repository) as started:
        yield started


def grpc(server: Server) -> str:
    found = re.search(r"Started GRPCInferenceService at [^ ]+:(\d+)", server.text())
    assert found is not None
    return f"grpc://127.0.0.1:{found[1]}"


def results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return what became of the loads on the first target."""
    assert done.returncode == 0, done.stderr
    return [load["results"][0] for load in json.loads(done.stdout)["loads"]]


def test_both_wires_side_by_side(server: Server, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"X": [1, 2, 3]}, {"X": [4]}]}))
    done = run(
        "bench", server.url, "echo", "--against", grpc(server), "--concurrency", "1,4", "--input-data", data, "--json", *QUICK
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    for load in document["loads"]:
        for result in load["results"]:
            assert result["answered"] > 0 and result["errors"] == {}
            assert sum(count for *_, count in result["histogram"]) == result["answered"]
        assert load["second_by_first"]["p50"]["median"] > 0
    done = run("bench", server.url, "echo", "-i", "X=[1,2,3]", "--rate", "50", "--binary=false", *QUICK)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"model 'echo' version 1 at {server.url}"
    assert lines[2].split()[:2] == ["load", "requests/s"] and lines[3].startswith("50 a second (poisson)")


def test_sequences_and_decoupled_models(server: Server) -> None:
    for address, load in ((server.url, "--concurrency=3"), (grpc(server), "--rate=100")):
        (result,) = results(run("bench", address, "stateful", load, "--sequence-length", 3, "--json", *QUICK))
        assert result["answered"] > 0 and result["errors"] == {}
    (result,) = results(run("bench", grpc(server), "many", "--json", *QUICK))
    assert result["answered"] > 0 and result["first_response_seconds"]["p50"] <= result["latency_seconds"]["p50"]
    assert result["response_rate"] > 2 * result["rate"]


def test_what_goes_wrong_is_told(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel.cli.bench.set_up_log", lambda options: None)  # other tests look at theirs
    done = run("bench", server.url, "refuses", *QUICK)
    assert done.returncode == 1
    assert "1 at a time: no request was answered" in done.stdout
    assert re.search(r"1 at a time: \d+ failed: 500: I will not", done.stdout)
    for arguments, words in (
        ((server.url, "eco"), f"http://{server.url} has no model 'eco': 404 Request for unknown model: 'eco' is not found"),
        ((grpc(server), "eco"), f"{grpc(server)} has no model 'eco': NOT_FOUND: Request for unknown model: 'eco'"),
        ((server.url, "many"), "model 'many' is decoupled, so an HTTP request can't have its answers; use the server's"),
        ((f"grpc://{server.url}", "echo"), "is a port of HTTP, where that of gRPC is wanted"),
        ((grpc(server).removeprefix("grpc://"), "echo"), "can't be asked"),
        (("127.0.0.1:1", "echo"), "http://127.0.0.1:1 can't be asked: ConnectionRefusedError"),
        (("grpc://127.0.0.1:1", "echo"), "127.0.0.1:1 can't be connected to"),
        ((tmp_path / "nowhere", "echo"), "is neither a folder nor an address such as localhost:8000"),
    ):
        assert bench([*map(str, arguments)]) == 1
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(said) == 1 and words in said[0], (arguments, said)
    with pytest.raises(SystemExit) as ended:
        bench([server.url, "echo", "--rate", "1", "--concurrency", "1"])
    assert ended.value.code == 2 and "not allowed with argument" in capsys.readouterr().err


def test_a_server_of_its_own_for_a_repository(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "echo")
    write_model(repository, "broken", BROKEN)
    (result,) = results(run("bench", repository, "echo", "--json", *QUICK, "--", "--log-verbose=1"))
    assert result["answered"] > 0
    done = run("bench", repository, "broken")
    assert done.returncode == 1 and "no weights today" in done.stderr
    done = run("tune", repository, "broken", "--p99", "1s", "--rate", "1")
    assert done.returncode == 1 and "no weights today" in done.stderr
    done = run("bench", repository, "echo", "--", "--log-verbos=1")
    assert done.returncode == 1 and "did you mean --log-verbose" in done.stderr
