"""What is asked of both servers over gRPC beside inference: data, in the order in which it is sent.

`ADMIN` goes to servers that loaded models/plain, `CONTROL` to ones in explicit model control mode once EXPLICIT is told, as a
story of its own, and `RESTRICTED` to ones with restricted protocols.
"""

from __future__ import annotations

import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .cases import FILE_CONFIG, OTHER_CONFIG, TWICE
from .messages_grpc import X, ask, infer, parameters, request, stream, typed
from .wire_grpc import Call

__all__ = ["ADMIN", "CONTROL", "RESTRICTED", "RESTRICTIONS", "STATISTICS"]

HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo"

MODELS = (
    "types bf16 batch8 dynamic8 multi text1 variable2 reshape optional two behave decoupled completed ensemble ensemble_two "
    "ensemble_optional labels watch"
).split()
VERSIONS = ("1", "2", "3", "77", "0", "01", "-1", "-2", "abc", "1x", " 1", "1.5", "99999999999999999999")


def ready(name: str, model: str, version: str = "") -> Call:
    return ask(f"model ready: {name}", "ModelReady", pb.ModelReadyRequest(name=model, version=version))


def metadata(name: str, model: str, version: str = "") -> Call:
    return ask(f"metadata: {name}", "ModelMetadata", pb.ModelMetadataRequest(name=model, version=version))


def config(name: str, model: str, version: str = "") -> Call:
    return ask(f"config: {name}", "ModelConfig", pb.ModelConfigRequest(name=model, version=version))


ADMIN = [
    ask("live", "ServerLive"),
    ask("ready", "ServerReady"),
    ask("live, with metadata", "ServerLive", metadata=(("x-nothing", "1"), ("x-bin-bin", b"\x00"))),
    ask("live, with what is no message", "ServerLive", b"\xff\xff\xff"),
    ask("live, with an unknown field", "ServerLive", b"\xf8\x7f\x01"),
    ask("server metadata", "ServerMetadata"),
    ask("an unknown method", "Nope"),
    ask("an unknown service", "/inference.Nope/ServerLive"),
    ask("another package", "/GRPCInferenceService/ServerLive"),
    ask("health check", f"{HEALTH}/Check"),
    ask("health check of a service", f"{HEALTH}/Check", b"\x0a\x1einference.GRPCInferenceService"),
    ask("health check of an unknown service", f"{HEALTH}/Check", b"\x0a\x04nope"),
    ask("health check, no message", f"{HEALTH}/Check", b"\xff\xff\xff"),
    Call("gRPC: health watch", f"{HEALTH}/Watch", (b"",), stream=True, timeout_s=1.0),
    *(
        Call(f"gRPC: reflection {name}", REFLECTION.format(name), (b"\x3a\x00",), stream=True)
        for name in ("v1", "v1alpha")
    ),
    ready("yes", "multi"),
    ready("an ensemble", "ensemble"),
    ready("an unknown model", "nope"),
    ready("no name", ""),
    ready("no name, a version", "", "1"),
    *(ready(f"version {version!r}", "multi", version) for version in VERSIONS),
    *(metadata(model, model) for model in MODELS),
    *(metadata(f"version {version!r}", "multi", version) for version in VERSIONS),
    metadata("an unknown model", "nope"),
    metadata("an unknown version of an unknown model", "nope", "5"),
    metadata("no name", ""),
    *(config(model, model) for model in [*MODELS, "curious"]),
    *(config(f"version {version!r}", "multi", version) for version in ("1", "2", "-1", "abc")),
    config("an unknown model", "nope"),
    config("no name", ""),
    ask("index", "RepositoryIndex"),
    ask("index of what is ready", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
    ask("index with a repository's name", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="some")),
    ask("load without explicit mode", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="batch8")),
    ask("unload without explicit mode", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="batch8")),
    ask("load with a repository's name", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(repository_name="some")),
    ask(
        "unload with a repository's name",
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(repository_name="some"),
    ),
    # No case of a deadline that has passed: whether the client's own timer or the server answers first is a race of the
    # client's; tests/frontends/test_grpc_ends.py holds the server to it.
]

# --- statistics ------------------------------------------------------------------------------------------------------------

#: Durations and times are a matter of chance. The reference counts a request after it has answered it.
CHANCE = (r".*\.ns", r".*last_inference")


