"""Models that are loaded when they are asked for, over both wires, on a real kernel in virtual time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from frontends.callers import Caller, message
from frontends.fakes import Client, infer, parse, tensor
from frontends.fakes import request as http_request
from frontends.fakes_grpc import floats, request
from frontends.wires import data
from live import Answering, Slowly, model
from virtual import run

from kernel import Budget, Kernel
from kernel_grpc.rpc.calls import open_call
from kernel_grpc.rpc.server import Server
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.admin import methods as admin_methods
from kernel_grpc.services.methods import inference_methods
from kernel_grpc.services.on_demand import on_demand
from kernel_http.frontend import MAX_INPUT_SIZE, make_server

BODY = {"inputs": [tensor("X", "FP32", [1], [1.0])]}
SERVICE = "/inference.GRPCInferenceService/"


def serving(folder: Path, **options: Any) -> Kernel:
    for k in range(3):
        model(folder, f"m{k}", k)
    model(folder, "broken", "no weights today")
    return Kernel(folder, plugins=[Answering()], control_mode="on-demand", **options)


def http(kernel: Kernel) -> Client:
    return Client(kernel, server=make_server(kernel, max_input_size=MAX_INPUT_SIZE))  # type: ignore[arg-type]


def grpc(kernel: Kernel) -> Caller:
    found = on_demand(kernel, [*inference_methods(kernel), *admin_methods(kernel, SimpleNamespace())])  # type: ignore[arg-type]
    like = SimpleNamespace(kernel=kernel, service=None, server=Server(kernel, found, open_call))  # type: ignore[arg-type]
    return Caller(like=like)  # type: ignore[arg-type]


def call(caller: Caller, method: str, payload: Any, *, end: bool = True) -> int:
    id = caller.begin(**{":path": SERVICE + method})
    caller.send(data(id, message(payload.SerializeToString()), end=end))
    return id


def inference(name: str, id: str = "") -> pb.ModelInferRequest:
    return request(name, ("X", "FP32", [1]), raw=[floats(5)], id=id)


def test_http_answers_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            Slowly(kernel, m0=3, m1=1)
            client = http(kernel)
            for name in ("m0", "m1", "broken", "nobody", "m0"):
                client.send(infer(name, BODY))
            await asyncio.sleep(2.9)
            assert client.take() == b""
            for _ in range(5):
                await asyncio.sleep(2.0)
                client.send(b"")  # what was held back, as nothing more was read
            answers = parse(client.take())
            assert [one.status for one in answers] == [200, 200, 503, 404, 200]
            assert [json.loads(one.body)["outputs"][0]["data"] for one in (answers[0], answers[1], answers[4])] == [[0], [1], [0]]
            assert "model 'broken' can't be loaded: load failed" in answers[2].error
            assert answers[3].error == "Request for unknown model: 'nobody' is not found"
            client.send(infer("m1", BODY) * 3)  # by a recipe, once it is known
            await asyncio.sleep(0.1)
            assert [one.status for one in parse(client.take())] == [200] * 3

    run(main())


def test_http_metadata_config_and_readiness(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, budget=Budget(models=1)) as kernel:
            client = http(kernel)
            for name in ("m0", "m1"):
                for path in ("", "/config", "/versions/1"):
                    client.send(http_request("GET", f"/v2/models/{name}{path}"))
                    await asyncio.sleep(5.0)
                    (answer,) = parse(client.take())
                    assert (answer.status, json.loads(answer.body)["name"]) == (200, name)
            client.send(http_request("GET", "/v2/models/m2/ready") + http_request("GET", "/v2/models/nobody/ready"))
            await asyncio.sleep(1.0)
            assert [one.status for one in parse(client.take())] == [200, 400]
            assert [one.name for one in kernel.models()] == ["m1"], "who only asks whether it is ready has nothing loaded"

    run(main())


def test_an_http_client_that_goes_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            Slowly(kernel, m0=3)
            gone, stays = http(kernel), http(kernel)
            gone.send(infer("m0", BODY))
            stays.send(infer("m0", BODY))
            await asyncio.sleep(1.0)
            gone.lose()
            await asyncio.sleep(5.0)
            assert [one.status for one in parse(stays.take())] == [200]
            assert kernel.statistics("m0")[0].success.count == 1
            assert kernel.memory.receive.used == 0

    run(main())


def test_grpc(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            Slowly(kernel, m0=3)
            caller = grpc(kernel)
            names = ["m0", "m1", "broken", "nobody", "m0"]
            ids = [call(caller, "ModelInfer", inference(name)) for name in names]
            given_up = call(caller, "ModelInfer", inference("m0"))
            meta = call(caller, "ModelMetadata", pb.ModelMetadataRequest(name="m2"))
            await asyncio.sleep(1.0)
            caller.cancel(given_up)
            await asyncio.sleep(4.0)
            caller.read()
            assert [caller.answers[id].status for id in ids] == [0, 0, 14, 5, 0]
            response = pb.ModelInferResponse.FromString(caller.answers[ids[1]].messages[0][1])
            assert response.raw_output_contents == [floats(1)]
            assert caller.answers[meta].status == 0
            assert kernel.statistics("m0")[0].success.count == 2

    run(main())


def test_a_grpc_stream_keeps_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            Slowly(kernel, m0=3)
            caller = grpc(kernel)
            id = caller.begin(**{":path": SERVICE + "ModelStreamInfer"})
            names = ["m0", "m1", "broken", "m0"]
            for k, name in enumerate(names):
                caller.send(data(id, message(inference(name, str(k)).SerializeToString())))
            caller.send(data(id, b"", end=True))
            await asyncio.sleep(8.0)
            caller.read()
            answer = caller.answers[id]
            told = [pb.ModelStreamInferResponse.FromString(payload) for _, payload in answer.messages]
            assert [one.infer_response.id for one in told] == ["0", "1", "2", "3"]
            assert [one.error_message.partition(":")[0] for one in told] == ["", "", "model 'broken' can't be loaded", ""]
            assert answer.status == 0

    run(main())
