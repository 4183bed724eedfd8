"""`kernel shadow` in front of the real Triton: its answers pass as they are, and ours to the same requests are the same."""

from __future__ import annotations

import http.client
import json
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from . import servers
from .conftest import MODELS

pytestmark = pytest.mark.reference

LIMIT_S = 90.0
CHOSEN = ("batch8", "two")


def metadata_of(port: int, model: str) -> dict[str, list[dict[str, object]]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("GET", f"/v2/models/{model}")
    found: dict[str, list[dict[str, object]]] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def some_request(metadata: dict[str, list[dict[str, object]]], id: str) -> bytes:
    """Return a request of ones, of whatever form the model has."""
    inputs = []
    for one in metadata["inputs"]:
        shape = [1 if int(str(size)) < 0 else int(str(size)) for size in one["shape"]]  # type: ignore[attr-defined]
        count = 1
        for size in shape:
            count *= size
        value: object = {"BYTES": "one", "BOOL": True}.get(str(one["datatype"]), 1)
        inputs.append({"name": one["name"], "datatype": one["datatype"], "shape": shape, "data": [value] * count})
    return json.dumps({"id": id, "inputs": inputs}).encode()


def post(port: int, model: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("POST", f"/v2/models/{model}/infer", body)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def over_grpc(port: int) -> None:
    """Ask by a call, and by a stream with two requests on it."""
    answers: queue.Queue[object] = queue.Queue()
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        for model in CHOSEN:
            inputs = []
            for one in client.get_model_metadata(model).inputs:
                shape = [max(1, size) for size in one.shape]
                value = triton.InferInput(one.name, shape, one.datatype)
                value.set_data_from_numpy(np.ones(shape, triton_to_np_dtype(one.datatype)))
                inputs.append(value)
            client.infer(model, inputs, request_id=f"{model} by gRPC", client_timeout=LIMIT_S)
            client.start_stream(lambda result, error: answers.put(error or result))
            for k in range(2):
                client.async_stream_infer(model, inputs, request_id=f"{model} {k}")
            for _ in range(2):
                assert not isinstance(answers.get(timeout=LIMIT_S), Exception)
            client.stop_stream()


def asked(upstream: servers.Server, ours: Path, log: Path) -> tuple[int, str]:
    """Ask through `kernel shadow` and directly; return its exit status and what it has printed."""
    ports = [f"--upstream=127.0.0.1:{upstream.port}", f"--upstream-grpc=127.0.0.1:{upstream.grpc_port}"]
    command = [sys.executable, "-m", "kernel", "shadow", *ports, "--http-port=0", "--grpc-port=0", str(ours)]
    with log.open("wb") as file:
        shadow = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + LIMIT_S
        while len(found := re.findall(r"passing on \w+ at 127.0.0.1:(\d+)", log.read_text())) < 2:
            assert time.monotonic() < end and shadow.poll() is None, log.read_text()
            time.sleep(0.05)
        port, grpc_port = map(int, found)
        for model in CHOSEN:
            body = some_request(metadata_of(port, model), model)
            assert post(port, model, body) == post(upstream.port, model, body)
        assert post(port, "two", b'{"inputs":[]}')[0] == 400
        over_grpc(grpc_port)
        shadow.send_signal(signal.SIGTERM)
        return shadow.wait(LIMIT_S), log.read_text()
    finally:
        if shadow.poll() is None:
            shadow.kill()
            shadow.wait()


def test_answers_of_the_reference_pass_and_ours_are_the_same(reference_installed: None, tmp_path: Path) -> None:
    for name in ("theirs", "ours"):
        for model in CHOSEN:
            shutil.copytree(MODELS / "plain" / model, tmp_path / name / model)
    upstream = servers.reference(tmp_path / "theirs", tmp_path / "reference.log")
    try:
        while True:
            upstream.wait_live()
            try:
                status, text = asked(upstream, tmp_path / "ours", tmp_path / "shadow.log")
                break
            except (AssertionError, OSError, ValueError, http.client.HTTPException, InferenceServerException, queue.Empty):
                if not (upstream.has_died() and upstream.may_restart()):  # of a fault of its own
                    raise
                upstream.restart()
    finally:
        upstream.end()
        upstream.stop()
    assert re.search(r"^batch8 +3 +3 +0 +0 +-$", text, re.M) and re.search(r"^two +4 +4 +0 +0 +-$", text, re.M), text
    assert status == 0
