"""Which case stands for which observed row of the gRPC contract, and why some row has none.

A row is told by its section and its first words; it has patterns of names of cases, or a reason. test_rows.py holds the list
against the contract, where that lies beside the project, and against the cases.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ROWS", "Row"]


class Row(NamedTuple):
    """`begins`: how the row's text begins. `cases`: patterns, each of which names a case at least. `reason`: why none."""

    section: str
    begins: str
    cases: tuple[str, ...] = ()
    reason: str = ""


def stream(*names: str) -> tuple[str, ...]:
    return tuple(f"gRPC stream: {name}" for name in names)


def unary(*names: str) -> tuple[str, ...]:
    return tuple(f"gRPC: {name}" for name in names)


ROWS = [
    # 1. Status mapping.
    *(
        Row("1.", f"| {code} | ", unary(f"behave: {code}"))
        for code in "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
    ),
    Row("1.", "Status message = exact core message", unary("behave: *", "to an unknown model", "size -1", "load: *")),
    # 2. RPC table.
    Row("2.", "| ModelReady{name,version}", unary("model ready: *")),
    Row(
        "2.",
        "| ModelStatistics{name,version}",
        unary("statistics: of all", "statistics: of an unknown model", "statistics: of successes"),
    ),
    Row("2.", "| RepositoryIndex{repository_name,ready}", unary("index", "index with a repository's name", "index: *")),
    Row("2.", "| RepositoryModelLoad{", unary("load: *", "load with a repository's name")),
    Row("2.", "| RepositoryModelUnload", unary("unload: *", "unload with a repository's name")),
    Row(
        "2.",
        "| SystemSharedMemoryStatus/Register/Unregister",
        unary("regions: *", "register: *", "unregister: *", "CUDA *"),
    ),
    Row("2.", "| TraceSetting{settings,model_name}", unary("trace settings: *")),
    Row("2.", "| LogSettings{settings}", unary("log settings: *")),
    # 3.1 Input data.
    Row(
        "3.1",
        "* Either `raw_input_contents`",
        unary("typed *", "raw *", "raw and typed for one input", "raw for one, typed for the other"),
    ),
    Row("3.1", "* Neither:", unary("neither raw nor typed", "fewer raw entries than inputs")),
    Row("3.1", "* Extra raw entries", unary("more raw entries than inputs", "raw entries without inputs")),
    Row("3.1", "* contents field by datatype", unary("typed *", "*_contents for *")),
    Row("3.1", "* Narrow ints truncate", unary("INT8 truncates", "UINT16 truncates")),
    Row(
        "3.1",
        "* Element count mismatch",
        unary("too few typed elements", "too many typed elements", "too few raw bytes"),
    ),
    Row("3.1", "* Unknown datatype string", unary("unknown datatype*")),
    Row("3.1", "* Shape −1", unary("size -1*", "only -1")),
    Row("3.1", "* Shared memory: input parameters", unary("input from a region*", "one input from a region, one raw")),
    # 3.2 Parameters.
    Row("3.2", "| sequence_id |", unary("parameters: sequence number*", "parameters: sequence name*")),
    Row("3.2", "| sequence_start/_end |", unary("parameters: sequence start*", "parameters: sequence end*")),
    Row("3.2", "| priority |", unary("parameters: priority*")),
    Row("3.2", "| timeout |", unary("parameters: time-out*")),
    Row("3.2", "| triton_enable_empty_final_response |", unary("parameters: empty final response*")),
    Row("3.2", "| other `triton_*` |", unary("parameters: reserved*")),
    Row("3.2", "| other | bool", unary("parameters: a*", "parameters: binary_data_output is like any other")),
    Row(
        "3.2",
        "Metadata forwarding:",
        (*unary("headers forwarded*", "a header given twice"), *stream("headers forwarded")),
    ),
    # 3.3 Outputs.
    Row(
        "3.3", "* Output data is **always**", unary("typed *", "output to a region", "one output to a region, one not")
    ),
    Row("3.3", "* `outputs[].parameters.classification`", unary("classes*", "no classes")),
    Row("3.3", "* Decoupled model →", unary("to a decoupled model*")),
    # 3.4 Cancellation.
    Row("3.4", "Client cancel or deadline", (*unary("watch: *"), *stream("watch: *"))),
    # 4. Streams.
    Row("4.", "| Errors | sent in-stream", stream("unknown model, then a normal one", "bad shape, then a normal one")),
    Row("4.", "| Error before execution |", stream("unknown model, then a normal one", "bad parameter")),
    Row("4.", "| Error from execution |", stream("behave: INTERNAL", "the model raises")),
    Row("4.", "| `triton_final_response` |", stream("a normal model", "one response", "last response with final")),
    Row("4.", "| Flag-only final |", stream("two responses", "two responses, empty final")),
    Row("4.", "| zero responses |", stream("no response", "no response, empty final")),
    Row("4.", "| error final (`send(error, FINAL)`)", stream("error and final", "error and final, empty final")),
    Row("4.", "| mid-stream error of decoupled model |", stream("an error in the middle*")),
    Row(
        "4.",
        "| Client cancel |",
        (*stream("watch: a decoupled stream is cancelled"), *unary("watch: seen after the stream was cancelled")),
    ),
    Row("4.", "| `triton_grpc_error: true` request metadata |", stream("errors as the stream's status*")),
    # The table of observed sequences.
    Row("4.", "| N=2 |", stream("two responses")),
    Row("4.", "| N=2, empty_final |", stream("two responses, empty final")),
    Row("4.", "| N=0 / with empty_final |", stream("no response*")),
    Row("4.", "| N=−1 (error+FINAL) |", stream("error and final")),
    Row("4.", "| last response sent with FINAL |", stream("last response with final")),
    Row("4.", "| unknown model, then valid |", stream("unknown model, then a normal one")),
    Row("4.", "| bad shape, then valid |", stream("bad shape, then a normal one")),
    Row("4.", "| exception in model |", stream("the model raises", "a decoupled model raises*")),
    # 5. Connections.
    Row("5.", "| Max message |", unary("a large tensor")),
    Row("5.", "| Compression |", (*unary("gzip request*", "deflate request"), *stream("gzip"))),
    Row("5.", "| Health service |", unary("health check*", "health watch", "restricted: /grpc.health.v1.Health/Check")),
    Row("5.", "| Reflection |", unary("reflection *")),
    # 6. Where the wires differ.
    Row("6.", "| model not ready query |", unary("model ready: an unknown model")),
    Row("6.", "| index with repository |", unary("index with a repository's name")),
    Row("6.", "| unknown load parameter |", unary("load: unknown parameter")),
    Row("6.", "| bad log_format |", unary("log settings: an unknown format")),
    Row(
        "6.", "| wrong JSON/parameter type |", unary("parameters: priority a string", "log settings: info is a string")
    ),
    Row("6.", "| negative timeout |", unary("parameters: time-out negative")),
    Row("6.", "| typed narrow data |", unary("INT8 truncates")),
    Row("6.", "| decoupled on unary |", unary("to a decoupled model")),
    Row("6.", "| uint32 verbose level |", unary("log settings: verbose", "log settings: verbose is a bool")),
]
