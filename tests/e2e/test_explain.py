"""A real server tells why a request waited: beside its answer, by `kernel explain`, and of all replicas."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from kernel_grpc.schemas import grpc_service_pb2 as pb

from .serving import REPOSITORY, run, serving

BODY = {
    "id": "mine",
    "inputs": [{"name": name, "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]} for name in "AB"],
}


@pytest.mark.parametrize("more", [(), ("--replicas=2",)], ids=["alone", "replicas"])
def test_a_request_is_explained(tmp_path: Path, more: tuple[str, ...]) -> None:
    with serving(tmp_path, REPOSITORY, "--model-control-mode=explicit", "--load-model=add_sub", *more) as server:
        status, told = server.request("POST", "/v2/models/add_sub/infer", BODY, **{"x-explain": "1"})
        assert status == 200 and told["parameters"]["explain"].startswith("request 'mine' of model 'add_sub' version 1, ")
        address = server.url.removeprefix("http://")
        for _ in range(4):  # whichever replica is asked
            done = run("explain", address, "--id", "mine")
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("request 'mine' of model 'add_sub' version 1, ") and "executed" in done.stdout
        assert run("explain", address).returncode == 0
        assert run("explain", address, "--failed", "1").returncode == 1


def test_a_call_is_explained(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    with serving(tmp_path, REPOSITORY, "--model-control-mode=explicit", "--load-model=add_sub") as server:
        port = re.search(r"Started GRPCInferenceService at [^ ]+:(\d+)", server.text())
        assert port is not None
        message = pb.ModelInferRequest(model_name="add_sub", id="mine")
        for name in "AB":
            message.inputs.add(name=name, datatype="FP32", shape=[1])
            message.raw_input_contents.append(bytes(4))
        with grpc.insecure_channel(f"127.0.0.1:{port[1]}") as channel:
            method = "/inference.GRPCInferenceService/ModelInfer"
            infer = channel.unary_unary(method, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString)
            for asks in (True, False, True):
                answer, call = infer.with_call(message, timeout=30, metadata=[("x-explain", "1")] * asks)
                told = {key: value for key, value in call.trailing_metadata() if key in ("server-timing", "x-explain")}
                assert (len(told), "explain" in answer.parameters) == ((2, True) if asks else (0, False))
                if asks:
                    words = answer.parameters["explain"].string_param
                    assert words.startswith("request 'mine' of model 'add_sub' version 1, ")
                    assert unquote(told["x-explain"]) == words and told["server-timing"].startswith("total;dur=")
