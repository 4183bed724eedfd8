"""Keys on a real server, with the unmodified clients; and docs/auth.md is true."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from frontends.keys import write_keys
from tritonclient.utils import InferenceServerException

from kernel_auth.book import parse_book

from .serving import REPOSITORY, Server, run, serving, wait_until

DOCS = (Path(__file__).parents[2] / "docs" / "auth.md").read_text()
CLIENTS = {
    "user": 'may = [{ models = ["add_sub"], categories = ["inference"] }]',
    "slow": 'rate = 0.01\nburst = 1\nmay = [{ models = ["*"], categories = ["*"] }]',
    "all": 'may = [{ models = ["*"], categories = ["*"] }]',
}

@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("auth")
    write_keys(folder / "keys.toml", clients=CLIENTS)
    with serving(folder, REPOSITORY, "--auth-keys", folder / "keys.toml") as server:
        yield server


def header(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}"}


def test_tritonclient_over_http(server: Server) -> None:
    inputs = [triton.InferInput(name, [3], "FP32") for name in ("A", "B")]
    for one in inputs:
        one.set_data_from_numpy(np.ones(3, dtype=np.float32))
    with triton.InferenceServerClient(server.url) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="a key is needed"):
            client.infer("add_sub", inputs)
        for _ in range(5):
            assert client.infer("add_sub", inputs, headers=header("user")).as_numpy("SUM").tolist() == [2, 2, 2]
        with pytest.raises(InferenceServerException, match="client 'user' may not use 'inference' of model 'repeat'"):
            client.infer("repeat", inputs, headers=header("user"))
        client.infer("add_sub", inputs, headers=header("slow"))
        with pytest.raises(InferenceServerException, match=r"client 'slow' may send 0\.01 requests a second"):
            client.infer("add_sub", inputs, headers=header("slow"))


def test_tritonclient_over_grpc(server: Server) -> None:
    found = re.search(r"Started GRPCInferenceService at [^ ]+:(\d+)", server.text())
    assert found
    inputs = [triton_grpc.InferInput(name, [3], "FP32") for name in ("A", "B")]
    for one in inputs:
        one.set_data_from_numpy(np.ones(3, dtype=np.float32))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{found[1]}") as client:
        assert client.is_server_ready()
        for key, status in (("nobody", "UNAUTHENTICATED"), ("slow", "RESOURCE_EXHAUSTED")):
            with pytest.raises(InferenceServerException) as caught:
                for _ in range(2):
                    client.infer("add_sub", inputs, headers=header(key))
            assert caught.value.status() == f"StatusCode.{status}"
        with pytest.raises(InferenceServerException) as caught:
            client.get_model_metadata("add_sub", headers=header("user"))
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        for _ in range(5):
            assert client.infer("add_sub", inputs, headers=header("user")).as_numpy("SUM").tolist() == [2, 2, 2]
        answers: list[object] = []
        client.start_stream(lambda result, error: answers.append(error or result), headers=header("user"))
        client.async_stream_infer("add_sub", inputs)
        client.async_stream_infer("repeat", inputs)
        wait_until(lambda: len(answers) == 2)
        client.stop_stream()
        errors = [str(answer) for answer in answers if not isinstance(answer, triton_grpc.InferResult)]
        assert errors == ["client 'user' may not use 'inference' of model 'repeat'"]


def test_plain_http_and_the_audit(server: Server) -> None:
    statuses = []
    connection = http.client.HTTPConnection(server.url)
    for method, path, key in (
        ("GET", "/v2/health/ready", ""),
        ("GET", "/v2", ""),
        ("GET", "/v2", "key-user"),
        ("GET", "/v2", "key-all"),
        ("POST", "/v2/repository/index", "key-all"),
        ("POST", "/v2/logging", "key-all"),
    ):
        connection.request(method, path, b"{}" if method == "POST" else None, {"x-api-key": key} if key else {})
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    assert statuses == [200, 401, 403, 200, 200, 200]
    assert "audit result=allowed client=all" in server.text() and "audit result=forbidden client=user" in server.text()
    assert "key-" not in server.text().replace("--auth-keys", "")


def test_a_file_with_a_mistake_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('open = ["helth"]\n')
    done = run("serve", REPOSITORY, "--auth-keys", tmp_path / "keys.toml", "--http-port=0", "--grpc-port=0")
    assert done.returncode == 1 and f"{tmp_path}/keys.toml:1:1: there is no category 'helth'" in done.stdout + done.stderr


def test_the_files_in_the_document() -> None:
    made, whole, tokens = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    assert [client.name for text in (made, whole) for client in parse_book(text, "docs/auth.md").clients] == [
        "alice", "web", "operator",
    ]  # fmt: skip
    assert parse_book(tokens, "docs/auth.md").tokens is not None