def stats(name: str, model: str = "", version: str = "", **more: Any) -> Call:
    message = pb.ModelStatisticsRequest(name=model, version=version)
    return ask(f"statistics: {name}", "ModelStatistics", message, mask=CHANCE, wait_s=0.1, **more)


def counted(name: str, first: float, rows: int = 1, model: str = "counted") -> Call:
    return infer(f"counted: {name}", model, [typed("X", "FP32", [rows, 2], [first] * (2 * rows))])


#: Told after the same over HTTP, so the numbers go on from there.
STATISTICS = [
    stats("before", "counted"),
    counted("one row", 1),
    counted("three rows", 1, 3),
    stats("of successes", "counted"),
    counted("refused", 1, 9),
    stats("after a refusal", "counted"),
    counted("an exception", -200),
    stats("after an exception", "counted"),
    counted("an error answer", -1),
    stats("after an error answer", "counted"),
    counted("an ensemble", 1, 2, "counted_ensemble"),
    stats("of an ensemble", "counted_ensemble"),
    counted("a failing ensemble", -200, 1, "counted_ensemble"),
    stats("of a failed ensemble", "counted_ensemble"),
    stream("counted: two requests", *(request("counted", [typed("X", "FP32", [1, 2], [1, 1])]) for _ in range(2))),
    stats("after a stream", "counted"),
    stats("of a decoupled model", "decoupled"),
    stats("of a version", "multi", "1"),
    stats("of several versions", "multi"),
    stats("of an unknown model", "nope"),
    stats("of an unknown version", "multi", "2"),
    stats("of a version that is a word", "multi", "abc"),
    stats("of version -1", "multi", "-1"),
]

# --- explicit mode ---------------------------------------------------------------------------------------------------------

FP32_2 = typed("X", "FP32", [2], [1, 2])


def load(name: str, model: str, **given: Any) -> Call:
    named = {key.replace("__", ":"): value for key, value in given.items()}
    message = pb.RepositoryModelLoadRequest(model_name=model, parameters=parameters(named, pb.ModelRepositoryParameter))
    return ask(f"load: {name}", "RepositoryModelLoad", message, settle=True)


def unload(name: str, model: str, **given: Any) -> Call:
    message = pb.RepositoryModelUnloadRequest(
        model_name=model, parameters=parameters(given, pb.ModelRepositoryParameter)
    )
    return ask(f"unload: {name}", "RepositoryModelUnload", message, settle=True)


def index(name: str) -> Call:
    return ask(f"index: {name}", "RepositoryIndex")


#: Each of the two needs a configuration of its own, or the reference takes the model for unchanged.
GRPC_CONFIG = json.dumps({**OTHER_CONFIG, "max_batch_size": 7})
GRPC_FILE_CONFIG = json.dumps({**FILE_CONFIG, "max_batch_size": 9})
FILE = "file:1/model.py"

CONTROL = [
    index("explicit, at the start"),
    stats("of all"),
    stats("of a version without a model", "", "1"),
    ready("explicit, what isn't loaded", "later"),
    unload("something", "later"),
    ready("after unload", "later"),
    ready("a version after unload", "later", "1"),
    metadata("after unload", "later"),
    metadata("a version after unload", "later", "1"),
    config("after unload", "later"),
    stats("after unload", "later"),
    infer("infer after unload", "later", [FP32_2]),
    infer("infer a version after unload", "later", [FP32_2], version="1"),
    stream("infer after unload", request("later", [FP32_2], id="u")),
    unload("again", "later"),
    unload("an unknown model", "nope"),
    unload("no name", ""),
    unload("a parameter that is unknown", "later", what=1),
    unload("dependents, a number", "later", unload_dependents=1),
    unload("dependents, a string", "later", unload_dependents="true"),
    unload("dependents, false", "later", unload_dependents=False),
    load("something", "later"),
    ready("after load", "later"),
    infer("infer after load", "later", [FP32_2]),
    load("again", "later"),
    load("an unknown model", "nope"),
    load("no name", ""),
    load("unknown parameter", "later", foo="x"),
    load("config, a number", "later", config=5),
    load("config, bytes", "later", config=b"{}"),
    load("config, a bool", "later", config=True),
    load("file, a string", "later", **{FILE: "x", "config": "{}"}),
    load("file without config", "later", **{FILE: TWICE}),
    load("config", "later", config=GRPC_CONFIG),
    config("after load with config", "later"),
    infer("infer after load with config", "later", [X]),
    load("config that is no JSON", "later", config="{"),
    load("config that is wrong", "later", config=json.dumps({**OTHER_CONFIG, "max_batch_size": -1})),
    infer("infer after a failed load", "later", [X]),
    load("file", "later", **{"config": GRPC_FILE_CONFIG, FILE: TWICE}),
    infer("infer after load with a file", "later", [X]),
    load("from the repository again", "later"),
    infer("infer after load from the repository", "later", [FP32_2]),
    load("one that fails", "initialize_fails"),
    load("one that fails again", "initialize_fails"),
    load("one whose config is broken", "bad_config"),
    ready("what failed", "initialize_fails"),
    metadata("what failed", "initialize_fails"),
    infer("infer what failed", "initialize_fails", [FP32_2]),
    load("an ensemble", "outer"),
    infer("infer the ensemble", "outer", [FP32_2], id="o"),
    unload("the ensemble alone", "outer"),
    infer("infer the step without the ensemble", "inner", [FP32_2]),
    load("the ensemble again", "outer"),
    unload("the ensemble with its dependents", "outer", unload_dependents=True),
    ready("the step after unload with dependents", "inner"),
    index("explicit, at the end"),
]

