"""What code of models in the server does to the standard descriptors and streams: the server serves on, and its log goes on."""

from __future__ import annotations

import os
import subprocess
from http.client import HTTPException
from pathlib import Path

import pytest

from .serving import ECHO, FREE_PORTS, command, serving, wait_until, write_model

THREAD = 'parameters {{ key: "placement" value {{ string_value: "{}" }} }}'

CLOSES = """\
    def execute(self, requests):
        import sys
        value = float(requests[0].inputs()[0].as_numpy()[0])
        if value == 1:
            {code}
        elif value == 2:
            print("printed later", flush=True)
        elif value == 3:
            raise ValueError("told later")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

CODES = {
    "descriptors": "[open(number, 'wb' if number else 'rb').close() for number in range(3)]",
    "streams": "sys.stdout.close(), sys.stderr.close()",
    "both": "sys.stdout.detach(), sys.stderr.detach(), open(1, 'wb').close(), open(2, 'wb').close()",
}


@pytest.mark.parametrize("placement", ["thread", "loop"])
@pytest.mark.parametrize("what", CODES)
def test_a_model_that_closes_them(tmp_path: Path, what: str, placement: str) -> None:
    models = tmp_path / "models"
    write_model(models, "closes", CLOSES.format(code=CODES[what]), more=THREAD.format(placement))
    write_model(models, "echo", ECHO)
    with serving(tmp_path, models) as server:
        assert server.infer("closes", 1.0)[0] == 200

        def is_back() -> bool:
            """Each of these takes a connection, which may get the number of a descriptor that was closed, and is ended then."""
            try:
                assert server.infer("echo", 5.0)[0] == 200
            except (ConnectionError, HTTPException):
                return False
            own = [Path(f"/proc/{server.process.pid}/fd/{number}") for number in (1, 2)]
            return all(one.is_symlink() and os.readlink(one) == str(server.log) for one in own)

        wait_until(is_back)
        assert server.infer("closes", 3.0)[0] == 500
        assert "told later" in server.text()
        if what != "both":
            assert server.infer("closes", 2.0)[0] == 200
            assert "printed later" in server.text()
        server.signal()
        assert server.wait() == 0
        assert "SIGTERM: stopping" in server.text()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_log_that_nobody_reads_any_more_is_no_failure(tmp_path: Path, replicas: int) -> None:
    """As of `kernel serve … 2>&1 | head`: it serves on, and its exit status is that of a clean stop."""
    write_model(tmp_path / "models", "echo", ECHO)
    reading, writing = os.pipe()
    with subprocess.Popen(
        command("serve", *FREE_PORTS, f"--replicas={replicas}", tmp_path / "models"), stdout=writing, stderr=writing
    ) as process:
        os.close(writing)
        text = b""
        while b"Started Metrics Service" not in text:
            text += os.read(reading, 65536)
        os.close(reading)
        process.terminate()
        assert process.wait(30) == 0
