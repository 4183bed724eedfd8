"""SIGTERM with gRPC clients that have a stream open and nothing on it: they are told, and nobody waits for them. And the log."""

from __future__ import annotations

import queue
import re
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from certificates import make_certificates
from tritonclient.utils import InferenceServerException

from kernel_grpc.schemas import health_pb2

from .serving import ECHO, Server, serving, wait_until, write_model

GRPC = ("--grpc-address=127.0.0.1", "--grpc-port=0")


def started(server: Server) -> str:
    found: list[str] = []
    wait_until(lambda: found.extend(re.findall(r'"Started GRPCInferenceService at (\S+)"', server.text())) or found)
    return found[0]


def test_idle_streams_are_not_waited_for(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo", ECHO)
    got: queue.Queue[Any] = queue.Queue()
    with serving(tmp_path, tmp_path / "models", *GRPC) as server:
        url = started(server)
        with triton.InferenceServerClient(url) as client, grpc.insecure_channel(url) as channel:
            client.start_stream(lambda result, error: got.put(error or result))
            tensor = triton.InferInput("X", [1], "FP32")
            tensor.set_data_from_numpy(__import__("numpy").array([1], "float32"))
            client.async_stream_infer("echo", [tensor])
            assert not isinstance(got.get(timeout=10), Exception)
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert health_pb2.HealthCheckResponse.FromString(next(watch)).status == 1
            reflection = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
            asked = reflection(iter(queue.Queue().get, None))
            begun = time.monotonic()
            server.signal()
            assert server.wait() == 0
            assert time.monotonic() - begun < 8
            error = got.get(timeout=10)
            assert isinstance(error, InferenceServerException) and error.status() == "StatusCode.UNAVAILABLE"
            assert error.message() == "GRPC server is shutting down and has stopped accepting new requests."
            asked.cancel()


@pytest.mark.parametrize("tls", [False, True])
def test_log_of_the_start(tmp_path: Path, tls: bool) -> None:
    write_model(tmp_path / "models", "echo", ECHO)
    files = make_certificates(tmp_path)
    flags = [
        f"--{kind}-{name}"
        for kind in ("grpc", "http")
        for name in ("use-ssl", f"server-cert={files.server}", f"server-key={files.server_key}")
    ]
    server = Server(tmp_path / "log", [tmp_path / "models", f"--grpc-address=unix:{tmp_path}/grpc", *flags * tls])
    try:
        assert started(server) == f"unix:{tmp_path}/grpc"
        name = "HTTPSService" if tls else "HTTPService"
        wait_until(lambda: re.search(rf'"Started {name} at 127\.0\.0\.1:\d+"', server.text()))
    finally:
        server.process.terminate()
        assert server.wait() == 0
