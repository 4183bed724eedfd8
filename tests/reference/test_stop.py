"""Both servers, told to stop while sequences run: who is in the midst of one goes on, nobody begins another, the end is clean.

Over gRPC, whose front end the reference closes last; over HTTP it first waits for open connections, whoever is silent on them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from . import servers

pytestmark = pytest.mark.reference

CONFIG = """\
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
max_batch_size: 4
sequence_batching {
  STRATEGY
  max_sequence_idle_microseconds: 3000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
}
"""

MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""

STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 4 }"}

STOPPING = "[StatusCode.UNAVAILABLE] Server is stopping, scheduler for model has stopped accepting new inference requests"

#: What both say when they wait for sequences alone.
WAITING = "in-flight inferences"

Start = Callable[[Path, Path, list[str]], servers.Server]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name, strategy in STRATEGIES.items():
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(CONFIG.replace("STRATEGY", strategy))
        (folder / "1" / "model.py").write_text(MODEL)
    return tmp_path / "models"


def listens(server: servers.Server) -> bool:
    """Whether its HTTP port is open: ours begins no sequence once the ports are closed."""
    try:
        socket.create_connection(("127.0.0.1", server.port), 1).close()
    except ConnectionRefusedError:
        return False
    return True


def stopped(server: servers.Server) -> list[object]:
    """Have the server stop while two sequences run of each model, one of which ends; return what is seen, and the exit status."""
    server.wait_live()
    seen: list[object] = []
    given = triton_grpc.InferInput("X", [1, 1], "FP32").set_data_from_numpy(np.array([[1]], np.float32))

    def ask(model: str, sequence: int, **flags: bool) -> None:
        try:
            client.infer(model, [given], sequence_id=sequence, client_timeout=20, **flags)
        except InferenceServerException as error:
            seen.append(str(error).replace("[request id: <id_unknown>] ", ""))
        else:
            seen.append("answered")

    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        for model in STRATEGIES:
            ask(model, 1, sequence_start=True)
            ask(model, 2, sequence_start=True)  # nobody goes on with it
        server.end()
        limit = time.monotonic() + servers.STOP_LIMIT_S
        while (WAITING not in server.tail() or listens(server)) and time.monotonic() < limit:
            time.sleep(0.05)
        for model in STRATEGIES:
            ask(model, 3, sequence_start=True)
            ask(model, 1)
            ask(model, 1, sequence_end=True)
        return [*seen, server.process.wait(servers.STOP_LIMIT_S)]


def test_sequences_at_a_stop(reference_installed: None, models: Path, tmp_path: Path) -> None:
    """A sequence that is silent is waited for, as long as its model says."""

    def seen(name: str, start: Start) -> list[object]:
        result: list[object] = []
        for attempt in range(servers.RESTARTS):
            server = start(models, tmp_path / f"{name}{attempt}", [])
            try:
                result = stopped(server)
            finally:
                server.stop()
            if not (server.mortal and server.process.returncode < 0):  # the reference, of a fault of its own
                break
        return result

    with ThreadPoolExecutor(2) as pool:
        theirs, ours = pool.map(seen, ("reference", "ours"), (servers.reference, servers.ours))
    assert theirs == [*["answered"] * 4, *[STOPPING, "answered", "answered"] * 2, 0]
    assert ours == theirs
