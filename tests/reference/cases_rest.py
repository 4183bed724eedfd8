"""What is asked of both servers besides inference: shared memory, the settings of tracing and of the log, restricted APIs.

Each list tells one story, as EXPLICIT does. `KEY` stands for the name of a shared memory object of 4096 bytes, of which each
server has its own, and `KEY` with a 2 behind it for another; both begin with the floats 1 and 2, and from 1024 on have the
strings "ab" and "c". At the end of a story all is as it was.
"""

from __future__ import annotations

from typing import Any

from .cases import AB, GET, POST, encode, infer, post, tensor
from .wire import KEY, Case

__all__ = ["RESTRICTED", "RESTRICTIONS", "SETTINGS", "SHARED_MEMORY"]

SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"

DATA = tensor("X", "FP32", [1, 2], [3, 4])


def register(name: str, region: str, document: Any, prefix: str = SYSTEM) -> Case:
    return post(name, f"{prefix}/region/{region}/register", document)


def unregister(name: str, region: str, prefix: str = SYSTEM) -> Case:
    return post(name, f"{prefix}/region/{region}/unregister")


def part(size: Any = None, offset: Any = None, region: Any = "mine", **more: Any) -> dict[str, Any]:
    """Return the parameters of an input or output that lies in shared memory."""
    given = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {**{name: value for name, value in given.items() if value is not None}, **more}


def source(name: str, *place: Any, shape: tuple[int, ...] = (1, 2), **more: Any) -> Case:
    """Return a request whose input lies in shared memory."""
    return infer(name, "batch8", [tensor("X", "FP32", list(shape), **part(*place, **more))])


def target(name: str, *place: Any, **more: Any) -> Case:
    """Return a request whose output goes to shared memory."""
    return infer(name, "batch8", [DATA], [{"name": "Y", "parameters": part(*place, **more)}])


def strings(name: str, shape: int, size: int) -> Case:
    return infer(name, "types", [tensor("IN_BYTES", "BYTES", [shape], **part(size, 1024))])