# --- restricted protocols ----------------------------------------------------------------------------------------------------

RESTRICTIONS = [
    "--grpc-restricted-protocol=model-repository,health:admin-key=secret",
    "--grpc-restricted-protocol=inference,shared-memory,metadata:infer-key=x",
    "--grpc-restricted-protocol=model-config,statistics,trace,logging:b=c",
    "--grpc-header-forward-pattern=^x-",
]

KEYS = {"admin-key": "secret", "infer-key": "x", "b": "c"}
RPCS = {
    "ServerLive": "admin-key",
    "ServerReady": "admin-key",
    "ModelReady": "admin-key",
    f"{HEALTH}/Check": "admin-key",
    "ServerMetadata": "infer-key",
    "ModelMetadata": "infer-key",
    "ModelConfig": "b",
    "ModelStatistics": "b",
    "ModelInfer": "infer-key",
    "RepositoryIndex": "admin-key",
    "RepositoryModelLoad": "admin-key",
    "RepositoryModelUnload": "admin-key",
    "SystemSharedMemoryStatus": "infer-key",
    "SystemSharedMemoryRegister": "infer-key",
    "SystemSharedMemoryUnregister": "infer-key",
    "CudaSharedMemoryStatus": "infer-key",
    "CudaSharedMemoryRegister": "infer-key",
    "CudaSharedMemoryUnregister": "infer-key",
    "TraceSetting": "b",
    "LogSettings": "b",
}


def opened(key: str, value: str = "") -> tuple[tuple[str, str], ...]:
    return ((f"triton-grpc-protocol-{key}", value or KEYS[key]),)


ECHO = request("echo", [FP32_2], id="e")
WRONG = request("echo", [typed("X", "FP32", [3], [1, 2, 3])], id="w")
FORWARDED = (("x-user", "me"), ("x-two", "b"), ("other", "no"), *opened("infer-key"))

RESTRICTED = [
    *(ask(f"restricted: {rpc}", rpc) for rpc in RPCS),
    *(
        ask(f"restricted, opened: {rpc}", rpc, metadata=opened(key), mask=CHANCE)
        for rpc, key in RPCS.items()
        if rpc not in ("RepositoryModelLoad", "RepositoryModelUnload")
    ),
    stream("restricted", ECHO),
    stream("restricted, opened", ECHO, metadata=opened("infer-key")),
    ask("restricted, another's key", "ServerLive", metadata=opened("infer-key")),
    ask("restricted, a wrong value", "ServerLive", metadata=opened("admin-key", "Secret")),
    ask("restricted, a key without its prefix", "ServerLive", metadata=(("admin-key", "secret"),)),
    ask("restricted, an unknown method", "Nope"),
    infer("restricted, an inference", "echo", [FP32_2], call={"metadata": opened("infer-key")}),
    infer("headers forwarded", "tells", [FP32_2], call={"metadata": FORWARDED}),
    infer(
        "headers forwarded beside parameters", "tells", [FP32_2], call={"metadata": FORWARDED}, a=1, **{"x-user": "you"}
    ),
    infer("a header given twice", "tells", [FP32_2], call={"metadata": (("x-user", "b"), *FORWARDED)}),
    stream("headers forwarded", request("tells", [FP32_2]), metadata=FORWARDED),
]
