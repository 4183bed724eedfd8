"""Every call of the unmodified `tritonclient.grpc`, sync and aio, that is not inference; health and reflection with grpcio."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import threading
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf import descriptor_pb2
from tritonclient.utils import InferenceServerException

from kernel_grpc.schemas import health_pb2, reflection_pb2

from .serving import BROKEN, ECHO, SLOW_TO_LOAD, Server, serving, wait_until, write_model

GRPC = ("--grpc-address=127.0.0.1", "--grpc-port=0")


def grpc_url(server: Server) -> str:
    """Return the address of the gRPC port once it is open."""
    found: list[str] = []
    wait_until(lambda: found.extend(re.findall(r"Started GRPCInferenceService at (127\.0\.0\.1:\d+)", server.text())) or found)
    return found[0]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "echo", ECHO)
    write_model(folder, "two", ECHO, more="version_policy { all {} } max_batch_size: 4", versions=(1, 3))
    write_model(folder, "later", ECHO)
    write_model(folder, "broken", BROKEN)
    write_model(folder, "slow", SLOW_TO_LOAD)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    loads = ("--model-control-mode=explicit", "--load-model=echo", "--load-model=two", "--id=mine")
    with serving(tmp_path_factory.mktemp("server"), repository, *loads, *GRPC) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return grpc_url(server)


class Waiting:
    """The aio client, each call waited for: so that one set of tests does for both."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._client = self._run(self._make, url)

    async def _make(self, url: str) -> Any:
        return triton_aio.InferenceServerClient(url)

    def _run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        async def main() -> Any:
            return await function(*arguments, **named)

        return self._runner.run(main())

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **named: self._run(method, *arguments, **named)

    def stop(self) -> None:
        self._run(self._client.close)
        self._runner.close()


