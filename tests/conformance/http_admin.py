"""Everything but inference over HTTP. The operations are those of grpc_admin.py: plain values, or the refusal."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from .asks import COUNTED, Refused
from .http_wire import HttpWire

__all__ = ["HttpAdmin"]


def path_of(model: str, version: str) -> str:
    return f"/v2/models/{model}" + (f"/versions/{version}" if version else "")


class HttpAdmin:
    wire = "http"

    def __init__(self, wire: HttpWire, headers: Mapping[str, str] | None = None) -> None:
        self._wire = wire
        self._headers = headers

    def _get(self, path: str) -> Any:
        return self._ask("GET", path)

    def _post(self, path: str, body: Any = None) -> Any:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = self._wire.request(method, path, body, self._headers)
        return reply.json if reply.status == 200 else reply.refused()

    def live(self) -> Any:
        answer = self._get("/v2/health/live")
        return True if answer is None else answer

    def ready(self) -> Any:
        answer = self._get("/v2/health/ready")
        return True if answer is None else answer

    def model_ready(self, model: str, version: str = "") -> Any:
        answer = self._get(f"{path_of(model, version)}/ready")
        if isinstance(answer, Refused) and answer.message == "Model version not ready":
            return False
        return True if answer is None else answer

    def server(self) -> Any:
        return self._get("/v2")

    def metadata(self, model: str, version: str = "") -> Any:
        return self._get(path_of(model, version))

    def config(self, model: str, version: str = "") -> Any:
        answer = self._get(f"{path_of(model, version)}/config")
        return answer if isinstance(answer, Refused) else json_format.ParseDict(answer, model_config_pb2.ModelConfig())

    def statistics(self, model: str = "", version: str = "") -> Any:
        answer = self._get(f"{path_of(model, version)}/stats" if model else "/v2/models/stats")
        if isinstance(answer, Refused):
            return answer
        return {
            (each["name"], each["version"]): {
                "rows": each["inference_count"],
                "executions": each["execution_count"],
                **{name: each["inference_stats"][name]["count"] for name in COUNTED},
                "batches": {row["batch_size"]: row["compute_infer"]["count"] for row in each["batch_stats"]},
            }
            for each in answer["model_stats"]
        }

    def index(self, ready: bool = False, repository: str = "") -> Any:
        path = f"/v2/repository/{repository}/index" if repository else "/v2/repository/index"
        answer = self._post(path, {"ready": True} if ready else None)
        if isinstance(answer, Refused):
            return answer
        names = ("name", "version", "state", "reason")
        return [tuple(each.get(name, "") for name in names) for each in answer]

    def load(self, model: str, *, repository: str = "", files: Mapping[str, bytes] | None = None, **given: Any) -> Any:
        for path, content in (files or {}).items():
            given[f"file:{path}"] = base64.b64encode(content).decode()
        where = f"{repository}/models" if repository else "models"
        return self._post(f"/v2/repository/{where}/{model}/load", {"parameters": given} if given else None)

    def unload(self, model: str, *, repository: str = "", **given: Any) -> Any:
        where = f"{repository}/models" if repository else "models"
        return self._post(f"/v2/repository/{where}/{model}/unload", {"parameters": given} if given else None)

    def register(self, region: str, key: str, size: int, offset: int = 0) -> Any:
        body = {"key": key, "byte_size": size, "offset": offset}
        return self._post(f"/v2/systemsharedmemory/region/{region}/register", body)

    def unregister(self, region: str = "") -> Any:
        return self._post(f"/v2/systemsharedmemory{f'/region/{region}' if region else ''}/unregister")

    def regions(self, region: str = "") -> Any:
        answer = self._get(f"/v2/systemsharedmemory{f'/region/{region}' if region else ''}/status")
        if isinstance(answer, Refused):
            return answer
        return {each["name"]: (each["key"], each["offset"], each["byte_size"]) for each in answer}

    def cuda_register(self, region: str, handle: bytes, device: int, size: int) -> Any:
        body = {"raw_handle": {"b64": base64.b64encode(handle).decode()}, "device_id": device, "byte_size": size}
        return self._post(f"/v2/cudasharedmemory/region/{region}/register", body)

    def cuda_unregister(self, region: str = "") -> Any:
        return self._post(f"/v2/cudasharedmemory{f'/region/{region}' if region else ''}/unregister")

    def cuda_regions(self, region: str = "") -> Any:
        answer = self._get(f"/v2/cudasharedmemory{f'/region/{region}' if region else ''}/status")
        return answer if isinstance(answer, Refused) else {each["name"]: each for each in answer}

    def trace(self, model: str = "", **changes: Any) -> Any:
        path = f"{path_of(model, '') if model else '/v2'}/trace/setting"
        body = {name: value if value is None or name == "trace_level" else value[0] for name, value in changes.items()}
        answer = self._post(path, body) if changes else self._get(path)
        if isinstance(answer, Refused):
            return answer
        return {name: value if isinstance(value, list) else [value] for name, value in answer.items()}

    def log(self, **changes: Any) -> Any:
        return self._post("/v2/logging", changes) if changes else self._get("/v2/logging")
