"""The HTTP API as an OpenAPI 3.1 document: what does not depend on models here, and what one model adds to it.

Pure: records in, dicts out. Schemas say what the server takes and answers, and no more: what JSON Schema can't say of a tensor
(that its data has as many values as its shape says) stands in words. Answers may be wider than a config: a client may ask for
classes instead of values, and a model may err.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_http.operations.common_schemas import (
    ANY_OBJECT,
    COUNT,
    DATATYPES,
    TEXT,
    Schema,
    common_schemas,
    item,
    listed,
    record,
    ref,
)

__all__ = ["ModelFacts", "TensorFacts", "base_document", "described", "in_path", "model_parts"]

OPENAPI = "3.1.0"

#: Datatypes whose values JSON can't carry (docs/contract/http_protocol.md, 3.3).
BINARY_ONLY = frozenset({"FP16", "BF16"})

#: Names that stand in a path as they are: the server takes paths undecoded, so a name of other characters is asked for by gRPC.
_IN_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@-]+")
_KEY = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """`shape` has the batch dimension where the model batches; -1 is of any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the document says of a model. `versions`: those that are served, ascending; `inputs`, `outputs`: of the newest."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    decoupled: bool


def in_path(name: str) -> bool:
    """Whether a model of that name can be asked over HTTP."""
    return _IN_PATH.fullmatch(name) is not None


def described(tensor: TensorFacts) -> str:
    """Return `INT32 [-1, 4]`."""
    return f"{tensor.datatype} [{', '.join(map(str, tensor.shape))}]"


# --- pieces -----------------------------------------------------------------------------------------------------------


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


# --- routes -----------------------------------------------------------------------------------------------------------

_BINARY = (
    "With binary data: `Inference-Header-Content-Length` says how long the JSON is, and behind it stands the data of those "
    "inputs whose parameters have a `binary_data_size`."
)

#: Route, method, path, summary, schema of the body ("" for none), schema of the answer ("" for none).
Row = tuple[str, str, str, str, str, str]

_MODEL, _VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
_SYSTEM, _CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"