@pytest.fixture(params=["sync", "aio"])
def client(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    if request.param == "sync":
        with triton.InferenceServerClient(url) as client:
            yield client
    else:
        waiting = Waiting(url)
        yield waiting
        waiting.stop()


def refused(status: str, message: str) -> Any:
    return pytest.raises(InferenceServerException, match=rf"^\[StatusCode\.{status}\] {re.escape(message)}")


def test_server(client: Any) -> None:
    assert client.is_server_live() is True
    assert client.is_server_ready(headers={"some": "header"}, client_timeout=5.0) is True
    assert client.get_server_metadata().name == "mine"
    extensions = client.get_server_metadata(as_json=True)["extensions"]
    assert {"system_shared_memory", "statistics", "trace", "logging"} <= set(extensions)


def test_models(client: Any) -> None:
    assert client.is_model_ready("two") and client.is_model_ready("two", "3")
    assert not client.is_model_ready("two", "2") and not client.is_model_ready("nobody")
    assert client.get_model_metadata("two", as_json=True) == {
        "name": "two",
        "versions": ["1", "3"],
        "platform": "python",
        "inputs": [{"name": "X", "datatype": "FP32", "shape": ["-1", "-1"]}],
        "outputs": [{"name": "Y", "datatype": "FP32", "shape": ["-1", "-1"]}],
    }
    assert client.get_model_metadata("two", "1").versions == ["1"]
    config = client.get_model_config("two").config
    assert (config.name, config.backend, config.max_batch_size) == ("two", "python", 4)
    assert config.input[0].dims == [-1]
    assert client.get_model_config("two", as_json=True)["config"]["instance_group"][0]["kind"] == "KIND_CPU"
    with refused("NOT_FOUND", "Request for unknown model: 'nobody' is not found"):
        client.get_model_metadata("nobody")
    with refused("INVALID_ARGUMENT", "failed to get model version from specified version string 'abc' (details: stol)"):
        client.get_model_config("two", "abc")


def test_statistics(client: Any) -> None:
    def count() -> int:
        (stats,) = client.get_inference_statistics("echo").model_stats
        return int(stats.inference_stats.success.count)

    before = count()
    tensor = triton.InferInput("X", [2], "FP32")
    tensor.set_data_from_numpy(np.ones(2, np.float32))
    client.infer("echo", [tensor])
    assert count() == before + 1
    shown = client.get_inference_statistics(as_json=True)["model_stats"]
    assert [(each["name"], each["version"]) for each in shown] == [("echo", "1"), ("two", "1"), ("two", "3")]
    with refused("INVALID_ARGUMENT", "requested model 'nobody' is not available"):
        client.get_inference_statistics("nobody")


def test_repository(client: Any, server: Server) -> None:
    index = client.get_model_repository_index(as_json=True)["models"]
    assert {"name": "two", "version": "3", "state": "READY"} in index
    assert "later" in {line["name"] for line in index}
    client.load_model("later")
    assert client.is_model_ready("later")
    client.load_model("later", config=json.dumps({"backend": "python", "max_batch_size": 2}))
    assert client.get_model_config("later").config.max_batch_size == 2
    client.unload_model("later")
    assert not client.is_model_ready("later")
    client.unload_model("later", unload_dependents=True)
    client.unload_model("nobody")
    with pytest.raises(InferenceServerException, match="failed to load 'nobody', failed to poll from model repository"):
        client.load_model("nobody")
    wait_until(client.is_server_ready)  # nothing is unloading any more


def test_load_with_files(client: Any, repository: Path) -> None:
    config = {
        "backend": "python",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    files = {"file:1/model.py": (repository / "echo/1/model.py").read_bytes()}
    client.load_model("brought", config=json.dumps(config), files=files)
    assert client.is_model_ready("brought", "1")
    client.unload_model("brought")


def test_shared_memory(client: Any) -> None:
    segment = SharedMemory(create=True, size=64)
    try:
        client.register_system_shared_memory("region", f"/{segment.name}", 48, offset=16)
        shown = client.get_system_shared_memory_status().regions["region"]
        assert (shown.name, shown.key, shown.offset, shown.byte_size) == ("region", f"/{segment.name}", 16, 48)
        assert list(client.get_system_shared_memory_status("region", as_json=True)["regions"]) == ["region"]
        with refused("ALREADY_EXISTS", "shared memory region 'region' already in manager"):
            client.register_system_shared_memory("region", f"/{segment.name}", 64)
        client.unregister_system_shared_memory("region")
        with refused("NOT_FOUND", "Unable to find system shared memory region: 'region'"):
            client.get_system_shared_memory_status("region")
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
    finally:
        segment.close()
        segment.unlink()


def test_cuda_shared_memory(client: Any) -> None:
    handle = b"QUFB" * 22  # the client decodes it
    with refused("INVALID_ARGUMENT", ""):
        client.register_cuda_shared_memory("region", handle, 0, 64)
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_cuda_shared_memory("region")
    client.unregister_cuda_shared_memory()


def test_trace_settings(client: Any) -> None:
    assert client.get_trace_settings().settings["trace_rate"].value == ["1000"]
    changed = client.update_trace_settings(settings={"trace_rate": "500", "log_frequency": "7"})
    assert changed.settings["trace_rate"].value == ["500"]
    changed = client.update_trace_settings("echo", settings={"trace_rate": "9"}, as_json=True)
    assert changed["settings"]["trace_rate"] == {"value": ["9"]}
    assert client.get_trace_settings().settings["trace_rate"].value == ["500"]
    client.update_trace_settings("echo", settings={"trace_rate": None})
    assert client.get_trace_settings("echo").settings["trace_rate"].value == ["500"]
    client.update_trace_settings(settings={"trace_rate": None, "log_frequency": None})
    assert client.get_trace_settings().settings["log_frequency"].value == ["0"]
    with refused("INVALID_ARGUMENT", "Request for unknown model : nobody"):
        client.get_trace_settings("nobody")
    with refused("INVALID_ARGUMENT", "expect only 1 value for 'trace_rate'"):
        client.update_trace_settings(settings={"trace_rate": ["1", "2"]})


def test_log_settings(client: Any) -> None:
    assert client.get_log_settings(as_json=True)["settings"]["log_info"] == {"bool_param": True}
    changed = client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601", "log_warning": False})
    assert changed.settings["log_verbose_level"].uint32_param == 1
    assert changed.settings["log_format"].string_param == "ISO8601"
    assert changed.settings["log_warning"].bool_param is False
    client.update_log_settings({"log_verbose_level": 0, "log_format": "default", "log_warning": True})
    with refused("INVALID_ARGUMENT", "expect boolean for 'log_info'"):
        client.update_log_settings({"log_info": None})
    with refused("INVALID_ARGUMENT", "invalid argument for log_format, got: x"):
        client.update_log_settings({"log_format": "x"})


# -- loads that take their time, and who watches -----------------------------------------------------------------------


def check(channel: grpc.Channel, service: str = "") -> int:
    ask = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return int(ask(health_pb2.HealthCheckRequest(service=service), timeout=10).status)


class Watcher:
    """Watches the health service on a thread: the states as they come, and in the end the status."""

    def __init__(self, channel: grpc.Channel) -> None:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        self.call = watch(health_pb2.HealthCheckRequest())
        self.seen: queue.Queue[Any] = queue.Queue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for response in self.call:
                self.seen.put(response.status)
            self.seen.put(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            self.seen.put((error.code(), error.details()))

    def next(self) -> Any:
        return self.seen.get(timeout=10)


def test_a_slow_load_holds_up_nobody(url: str, repository: Path) -> None:
    """It outlives the call that asked for it, and the server is not ready meanwhile."""
    folder = repository / "slow/1"
    with triton.InferenceServerClient(url) as client, grpc.insecure_channel(url) as channel:
        watcher = Watcher(channel)
        assert watcher.next() == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.load_model("slow", client_timeout=1.0)
        assert (folder / "loading").exists()
        assert watcher.next() == health_pb2.HealthCheckResponse.NOT_SERVING
        assert check(channel, "whatever") == health_pb2.HealthCheckResponse.NOT_SERVING
        assert client.is_server_live() and not client.is_server_ready()
        (folder / "go").touch()
        wait_until(lambda: client.is_model_ready("slow"))
        assert watcher.next() == health_pb2.HealthCheckResponse.SERVING
        assert check(channel) == health_pb2.HealthCheckResponse.SERVING
        client.unload_model("slow")
        wait_until(client.is_server_ready)
        watcher.call.cancel()
        while not isinstance(end := watcher.next(), tuple):  # what the unload looked like
            pass
        assert end[0] is grpc.StatusCode.CANCELLED
        watcher.thread.join(10)


def test_a_failed_load_is_seen_and_a_stop_ends_the_watch(repository: Path, tmp_path: Path) -> None:
    flags = ("--model-control-mode=explicit", "--load-model=echo")
    with serving(tmp_path, repository, *flags, *GRPC) as server, grpc.insecure_channel(grpc_url(server)) as channel:
        watcher = Watcher(channel)
        assert watcher.next() == health_pb2.HealthCheckResponse.SERVING
        with triton.InferenceServerClient(grpc_url(server)) as client:
            words = "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: "
            with refused("INVALID_ARGUMENT", words):
                client.load_model("broken")
            (line,) = (line for line in client.get_model_repository_index().models if line.name == "broken")
            assert (line.state, "no weights today" in line.reason) == ("UNAVAILABLE", True)
            assert not client.is_server_ready()
        assert watcher.next() == health_pb2.HealthCheckResponse.NOT_SERVING
        server.signal()
        assert watcher.next() == (grpc.StatusCode.UNAVAILABLE, "Server exiting")
        watcher.thread.join(10)
        assert server.wait() == 0


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(url: str, version: str) -> None:
    with grpc.insecure_channel(url) as channel:
        reflect = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services="*"),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService.ModelInfer"),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="nobody.Knows"),
        ]
        services, file, unknown = reflect(iter(requests), timeout=10)
        names = [service.name for service in services.list_services_response.service]
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} < set(names)
        protos = [
            descriptor_pb2.FileDescriptorProto.FromString(data)
            for data in file.file_descriptor_response.file_descriptor_proto
        ]
        assert [proto.package for proto in protos] == ["inference", "inference"]
        assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
