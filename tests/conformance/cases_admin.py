"""What is no inference: what is asked and what is answered, in order, on both wires.

Cases of one story stand on one another and leave all as it was. `unless` says where the contract lets a wire differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .asks import Refused
from .words import wrong

__all__ = ["ANYTHING", "KEY", "STORIES", "Admin", "does"]

KEY = "/@KEY@"

#: An answer that isn't looked at, as long as it is no refusal.
ANYTHING = object()
_SAME = object()


@dataclass(frozen=True)
class Admin:
    """One operation of admin.py with its arguments, and what it returns; of a dict only the keys that are named here count.

    `KEY` in an argument or an answer stands for the key of a shared memory object of 256 bytes.
    """

    name: str
    operation: str
    arguments: tuple[Any, ...] = ()
    gives: Any = None
    named: Mapping[str, Any] = field(default_factory=dict)
    unless: Mapping[str, Any] = field(default_factory=dict)


def does(
    name: str, operation: str, *arguments: Any, gives: Any = None, http: Any = _SAME, grpc: Any = _SAME, **named: Any
) -> Admin:
    unless = {wire: answer for wire, answer in (("http", http), ("grpc", grpc)) if answer is not _SAME}
    return Admin(name, operation, arguments, gives, named, unless)


def unknown(model: str, more: str = "is not found") -> Refused:
    return wrong(f"Request for unknown model: '{model}' {more}", "NOT_FOUND")


def not_a_version(text: str) -> Refused:
    return wrong(
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


NO_PATH = wrong("Not Found", "NOT_FOUND")
HUGE = "99999999999999999999"

HEALTH = [
    does("live", "live", gives=True),
    does("ready", "ready", gives=True),
    does("model ready", "model_ready", "multi", gives=True),
    does("version ready", "model_ready", "multi", "1", gives=True),
    does("ensemble ready", "model_ready", "ensemble", gives=True),
    does("unknown version", "model_ready", "multi", "2", gives=False),
    does("version 0", "model_ready", "multi", "0", gives=False),
    does("unknown model", "model_ready", "nope", gives=False),
    does("a model that isn't loaded", "model_ready", "later", gives=False),
    does("version that is a word", "model_ready", "multi", "abc", http=NO_PATH, grpc=not_a_version("abc")),
    does("version that is too large", "model_ready", "multi", HUGE, gives=not_a_version(HUGE)),
    does(
        "version -1",
        "model_ready",
        "multi",
        "-1",
        http=NO_PATH,
        grpc=wrong("invalid model version specified '-1' , version should be an integral value > 0"),
    ),
]

EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]

METADATA = [
    does("server", "server", gives={"name": "conformance", "extensions": EXTENSIONS, "version": "..."}),
    does(
        "a model",
        "metadata",
        "batch8",
        gives={
            "name": "batch8",
            "versions": ["1"],
            "platform": "python",
            "inputs": [tensor("X", "FP32", -1, 2)],
            "outputs": [tensor("Y", "FP32", -1, 2)],
        },
    ),
    does("several versions", "metadata", "multi", gives={"versions": ["1", "3"], "inputs": [tensor("X", "FP32", 2)]}),
    does("one of them", "metadata", "multi", "1", gives={"name": "multi", "platform": "python"}),
    does(
        "an ensemble", "metadata", "ensemble", gives={"platform": "ensemble", "outputs": [tensor("Y", "FP32", -1, 2)]}
    ),
    does("strings", "metadata", "text1", gives={"inputs": [tensor("X", "BYTES", 1)]}),
    does(
        "reshape doesn't show",
        "metadata",
        "reshape",
        gives={"inputs": [tensor("S", "FP32", -1, 1), tensor("Q", "FP32", -1, 4)]},
    ),
    does("unknown model", "metadata", "nope", gives=unknown("nope")),
    does("unknown version", "metadata", "multi", "77", gives=unknown("multi", "version 77 is not found")),
    does("version that is too large", "metadata", "multi", HUGE, gives=not_a_version(HUGE)),
    does("config of an unknown model", "config", "nope", gives=unknown("nope")),
    does("config of an unknown version", "config", "multi", "2", gives=unknown("multi", "version 2 is not found")),
    does(
        "statistics of an unknown model", "statistics", "nope", gives=wrong("requested model 'nope' is not available")
    ),
    does(
        "statistics of an unknown version",
        "statistics",
        "multi",
        "2",
        gives=wrong("requested model version is not available for model 'multi'"),
    ),
    does("statistics of a version", "statistics", "multi", "1", gives={("multi", "1"): {"fail": 0}}),
]

# --- the repository --------------------------------------------------------------------------------------------------

POLLED = "failed to load '{}', failed to poll from model repository..."
CONFIG = {
    "backend": "python",
    "max_batch_size": 4,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
}
TWICE = b"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""
UNSPECIFIC = wrong("'repository_name' specification is not supported", "UNSUPPORTED")

REPOSITORY = [
    does("unloaded", "model_ready", "later", gives=False),
    does("load", "load", "later"),
    does("ready after load", "model_ready", "later", gives=True),
    does("load again", "load", "later"),
    does("load with a config", "load", "later", config=json.dumps(CONFIG)),
    does("config after that", "metadata", "later", gives={"inputs": [tensor("X", "FP32", -1, 2)]}),
    does(
        "load with a file",
        "load",
        "later",
        files={"1/model.py": TWICE},
        config=json.dumps({**CONFIG, "max_batch_size": 3}),
    ),
    does(
        "load with a file but no config",
        "load",
        "later",
        files={"1/model.py": TWICE},
        gives=wrong(POLLED.format("later"), "INTERNAL"),
    ),
    does(
        "load with a config that isn't JSON",
        "load",
        "later",
        config="{",
        gives=wrong(POLLED.format("later"), "INTERNAL"),
    ),
    does("ready after failures", "model_ready", "later", gives=True),
    does("load from the repository again", "load", "later"),
    does("metadata after that", "metadata", "later", gives={"inputs": [tensor("X", "FP32", 2)]}),
    does("unload", "unload", "later"),
    does("ready after unload", "model_ready", "later", gives=False),
    does("metadata after unload", "metadata", "later", gives=unknown("later", "has no available versions")),
    does(
        "metadata of a version after unload",
        "metadata",
        "later",
        "1",
        gives=wrong("Request for unknown model: 'later' version 1 is not at ready state", "UNAVAILABLE"),
    ),
    does("statistics after unload", "statistics", "later", gives=wrong("requested model 'later' is not available")),
    does("unload again", "unload", "later"),
    does("unload of an unknown model", "unload", "nope"),
    does("load of an unknown model", "load", "nope", gives=wrong(POLLED.format("nope"), "NOT_FOUND")),
    does(
        "load with an unknown parameter",
        "load",
        "later",
        foo="x",
        http=wrong("unexpected error on creating Triton parameter", "INTERNAL"),
        grpc=wrong("unrecognized load parameter 'foo'."),
    ),
    does(
        "load with a config that is a number",
        "load",
        "later",
        config=5,
        http=wrong("...'config'...attempt to access JSON non-string as string..."),
        grpc=wrong("invalid value type for load parameter 'config', expected string_param."),
    ),
    does(
        "unload with dependents that are a number",
        "unload",
        "later",
        unload_dependents=1,
        http=wrong("...'unload_dependents'...attempt to access JSON non-boolean as boolean..."),
        grpc=wrong("invalid value type for 'unload_dependents' parameter, expected bool_param."),
    ),
    does("load from a repository by name", "load", "later", repository="some", gives=UNSPECIFIC),
    does("unload from a repository by name", "unload", "later", repository="some", gives=UNSPECIFIC),
    does("index by name", "index", True, "some", http=ANYTHING, grpc=UNSPECIFIC),
    does(
        "load of one that fails",
        "load",
        "initialize_fails",
        gives=wrong(
            "load failed for model 'initialize_fails': version 1 is at UNAVAILABLE state: Internal: ValueError: no luck today..."
        ),
    ),
    does("ready after that", "model_ready", "initialize_fails", gives=False),
    does("an ensemble brings its step along", "load", "outer"),
    does("the step is ready", "model_ready", "inner", gives=True),
    does("unload with dependents", "unload", "outer", unload_dependents=True),
    does("the step is gone", "model_ready", "inner", gives=False),
    # Leaves no failure behind: the server would not be ready.
    does("what has failed is unloaded", "unload", "initialize_fails"),
]

#: Story -> its cases. Those of regions and settings are in cases_settings.py.
STORIES: dict[str, list[Admin]] = {"health": HEALTH, "metadata": METADATA, "repository": REPOSITORY}