ROWS: tuple[Row, ...] = (
    ("infer", "post", f"{_MODEL}/infer", "Run an inference", "InferRequest", "InferResponse"),
    ("infer", "post", f"{_VERSION}/infer", "Run an inference", "InferRequest", "InferResponse"),
    ("generate", "post", f"{_MODEL}/generate", "Run an inference of plain members", "GenerateRequest", "GenerateResponse"),
    ("generate", "post", f"{_VERSION}/generate", "Run an inference of plain members", "GenerateRequest", "GenerateResponse"),
    ("generate_stream", "post", f"{_MODEL}/generate_stream", "The same, each response an event", "GenerateRequest", "events"),
    ("generate_stream", "post", f"{_VERSION}/generate_stream", "The same, each response an event", "GenerateRequest", "events"),
    ("live", "get", "/v2/health/live", "Whether the server runs", "", ""),
    ("ready", "get", "/v2/health/ready", "Whether the server is ready", "", ""),
    ("model_ready", "get", f"{_MODEL}/ready", "Whether a model is ready", "", ""),
    ("model_ready", "get", f"{_VERSION}/ready", "Whether a version of a model is ready", "", ""),
    ("server_metadata", "get", "/v2", "Name, version and extensions of the server", "", "ServerMetadata"),
    ("model_metadata", "get", _MODEL, "Versions, inputs and outputs of a model", "", "ModelMetadata"),
    ("model_metadata", "get", _VERSION, "Inputs and outputs of a version", "", "ModelMetadata"),
    ("model_config", "get", f"{_MODEL}/config", "The config of a model", "", "ModelConfig"),
    ("model_config", "get", f"{_VERSION}/config", "The config of a version", "", "ModelConfig"),
    ("statistics", "get", "/v2/models/stats", "Statistics of all models", "", "Statistics"),
    ("statistics", "get", f"{_MODEL}/stats", "Statistics of a model", "", "Statistics"),
    ("statistics", "get", f"{_VERSION}/stats", "Statistics of a version", "", "Statistics"),
    ("inflight", "get", "/v2/inflight", "The requests without an answer, and why they have none", "", "Inflight"),
    ("scale", "get", "/v2/kernel/scale", "How many instances and replicas there are and are to be", "", "Scale"),
    ("explain", "get", "/v2/kernel/explain/id/{id}", "Why requests of this id took as long as they did", "", "Explanations"),
    ("explain", "get", "/v2/kernel/explain/slowest", "Why the slowest requests took as long as they did", "", "Explanations"),
    ("explain", "get", "/v2/kernel/explain/slowest/{count}", "The same of so many", "", "Explanations"),
    ("explain", "get", "/v2/kernel/explain/failed", "What became of the requests that failed last", "", "Explanations"),
    ("explain", "get", "/v2/kernel/explain/failed/{count}", "The same of so many", "", "Explanations"),
    ("calls", "get", "/v2/kernel/calls", "Which models have called which, among the newest requests", "", "Calls"),
    ("logging", "get", "/v2/logging", "The settings of the log", "", "LogSettings"),
    ("logging", "post", "/v2/logging", "Change settings of the log", "LogSettings", "LogSettings"),
    ("trace", "get", "/v2/trace/setting", "The settings of tracing", "", "TraceSettings"),
    ("trace", "post", "/v2/trace/setting", "Change settings of tracing", "Settings", "TraceSettings"),
    ("trace", "get", f"{_MODEL}/trace/setting", "The settings of tracing of a model", "", "TraceSettings"),
    ("trace", "post", f"{_MODEL}/trace/setting", "Change settings of tracing of a model", "Settings", "TraceSettings"),
    ("index", "post", "/v2/repository/index", "The models of the repositories, their states", "IndexRequest", "RepositoryIndex"),
    ("load", "post", "/v2/repository/models/{model}/load", "Load a model, or load it anew", "LoadRequest", ""),
    ("unload", "post", "/v2/repository/models/{model}/unload", "Unload a model", "UnloadRequest", ""),
    ("replace_replicas", "post", "/v2/kernel/replicas/reload", "Replace one replica after another", "Empty", "ReplacedReplicas"),
    ("system_status", "get", f"{_SYSTEM}/status", "The regions of system shared memory", "", "RegionStatus"),
    ("system_status", "get", f"{_SYSTEM}/region/{{region}}/status", "One region", "", "RegionStatus"),
    ("system_register", "post", f"{_SYSTEM}/region/{{region}}/register", "Register a region", "SystemRegion", ""),
    ("system_unregister", "post", f"{_SYSTEM}/unregister", "Forget all regions", "", ""),
    ("system_unregister", "post", f"{_SYSTEM}/region/{{region}}/unregister", "Forget a region", "", ""),
    ("cuda_status", "get", f"{_CUDA}/status", "The regions of CUDA shared memory", "", "RegionStatus"),
    ("cuda_status", "get", f"{_CUDA}/region/{{region}}/status", "One region", "", "RegionStatus"),
    ("cuda_register", "post", f"{_CUDA}/region/{{region}}/register", "Register a region", "CudaRegion", ""),
    ("cuda_unregister", "post", f"{_CUDA}/unregister", "Forget all regions", "", ""),
    ("cuda_unregister", "post", f"{_CUDA}/region/{{region}}/unregister", "Forget a region", "", ""),
    ("openapi", "get", "/openapi.json", "This document", "", "Document"),
    ("docs", "get", "/docs", "This document for people", "", "page"),
)

#: What a body is that has no schema of its own.
_BODIES = {"Settings": ANY_OBJECT, "Empty": ANY_OBJECT}

#: What is no JSON, or none that is told here: the media type.
_ANSWERS = {"events": "text/event-stream", "page": "text/html; charset=utf-8"}