SHARED_MEMORY = [
    Case("regions: none", path=f"{SYSTEM}/status"),
    Case("regions: status of an unknown one", path=f"{SYSTEM}/region/nope/status"),
    post("register: no region", f"{SYSTEM}/register", {"key": KEY, "byte_size": 8}),
    post("register: no region, no body", f"{SYSTEM}/register"),
    register("register: no body", "mine", b""),
    register("register: not JSON", "mine", b"{"),
    register("register: an empty object", "mine", {}),
    register("register: a list", "mine", []),
    register("register: no key", "mine", {"byte_size": 8}),
    register("register: no size", "mine", {"key": KEY}),
    register("register: key is a number", "mine", {"key": 5, "byte_size": 8}),
    register("register: size is a string", "mine", {"key": KEY, "byte_size": "8"}),
    register("register: size is negative", "mine", {"key": KEY, "byte_size": -8}),
    register("register: size is a float", "mine", {"key": KEY, "byte_size": 1.5}),
    register("register: offset is null", "mine", {"key": KEY, "byte_size": 8, "offset": None}),
    register("register: an object that isn't there", "mine", {"key": "/kernel_reference_nothing", "byte_size": 8}),
    register("register: an empty key", "mine", {"key": "", "byte_size": 8}),
    register("register: a path", "mine", {"key": "/../../etc/passwd", "byte_size": 8}),
    register("register: more than the object has", "mine", {"key": KEY, "byte_size": 4097}),
    register("register: beyond the object", "mine", {"key": KEY, "byte_size": 8, "offset": 4096}),
    register("register: no bytes", "mine", {"key": KEY, "byte_size": 0}),
    register("register: an offset within a page", "inner", {"key": KEY, "byte_size": 8, "offset": 16}),
    unregister("unregister what may be there", "inner"),
    register("register", "mine", {"key": KEY, "byte_size": 2048, "what": 1}),
    register("register again", "mine", {"key": KEY, "byte_size": 8}),
    register("register: beyond an object that is known", "more", {"key": KEY, "byte_size": 4097}),
    register("register: a second region, larger than the first", "more", {"key": KEY, "byte_size": 4096}),
    unregister("unregister what may be there, too", "more"),
    register("register: another object", "another", {"key": f"{KEY}2", "byte_size": 64}),
    register("register: a key without a slash", "third", {"key": KEY[1:], "byte_size": 64}),
    Case("regions: all", path=f"{SYSTEM}/status"),
    Case("regions: one", path=f"{SYSTEM}/region/mine/status"),
    Case("regions: percent encoding isn't decoded", path=f"{SYSTEM}/region/mi%6ee/status"),
    Case("regions: status by POST", POST, f"{SYSTEM}/status"),
    Case("regions: status by PUT", "PUT", f"{SYSTEM}/region/mine/status"),
    Case("regions: register by GET", path=f"{SYSTEM}/region/mine/register"),
    Case("regions: unregister by GET", path=f"{SYSTEM}/unregister"),
    Case("regions: no operation", path=f"{SYSTEM}/region/mine"),
    Case("regions: another operation", path=f"{SYSTEM}/region/mine/what"),
    Case("regions: an empty name", path=f"{SYSTEM}/region//status"),
    Case("regions: nothing", path=SYSTEM),
    # Inputs.
    source("input from a region", 8),
    source("input from a region, with an offset", 8, 4),
    source("input from a region, unknown", 8, None, "nope"),
    source("input from a region, no name", 8, None, ""),
    source("input from a region, no size"),
    source("input from a region, no bytes", 0),
    source("input from a region, the last byte", 1, 2047),
    source("input from a region, offset at the end", 8, 2048),
    source("input from a region, offset beyond", 8, 5000),
    source("input from a region, size beyond", 8, 2044),
    source("input from a region, all too large", 2049),
    source("input from a region, too few bytes", 4),
    source("input from a region, too many bytes", 16),
    source("input from a region, size is a string", "8"),
    source("input from a region, offset is negative", 8, -1),
    source("input from a region, name is a number", 8, None, 5),
    source("input from a region, wrong shape", 12, shape=(1, 3)),
    source("input from a region, and a binary size", 8, binary_data_size=8),
    infer("input from a region, and data", "batch8", [tensor("X", "FP32", [1, 2], [1, 2], **part(8))]),
    infer("input with a size of a region that isn't named", "batch8", [tensor("X", "FP32", [1, 2], **part(8, 0, None))]),
    infer("input from a region, unknown to the model", "batch8", [tensor("N", "FP32", [1, 2], **part(8))]),
    infer("two inputs from regions", "two", [tensor(item["name"], "INT32", [1, 2], **part(8, 512)) for item in AB]),
    infer("FP16 from a region and to it", "types", [tensor("IN_FP16", "FP16", [2], **part(4))],
          [{"name": "OUT_FP16", "parameters": part(4, 600)}]),
    strings("strings from a region", 2, 11),
    strings("strings from a region, too few", 3, 11),
    strings("strings from a region, too many", 1, 11),
    strings("strings from a region, cut off in a length", 2, 8),
    # Outputs, each read again by who has written it.
    target("output to a region", 8, 256),
    source("output to a region: what it has written", 8, 256),
    target("output to a region, with room", 64, 320),
    source("output to a region, with room: what it has written", 8, 320),
    target("output to a region, JSON asked for", 8, 256, binary_data=False),
    target("output to a region, unknown", 8, None, "nope"),
    target("output to a region, too small", 7, 256),
    target("output to a region, no size", None, 0),
    target("output to a region, no bytes", 0),
    target("output to a region, offset beyond", 8, 2048),
    target("output to a region, size beyond", 8, 2044),
    target("output to a region, size is a string", "8"),
    target("output to a region, name is a number", 8, None, 5),
    target("output to a region and classes", 8, classification=1),
    target("output to a region and no classes", 8, classification=0),
    target("output to a region and binary", 8, binary_data=True),
    target("output to a region and what is no bool", 8, binary_data=1),
    infer("output to a region, unknown to the model", "batch8", [DATA], [{"name": "N", "parameters": part(8)}]),
    infer("output to an unknown region, unknown to the model", "batch8", [DATA],
          [{"name": "N", "parameters": part(8, 0, "x")}]),
    infer("output twice, first to a region", "batch8", [DATA], [{"name": "Y", "parameters": part(8, 256)}, {"name": "Y"}]),
    infer("output twice, last to a region", "batch8", [DATA], [{"name": "Y"}, {"name": "Y", "parameters": part(8, 256)}]),
    infer("output to a region, binary by default", "batch8", [DATA], [{"name": "Y", "parameters": part(8, 256)}],
          parameters={"binary_data_output": True}, id="i"),
    infer("strings to a region", "types", [tensor("IN_BYTES", "BYTES", [2], ["x", "yz"])],
          [{"name": "OUT_BYTES", "parameters": part(11, 1024)}]),
    strings("strings to a region: what it has written", 2, 11),
    infer("strings to a region, too small", "types", [tensor("IN_BYTES", "BYTES", [2], ["x", "yz"])],
          [{"name": "OUT_BYTES", "parameters": part(10, 1024)}]),
    infer("nothing to a region", "types", [tensor("IN_FP32", "FP32", [0], [])], [{"name": "OUT_FP32", "parameters": part(8)}]),
    infer("ensemble, output to a region", "ensemble", [DATA], [{"name": "Y", "parameters": part(8, 700)}]),
    source("ensemble, output to a region: what it has written", 8, 700),
    # The end of it.
    unregister("unregister an unknown region", "nope"),
    unregister("unregister", "mine"),
    Case("regions: what is left", path=f"{SYSTEM}/status"),
    source("input from a region that is gone", 8),
    target("output to a region that is gone", 8),
    post("unregister all", f"{SYSTEM}/unregister", b"what"),
    Case("regions: none is left", path=f"{SYSTEM}/status"),
    # CUDA.
    Case("CUDA regions: none", path=f"{CUDA}/status"),
    Case("CUDA regions: status of an unknown one", path=f"{CUDA}/region/nope/status"),
    post("CUDA register: no region", f"{CUDA}/register"),
    *(
        register(f"CUDA register: {name}", "mine", document, CUDA)
        for name, document in (
            ("no body", b""),
            ("an empty object", {}),
            ("no handle", {"device_id": 0, "byte_size": 8}),
            ("handle is a number", {"raw_handle": 5}),
            ("handle isn't text", {"raw_handle": {"b64": 5}}),
            ("no size", {"raw_handle": {"b64": "AAAA"}}),
            ("no device", {"raw_handle": {"b64": "AAAA"}, "byte_size": 8}),
            ("device is a string", {"raw_handle": {"b64": "AAAA"}, "byte_size": 8, "device_id": "0"}),
            ("handle too short", {"raw_handle": {"b64": "AAAA"}, "byte_size": 8, "device_id": 0}),
            ("a handle of nothing", {"raw_handle": {"b64": "A" * 84 + "AA=="}, "byte_size": 8, "device_id": 0}),
        )
    ),
    unregister("CUDA unregister an unknown region", "nope", CUDA),
    post("CUDA unregister all", f"{CUDA}/unregister"),
    Case("CUDA regions: register by GET", path=f"{CUDA}/region/mine/register"),
]  # fmt: skip

