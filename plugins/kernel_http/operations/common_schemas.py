"""The schemas of the API that no model has of its own, by topic; and the pieces that all schemas are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["ANY_OBJECT", "COUNT", "DATATYPES", "TEXT", "Schema", "common_schemas", "item", "listed", "record", "ref"]

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: Schema | None = None, required: Sequence[str] = (), words: str = "") -> Schema:
    schema: Schema = {"type": "object"}
    if words:
        schema["description"] = words
    if properties:
        schema["properties"] = properties
    if required:
        schema["required"] = list(required)
    return schema


def listed(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_SCALAR: Schema = {"type": ["string", "integer", "number", "boolean"]}
ANY_OBJECT: Schema = {"type": "object"}
_DURATION = record({"count": COUNT, "ns": COUNT}, ("count", "ns"))


def item(datatype: str) -> Schema:
    """Return what one value of a tensor is in JSON."""
    if datatype == "BOOL":
        return {"type": ["boolean", "integer"]}
    if datatype == "BYTES":
        return {"type": "string"}
    if datatype.startswith(("INT", "UINT")):
        bits = int(datatype.lstrip("UINT"))
        low, high = (0, 2**bits - 1) if datatype[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return {"type": "integer", "minimum": low, "maximum": high}
    return {"type": "number"}


DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "BYTES")


# --- by topic ---------------------------------------------------------------------------------------------------------

_PARAMETERS = {
    "sequence_id": {"type": ["string", "integer"], "description": "the sequence that the request is one of"},
    "sequence_start": _FLAG,
    "sequence_end": _FLAG,
    "priority": COUNT | {"description": "1 is the most urgent, 0 the model's default"},
    "timeout": COUNT | {"description": "microseconds, for models whose queue policy heeds it"},
    "binary_data_output": _FLAG | {"description": "outputs that are not named come as binary data"},
}
_INPUT_PARAMETERS = {
    "binary_data_size": COUNT | {"description": "bytes of it behind the JSON, in the order of the inputs"},
    "shared_memory_region": TEXT,
    "shared_memory_offset": COUNT,
    "shared_memory_byte_size": COUNT,
}
_OUTPUT_PARAMETERS = {
    "binary_data": _FLAG,
    "classification": COUNT | {"description": "how many classes to answer instead of the values"},
    **{name: _INPUT_PARAMETERS[name] for name in list(_INPUT_PARAMETERS)[1:]},
}
_TENSOR = {"name": TEXT, "datatype": TEXT, "shape": listed(COUNT), "parameters": ANY_OBJECT, "data": {"type": "array"}}
_REQUESTED = {"name": TEXT, "parameters": record(_OUTPUT_PARAMETERS)}

#: Requests to models, and their answers.
INFERENCE: dict[str, Schema] = {
    "Error": record({"error": TEXT}, ("error",)),
    "RequestParameters": record(_PARAMETERS, (), "Further ones are the model's own: strings, numbers, booleans.")
    | {"additionalProperties": _SCALAR},
    "InputParameters": record(_INPUT_PARAMETERS),
    "RequestedOutput": record(_REQUESTED, ("name",)),
    "Tensor": record(_TENSOR, ("name", "datatype", "shape")),
    "InferRequest": record(
        {
            "id": TEXT,
            "parameters": ref("RequestParameters"),
            "inputs": listed(ref("Tensor")),
            "outputs": listed(ref("RequestedOutput")),
        },
        ("inputs",),
    ),
    "InferResponse": record(
        {
            "id": TEXT,
            "model_name": TEXT,
            "model_version": TEXT,
            "parameters": ANY_OBJECT,
            "outputs": listed(ref("Tensor")),
        },
        ("model_name", "model_version", "outputs"),
    ),
    "GenerateRequest": record(None, (), "A member for each input, a value or a list; further ones are parameters."),
    "GenerateResponse": record({"model_name": TEXT, "model_version": TEXT}, (), "A member for each output."),
}

_TOLD = {"name": TEXT, "datatype": TEXT, "shape": listed({"type": "integer"})}
_METADATA_TENSOR = record(_TOLD, ("name", "datatype", "shape"))
_SERVER = {"name": TEXT, "version": TEXT, "extensions": listed(TEXT)}

#: What the server says of itself and its models.
METADATA: dict[str, Schema] = {
    "ServerMetadata": record(_SERVER, ("name", "version", "extensions")),
    "ModelMetadata": record(
        {
            "name": TEXT,
            "versions": listed(TEXT),
            "platform": TEXT,
            "inputs": listed(_METADATA_TENSOR),
            "outputs": listed(_METADATA_TENSOR),
        },
        ("name", "versions", "platform", "inputs", "outputs"),
    ),
    "ModelConfig": record({"name": TEXT}, ("name",), "The model's config with all defaults."),
}

_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
_STATISTICS = record(
    {
        "name": TEXT,
        "version": TEXT,
        "last_inference": COUNT | {"description": "milliseconds since 1970, 0 for none"},
        "inference_count": COUNT,
        "execution_count": COUNT,
        "inference_stats": record(dict.fromkeys(_DURATIONS, _DURATION)),
        "response_stats": ANY_OBJECT,
        "batch_stats": listed(ANY_OBJECT),
    },
    ("name", "version", "inference_count", "execution_count", "inference_stats"),
)
_INFLIGHT = record({"model": TEXT, "version": {"type": "integer"}, "id": TEXT, "state": TEXT, "why": TEXT})

#: What goes on.
RUNNING: dict[str, Schema] = {
    "Statistics": record({"model_stats": listed(_STATISTICS)}, ("model_stats",)),
    "Inflight": record({"inflight": listed(_INFLIGHT)}, ("inflight",), "The requests that have no answer yet, oldest first."),
    "Scale": record({"server": ANY_OBJECT, "models": listed(ANY_OBJECT)}, ("server", "models")),
    "Explanations": record({"requests": listed(record({"lines": listed(TEXT)}, ("lines",)))}, ("requests",)),
    "Calls": record({"calls": listed(record({"caller": TEXT, "model": TEXT, "count": COUNT}))}, ("calls",)),
}

#: Which models are there, and what changes that.
REPOSITORY: dict[str, Schema] = {
    "RepositoryIndex": listed(
        record({"name": TEXT, "version": TEXT, "state": TEXT, "reason": TEXT}, ("name",), "No state: never loaded.")
    ),
    "IndexRequest": record({"ready": _FLAG | {"description": "only those that are served"}}),
    "LoadRequest": record(
        {
            "parameters": record(
                {"config": TEXT | {"description": "a model config as JSON, instead of the file"}},
                (),
                "`file:1/model.py` and the like are files, in base64; they need a `config`.",
            )
            | {"additionalProperties": TEXT}
        }
    ),
    "UnloadRequest": record({"parameters": record({"unload_dependents": _FLAG})}),
    "ReplacedReplicas": record({"replaced": {}}, ("replaced",)),
}

#: What can be set while the server runs.
SETTINGS: dict[str, Schema] = {
    "LogSettings": record(
        {
            "log_info": _FLAG,
            "log_warning": _FLAG,
            "log_error": _FLAG,
            "log_verbose_level": COUNT,
            "log_format": {"enum": ["default", "ISO8601", "json"]},
        }
    ),
    "TraceSettings": record(
        {
            "trace_level": listed(TEXT),
            "trace_rate": TEXT,
            "trace_count": TEXT,
            "log_frequency": TEXT,
            "trace_file": TEXT,
            "trace_mode": TEXT,
        }
    ),
}

#: Regions that clients register.
SHARED_MEMORY: dict[str, Schema] = {
    "RegionStatus": listed(record({"name": TEXT})),
    "SystemRegion": record({"key": TEXT, "offset": COUNT, "byte_size": COUNT}, ("key", "byte_size")),
    "CudaRegion": record(
        {
            "raw_handle": record({"b64": TEXT}, ("b64",)),
            "device_id": COUNT,
            "byte_size": COUNT,
        },
        ("raw_handle", "device_id", "byte_size"),
    ),
}


def common_schemas() -> dict[str, Schema]:
    """Return all of them by their names."""
    values = {f"Data.{datatype}": _data(datatype) for datatype in DATATYPES}
    return {**INFERENCE, **METADATA, **RUNNING, **REPOSITORY, **SETTINGS, **SHARED_MEMORY, **values}


def _data(datatype: str) -> Schema:
    return {
        "type": "array",
        "description": "The values in row-major order, flat or in nested lists; as many as the shape says.",
        "items": {"anyOf": [item(datatype), ref(f"Data.{datatype}")]},
    }