_TAGS = {
    "inference": "infer generate generate_stream",
    "health": "live ready model_ready",
    "models": "server_metadata model_metadata model_config statistics",
    "running": "inflight scale explain calls logging trace",
    "repository": "index load unload replace_replicas",
    "shared memory": "system_status system_register system_unregister cuda_status cuda_register cuda_unregister",
    "about": "openapi docs",
}
_TAG_OF = {route: tag for tag, routes in _TAGS.items() for route in routes.split()}

_COUNTED = {"count": {"type": "integer", "minimum": 1, "maximum": 100}, "version": {"type": "integer", "minimum": 1}}


def _answers(answer: str) -> Schema:
    """Return the responses of an operation."""
    well: Schema = {"description": "OK"}
    if answer in _ANSWERS:
        well["content"] = {_ANSWERS[answer]: {"schema": TEXT} if answer == "page" else {}}
    elif answer:
        well["content"] = _json(ANY_OBJECT if answer == "Document" else ref(answer))
    return {"200": well} | {kind: {"$ref": f"#/components/responses/{kind}"} for kind in ("4XX", "5XX")}


def _operation(route: str, path: str, summary: str, body: Schema | None, answers: Schema, id: str) -> Schema:
    operation: Schema = {"operationId": id, "summary": summary, "tags": [_TAG_OF[route]]}
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _COUNTED.get(name, {"type": "string", "minLength": 1})}
            for name in names
        ]
    if body is not None:
        operation["requestBody"] = {"content": body, "required": route in _REQUIRED}
    if route == "infer":
        operation["description"] = _BINARY
    return operation | {"responses": answers}


#: Routes that want a body. Others take one.
_REQUIRED = frozenset({"infer", "generate", "generate_stream", "logging", "trace", "system_register", "cuda_register"})


