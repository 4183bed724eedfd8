"""`kernel serve --access-log`: what stands in the file, and what becomes of it at SIGHUP and at the end."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from .serving import run, serving, wait_until, write_model

FAILS = """\
    def execute(self, requests):
        raise ValueError("out of order")
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_requests_are_in_the_access_log(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    write_model(tmp_path / "models", "echo")
    write_model(tmp_path / "models", "bad", FAILS)
    body = {"id": "a 1", "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    with serving(tmp_path, tmp_path / "models", "--access-log", file) as server:
        assert server.request("POST", "/v2/models/echo/infer", body)[0] == 200
        assert server.request("POST", "/v2/models/bad/infer", body)[0] == 500
        wait_until(lambda: len(lines(file)) == 2, 30)
        file.rename(tmp_path / "moved.log")
        server.signal(signal.SIGHUP)
        wait_until(file.exists, 30)
        assert server.infer("echo", 2.0)[0] == 200
        server.signal()
        assert server.wait() == 0
    first, second = lines(tmp_path / "moved.log")
    assert (first["id"], first["protocol"], first["model"], first["code"], first["rows"]) == ("a 1", "HTTP", "echo", "OK", 1)
    assert "127.0.0.1" in first["client"] and 0 <= first["queue_seconds"] <= first["seconds"] < 60
    assert (second["model"], second["code"]) == ("bad", "INTERNAL") and "out of order" in second["error"]
    assert [line["model"] for line in lines(file)] == ["echo"]  # what was queued at the end is written


def test_a_file_that_cannot_be_had_stops_the_start(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    result = run("serve", tmp_path / "models", "--access-log", tmp_path / "no" / "access.log")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: creating server: Internal - failed to open the access log: ")
