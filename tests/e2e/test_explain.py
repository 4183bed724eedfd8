"""A real server tells why a request waited: beside its answer, by `kernel explain`, and of all replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

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