def _infer_body(schema: str) -> Schema:
    return _json(ref(schema)) | {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def base_document(name: str, version: str, *, keys: bool) -> Schema:
    """Return the document without any model. `keys`: clients have to have one."""
    paths: dict[str, Schema] = {}
    for route, method, path, summary, body, answer in ROWS:
        content = None
        if body:
            content = _infer_body(body) if route == "infer" else _json(_BODIES.get(body) or ref(body))
        words = re.sub(r"\W+", "_", path.removeprefix("/v2").replace("{", "by_")).strip("_") or "v2"
        operation = _operation(route, path, summary, content, _answers(answer), f"{method}_{words}")
        paths.setdefault(path, {})[method] = operation
    either = {"application/json": {"schema": ref("Error")}, "text/plain": {"schema": TEXT}}
    document: Schema = {
        "openapi": OPENAPI,
        "info": {
            "title": name,
            "version": version,
            "description": "The KServe v2 protocol with Triton's extensions, and what this server adds. Made of the models "
            "that are loaded: those have paths and schemas of their own.",
        },
        "servers": [{"url": "./"}],
        "tags": [{"name": tag} for tag in _TAGS],
        "paths": paths,
        "components": {
            "schemas": common_schemas(),
            "responses": {
                "4XX": {"description": "What was wrong with the request", "content": either},
                "5XX": {"description": "Why it was not served", "content": either},
            },
        },
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


# --- models -----------------------------------------------------------------------------------------------------------


def key_of(name: str) -> str:
    """Return a model's name as components may be called; two names never become one."""
    if _KEY.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}-{digest}"


def model_parts(model: ModelFacts) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """Return what a model adds to the document's paths, and to its schemas."""
    key = key_of(model.name)
    prefix = f"model.{key}"
    schemas: dict[str, Schema] = {
        f"{prefix}.InferRequest": _request(model),
        f"{prefix}.InferResponse": _response(model),
        f"{prefix}.GenerateRequest": _flat(model),
    }
    if not in_path(model.name):
        return {}, schemas
    paths: dict[str, Schema] = {}
    shown = f"{model.name} ({', '.join(map(described, model.inputs))} → {', '.join(map(described, model.outputs))})"
    flat = _json(ref(f"{prefix}.GenerateRequest"))
    rows: Iterator[tuple[str, Schema, str]] = iter(
        [("generate_stream", flat, "events")]
        if model.decoupled
        else [
            ("infer", _infer_body(f"{prefix}.InferRequest"), f"{prefix}.InferResponse"),
            ("generate", flat, "GenerateResponse"),
        ]
    )
    for route, body, answer in rows:
        path = f"/v2/models/{model.name}/{route}"
        paths[path] = {"post": _operation(route, path, f"Ask {shown}", body, _answers(answer), f"{route}.{key}")}
        paths[path]["post"]["tags"] = ["inference"]
    return paths, schemas


def _request(model: ModelFacts) -> Schema:
    wanted = [tensor for tensor in model.inputs if not tensor.optional]
    inputs = listed({"anyOf": [_input(tensor) for tensor in model.inputs]}) if model.inputs else listed(ref("Tensor"))
    outputs: Schema = {"allOf": [ref("RequestedOutput")]}
    if model.outputs:
        outputs["properties"] = {"name": {"enum": [tensor.name for tensor in model.outputs]}}
    words = f"All of {', '.join(tensor.name for tensor in wanted)}, each once." if wanted else "None has to be there."
    return record(
        {
            "id": TEXT,
            "parameters": ref("RequestParameters"),
            "inputs": {**inputs, "minItems": len(wanted), "maxItems": len(model.inputs), "description": words},
            "outputs": listed(outputs),
        },
        ("inputs",),
        f"Versions {', '.join(map(str, model.versions))}; {model.platform}",
    )


def _input(tensor: TensorFacts) -> Schema:
    shape: Schema = {"type": "array", "items": COUNT, "minItems": len(tensor.shape), "maxItems": len(tensor.shape)}
    if tensor.shape and -1 not in tensor.shape:
        shape["const"] = list(tensor.shape)
    elif any(size >= 0 for size in tensor.shape):
        shape["prefixItems"] = [COUNT if size < 0 else {"const": size} for size in tensor.shape]
    properties: Schema = {
        "name": {"const": tensor.name},
        "datatype": {"const": tensor.datatype},
        "shape": shape,
        "parameters": ref("InputParameters"),
    }
    words = f"{described(tensor)}{', optional' if tensor.optional else ''}"
    if tensor.datatype in BINARY_ONLY:
        words += "; as binary data or from shared memory only"
    elif tensor.datatype in DATATYPES:
        properties["data"] = ref(f"Data.{tensor.datatype}")
    return record(properties, ("name", "datatype", "shape"), words)


def _response(model: ModelFacts) -> Schema:
    """Return the schema of an answer. Classes instead of values are BYTES of another shape."""
    named = {
        tensor.name: record(
            {
                "name": {"const": tensor.name},
                "datatype": {"enum": list(dict.fromkeys((tensor.datatype, "BYTES")))},
                "shape": listed(COUNT),
                "parameters": ANY_OBJECT,
                "data": {"type": "array"},
            },
            ("name", "datatype", "shape"),
            described(tensor),
        )
        for tensor in model.outputs
    }
    output = {"anyOf": list(named.values())} if named else ref("Tensor")
    return {"allOf": [ref("InferResponse"), record({"outputs": listed(output)})]}


def _flat(model: ModelFacts) -> Schema:
    """Return the schema of a body of generate."""
    members = {}
    for tensor in model.inputs:
        if tensor.datatype in DATATYPES:
            one = item(tensor.datatype)
            members[tensor.name] = {"anyOf": [one, listed(one)], "description": described(tensor)}
    wanted = [tensor.name for tensor in model.inputs if not tensor.optional and tensor.name in members]
    return record({"id": TEXT, **members}, wanted, "Further members are parameters of the request.")
