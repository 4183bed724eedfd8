"""`--model-control-mode=on-demand` with the clients that people use: who is asked for is loaded, and budgets hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from .serving import ECHO, run, serving, wait_until, write_model

CALLER = """\
    def execute(self, requests):
        out = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            call = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=[x])
            answer = call.exec()
            if answer.has_error():
                raise RuntimeError(answer.error().message())
            out.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return out
"""

LARGE = """\
    def initialize(self, args):
        self.weights = np.ones(300 << 20, np.uint8)

""" + ECHO

PROCESS = 'parameters { key: "placement" value { string_value: "process" } }'


def test_clients_see_no_difference(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "inner")
    write_model(repository, "caller", CALLER)
    write_model(repository, "apart", CALLER, more=PROCESS)
    arguments = ("--model-control-mode=on-demand", "--model-budget=1")
    with serving(tmp_path, repository, *arguments) as server:
        assert "loading" not in server.text()
        found = re.search(r"Started GRPCInferenceService at (127\.0\.0\.1:\d+)", server.text())
        assert found is not None
        for module, url in ((tritonclient.http, server.url), (tritonclient.grpc, found[1])):
            with module.InferenceServerClient(url) as client:
                assert client.is_server_ready()
                for name in ("caller", "apart", "inner", "caller"):
                    assert client.is_model_ready(name)
                    metadata = client.get_model_metadata(name)
                    assert (metadata["name"] if isinstance(metadata, dict) else metadata.name) == name
                    x = module.InferInput("X", [2], "FP32")
                    x.set_data_from_numpy(np.array([1, 2], np.float32))
                    assert client.infer(name, [x]).as_numpy("Y").tolist() == [1, 2]
                with pytest.raises(Exception, match="Request for unknown model: 'nobody' is not found"):
                    client.get_model_metadata("nobody")
        wait_until(lambda: len(ready(server)) == 1)
    assert "Traceback" not in server.text()


def ready(server: object) -> list[str]:
    _, lines = server.request("POST", "/v2/repository/index", {"ready": True})  # type: ignore[attr-defined]
    return [line["name"] for line in lines]


def test_a_budget_of_memory(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "a", LARGE)
    write_model(repository, "b", LARGE, more=PROCESS)
    with serving(tmp_path, repository, "--model-control-mode=on-demand", f"--memory-budget={600 << 20}") as server:
        for name, other in (("a", "b"), ("b", "a"), ("a", "b")):
            assert server.infer(name, 1.0)[0] == 200
            wait_until(lambda name=name: ready(server) == [name], 10.0)  # type: ignore[misc]
            assert f"model '{other}' makes room" not in server.text().splitlines()[-1]
    assert "model 'a' makes room: it was last asked for" in server.text()


def test_flags_that_want_the_mode(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    done = run("serve", str(tmp_path / "models"), "--model-budget=3")
    assert done.returncode == 1
    assert "a budget of models wants the model control mode 'on-demand'" in done.stderr