# --- settings ----------------------------------------------------------------------------------------------------------------

TRACE = "/v2/trace/setting"
MULTI = "/v2/models/multi/trace/setting"
LOG = "/v2/logging"

CLEAR = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
DEFAULT_LOG = {"log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0, "log_format": "default"}


def trace(name: str, document: Any, path: str = TRACE) -> list[Case]:
    """Return a change, and the way back from it."""
    return [post(f"trace settings: {name}", path, document), post(f"trace settings: {name}, cleared", path, CLEAR)]


def log(name: str, document: Any) -> list[Case]:
    return [post(f"log settings: {name}", LOG, document), post(f"log settings: {name}, set back", LOG, DEFAULT_LOG)]


SETTINGS = [
    Case("trace settings", path=TRACE),
    Case("trace settings of a model", path=MULTI),
    Case("trace settings of an unknown model", path="/v2/models/nope/trace/setting"),
    Case("trace settings of a version", path="/v2/models/multi/versions/1/trace/setting"),
    Case("trace settings by PUT", "PUT", TRACE),
    post("trace settings of an unknown model, changed", "/v2/models/nope/trace/setting", {"trace_rate": "5"}),
    post("trace settings of an unknown model, no body", "/v2/models/nope/trace/setting"),
    post("trace settings: no body", TRACE),
    post("trace settings: not JSON", TRACE, b"{"),
    *(
        case
        for name, document in (
            ("nothing", {}),
            ("a list", []),
            ("a number", 5),
            ("off", {"trace_level": ["OFF"]}),
            ("off and on", {"trace_level": ["OFF", "TIMESTAMPS"]}),
            ("on without a file", {"trace_level": ["TIMESTAMPS"]}),
            ("no level", {"trace_level": []}),
            ("an unknown level", {"trace_level": ["X"]}),
            ("level is a string", {"trace_level": "OFF"}),
            ("level of numbers", {"trace_level": [5]}),
            ("rate", {"trace_rate": "7"}),
            ("rate with spaces", {"trace_rate": " 7 "}),
            ("rate 0", {"trace_rate": "0"}),
            ("rate is a number", {"trace_rate": 7}),
            ("rate is a list", {"trace_rate": ["7"]}),
            ("rate is a word", {"trace_rate": "x"}),
            ("rate is empty", {"trace_rate": ""}),
            ("rate and a word", {"trace_rate": "5x"}),
            ("rate is negative", {"trace_rate": "-1"}),
            ("rate beyond 32 bits", {"trace_rate": "4294967296"}),
            ("rate beyond 64 bits", {"trace_rate": "99999999999999999999"}),
            ("count", {"trace_count": "5"}),
            ("count without end", {"trace_count": "-1"}),
            ("count is negative", {"trace_count": "-2"}),
            ("count is a word", {"trace_count": "x"}),
            ("count beyond 32 bits", {"trace_count": "99999999999"}),
            ("frequency", {"log_frequency": "3"}),
            ("frequency is a word", {"log_frequency": "x"}),
            ("frequency is negative", {"log_frequency": "-1"}),
            ("file", {"trace_file": "f"}),
            ("no file", {"trace_file": None}),
            ("an unknown setting", {"nope": "1"}),
            ("mode", {"trace_mode": "opentelemetry"}),
            ("one right, one wrong", {"trace_rate": "9", "trace_count": "x"}),
        )
        for case in trace(name, document)
    ),
    post("trace settings of a model: its own", MULTI, {"trace_rate": "77", "trace_count": "3"}),
    Case("trace settings beside a model's own", path=TRACE),
    Case("trace settings of another model", path="/v2/models/types/trace/setting"),
    post("trace settings below a model's own", TRACE, {"trace_rate": "55", "log_frequency": "9"}),
    Case("trace settings of a model: its own first", path=MULTI),
    post("trace settings of a model: one cleared", MULTI, {"trace_rate": None}),
    post("trace settings of a model: on without a file", MULTI, {"trace_level": ["TIMESTAMPS"]}),
    post("trace settings of a model: file", MULTI, {"trace_file": "f"}),
    post("trace settings of a model: a word", MULTI, {"trace_rate": "x"}),
    post("trace settings: cleared below a model's own", TRACE, CLEAR),
    Case("trace settings of a model: its own last", path=MULTI),
    post("trace settings of a model: cleared", MULTI, CLEAR),
    Case("log settings", path=LOG),
    Case("log settings by PUT", "PUT", LOG),
    Case("log settings with a slash", path=f"{LOG}/"),
    post("log settings: no body", LOG),
    post("log settings: not JSON", LOG, b"{"),
    *(
        case
        for name, document in (
            ("nothing", {}),
            ("a list", []),
            ("a number", 5),
            ("no information", {"log_info": False}),
            ("null", {"log_info": None, "log_format": None, "log_verbose_level": None}),
            ("several", {"log_warning": False, "log_error": False}),
            ("info is a number", {"log_info": 1}),
            ("info is a string", {"log_info": "false"}),
            ("error is a list", {"log_error": []}),
            ("verbose", {"log_verbose_level": 1}),
            ("verbose is negative", {"log_verbose_level": -1}),
            ("verbose is a bool", {"log_verbose_level": True}),
            ("verbose is a string", {"log_verbose_level": "1"}),
            ("verbose is a float", {"log_verbose_level": 1.5}),
            ("format", {"log_format": "ISO8601"}),
            ("an unknown format", {"log_format": "x"}),
            ("format in another case", {"log_format": "iso8601"}),
            ("format is empty", {"log_format": ""}),
            ("format is a number", {"log_format": 5}),
            ("file", {"log_file": "f"}),
            ("file is a number", {"log_file": 5}),
            ("no file", {"log_file": None}),
            ("an unknown setting", {"nope": 1}),
            ("one right, one wrong", {"log_info": False, "log_format": "x"}),
        )
        for case in log(name, document)
    ),
]

# --- restricted APIs -----------------------------------------------------------------------------------------------------------

#: For models/explicit, with `echo` and `tells` loaded.
RESTRICTIONS = [
    "--http-restricted-api=model-repository,health:admin-key=secret",
    "--http-restricted-api=inference,shared-memory,metadata:infer-key=x",
    "--http-restricted-api=model-config,statistics,trace,logging:b=c",
    "--http-header-forward-pattern=^x-",
]

TELLS = {"inputs": [tensor("X", "FP32", [2], [1, 2])]}

RESTRICTED = [
    *(
        Case(f"restricted: {method} {path}", method, path)
        for method, path in (
            (GET, "/v2/health/live"),
            (GET, "/v2/health/ready"),
            (POST, "/v2/health/live"),
            (GET, "/v2"),
            (GET, "/v2/models/echo"),
            (GET, "/v2/models/nope"),
            (GET, "/v2/models/echo/ready"),
            (GET, "/v2/models/echo/config"),
            (GET, "/v2/models/stats"),
            (GET, "/v2/models/echo/versions/1/stats"),
            (POST, "/v2/models/echo/infer"),
            (GET, "/v2/models/echo/infer"),
            (POST, "/v2/models/echo/generate"),
            (POST, "/v2/models/echo/generate_stream"),
            (POST, "/v2/repository/index"),
            (POST, "/v2/repository/models/echo/load"),
            (POST, "/v2/repository/some/models/echo/load"),
            (GET, "/v2/repository/models/echo/unload"),
            (GET, "/v2/systemsharedmemory/status"),
            (POST, "/v2/systemsharedmemory/region/r/register"),
            (POST, "/v2/systemsharedmemory/unregister"),
            (GET, "/v2/cudasharedmemory/status"),
            (GET, "/v2/trace/setting"),
            (POST, "/v2/models/echo/trace/setting"),
            (GET, "/v2/logging"),
            (POST, "/v2/logging"),
            (GET, "/v2/nothing"),
        )
    ),
    *(
        Case(f"restricted, with its header: {path}", GET, path, headers={key: value})
        for path, key, value in (
            ("/v2/health/ready", "admin-key", "secret"),
            ("/v2/models/echo", "infer-key", "x"),
            ("/v2/systemsharedmemory/status", "infer-key", "x"),
            ("/v2/models/echo/config", "b", "c"),
            ("/v2/trace/setting", "b", "c"),
            ("/v2/logging", "b", "c"),
        )
    ),
    Case("restricted, header in another case", path="/v2/health/live", headers={"ADMIN-Key": "secret"}),
    Case("restricted, value in another case", path="/v2/health/live", headers={"admin-key": "Secret"}),
    Case("restricted, empty value", path="/v2/health/live", headers={"admin-key": ""}),
    Case("restricted, another's header", path="/v2/health/live", headers={"infer-key": "x"}),
    Case("restricted, wrong method with its header", POST, "/v2/health/live", headers={"admin-key": "secret"}),
    *(
        Case(f"headers forwarded{title}", POST, f"/v2/models/tells/{path}", {"infer-key": "x", **headers}, encode(document))
        for title, path, headers, document in (
            (": none", "infer", {}, TELLS),
            (" in any case", "infer", {"X-User": "me", "x-two": "b", "Other": "no", "Not-X-": "no"}, TELLS),
            (" beside parameters", "infer", {"X-User": "me"}, {**TELLS, "parameters": {"a": 1, "X-User": "you", "x-user": "he"}}),
            (", an empty value", "infer", {"X-User": ""}, TELLS),
            (", not to generate", "generate", {"X-User": "me"}, {"X": [1, 2]}),
        )
    ),
]
