"""`kernel replay` of what a server has recorded: over both wires, decoupled models by streams."""

from __future__ import annotations

import json
import queue
import signal
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from .serving import run, serving, write_model
from .test_bench import MANY, grpc

LIMIT_S = 60.0


def test_decoupled_models_are_asked_by_streams(tmp_path: Path) -> None:
    models, recording, report = tmp_path / "models", tmp_path / "a.zip", tmp_path / "report.jsonl"
    write_model(models, "same")
    write_model(models, "many", MANY, more="model_transaction_policy { decoupled: true }")
    answers: queue.Queue[object] = queue.Queue()
    value = triton.InferInput("X", [1], "FP32")
    value.set_data_from_numpy(np.array([1], np.float32))
    with serving(tmp_path, models, f"--record={recording}", "--record-tensors") as server:
        with triton.InferenceServerClient(grpc(server).removeprefix("grpc://")) as client:
            client.infer("same", [value], request_id="1", parameters={"a": "b", "c": 2, "d": True})
            client.start_stream(lambda result, error: answers.put(error or result))
            client.async_stream_infer("many", [value], request_id="2")
            for _ in range(3):
                assert not isinstance(answers.get(timeout=LIMIT_S), Exception)
            client.stop_stream()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    with serving(tmp_path, models) as server:
        done = run("replay", recording, "--against", grpc(server), "--speed=max", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)["models"]
        assert {name: (one["sent"], one["same"]) for name, one in found.items()} == {"same": (1, 1), "many": (1, 1)}
        done = run("replay", recording, "--against", server.url, "--speed=max", "--report", report)
        assert done.returncode == 0, done.stdout + done.stderr
        why = "its model is decoupled and can't be asked over HTTP; --against grpc://HOST:PORT asks it"
        assert f"not compared of model 'many': 1: {why}" in done.stdout
        (line,) = map(json.loads, report.read_text().splitlines())
        assert (line["id"], line["actual"], line["words"]) == ("2", "not compared", why)
        done = run("replay", recording, "--against", f"grpc://{server.url}", "--speed=max")
        assert done.returncode == 1 and "is a port of HTTP, where that of gRPC is wanted" in done.stdout, done.stdout
    done = run("replay", recording, "--against", "grpc://127.0.0.1:1", "--speed=max")
    assert done.returncode == 1 and "it fails: UNAVAILABLE" in done.stdout, done.stdout + done.stderr
