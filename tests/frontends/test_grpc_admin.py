"""Every RPC of the service but inference, on a real kernel in virtual time: rows, words and codes of grpc_protocol 2 and 6."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.grpc_calls import Caller, Failed, answer_of
from virtual import BASE, TestBackend, run, write_repository

from kernel import EXTENSIONS, Code, Kernel, LogSettings, __version__
from kernel.frontends.restriction import CATEGORIES
from kernel_grpc.inference.large import ON_LOOP
from kernel_grpc.inference.wire import varint
from kernel_grpc.rpc.unary import parsed
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services import admin, repository

BATCHED = BASE + "max_batch_size: 8\n"
ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""

Test = Callable[[Caller, Kernel], Awaitable[None]]


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., None]:
    """Return what runs a test on a kernel that serves `m` (versions 1 and 3) and `batched` (version 1)."""
    write_repository(tmp_path, {"m": BASE + "version_policy { all {} }\n"}, (1, 3))
    write_repository(tmp_path, {"batched": BATCHED, "other": BASE})

    def serve(test: Test, name: str = "", **options: Any) -> None:
        async def main() -> None:
            given = {"control_mode": "explicit", "load_models": ["m", "batched"], **options}
            async with Kernel(tmp_path, plugins=[TestBackend({})], **given) as kernel:
                await test(Caller(admin.methods(kernel, argparse.Namespace(id=name))), kernel)

        run(main())

    return serve


@contextmanager
def fails(code: Code, message: str) -> Iterator[None]:
    with pytest.raises(Failed) as caught:
        yield
    assert (caught.value.code, caught.value.message) == (code, message)


def test_every_method_is_there_and_has_its_category() -> None:
    async def main() -> None:
        methods = admin.methods(Kernel(), argparse.Namespace())
        categories = {method.path.rpartition("/")[2]: method.category for method in methods}
        inference = {"ModelInfer", "ModelStreamInfer"}
        assert categories.keys() == set(pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name) - inference
        assert set(categories.values()) == set(CATEGORIES) - {"inference"}
        assert {name for name, category in categories.items() if category == "health"} == {
            "ServerLive",
            "ServerReady",
            "ModelReady",
        }
        assert {name for name, category in categories.items() if category == "metadata"} == {
            "ServerMetadata",
            "ModelMetadata",
        }
        assert categories["ModelConfig"] == "model-config"
        assert categories["ModelStatistics"] == "statistics"
        assert categories["RepositoryModelLoad"] == "model-repository"
        assert categories["CudaSharedMemoryRegister"] == "shared-memory"
        assert (categories["TraceSetting"], categories["LogSettings"]) == ("trace", "logging")

    run(main())


# -- the server --------------------------------------------------------------------------------------------------------


def test_live_and_ready(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        assert client.ask("ServerLive").live is True
        assert client.ask("ServerReady").ready is True
        kernel.is_ready = lambda: False  # type: ignore[method-assign]
        assert client.ask("ServerReady").ready is False
        assert client.ask("ServerLive").live is True
        await kernel.stop()
        for name in ("ServerLive", "ServerReady"):
            with fails(Code.UNAVAILABLE, "Server exiting"):
                client.ask(name)

    serve(test)


def test_server_metadata(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        metadata = client.ask("ServerMetadata")
        assert (metadata.name, metadata.version) == ("triton", __version__)
        assert tuple(metadata.extensions) == EXTENSIONS

    serve(test)

    async def named(client: Caller, kernel: Kernel) -> None:
        assert client.ask("ServerMetadata").name == "mine"

    serve(named, "mine")


@pytest.mark.parametrize("name", ["ServerLive", "ModelReady", "RepositoryModelLoad", "TraceSetting"])
def test_what_is_no_message(serve: Callable[..., None], name: str) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        with pytest.raises(Failed) as caught:
            answer_of(client.start(name, b"\x0a\xff"), name)
        assert caught.value.code is Code.INVALID_ARG
        assert caught.value.message.startswith(f"Unable to parse request as inference.{name}Request: ")

    serve(test)


def test_messages_in_writable_memory(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        data = np.frombuffer(pb.ModelReadyRequest(name="m").SerializeToString(), np.uint8).copy()
        assert answer_of(client.start("ModelReady", data), "ModelReady").ready  # type: ignore[arg-type]

    serve(test)


# -- models ------------------------------------------------------------------------------------------------------------

NO_NUMBER = (
    "failed to get model version from specified version string 'abc' (details: stol), "
    "version should be an integral value > 0"
)
NEGATIVE = "invalid model version specified '-{}' , version should be an integral value > 0"


def test_model_ready(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        def ready(name: str, version: str = "") -> bool:
            return bool(client.ask("ModelReady", pb.ModelReadyRequest(name=name, version=version)).ready)

        assert ready("m") and ready("m", "1") and ready("m", "3")
        assert not ready("m", "2") and not ready("m", "0")
        assert not ready("nope") and not ready("") and not ready("other")

    serve(test)


@pytest.mark.parametrize("told", [True, False])
def test_a_model_that_is_asked_whether_it_is_ready(serve: Callable[..., None], told: bool) -> None:
    """The answer comes when the model has said it, also to a client that has gone meanwhile."""

    async def test(client: Caller, kernel: Kernel) -> None:
        asked: list[Any] = []
        kernel.ask_model_ready = lambda name, version, reply: asked.append((name, version, reply))  # type: ignore[method-assign]
        call = client.start("ModelReady", pb.ModelReadyRequest(name="m", version="1").SerializeToString())
        assert asked[0][:2] == ("m", "1")
        asked[0][2](told)
        assert answer_of(call, "ModelReady").ready is told

    serve(test)


@pytest.mark.parametrize("name", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"])
@pytest.mark.parametrize("model", ["m", "nope"])
def test_versions_that_are_none(serve: Callable[..., None], name: str, model: str) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        request = getattr(pb, f"{name}Request")
        if (name, model) != ("ModelStatistics", "nope"):
            with fails(Code.INVALID_ARG, NO_NUMBER):
                client.ask(name, request(name=model, version="abc"))
            with fails(Code.INVALID_ARG, NEGATIVE.format(2)):
                client.ask(name, request(name=model, version="-2"))
        with fails(Code.INVALID_ARG, NEGATIVE.format(1)):
            client.ask(name, request(name=model, version="-1"))

    serve(test)


@pytest.mark.parametrize("name", ["ModelMetadata", "ModelConfig"])
def test_models_that_are_not_there(serve: Callable[..., None], name: str) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        request = getattr(pb, f"{name}Request")
        with fails(Code.NOT_FOUND, "Request for unknown model: 'nope' is not found"):
            client.ask(name, request(name="nope"))
        with fails(Code.NOT_FOUND, "Request for unknown model: 'm' version 2 is not found"):
            client.ask(name, request(name="m", version="2"))
        kernel.unload("batched")
        with fails(Code.NOT_FOUND, "Request for unknown model: 'batched' has no available versions"):
            client.ask(name, request(name="batched"))
        with fails(Code.UNAVAILABLE, "Request for unknown model: 'batched' version 1 is not at ready state"):
            client.ask(name, request(name="batched", version="1"))

    serve(test)


def test_model_metadata(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        metadata = client.ask("ModelMetadata", pb.ModelMetadataRequest(name="m"))
        wanted = pb.ModelMetadataResponse(name="m", versions=["1", "3"], platform="test")
        wanted.inputs.add(name="X", datatype="FP32", shape=[-1])
        wanted.outputs.add(name="Y", datatype="FP32", shape=[-1])
        assert metadata == wanted
        assert client.ask("ModelMetadata", pb.ModelMetadataRequest(name="m", version="1")).versions == ["1"]
        batched = client.ask("ModelMetadata", pb.ModelMetadataRequest(name="batched"))
        assert (batched.inputs[0].shape, batched.outputs[0].shape) == ([-1, -1], [-1, -1])

    serve(test)


def test_model_config(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        config = client.ask("ModelConfig", pb.ModelConfigRequest(name="batched")).config
        assert config.SerializeToString(deterministic=True) == kernel.model("batched").config.message.SerializeToString(
            deterministic=True
        )
        assert (config.name, config.max_batch_size, config.input[0].dims) == ("batched", 8, [-1])

    serve(test)


def test_statistics(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        for _ in range(3):
            await kernel.infer("batched", {"X": np.ones((2, 4), np.float32)})
        (stats,) = client.ask("ModelStatistics", pb.ModelStatisticsRequest(name="batched")).model_stats
        assert (stats.name, stats.version, stats.inference_count, stats.execution_count) == ("batched", "1", 6, 3)
        assert stats.last_inference > 0
        assert (stats.inference_stats.success.count, stats.inference_stats.queue.count) == (3, 3)
        assert [(each.batch_size, each.compute_infer.count) for each in stats.batch_stats] == [(2, 3)]
        assert not stats.response_stats and not stats.memory_usage
        for name in ("fail", "cache_hit", "cache_miss"):  # there, though nothing happened
            assert stats.inference_stats.HasField(name) and not getattr(stats.inference_stats, name).count

        def shown(**request: str) -> list[tuple[str, str]]:
            response = client.ask("ModelStatistics", pb.ModelStatisticsRequest(**request))
            return [(each.name, each.version) for each in response.model_stats]

        assert shown() == shown(version="1") == [("batched", "1"), ("m", "1"), ("m", "3")]
        assert shown(name="m") == [("m", "1"), ("m", "3")]
        assert shown(name="m", version="3") == [("m", "3")]
        with fails(Code.INVALID_ARG, "requested model 'nope' is not available"):
            shown(name="nope")
        with fails(Code.INVALID_ARG, "requested model version is not available for model 'm'"):
            shown(name="m", version="2")

    serve(test)


# -- the repository ----------------------------------------------------------------------------------------------------


def test_index(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        def index(**request: Any) -> list[tuple[str, str, str, str]]:
            lines = client.ask("RepositoryIndex", pb.RepositoryIndexRequest(**request)).models
            return [(line.name, line.version, line.state, line.reason) for line in lines]

        ready = [("batched", "1", "READY", ""), ("m", "1", "READY", ""), ("m", "3", "READY", "")]
        assert index() == [*ready, ("other", "", "", "")]
        assert index(ready=True) == ready
        kernel.unload("batched")
        await asyncio.sleep(1)
        assert index()[0] == ("batched", "1", "UNAVAILABLE", "unloaded")

    serve(test)


@pytest.mark.parametrize("name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_a_repository_that_is_named(serve: Callable[..., None], name: str) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        with fails(Code.UNSUPPORTED, "'repository_name' specification is not supported"):
            client.ask(name, getattr(pb, f"{name}Request")(repository_name="x"))

    serve(test)


def load_request(name: str, **parameters: Any) -> pb.RepositoryModelLoadRequest:
    request = pb.RepositoryModelLoadRequest(model_name=name)
    for key, value in parameters.items():
        parameter = request.parameters[key.replace("file_", "file:")]
        match value:
            case bool():
                parameter.bool_param = value
            case int():
                parameter.int64_param = value
            case str():
                parameter.string_param = value
            case bytes():
                parameter.bytes_param = value
    return request


async def load(client: Caller, name: str, **parameters: Any) -> None:
    call = client.start("RepositoryModelLoad", load_request(name, **parameters).SerializeToString())
    await asyncio.sleep(1)
    answer_of(call, "RepositoryModelLoad")


def test_load_and_unload(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        await load(client, "other")
        assert kernel.is_model_ready("other")
        assert client.ask("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="other")) is not None
        assert not kernel.is_model_ready("other")
        client.ask("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="nope"))

    serve(test)


def test_load_with_config_and_files(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        config = {
            "backend": "test",
            "max_batch_size": 4,
            "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
            "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
        }
        await load(client, "other", config=json.dumps(config))
        assert kernel.model("other").config.max_batch_size == 4
        parameters = {"config": json.dumps(config), "file_1/labels.txt": b"\xff\x00"}
        await load(client, "fresh", **parameters)
        assert (kernel.model("fresh").model_folder / "1" / "labels.txt").read_bytes() == b"\xff\x00"

    serve(test)


def test_large_files_of_a_load_are_not_parsed(serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser would copy them in one call, which holds the interpreter; they are written from where they have come."""
    config = {
        "backend": "test",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    files = {f"file_1/{k}": bytes([k]) * (ON_LOOP * k + 1) for k in range(4)}
    seen: list[int] = []

    def noted(kind: Any, data: Any) -> Any:
        seen.append(len(data))
        return parsed(kind, data)

    monkeypatch.setattr(repository, "parsed", noted)

    async def test(client: Caller, kernel: Kernel) -> None:
        await load(client, "fresh", config=json.dumps(config), **files)
        folder = kernel.model("fresh").model_folder / "1"
        assert {f"file_1/{file.name}": file.read_bytes() for file in folder.iterdir()} == files
        assert seen == [pytest.approx(len(json.dumps(config)), abs=200)]
        call = client.start("RepositoryModelLoad", load_request("m", config="x" * 2**20).SerializeToString())
        assert call.failure == (Code.INVALID_ARG, "the request has more than 1048576 bytes besides the contents of its files")
        odd = b"\x1a" + varint(100_004) + b"\x12" + varint(100_000) + bytes(100_000)  # a value without a name
        call = client.start("RepositoryModelLoad", load_request("m").SerializeToString() + odd)
        assert call.failure[0] is Code.INVALID_ARG

    serve(test)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"config": 5}, "invalid value type for load parameter 'config', expected string_param."),
        ({"config": b"{}"}, "invalid value type for load parameter 'config', expected string_param."),
        ({"config": None}, "invalid value type for load parameter 'config', expected string_param."),
        ({"file_1/a": "x"}, "invalid value type for load parameter 'file:1/a', expected bytes_param."),
        ({"file_1/a": True}, "invalid value type for load parameter 'file:1/a', expected bytes_param."),
        ({"foo": "x"}, "unrecognized load parameter 'foo'."),
    ],
)
def test_load_parameters_that_are_wrong(serve: Callable[..., None], parameters: dict[str, Any], message: str) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        with fails(Code.INVALID_ARG, message):
            client.ask("RepositoryModelLoad", load_request("m", **parameters))

    serve(test)


