"""Every public call of the four unmodified clients of `tritonclient`, against one server; none is left out.

What each answers in detail is held elsewhere (conformance, reference); here it is that a program written for Triton finds each of
its calls at work, with whichever client it uses.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import json
import queue
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .serving import ECHO, serving, write_model
from .test_grpc_admin import grpc_url

CLIENTS = ("tritonclient.http", "tritonclient.http.aio", "tritonclient.grpc", "tritonclient.grpc.aio")

#: Answers as often as X[0] says, and then once more without data.
STREAM = """\
    def execute(self, requests):
        for r in requests:
            sender, x = r.get_response_sender(), r.inputs()[0].as_numpy()
            for _ in range(int(x[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

CUDA_REFUSED = "failed to register shared memory region: invalid args"


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "echo", ECHO)
    write_model(folder, "later", ECHO)
    write_model(folder, "stream", STREAM, more="model_transaction_policy { decoupled: true }")
    arguments = ("--model-control-mode=explicit", "--load-model=echo", "--load-model=stream")
    with serving(tmp_path_factory.mktemp("server"), folder, *arguments) as server:
        yield {"http": server.url, "grpc": grpc_url(server)}


class Asking:
    """A client whose calls are noted, and made the same way whether it is an asynchronous one or not."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.called: set[str] = set()

    async def __call__(self, name: str, *args: Any, **named: Any) -> Any:
        self.called.add(name)
        result = getattr(self.client, name)(*args, **named)
        return await result if inspect.isawaitable(result) else result


class Plugin:
    """Adds a header to each request of a client."""

    def __new__(cls, module: Any) -> Any:
        base = importlib.import_module("tritonclient._plugin").InferenceServerClientPlugin
        return type("Header", (base,), {"__call__": lambda self, request: request.headers.update({"x-who": "me"})})()


def plain(answer: Any) -> Any:
    """Return an answer as JSON values: HTTP gives those, gRPC gives messages."""
    if hasattr(answer, "DESCRIPTOR"):
        json_format = importlib.import_module("google.protobuf.json_format")
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)
    return answer


async def every_call(module: Any, client: Any, folder: Path) -> set[str]:
    """Make every call that all clients have, and those of this one; return their names."""
    over_http, asynchronous = "http" in module.__name__, module.__name__.endswith(".aio")
    ask = Asking(client)
    await ask("register_plugin", Plugin(module))
    assert await ask("plugin") is not None
    assert await ask("is_server_live")
    assert await ask("is_server_ready")
    assert await ask("is_model_ready", "echo", "1")
    assert not await ask("is_model_ready", "later")
    assert plain(await ask("get_server_metadata"))["name"] == "triton"
    assert plain(await ask("get_model_metadata", "echo"))["platform"] == "python"
    config = plain(await ask("get_model_config", "echo"))
    assert config.get("config", config)["backend"] == "python"
    index = plain(await ask("get_model_repository_index"))
    models = index["models"] if isinstance(index, dict) else index
    assert {model["name"] for model in models} == {"echo", "later", "stream"}
    await ask("load_model", "later")
    assert await ask("is_model_ready", "later")
    await ask("load_model", "later", config=json.dumps({**ECHO_CONFIG, "max_batch_size": 0}))
    await ask("unload_model", "later")

    x = module.InferInput("X", [2], "FP32")
    x.set_data_from_numpy(np.array([2, 5], np.float32))
    result = await ask("infer", "echo", [x], outputs=[module.InferRequestedOutput("Y")], request_id="7")
    assert result.as_numpy("Y").tolist() == [2, 5]
    statistics = plain(await ask("get_inference_statistics", "echo"))["model_stats"][0]
    assert int(statistics["inference_stats"]["success"]["count"]) > 0

    await ask("update_trace_settings", "echo", {"trace_rate": "500"})
    settings = plain(await ask("get_trace_settings", "echo"))
    rate = settings["settings"]["trace_rate"]["value"] if "settings" in settings else settings["trace_rate"]
    assert rate in ("500", ["500"])
    await ask("update_log_settings", {"log_verbose_level": 1})
    settings = plain(await ask("get_log_settings"))
    level = settings["settings"]["log_verbose_level"]["uint32_param"] if "settings" in settings else settings["log_verbose_level"]
    assert level == 1

    await shared_memory(module, ask, x)
    with pytest.raises(InferenceServerException, match=CUDA_REFUSED):
        await ask("register_cuda_shared_memory", "gpu", base64.b64encode(bytes(64)), 0, 64)
    assert not (plain(await ask("get_cuda_shared_memory_status")) or {}).get("regions")
    await ask("unregister_cuda_shared_memory")

    if over_http:
        await http_calls(module, ask, x, asynchronous)
    else:
        await grpc_calls(module, ask, x, asynchronous)
    await ask("unregister_plugin")
    await ask("close")
    return ask.called


ECHO_CONFIG = {
    "name": "later",
    "backend": "python",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
}


async def shared_memory(module: Any, ask: Asking, x: Any) -> None:
    """An inference whose input and output lie in a region."""
    region = SharedMemory(create=True, size=16)
    try:
        np.ndarray((4,), np.float32, region.buf)[:] = [8, 9, 0, 0]
        await ask("register_system_shared_memory", "both", f"/{region.name.lstrip('/')}", 16)
        status = plain(await ask("get_system_shared_memory_status"))
        assert "both" in json.dumps(status)
        shared, output = module.InferInput("X", [2], "FP32"), module.InferRequestedOutput("Y")
        shared.set_shared_memory("both", 8)
        output.set_shared_memory("both", 8, offset=8)
        await ask("infer", "echo", [shared], outputs=[output])
        assert np.ndarray((4,), np.float32, region.buf).tolist() == [8, 9, 8, 9]
        await ask("unregister_system_shared_memory", "both")
    finally:
        region.close()
        region.unlink()


async def http_calls(module: Any, ask: Asking, x: Any, asynchronous: bool) -> None:
    """What only the clients for HTTP have: requests and answers as bytes, and `async_infer` of the one with threads."""
    kind = module.InferenceServerClient
    body, length = kind.generate_request_body([x])
    assert json.loads(body[:length])["inputs"][0]["name"] == "X"
    answer = b'{"model_name":"echo","outputs":[{"name":"Y","datatype":"FP32","shape":[1],"data":[3.0]}]}'
    assert kind.parse_response_body(answer).as_numpy("Y").tolist() == [3]
    ask.called |= {"generate_request_body", "parse_response_body"}
    if not asynchronous:
        pending = await ask("async_infer", "echo", [x])
        assert pending.get_result().as_numpy("Y").tolist() == [2, 5]


async def grpc_calls(module: Any, ask: Asking, x: Any, asynchronous: bool) -> None:
    """Streams, and `async_infer` of the client with threads."""
    if asynchronous:

        async def requests() -> Any:
            yield {"model_name": "stream", "inputs": [x]}  # this client can't ask for an empty last response

        ask.called.add("stream_infer")
        seen = [(result, error) async for result, error in ask.client.stream_infer(requests())]
        assert [error for _, error in seen] == [None] * 2
        assert [result.as_numpy("Y").tolist() for result, _ in seen] == [[2, 5]] * 2
        return
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    await ask("async_infer", "echo", [x], callback=lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=30)
    assert error is None and result.as_numpy("Y").tolist() == [2, 5]
    await ask("start_stream", callback=lambda result, error: answers.put((result, error)))
    await ask("async_stream_infer", "stream", [x], enable_empty_final_response=True)
    got = [answers.get(timeout=30) for _ in range(3)]
    assert [error for _, error in got] == [None] * 3
    assert [result.as_numpy("Y") is not None for result, _ in got] == [True, True, False]
    await ask("stop_stream")


@pytest.mark.parametrize("name", CLIENTS)
def test_every_call(name: str, urls: dict[str, str], tmp_path: Path) -> None:
    module = importlib.import_module(name)

    async def main() -> set[str]:
        client = module.InferenceServerClient(urls["http" if ".http" in name else "grpc"])
        return await every_call(module, client, tmp_path)

    called = asyncio.run(main())
    public = {
        member for member, _ in inspect.getmembers(module.InferenceServerClient, callable) if not member.startswith("_")
    }
    assert called == public
