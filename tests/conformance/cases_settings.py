"""Regions, and the settings of tracing and of the log: what is asked and what is answered, as in cases_admin.py."""

from __future__ import annotations

from typing import Any

from .cases_admin import KEY, Admin, does
from .words import wrong

__all__ = ["LOGGING", "REGIONS", "TRACING"]

REGIONS = [
    does("none", "regions", gives={}),
    does(
        "status of an unknown one",
        "regions",
        "r",
        gives=wrong("Unable to find system shared memory region: 'r'", "NOT_FOUND"),
    ),
    does("register", "register", "r", KEY, 128, 64),
    does(
        "register again",
        "register",
        "r",
        KEY,
        8,
        gives=wrong("shared memory region 'r' already in manager", "ALREADY_EXISTS"),
    ),
    does("register a second one", "register", "s", KEY, 256),
    does("all", "regions", gives={"r": (KEY, 64, 128), "s": (KEY, 0, 256)}),
    does("one", "regions", "r", gives={"r": (KEY, 64, 128)}),
    does(
        "more than there is",
        "register",
        "t",
        KEY,
        257,
        gives=wrong(f"Invalid shared memory region: '{KEY}'", "INTERNAL"),
    ),
    does(
        "beyond the end",
        "register",
        "t",
        KEY,
        8,
        256,
        gives=wrong(f"Invalid shared memory region: '{KEY}'", "INTERNAL"),
    ),
    does(
        "nothing there",
        "register",
        "t",
        "/conformance_nothing",
        8,
        gives=wrong("Unable to open shared memory region: '/conformance_nothing'", "INTERNAL"),
    ),
    does("unregister an unknown one", "unregister", "nope"),
    does("unregister one", "unregister", "r"),
    does("the other is left", "regions", gives={"s": (KEY, 0, 256)}),
    does("unregister all", "unregister"),
    does("none is left", "regions", gives={}),
    does("no CUDA regions", "cuda_regions", gives={}),
    does(
        "status of an unknown CUDA region",
        "cuda_regions",
        "r",
        gives=wrong("Unable to find cuda shared memory region: 'r'", "NOT_FOUND"),
    ),
    does(
        "register a CUDA region",
        "cuda_register",
        "r",
        bytes(64),
        0,
        8,
        gives=wrong("failed to register shared memory region: invalid args"),
    ),
    does("unregister a CUDA region", "cuda_unregister", "r"),
    does("unregister all CUDA regions", "cuda_unregister"),
]

TRACE = {
    "trace_level": ["OFF"], "trace_rate": ["1000"], "trace_count": ["-1"], "log_frequency": ["0"], "trace_file": [""],
    "trace_mode": ["triton"],
}  # fmt: skip
NO_FILE = wrong("Attempting to set invalid trace setting :trace file name is not given")

TRACING = [
    does("shown", "trace", gives=TRACE),
    does("of a model", "trace", "multi", gives=TRACE),
    does("of an unknown model", "trace", "nope", gives=wrong("Request for unknown model : nope")),
    does("rate", "trace", trace_rate=["7"], gives={**TRACE, "trace_rate": ["7"]}),
    does("a model has it, too", "trace", "multi", gives={**TRACE, "trace_rate": ["7"]}),
    does(
        "a model's own",
        "trace",
        "multi",
        trace_rate=["9"],
        trace_count=["3"],
        gives={"trace_rate": ["9"], "trace_count": ["3"]},
    ),
    does("not that of others", "trace", gives={"trace_rate": ["7"], "trace_count": ["-1"]}),
    does(
        "a model's own, cleared",
        "trace",
        "multi",
        trace_rate=None,
        trace_count=None,
        gives={"trace_rate": ["7"], "trace_count": ["-1"]},
    ),
    does("cleared", "trace", trace_rate=None, gives=TRACE),
    does(
        "off and on",
        "trace",
        trace_level=["OFF", "TIMESTAMPS"],
        gives=wrong("Expect only one trace level 'OFF' is specified"),
    ),
    does("on without a file", "trace", trace_level=["TIMESTAMPS"], gives=NO_FILE),
    does("rate is a word", "trace", trace_rate=["x"], gives=wrong("Unable to parse 'trace_rate', got: x")),
    does(
        "count below -1",
        "trace",
        trace_count=["-2"],
        gives=wrong("Unable to parse 'trace_count'. Expecting value >= -1, got:...-2"),
    ),
    does(
        "file",
        "trace",
        trace_file=["f"],
        gives=wrong("trace file location can not be updated through network protocol", "UNSUPPORTED"),
    ),
    does(
        "one right, one wrong",
        "trace",
        trace_rate=["5"],
        trace_count=["x"],
        gives=wrong("Unable to parse 'trace_count', got: x"),
    ),
    does("nothing of it stays", "trace", gives=TRACE),
    does("unknown setting", "trace", nope=["1"], gives=wrong("there is no trace setting 'nope'...")),
]

LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def mistyped(name: str, value: Any, http: str, grpc: str) -> Admin:
    return does(
        f"{name} of a wrong type",
        "log",
        http=wrong(f"...{http}..."),
        grpc=wrong(f"expect {grpc} for '{name}'"),
        **{name: value},
    )


LOGGING = [
    does("shown", "log", gives=LOG),
    does("info off", "log", log_info=False, gives={**LOG, "log_info": False}),
    does("info on", "log", log_info=True, gives=LOG),
    does("verbose", "log", log_verbose_level=1, gives={**LOG, "log_verbose_level": 1}),
    does("format", "log", log_format="ISO8601", gives={**LOG, "log_verbose_level": 1, "log_format": "ISO8601"}),
    does("as before", "log", log_verbose_level=0, log_format="default", gives=LOG),
    mistyped("log_info", "false", "non-boolean as boolean", "boolean"),
    mistyped("log_warning", "false", "non-boolean as boolean", "boolean"),
    mistyped("log_error", "false", "non-boolean as boolean", "boolean"),
    mistyped("log_verbose_level", "1", "non-unsigned-integer as unsigned-integer", "int32"),
    mistyped("log_format", True, "non-string as string", "string"),
    does(
        "unknown format",
        "log",
        log_format="x",
        http=wrong("invalid argument for --log_format, got: x", "UNAVAILABLE"),
        grpc=wrong("invalid argument for log_format, got: x"),
    ),
    does(
        "file",
        "log",
        log_file="f",
        gives=wrong("log file location can not be updated through network protocol", "UNSUPPORTED"),
    ),
    does(
        "one right, one wrong",
        "log",
        log_info=False,
        log_format="x",
        http=wrong("invalid argument for --log_format, got: x", "UNAVAILABLE"),
        grpc=wrong("invalid argument for log_format, got: x"),
    ),
    does("nothing of it stays", "log", gives=LOG),
]
