"""The access log: a line for each request from outside, written off the loop; what does not fit is dropped and counted."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from virtual import BASE, TestBackend, echo, run, write_repository

from kernel import Code, InferenceRequest, InferenceResponse, Kernel, LogSettings, Result, ServingError, Tensor
from kernel.observability import AccessLog

LIMIT_S = 30.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def record(id: str = "7", error: str = "") -> Any:
    return (1769860800.25, id, "127.0.0.1:5", "HTTP", "m", 1, 2, "OK" if not error else "INTERNAL", 0.0123456789, 0.001, 1, error)


def nobody(request: InferenceRequest) -> str:
    return "a client"


def fails(requests: list[InferenceRequest]) -> Result:
    raise ServingError(Code.INTERNAL, 'no "weights"\ntoday')


def test_requests_from_outside_have_a_line_each_with_id_time_and_what_became_of_them(tmp_path: Path) -> None:
    write_repository(tmp_path / "models", {"m": BASE, "bad": BASE})
    access = AccessLog(str(tmp_path / "access"), nobody)
    kernel = Kernel(
        tmp_path / "models",
        plugins=[TestBackend({"m": echo, "bad": fails})],
        control_mode="explicit",
        load_models=["*"],
        log_settings=LogSettings(access=access),
    )
    answers: list[InferenceResponse] = []

    async def main() -> None:
        async with kernel:
            for model, id in (("m", "a"), ("bad", "b"), ("m", "c")):
                found = kernel.model(model)
                made = InferenceRequest(
                    model, {"X": Tensor("X", "FP32", np.ones(1, np.float32))}, lambda got, final: answers.append(got), id=id
                )
                found.check(made)
                if id != "c":  # as a front end does; c is the app's own
                    found.tracing.arrived(made, "HTTP")
                found.enqueue(made)
                await asyncio.sleep(0.01)

    run(main())
    access.close()
    assert len(answers) == 3
    first, second = lines(tmp_path / "access")
    assert first["time"].endswith("Z") and abs((datetime.now(UTC) - datetime.fromisoformat(first["time"])).total_seconds()) < 600
    assert {key: first[key] for key in ("id", "client", "protocol", "model", "version", "rows", "code", "responses")} == {
        "id": "a", "client": "a client", "protocol": "HTTP", "model": "m", "version": 1, "rows": 1, "code": "OK", "responses": 1
    }  # fmt: skip
    assert "error" not in first and 0 <= first["queue_seconds"] <= first["seconds"] < 1
    assert (second["id"], second["code"]) == ("b", "INTERNAL") and 'no "weights"\\ntoday' in second["error"]


def test_without_one_models_trace_nothing(tmp_path: Path) -> None:
    write_repository(tmp_path / "models", {"m": BASE})
    kernel = Kernel(tmp_path / "models", plugins=[TestBackend({"m": echo})], control_mode="explicit", load_models=["*"])

    async def main() -> None:
        async with kernel:
            assert kernel.model("m").tracing is None

    run(main())


def test_a_line_is_one_whatever_stands_in_it(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access"), nobody)
    log.add(record('x"\n{"time": "forged"}\u2028\udcff' * 3, "y\n" * 5000))
    log.close()
    text = (tmp_path / "access").read_text()
    assert len(text.splitlines()) == 1 and "\u2028" not in text and len(text) < 3000
    (line,) = lines(tmp_path / "access")
    assert line["time"] == "2026-01-31T12:00:00.250000Z" and line["seconds"] == 0.012346
    assert line["id"].startswith('x"\\n{"time": "forged"}\\u2028\\udcff')


def test_what_waits_is_as_short_as_what_is_written(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access"), nobody, look_seconds=LIMIT_S)
    log.add(record("i" * 1_000_000, "e" * 1_000_000))
    assert sum(len(one) for one in log._queue[0] if isinstance(one, str)) < 3000
    log.close()
    (line,) = lines(tmp_path / "access")
    assert line["id"].endswith("(1000000 characters)") and line["error"].endswith("(1000000 characters)")


def test_what_comes_faster_than_it_can_be_written_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, asked = threading.Event(), threading.Event()
    write = os.write

    def slow(file: int, data: Any) -> int:
        asked.set()
        assert go_on.wait(LIMIT_S)
        return write(file, data)

    monkeypatch.setattr("kernel.observability.access_log.os.write", slow)
    log = AccessLog(str(tmp_path / "access"), nobody, queued=10, look_seconds=0.001)
    log.add(record("first"))
    assert asked.wait(LIMIT_S)
    with caplog.at_level(logging.WARNING, "kernel"):
        for k in range(25):  # the disk stands still, and nobody waits for it
            log.add(record(str(k)))
        assert log.dropped == 15
        go_on.set()
        until(lambda: len(lines(tmp_path / "access")) == 12)
    log.close()
    found = lines(tmp_path / "access")
    assert [line["id"] for line in found if "id" in line] == ["first", *map(str, range(10))]
    assert [line["dropped"] for line in found if "dropped" in line] == [15]
    assert "the access log has dropped 15 lines" in caplog.text


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = [True]
    write = os.write

    def fails(file: int, data: Any) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr("kernel.observability.access_log.os.write", fails)
    log = AccessLog(str(tmp_path / "access"), nobody, look_seconds=0.001)
    for k in range(3):
        log.add(record(str(k)))
        until(lambda k=k: log.dropped == k + 1)
    full[0] = False
    log.add(record("last"))
    log.close()
    told = lines(tmp_path / "access")
    assert [line["id"] for line in told if "id" in line] == ["last"]
    assert sum(line.get("dropped", 0) for line in told) == log.dropped == 3
    assert caplog.text.count("No space left on device") == 1
    assert "the access log has dropped 3 lines: it could not be written" in caplog.text


def test_a_line_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that becomes full within a line; also where another replica writes behind it, or the file is a pipe."""
    room, write = [1000], os.write

    def fills(file: int, data: Any) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        done = write(file, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr("kernel.observability.access_log.os.write", fills)
    path = tmp_path / "access"
    log = AccessLog(str(path), nobody, look_seconds=LIMIT_S)
    ids = [str(k) for k in range(20)]
    for id in ids:
        log.add(record(id))
    log._write()
    there = [line["id"] for line in lines(path)]  # each is whole
    assert 0 < len(there) < 20 and there == ids[: len(there)] and path.read_bytes().endswith(b"\n")
    assert log.dropped == 20 - len(there)
    room[0] = 10**6
    log.add(record("last"))
    log._write()
    assert [line.get("id", line.get("dropped")) for line in lines(path)] == [*there, "last", log.dropped]

    room[0] = 60  # within the first line
    monkeypatch.setattr("kernel.observability.access_log.os.ftruncate", Mock(side_effect=OSError(22, "Invalid argument")))
    log.add(record("torn"))
    log._write()
    room[0] = 10**6
    log.add(record("whole"))
    log._write()
    text = path.read_text().splitlines()
    assert json.loads(text[-2])["id"] == "whole" and json.loads(text[-1])["dropped"] == 1
    assert text[-3].startswith('{"time"') and "" not in text  # what can't be taken back is a line of its own
    log.close()
    assert log.dropped == 21 - len(there)


def test_what_nobody_could_read_has_a_line(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access"), nobody)
    log.refused("HTTP 10.0.0.7:5", "HTTP", b"GET /\x1b[31m\xff " + b"a" * 5000 + b"\r\nHost: x\r\n", 431, "too long\n" * 1000)
    log.refused("HTTP 10.0.0.7:5", "HTTP", b"\x16\x03\x01", 444, "not HTTP")
    log.refused("gRPC 10.0.0.7:6", "GRPC", "/inference.GRPCInferenceService/ModelInfer", "RESOURCE_EXHAUSTED", "\udcff")
    log.close()
    first, second, third = lines(tmp_path / "access")
    assert first["time"].endswith("Z") and (first["client"], first["status"]) == ("HTTP 10.0.0.7:5", 431)
    assert first["request"].startswith("GET /\\x1b[31m\u00ff aaa") and len(first["request"]) < 400 and len(first["error"]) < 1500
    assert first["request"].endswith("aaa…"), "of how many characters, nobody knows any more"
    assert second == {"time": second["time"], "client": "HTTP 10.0.0.7:5", "protocol": "HTTP", "request": "\\x16\\x03\\x01",
                      "status": 444, "error": "not HTTP"}  # fmt: skip
    assert (third["code"], third["error"]) == ("RESOURCE_EXHAUSTED", "\\udcff") and "status" not in third


def test_it_goes_on_in_a_new_file_where_the_old_one_was_moved(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "access"), nobody, look_seconds=0.001)
    log.add(record("old"))
    until(lambda: lines(tmp_path / "access"))
    (tmp_path / "access").rename(tmp_path / "moved")
    log.reopen()
    until((tmp_path / "access").exists)
    log.add(record("new"))
    log.close()
    assert [one["id"] for name in ("moved", "access") for one in lines(tmp_path / name)] == ["old", "new"]


def test_where_it_cannot_be_opened_that_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "no" / "access", tmp_path, tmp_path / "pipe"):  # a pipe that nobody reads would hold up the start
        with pytest.raises(OSError):
            AccessLog(str(path), nobody)
