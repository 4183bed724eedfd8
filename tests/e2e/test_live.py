"""Live repositories as clients and developers see them: real files, real ports, real time."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .serving import CONFIG, MODEL, Server, serving, wait_until

#: Answers X plus a number, which is a helper's.
ADDS = """\
    from helper import NUMBER

    def execute(self, requests):
        outputs = [pb_utils.Tensor("Y", r.inputs()[0].as_numpy() + np.float32(self.NUMBER)) for r in requests]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"""

ENSEMBLE = """\
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
} }
"""


def write(repository: Path, name: str, number: float, more: str = "") -> Path:
    """Write a model that adds `number`; return its model.py."""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "helper.py").write_text(f"NUMBER = {number}\n")
    (folder / "model.py").write_text(MODEL.format(body=ADDS))
    (folder.parent / "config.pbtxt").write_text(CONFIG.format(more=more))
    return folder / "model.py"


def said(server: Server, name: str = "m") -> float:
    status, body = server.infer(name, 1.0)
    assert status == 200, body
    return float(body["outputs"][0]["data"][0])


def states(server: Server) -> dict[str, str]:
    _, rows = server.request("POST", "/v2/repository/index")
    return {row["name"]: f"{row.get('state', '')} {row.get('reason', '')}".strip() for row in rows}


class Traffic:
    """Threads that ask one model after the other on connections that they keep, and what they were answered."""

    def __init__(self, server: Server, *names: str) -> None:
        self.server, self.names = server, names
        self.values: dict[str, list[float]] = {name: [] for name in names}
        self.failures: list[Any] = []
        self.over = False

    def ask(self, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}]})
        while not self.over:
            connection.request("POST", f"/v2/models/{name}/infer", body)
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status == 200:
                self.values[name].append(answer["outputs"][0]["data"][0])
            else:
                self.failures.append((name, response.status, answer))
        connection.close()


@contextmanager
def traffic(server: Server, *names: str) -> Iterator[Traffic]:
    made = Traffic(server, *names)
    threads = [threading.Thread(target=made.ask, args=(name,)) for name in names for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.over = True
        for thread in threads:
            thread.join(20)


def test_bc65_reloads_under_traffic(tmp_path: Path) -> None:
    """No request fails, new code answers afterwards, and a reload that fails leaves the old copy."""
    model = write(tmp_path, "m", 1)
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)
    with (
        serving(tmp_path, tmp_path, "--model-control-mode=explicit", "--load-model=e") as server,
        traffic(server, "m", "e") as seen,
    ):
        for number in range(2, 12):
            (model.parent / "helper.py").write_text(f"NUMBER = {number}  # {'x' * number}\n")
            assert server.request("POST", "/v2/repository/models/m/load") == (200, None)
            assert said(server, "m") == said(server, "e") == number + 1
        text = model.read_text()
        model.write_text(f"{text}\n    def broken(:\n")
        for _ in range(3):
            status, body = server.request("POST", "/v2/repository/models/m/load")
            assert status == 400 and "version 1 is at UNAVAILABLE state: Internal: SyntaxError" in body["error"]
        assert said(server, "m") == 12
        assert server.request("GET", "/v2/health/ready")[0] == 200
        model.write_text(text)
        instances = "instance_group { kind: KIND_CPU count: 3 }"
        (tmp_path / "m" / "config.pbtxt").write_text(CONFIG.format(more=instances))
        assert server.request("POST", "/v2/repository/models/m/load") == (200, None)
        wait_until(lambda: all(len(values) > 200 for values in seen.values.values()))
    assert seen.failures == []
    for values in seen.values.values():
        assert set(values) <= set(range(2, 13)) and len(set(values)) > 5


def test_watch_a_syntax_error_and_its_repair(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    model = write(repository, "m", 1)
    write(repository, "other", 5)
    text = model.read_text()
    with serving(tmp_path, repository, "--watch") as server, traffic(server, "m") as seen:
        lines = text.count("\n")
        model.write_text(f"{text}\n    def broken(:\n        pass\n")
        wait_until(lambda: "NOT LOADED" in server.text())
        assert said(server) == 2 and server.request("GET", "/v2/health/ready")[0] == 200
        (model.parent / "helper.py").write_text("NUMBER = 10\n")
        time.sleep(1)
        assert said(server) == 2, "it is still broken"
        shown = server.text()
        assert f"m: 1/model.py changed: NOT LOADED, version 1, as it was, goes on serving\n  {model}:{lines + 2}:" in shown
        assert "      def broken(:\n" in shown
        assert shown.count("NOT LOADED") == 2, "once a change"
        model.write_text(text)
        wait_until(lambda: "version 1 is served again" in server.text())
        assert said(server) == 11
        (repository / "other" / "1" / "helper.py").write_text("import no_such_module\n")
        (repository / "other" / "1" / "model.py").write_text("import helper\n")
        wait_until(lambda: "ModuleNotFoundError: No module named 'no_such_module'" in server.text())
        assert f"{repository / 'other' / '1' / 'helper.py'}:1:1\n" in server.text()
        assert said(server, "other") == 6
    assert seen.failures == [] and set(seen.values["m"]) == {2, 11}


def test_watch_waits_for_a_model_that_is_broken_at_the_start(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    model = write(repository, "m", 1)
    text = model.read_text()
    model.write_text("import nothing_of_the_kind\n")
    with serving(tmp_path, repository, "--watch", "--model-control-mode=poll") as server:
        wait_until(lambda: "m: at the start: NOT LOADED, nothing is served until it is mended" in server.text())
        assert f"  {model}:1:1\n      import nothing_of_the_kind\n" in server.text()
        assert server.request("GET", "/v2/health/ready")[0] == 400
        model.write_text(text)
        wait_until(lambda: "m: 1/model.py changed: version 1 is served again" in server.text())
        assert said(server) == 2 and server.request("GET", "/v2/health/ready")[0] == 200


def test_poll(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository, "m", 1)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with serving(tmp_path, repository, *flags) as server, traffic(server, "m") as seen:
        status, body = server.request("POST", "/v2/repository/models/m/load")
        words = "explicit model load / unload is not allowed if polling is enabled "
        words += "(the model control mode is 'poll', wanted is 'explicit')"
        assert (status, body["error"]) == (503, words)
        copy = tmp_path / "copy"
        write(copy, "new", 5)
        (copy / "new").rename(repository / "new")
        (repository / "m" / "1" / "helper.py").write_text("NUMBER = 20\n")
        wait_until(lambda: states(server) == {"m": "READY", "new": "READY"})
        wait_until(lambda: said(server, "m") == 21)
        assert said(server, "new") == 6
        shutil.rmtree(repository / "new")
        wait_until(lambda: states(server) == {"m": "READY"})
        wait_until(lambda: server.infer("new", 1.0)[0] == 404)
        wait_until(lambda: len(seen.values["m"]) > 50)
    assert seen.failures == [] and set(seen.values["m"]) == {2, 21}


@pytest.mark.parametrize("flags", [["--reuse-http-port=often"], ["--repository-poll-secs=often"]])
def test_refused(tmp_path: Path, flags: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path / "log", [tmp_path, *flags])
    assert server.wait() == 1
    assert f"Error: {'' if 'often' not in flags[0] else 'argument '}" in server.text() and flags[0].split("=")[0] in server.text()
