"""`kernel shadow` in front of a server: its clients notice nothing, and what a candidate answers otherwise is told."""

from __future__ import annotations

import http.client
import json
import queue
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from .serving import ECHO, STOP_LIMIT_S, command, serving, wait_until, write_model
from .test_bench import MANY
from .test_grpc_admin import grpc_url

TWICE = ECHO.replace("r.inputs()[0].as_numpy()", "2 * r.inputs()[0].as_numpy()")
LIMIT_S = 60.0


class Shadow:
    def __init__(self, log: Path, *arguments: object) -> None:
        self.log = log
        with log.open("wb") as file:
            words = command("shadow", "--http-port=0", *arguments)
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, cwd=log.parent)
        self.port = 0

    def text(self) -> str:
        return self.log.read_text()

    def wait_started(self) -> None:
        def started() -> bool:
            found = re.search(r"passing on HTTP at 127.0.0.1:(\d+)", self.text())
            self.port = int(found[1]) if found else 0
            return bool(found) or self.process.poll() is not None

        wait_until(started, LIMIT_S)
        assert self.port, self.text()

    def wait_for(self, words: str) -> str:
        wait_until(lambda: words in self.text(), LIMIT_S)
        return self.text()

    def infer(self, model: str, value: float) -> tuple[int, object]:
        body = {"id": str(value), "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@contextmanager
def shadowing(log: Path, *arguments: object) -> Iterator[Shadow]:
    shadow = Shadow(log, *arguments)
    try:
        shadow.wait_started()
        yield shadow
    finally:
        if shadow.process.poll() is None:
            shadow.process.kill()
        shadow.process.wait()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_differs_is_told(tmp_path: Path) -> None:
    for repository, body in (("upstream", ECHO), ("candidate", TWICE)):
        write_model(tmp_path / repository, "same")
        write_model(tmp_path / repository, "other", body)
    with serving(tmp_path, tmp_path / "upstream") as server:
        report = tmp_path / "report.jsonl"
        arguments = (f"--upstream=localhost:{server.port}", tmp_path / "candidate", f"--report={report}")
        with shadowing(tmp_path / "shadow.log", *arguments) as shadow:
            for value in (1.0, 2.0):
                for model in ("same", "other"):
                    status, answer = shadow.infer(model, value)
                    assert status == 200 and isinstance(answer, dict) and answer["outputs"][0]["data"] == [value]
            assert shadow.infer("none", 1.0)[0] == 404
            shadow.process.send_signal(signal.SIGTERM)
            assert shadow.process.wait(LIMIT_S) == 1
            text = shadow.text()
    differs = "output 'Y': 1 of 1 elements differ; the worst one is 4.0 at [0], expected was 2.0"
    assert f"request '2.0' of model 'other': {differs}" in text
    assert re.search(r"^same +2 +2 +0 +0 +-$", text, re.M) and re.search(r"^other +2 +0 +2 +0 +-$", text, re.M)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert sorted((one["model"], one["output"], one["expected"], one["actual"]) for one in lines) == [
        ("other", "Y", "1.0", "2.0"), ("other", "Y", "2.0", "4.0")
    ]  # fmt: skip


def test_calls_over_grpc(tmp_path: Path) -> None:
    for repository, body in (("upstream", ECHO), ("candidate", TWICE)):
        write_model(tmp_path / repository, "same")
        write_model(tmp_path / repository, "other", body)
        write_model(tmp_path / repository, "many", MANY, more="model_transaction_policy { decoupled: true }")
    answers: queue.Queue[object] = queue.Queue()
    value = triton.InferInput("X", [1], "FP32")
    with serving(tmp_path, tmp_path / "upstream") as server:
        arguments = (f"--upstream=localhost:{server.port}", f"--upstream-grpc={grpc_url(server)}", "--grpc-port=0")
        with shadowing(tmp_path / "shadow.log", *arguments, tmp_path / "candidate") as shadow:
            (port,) = re.findall(r"passing on gRPC at 127.0.0.1:(\d+)", shadow.wait_for("passing on gRPC"))
            with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
                for model in ("same", "other"):
                    value.set_data_from_numpy(np.array([3], np.float32))
                    answer = client.infer(model, [value], request_id="a", client_timeout=LIMIT_S)
                    assert answer.as_numpy("Y").tolist() == [3.0]
                with pytest.raises(InferenceServerException):
                    client.infer("none", [value], client_timeout=LIMIT_S)
                client.start_stream(lambda result, error: answers.put(error or result))
                client.async_stream_infer("many", [value])
                for _ in range(3):
                    assert not isinstance(answers.get(timeout=LIMIT_S), Exception)
                client.stop_stream()
            shadow.process.send_signal(signal.SIGTERM)
            assert shadow.process.wait(LIMIT_S) == 1
            text = shadow.text()
    assert "request 'a' of model 'other': output 'Y': 1 of 1 elements differ; the worst one is 6.0 at [0]" in text
    for model, *counts in (("same", 1, 1, 0), ("other", 1, 0, 1), ("many", 1, 1, 0), ("none", 1, 1, 0)):
        assert re.search(rf"^{model} +{' +'.join(map(str, counts))} +0 +-$", text, re.M), text


def test_clients_do_not_notice_the_end_of_comparisons(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "same")
    with serving(tmp_path, tmp_path / "models") as server:
        arguments = (f"--upstream=localhost:{server.port}", f"--candidate=localhost:{server.port}")
        with shadowing(tmp_path / "shadow.log", *arguments) as shadow:
            assert shadow.infer("same", 1.0)[0] == 200
            (other,) = children(shadow.process.pid)
            subprocess.run(["kill", "-KILL", str(other)], check=True)
            wait_until(lambda: "nothing is compared any more; all goes on passing through" in shadow.text(), LIMIT_S)
            assert shadow.infer("same", 2.0)[0] == 200
            shadow.process.send_signal(signal.SIGINT)
            assert shadow.process.wait(STOP_LIMIT_S) != 0


def test_a_candidate_that_is_none_is_told_at_the_start(tmp_path: Path) -> None:
    shadow = Shadow(tmp_path / "shadow.log", "--upstream=localhost:1", tmp_path / "none")
    try:
        assert shadow.process.wait(LIMIT_S) == 1
    finally:
        shadow.process.kill()
        shadow.process.wait()
    assert "error: " in shadow.text() and "none" in shadow.text()
