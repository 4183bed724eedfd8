"""Everything but inference over gRPC. The operations are those of http_admin.py: plain values, or the refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from .asks import COUNTED, Refused
from .grpc_wire import GrpcWire

__all__ = ["GrpcAdmin"]


class GrpcAdmin:
    wire = "grpc"

    def __init__(self, wire: GrpcWire, headers: Mapping[str, str] | None = None) -> None:
        self._wire = wire
        self._headers = headers

    def _call(self, rpc: str, message: Any = None) -> Any:
        return self._wire.call(rpc, message, self._headers)

    def _done(self, rpc: str, message: Any = None) -> Any:
        """Call what answers nothing."""
        answer = self._call(rpc, message)
        if isinstance(answer, Refused):
            return answer
        assert not answer.ListFields()
        return None

    def live(self) -> Any:
        answer = self._call("ServerLive")
        return answer if isinstance(answer, Refused) else answer.live

    def ready(self) -> Any:
        answer = self._call("ServerReady")
        return answer if isinstance(answer, Refused) else answer.ready

    def model_ready(self, model: str, version: str = "") -> Any:
        answer = self._call("ModelReady", pb.ModelReadyRequest(name=model, version=version))
        return answer if isinstance(answer, Refused) else answer.ready

    def server(self) -> Any:
        answer = self._call("ServerMetadata")
        return answer if isinstance(answer, Refused) else json_format.MessageToDict(answer)

    def metadata(self, model: str, version: str = "") -> Any:
        answer = self._call("ModelMetadata", pb.ModelMetadataRequest(name=model, version=version))
        if isinstance(answer, Refused):
            return answer
        tensors = {
            kind: [
                {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
                for each in getattr(answer, kind)
            ]
            for kind in ("inputs", "outputs")
        }
        return {"name": answer.name, "versions": list(answer.versions), "platform": answer.platform, **tensors}

    def config(self, model: str, version: str = "") -> Any:
        answer = self._call("ModelConfig", pb.ModelConfigRequest(name=model, version=version))
        return answer if isinstance(answer, Refused) else answer.config

    def statistics(self, model: str = "", version: str = "") -> Any:
        answer = self._call("ModelStatistics", pb.ModelStatisticsRequest(name=model, version=version))
        if isinstance(answer, Refused):
            return answer
        return {
            (each.name, each.version): {
                "rows": each.inference_count,
                "executions": each.execution_count,
                **{name: getattr(each.inference_stats, name).count for name in COUNTED},
                "batches": {row.batch_size: row.compute_infer.count for row in each.batch_stats},
            }
            for each in answer.model_stats
        }

    def index(self, ready: bool = False, repository: str = "") -> Any:
        answer = self._call("RepositoryIndex", pb.RepositoryIndexRequest(ready=ready, repository_name=repository))
        if isinstance(answer, Refused):
            return answer
        return [(each.name, each.version, each.state, each.reason) for each in answer.models]

    def load(self, model: str, *, repository: str = "", files: Mapping[str, bytes] | None = None, **given: Any) -> Any:
        message = pb.RepositoryModelLoadRequest(model_name=model, repository_name=repository)
        for path, content in (files or {}).items():
            message.parameters[f"file:{path}"].bytes_param = content
        for name, value in given.items():
            self._set(message.parameters[name], value)
        return self._done("RepositoryModelLoad", message)

    def unload(self, model: str, *, repository: str = "", **given: Any) -> Any:
        message = pb.RepositoryModelUnloadRequest(model_name=model, repository_name=repository)
        for name, value in given.items():
            self._set(message.parameters[name], value)
        return self._done("RepositoryModelUnload", message)

    def _set(self, parameter: Any, value: Any) -> None:
        setattr(parameter, {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)], value)

    def register(self, region: str, key: str, size: int, offset: int = 0) -> Any:
        message = pb.SystemSharedMemoryRegisterRequest(name=region, key=key, byte_size=size, offset=offset)
        return self._done("SystemSharedMemoryRegister", message)

    def unregister(self, region: str = "") -> Any:
        return self._done("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=region))

    def regions(self, region: str = "") -> Any:
        answer = self._call("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=region))
        if isinstance(answer, Refused):
            return answer
        assert all(name == each.name for name, each in answer.regions.items())
        return {each.name: (each.key, each.offset, each.byte_size) for each in answer.regions.values()}

    def cuda_register(self, region: str, handle: bytes, device: int, size: int) -> Any:
        message = pb.CudaSharedMemoryRegisterRequest(name=region, raw_handle=handle, device_id=device, byte_size=size)
        return self._done("CudaSharedMemoryRegister", message)

    def cuda_unregister(self, region: str = "") -> Any:
        return self._done("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(name=region))

    def cuda_regions(self, region: str = "") -> Any:
        answer = self._call("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name=region))
        return answer if isinstance(answer, Refused) else dict(answer.regions)

    def trace(self, model: str = "", **changes: Any) -> Any:
        message = pb.TraceSettingRequest(model_name=model)
        for name, values in changes.items():
            message.settings[name].value.extend(values or ())
        answer = self._call("TraceSetting", message)
        return (
            answer
            if isinstance(answer, Refused)
            else {name: list(each.value) for name, each in answer.settings.items()}
        )

    def log(self, **changes: Any) -> Any:
        message = pb.LogSettingsRequest()
        for name, value in changes.items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(message.settings[name], kind, value)
        answer = self._call("LogSettings", message)
        if isinstance(answer, Refused):
            return answer
        return {name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in answer.settings.items()}
