"""What is asked of both servers over gRPC about shared memory and the settings of tracing and of the log.

Each list tells one story, as over HTTP (cases_rest.py): `KEY` stands for a shared memory object of 4096 bytes which begins with
the floats 1 and 2 and from 1024 on has the strings "ab" and "c". At the end of a story all is as it was.
"""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .messages_grpc import Kind, X, ask, infer, output, request, stream, tensor, typed
from .wire import KEY
from .wire_grpc import Call

__all__ = ["SETTINGS", "SHARED_MEMORY"]


def register(name: str, region: str, key: str, size: int, offset: int = 0) -> Call:
    message = pb.SystemSharedMemoryRegisterRequest(name=region, key=key, offset=offset, byte_size=size)
    return ask(f"register: {name}", "SystemSharedMemoryRegister", message)


def status(name: str, region: str = "") -> Call:
    return ask(f"regions: {name}", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=region))


def unregister(name: str, region: str = "") -> Call:
    return ask(
        f"unregister: {name}", "SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=region)
    )


def part(size: Any = None, offset: Any = None, region: Any = "mine", **more: Any) -> dict[str, Any]:
    """Return the parameters of an input or output that lies in shared memory."""
    given = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {**{name: value for name, value in given.items() if value is not None}, **more}


def source(name: str, *place: Any, shape: tuple[int, ...] = (1, 2), raw: tuple[bytes, ...] = (), **more: Any) -> Call:
    inputs = [tensor("X", "FP32", shape, None, **part(*place, **more))]
    return infer(f"input from a region{name}", "batch8", inputs, (), raw)


def target(name: str, *place: Any, **more: Any) -> Call:
    return infer(
        f"output to a region{name}",
        "batch8",
        [typed("X", "FP32", [1, 2], [3, 4])],
        [output("Y", **part(*place, **more))],
    )


def strings(name: str, shape: int, size: int) -> Call:
    return infer(
        f"strings from a region{name}", "types", [tensor("IN_BYTES", "BYTES", [shape], None, **part(size, 1024))]
    )


