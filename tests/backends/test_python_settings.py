"""`--backend-config=python,…`: what is wrong is refused in the reference's words, what means something here is heeded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kernel import Kernel, ServingError
from kernel_python.settings import read_settings


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("shm-default-byte-size", "1", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-default-byte-size", "abc", "backend-config python,shm-default-byte-size is 'abc', where a whole number is wanted"),
        ("shm-growth-byte-size", "0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("stub-timeout-seconds", "0", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("stub-timeout-seconds", "-3", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("stub-timeout-seconds", "1.5", "backend-config python,stub-timeout-seconds is '1.5', where a whole number is wanted"),
        ("thread-pool-size", "x", "backend-config python,thread-pool-size is 'x', where a whole number is wanted"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, key: str, value: str, words: str) -> None:
    with pytest.raises(ServingError) as caught:
        read_settings({key: value})
    assert caught.value.message == words
    with pytest.raises(ServingError, match=key):
        Kernel(tmp_path, backend_config={"python": {key: value}})


def test_what_has_nothing_to_act_on_is_told(caplog: pytest.LogCaptureFixture) -> None:
    given = {"shm-default-byte-size": "4194304", "shm-region-prefix-name": "mine", "thread-pool-size": "8", "stub-timeout": "9"}
    with caplog.at_level(logging.INFO, "kernel_python"):
        assert read_settings(given | {"default-max-batch-size": "8"}).stub_timeout == 30
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    without = "has no effect: there is nothing here that it could act on"
    assert told[:3] == [
        ("INFO", f"backend-config python,{key} {without}")
        for key in ("shm-default-byte-size", "shm-region-prefix-name", "thread-pool-size")
    ]
    ((level, words),) = told[3:]
    assert level == "WARNING" and words.startswith("backend-config python,stub-timeout is not known; there are stub-timeout-")


def test_a_process_that_does_not_begin_is_given_up(repo: Any, helpers: Any, tmp_path: Path) -> None:
    """An environment whose Python hangs before it has come to any code of the model's."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    repo.add("a", helpers.ECHO, parameters={"EXECUTION_ENV_PATH": str(tmp_path / "env")})

    async def main(kernel: Kernel) -> str:
        (entry,) = kernel.index()
        return str(entry.reason)

    options = {"exit_on_error": False, "backend_config": {"python": {"stub-timeout-seconds": "1"}}}
    reason = repo.run(main, **options)
    assert reason.startswith("Internal: Stub process 'a_0_0' is not healthy. Process ")
    assert "has not begun within 1 s (--backend-config=python,stub-timeout-seconds)" in reason


def test_settings_for_all_and_for_one(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, backend_config={"": {"default-max-batch-size": "8", "a": "1"}, "mine": {"a": "2"}})
    assert kernel.backend_settings("mine") == {"default-max-batch-size": "8", "a": "2"}
    assert kernel.backend_settings("other") == {"default-max-batch-size": "8", "a": "1"}
    assert Kernel(tmp_path).backend_settings("mine") == {}


def test_settings_for_a_backend_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Kernel(tmp_path, backend_config={"": {"default-max-batch-size": "8"}, "python": {}, "pyhton": {"a": "1"}})
    (line,) = caplog.messages
    words = "the settings for backend 'pyhton' have no effect: no installed plugin serves it; did you mean 'python'?"
    assert line.startswith(words)
    assert "there are [" in line and "'python'" in line.rpartition("there are")[2]