@pytest.mark.parametrize("tail", [b"\x1a\x00" * 50_000, b"\x1a\x05\x0a\x03abc" * 50_000])
def test_a_load_of_more_parameters_than_are_looked_at(serve: Callable[..., None], tail: bytes) -> None:
    async def test(caller: Caller, kernel: Kernel) -> None:
        data = load_request("m").SerializeToString()
        cut = data + tail[:8000] + b"\x1a" * 70_000
        for message, words in ((data + tail, "more than 4096 fields and parameters"), (cut, "")):
            call = caller.start("RepositoryModelLoad", message)
            assert call.failure[0] is Code.INVALID_ARG and words in call.failure[1]
        large = load_request("m", **{"file:1/x": bytes(100_000), "config": 5})
        call = caller.start("RepositoryModelLoad", large.SerializeToString())
        assert call.failure[1].startswith("invalid value type for load parameter 'config'")

    serve(test)


def test_a_load_that_fails(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        with pytest.raises(Failed, match="failed to load 'nope', failed to poll from model repository"):
            await load(client, "nope")
        with pytest.raises(Failed, match="failed to load 'm', failed to poll from model repository"):
            await load(client, "m", config="not json")
        assert kernel.is_model_ready("m")

        async def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("by nought")

        kernel.load = broken  # type: ignore[method-assign]
        with fails(Code.INTERNAL, "ZeroDivisionError: by nought"):
            await load(client, "m")

    serve(test)


def test_the_client_gives_up_the_call_and_not_the_load(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        gate = asyncio.Event()
        really = kernel.load

        async def slow(name: str, **given: Any) -> None:
            await gate.wait()
            await really(name, **given)

        kernel.load = slow  # type: ignore[method-assign]
        given_up = client.start("RepositoryModelLoad", load_request("other").SerializeToString())
        waiting = client.start("RepositoryModelLoad", load_request("other").SerializeToString())
        await asyncio.sleep(1)
        assert not waiting.done
        assert client.ask("ServerReady").ready  # meanwhile
        given_up.cancel()
        gate.set()
        await asyncio.sleep(1)
        assert kernel.is_model_ready("other")
        answer_of(waiting, "RepositoryModelLoad")
        assert not given_up.sent and given_up.status is None

    serve(test)


@pytest.mark.parametrize("value", [1, "x", None])
def test_unload_dependents_of_another_type(serve: Callable[..., None], value: Any) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        request = pb.RepositoryModelUnloadRequest(model_name="m")
        parameters = load_request("m", unload_dependents=value).parameters
        request.parameters["unload_dependents"].CopyFrom(parameters["unload_dependents"])
        with fails(Code.INVALID_ARG, "invalid value type for 'unload_dependents' parameter, expected bool_param."):
            client.ask("RepositoryModelUnload", request)
        assert kernel.is_model_ready("m")

    serve(test)


def test_unload_parameters(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        calls: list[tuple[str, bool]] = []
        kernel.unload = lambda name, *, dependents=False: calls.append((name, dependents))  # type: ignore[method-assign]
        request = pb.RepositoryModelUnloadRequest(model_name="m")
        request.parameters["unheard_of"].string_param = "x"
        client.ask("RepositoryModelUnload", request)
        for value in (True, False):
            request.parameters["unload_dependents"].bool_param = value
            client.ask("RepositoryModelUnload", request)
        assert calls == [("m", False), ("m", True), ("m", False)]

    serve(test)


def test_no_load_without_explicit_mode(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        words = "explicit model load / unload is not allowed if polling is enabled "
        words += "(the model control mode is 'none', wanted is 'explicit')"
        with fails(Code.UNAVAILABLE, words):
            await load(client, "m")
        with fails(Code.UNAVAILABLE, words):
            client.ask("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="m"))

    serve(test, control_mode="none", load_models=[])


# -- shared memory -----------------------------------------------------------------------------------------------------


@pytest.fixture
def segment() -> Iterator[SharedMemory]:
    segment = SharedMemory(create=True, size=64)
    try:
        yield segment
    finally:
        segment.close()
        segment.unlink()


def test_system_shared_memory(serve: Callable[..., None], segment: SharedMemory) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        key = f"/{segment.name}"

        def register(name: str, key: str, offset: int, byte_size: int) -> None:
            request = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, offset=offset, byte_size=byte_size)
            client.ask("SystemSharedMemoryRegister", request)

        def regions(name: str = "") -> dict[str, tuple[str, str, int, int]]:
            response = client.ask("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=name))
            return {
                name: (each.name, each.key, each.offset, each.byte_size) for name, each in response.regions.items()
            }

        def unregister(name: str = "") -> None:
            client.ask("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=name))

        assert regions() == {}
        register("a", key, 0, 64)
        register("b", key, 32, 16)
        assert regions() == {"a": ("a", key, 0, 64), "b": ("b", key, 32, 16)}
        assert regions("b") == {"b": ("b", key, 32, 16)}
        with fails(Code.ALREADY_EXISTS, "shared memory region 'a' already in manager"):
            register("a", key, 0, 64)
        with fails(Code.INTERNAL, "Unable to open shared memory region: '/nobody-made-this'"):
            register("c", "/nobody-made-this", 0, 8)
        with fails(Code.NOT_FOUND, "Unable to find system shared memory region: 'c'"):
            regions("c")
        unregister("c")
        unregister("a")
        assert list(regions()) == ["b"]
        unregister()
        assert regions() == {}
        with fails(Code.INVALID_ARG, "failed to register shared memory region 'd': invalid args"):
            register("d", key, 60, 8)

    serve(test)


def test_cuda_shared_memory(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        assert not client.ask("CudaSharedMemoryStatus").regions
        with fails(Code.NOT_FOUND, "Unable to find cuda shared memory region: 'c'"):
            client.ask("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="c"))
        request = pb.CudaSharedMemoryRegisterRequest(name="c", raw_handle=bytes(64), byte_size=8)
        with fails(Code.INVALID_ARG, "failed to register shared memory region: invalid args"):
            client.ask("CudaSharedMemoryRegister", request)
        client.ask("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(name="c"))
        client.ask("CudaSharedMemoryUnregister")

    serve(test)


def test_shared_memory_that_is_not_allowed(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        for kind in ("System", "Cuda"):
            for operation in ("Register", "Unregister"):
                with pytest.raises(Failed, match="allow-client-shm") as caught:
                    client.ask(f"{kind}SharedMemory{operation}")
                assert caught.value.code is Code.UNSUPPORTED
            assert not client.ask(f"{kind}SharedMemoryStatus").regions

    serve(test, allow_client_shm=False)


# -- settings ----------------------------------------------------------------------------------------------------------

TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["triton"],
}


def trace(client: Caller, model: str = "", **changes: list[str]) -> dict[str, list[str]]:
    request = pb.TraceSettingRequest(model_name=model)
    for name, values in changes.items():
        request.settings[name].value.extend(values)
        request.settings[name].SetInParent()
    response = client.ask("TraceSetting", request)
    return {name: list(setting.value) for name, setting in response.settings.items()}


def test_trace_settings(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        assert trace(client) == TRACE
        assert trace(client, trace_rate=["500"], log_frequency=["7"]) == TRACE | {
            "trace_rate": ["500"],
            "log_frequency": ["7"],
        }
        assert trace(client, "m", trace_rate=["9"])["trace_rate"] == ["9"]
        assert trace(client)["trace_rate"] == ["500"]
        assert trace(client, "m", trace_rate=[])["trace_rate"] == ["500"]  # cleared: the global one counts
        assert trace(client, trace_rate=[], log_frequency=[]) == TRACE

    serve(test)


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"trace_rate": ["1", "2"]}, Code.INVALID_ARG, "expect only 1 value for 'trace_rate'"),
        ({"trace_count": ["1", "2"]}, Code.INVALID_ARG, "expect only 1 value for 'trace_count'"),
        ({"log_frequency": ["1", "2"]}, Code.INVALID_ARG, "expect only 1 value for 'log_frequency'"),
        ({"trace_rate": ["x"]}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
        ({"trace_level": ["OFF", "X"]}, Code.INVALID_ARG, "Expect only one trace level 'OFF' is specified"),
        (
            {"trace_level": ["TIMESTAMPS"]},
            Code.INVALID_ARG,
            "Attempting to set invalid trace setting :trace file name is not given",
        ),
        *(
            (
                {"trace_file": values},
                Code.UNSUPPORTED,
                "trace file location can not be updated through network protocol",
            )
            for values in ([], ["a"], ["a", "b"])
        ),
    ],
)
def test_trace_settings_that_are_wrong(
    serve: Callable[..., None], changes: dict[str, list[str]], code: Code, message: str
) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        with fails(code, message):
            trace(client, **changes)
        assert trace(client) == TRACE

    serve(test)


def test_trace_settings_of_a_model_that_is_not_there(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        for changes in ({}, {"trace_rate": ["5"]}):
            with fails(Code.INVALID_ARG, "Request for unknown model : nope"):
                trace(client, "nope", **changes)
        with pytest.raises(Failed, match="there is no trace setting 'trace_rte'"):
            trace(client, trace_rte=["5"])

    serve(test)


LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def log_settings(client: Caller, **changes: bool | int | str | None) -> dict[str, bool | int | str]:
    request = pb.LogSettingsRequest()
    for name, value in changes.items():
        setting = request.settings[name]
        match value:
            case bool():
                setting.bool_param = value
            case int():
                setting.uint32_param = value
            case str():
                setting.string_param = value
    response = client.ask("LogSettings", request)
    return {
        name: getattr(setting, setting.WhichOneof("parameter_choice")) for name, setting in response.settings.items()
    }


def test_log_settings(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        shown = log_settings(client)
        assert shown == LOG and {name: type(value) for name, value in shown.items()} == {
            name: type(value) for name, value in LOG.items()
        }
        assert log_settings(client, log_info=False, log_verbose_level=2, log_format="ISO8601") == LOG | {
            "log_info": False,
            "log_verbose_level": 2,
            "log_format": "ISO8601",
        }
        assert log_settings(client, unheard_of=1)["log_info"] is False

    serve(test, log_settings=LogSettings())


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        *(
            ({name: value}, Code.INVALID_ARG, f"expect boolean for '{name}'")
            for name in ("log_info", "log_warning", "log_error")
            for value in (1, "true", None)
        ),
        *(({"log_verbose_level": value}, Code.INVALID_ARG, "expect int32 for 'log_verbose_level'") for value in (True, "1")),
        ({"log_format": 1}, Code.INVALID_ARG, "expect string for 'log_format'"),
        ({"log_format": "x", "log_info": False}, Code.INVALID_ARG, "invalid argument for log_format, got: x"),
        *(
            ({"log_file": value}, Code.UNSUPPORTED, "log file location can not be updated through network protocol")
            for value in ("x", "", None, 5)
        ),
    ],
)
def test_log_settings_that_are_wrong(
    serve: Callable[..., None], changes: dict[str, Any], code: Code, message: str
) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        with fails(code, message):
            log_settings(client, **changes)
        assert log_settings(client) == LOG

    serve(test)


def test_statistics_of_responses(serve: Callable[..., None]) -> None:
    async def test(client: Caller, kernel: Kernel) -> None:
        statistics = kernel.model("batched").scheduler.statistics
        statistics.responded(0, "success", 1.0, 1.5, 2.0)
        statistics.responded(1, "empty_response", 1.0, 3.0, 3.0)
        (stats,) = client.ask("ModelStatistics", pb.ModelStatisticsRequest(name="batched")).model_stats
        first, second = stats.response_stats["0"], stats.response_stats["1"]
        assert [(one.count, one.ns) for one in (first.compute_infer, first.compute_output, first.success)] == [
            (1, 500_000_000), (1, 500_000_000), (1, 1_000_000_000),
        ]  # fmt: skip
        assert (second.empty_response.count, second.empty_response.ns, second.success.count) == (1, 2_000_000_000, 0)

    serve(test)