def cuda(name: str, /, **given: Any) -> Call:
    return ask(f"CUDA register: {name}", "CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(**given))


SHARED_MEMORY = [
    status("none"),
    status("an unknown one", "nope"),
    register("nothing", "", "", 0),
    register("no name", "", KEY, 8),
    status("no name"),
    unregister("all, no name among them"),
    register("no key", "mine", "", 8),
    register("no bytes", "mine", KEY, 0),
    register("an object that isn't there", "mine", "/kernel_reference_nothing", 8),
    register("more than the object has", "mine", KEY, 4097),
    register("beyond the object", "mine", KEY, 8, 4096),
    register("more bytes than there can be", "mine", KEY, 2**64 - 1, 8),
    register("right", "mine", KEY, 2048),
    register("again", "mine", KEY, 8),
    register("another object", "another", f"{KEY}2", 64),
    status("all"),
    status("one", "mine"),
    # Inputs.
    source("", 8),
    source(", with an offset", 8, 4),
    source(", unknown", 8, None, "nope"),
    source(", no name", 8, None, ""),
    source(", no size"),
    source(", no bytes", 0),
    source(", size negative", -8),
    source(", size without a region", 8, None, None),
    source(", offset without a region", None, 8, None),
    source(", offset at the end", 8, 2048),
    source(", offset beyond", 8, 5000),
    source(", offset negative", 8, -1),
    source(", size beyond", 8, 2044),
    source(", too few bytes", 4),
    source(", too many bytes", 16),
    source(", size is a string", "8"),
    source(", size is unsigned", Kind("uint64", 8)),
    source(", offset is a string", 8, "0"),
    source(", name is a number", 8, None, 5),
    source(", wrong shape", 12, shape=(1, 3)),
    source(", and raw data", 8, raw=(b"12345678",)),
    infer("input from a region, and contents", "batch8", [typed("X", "FP32", [1, 2], [1, 2], **part(8))]),
    infer(
        "one input from a region, one raw",
        "two",
        [tensor("A", "INT32", [1, 2], None, **part(8, 512)), tensor("B", "INT32", [1, 2])],
        (),
        [b"\1\0\0\0\2\0\0\0"],
    ),
    infer(
        "one input from a region, one typed",
        "two",
        [tensor("A", "INT32", [1, 2], None, **part(8, 512)), typed("B", "INT32", [1, 2], [1, 2])],
    ),
    stream("input from a region", request("batch8", [tensor("X", "FP32", [1, 2], None, **part(8))], id="s")),
    strings("", 2, 11),
    strings(", too few", 3, 11),
    strings(", too many", 1, 11),
    strings(", cut off in a length", 2, 8),
    # Outputs, each read again by who has written it.
    target("", 8, 256),
    source(": what was written", 8, 256),
    target(", with room", 64, 320),
    source(", with room: what was written", 8, 320),
    target(", unknown", 8, None, "nope"),
    target(", too small", 7, 256),
    target(", no size", None, 0),
    target(", no bytes", 0),
    target(", size without a region", 8, None, None),
    target(", offset beyond", 8, 2048),
    target(", size beyond", 8, 2044),
    target(", size is a string", "8"),
    target(", name is a number", 8, None, 5),
    target(" and classes", 8, classification=1),
    target(" and no classes", 8, classification=0),
    infer(
        "one output to a region, one not",
        "two",
        [typed("A", "INT32", [1, 2], [1, 2]), typed("B", "INT32", [1, 2], [3, 4])],
        [output("SUM", **part(8, 256)), "DIFFERENCE"],
    ),
    infer(
        "the other output to a region",
        "two",
        [typed("A", "INT32", [1, 2], [1, 2]), typed("B", "INT32", [1, 2], [3, 4])],
        ["SUM", output("DIFFERENCE", **part(8, 256))],
    ),
    infer(
        "strings to a region",
        "types",
        [typed("IN_BYTES", "BYTES", [2], [b"x", b"yz"])],
        [output("OUT_BYTES", **part(11, 1024))],
    ),
    strings(": what was written", 2, 11),
    infer(
        "strings to a region, too small",
        "types",
        [typed("IN_BYTES", "BYTES", [2], [b"x", b"yz"])],
        [output("OUT_BYTES", **part(10, 1024))],
    ),
    stream("output to a region", request("batch8", [X], [output("Y", **part(8, 256))], id="o")),
    stream("output to a region, too small", request("batch8", [X], [output("Y", **part(7, 256))], id="o")),
    # The end of it.
    unregister("an unknown region", "nope"),
    unregister("one", "mine"),
    status("what is left"),
    source(" that is gone", 8),
    unregister("all"),
    status("none is left"),
    # CUDA.
    ask("CUDA regions: none", "CudaSharedMemoryStatus"),
    ask("CUDA regions: an unknown one", "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest(name="nope")),
    cuda("nothing"),
    cuda("no handle", name="mine", byte_size=8),
    cuda("handle too short", name="mine", raw_handle=b"abc", byte_size=8),
    cuda("a handle of nothing", name="mine", raw_handle=bytes(64), byte_size=8),
    ask(
        "CUDA unregister an unknown region",
        "CudaSharedMemoryUnregister",
        pb.CudaSharedMemoryUnregisterRequest(name="nope"),
    ),
    ask("CUDA unregister all", "CudaSharedMemoryUnregister"),
]

# --- settings ----------------------------------------------------------------------------------------------------------------


def changed(name: str, model: str = "", **settings: Any) -> Call:
    """Change trace settings; a list has its elements for values."""
    values = {
        key: pb.TraceSettingRequest.SettingValue(value=value if isinstance(value, list) else [value])
        for key, value in settings.items()
    }
    return ask(f"trace settings: {name}", "TraceSetting", pb.TraceSettingRequest(model_name=model, settings=values))


CLEAR: dict[str, Any] = {"trace_level": [], "trace_rate": [], "trace_count": [], "log_frequency": []}


def trace(name: str, **settings: Any) -> list[Call]:
    """Return a change, and the way back from it."""
    return [changed(name, **settings), changed(f"{name}, cleared", **CLEAR)]


DEFAULT_LOG = {
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": Kind("uint32", 0),
    "log_format": "default",
}


def logged(name: str, **settings: Any) -> Call:
    values = {}
    for key, value in settings.items():
        kind = value if isinstance(value, Kind) else Kind({bool: "bool", str: "string"}[type(value)], value)
        values[key] = pb.LogSettingsRequest.SettingValue(**({f"{kind.field}_param": kind.value} if kind.field else {}))
    return ask(f"log settings: {name}", "LogSettings", pb.LogSettingsRequest(settings=values))


def log(name: str, **settings: Any) -> list[Call]:
    return [logged(name, **settings), logged(f"{name}, set back", **DEFAULT_LOG)]


SETTINGS = [
    changed("shown"),
    changed("of a model", "multi"),
    changed("of an unknown model", "nope"),
    changed("of an unknown model, changed", "nope", trace_rate="5"),
    *trace("off", trace_level="OFF"),
    *trace("off and on", trace_level=["OFF", "TIMESTAMPS"]),
    *trace("on without a file", trace_level="TIMESTAMPS"),
    *trace("an unknown level", trace_level="X"),
    *trace("rate", trace_rate="7"),
    *trace("rate 0", trace_rate="0"),
    *trace("two rates", trace_rate=["7", "8"]),
    *trace("rate is a word", trace_rate="x"),
    *trace("rate is empty", trace_rate=""),
    *trace("rate is negative", trace_rate="-1"),
    *trace("rate beyond 32 bits", trace_rate="4294967296"),
    *trace("rate beyond 64 bits", trace_rate="99999999999999999999"),
    *trace("count", trace_count="5"),
    *trace("two counts", trace_count=["5", "6"]),
    *trace("count is negative", trace_count="-2"),
    *trace("count is a word", trace_count="x"),
    *trace("count beyond 32 bits", trace_count="99999999999"),
    *trace("frequency", log_frequency="3"),
    *trace("two frequencies", log_frequency=["3", "4"]),
    *trace("frequency is a word", log_frequency="x"),
    *trace("file", trace_file="f"),
    *trace("two files", trace_file=["f", "g"]),
    *trace("no file", trace_file=[]),
    *trace("mode", trace_mode="opentelemetry"),
    *trace("an unknown setting", nope="1"),
    *trace("one right, one wrong", trace_rate="9", trace_count="x"),
    changed("of a model: its own", "multi", trace_rate="77", trace_count="3"),
    changed("beside a model's own"),
    changed("below a model's own", trace_rate="55", log_frequency="9"),
    changed("of a model: its own first", "multi"),
    changed("of a model: one cleared", "multi", trace_rate=[]),
    changed("cleared below a model's own", **CLEAR),
    changed("of a model: cleared", "multi", **CLEAR),
    logged("shown"),
    *log("no information", log_info=False),
    *log("several", log_warning=False, log_error=False),
    *log("nothing", log_info=Kind("")),
    *log("info is a string", log_info="false"),
    *log("info is a number", log_info=Kind("uint32", 1)),
    *log("warning is a string", log_warning="false"),
    *log("error is a string", log_error="false"),
    *log("verbose", log_verbose_level=Kind("uint32", 1)),
    *log("verbose is a bool", log_verbose_level=True),
    *log("verbose is a string", log_verbose_level="1"),
    *log("format", log_format="ISO8601"),
    *log("an unknown format", log_format="x"),
    *log("format is a bool", log_format=True),
    *log("format is empty", log_format=""),
    *log("file", log_file="f"),
    *log("file is a number", log_file=Kind("uint32", 5)),
    *log("an unknown setting", nope=True),
    *log("one right, one wrong", log_info=False, log_format="x"),
]
