"""Every difference between the reference's answers and ours over gRPC that is wanted, and why; the rules are those of
differences.py. A status here is one of gRPC's, a message the text that comes with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from .differences import FAILED, INDEX, MODE, SAME_WORDS, WITH_PLACE, WITH_REASON, Difference, step

__all__ = ["DIFFERENCES"]


def status(code: grpc.StatusCode) -> int:
    return int(code.value[0])


OK = status(grpc.StatusCode.OK)
INVALID_ARGUMENT = status(grpc.StatusCode.INVALID_ARGUMENT)
NOT_FOUND = status(grpc.StatusCode.NOT_FOUND)
DEADLINE_EXCEEDED = status(grpc.StatusCode.DEADLINE_EXCEEDED)

UNPARSABLE = Difference(
    "bytes that are no message are the client's mistake: INVALID_ARGUMENT, and it says which message was wanted",
    status=INVALID_ARGUMENT,
    message=SAME_WORDS.replace(".*", r" as [\w.]+: .+"),
)
UNKNOWN = Difference("an unknown method is named", message=r"unknown method '/.+'")


def truncated(name: str, low: int, high: int) -> Difference:
    return Difference(
        "an integer that its datatype can't hold is refused with the range, not wrapped",
        status=INVALID_ARGUMENT,
        message=rf"unexpected explicit tensor data for input tensor 'IN_{name}' for model 'types': element 0 of "
        rf"'u?int_contents' is -?\d+, {name} holds {low} to {high}",
    )


def not_a_version(text: str) -> Difference:
    return Difference(
        "the reference reads a version as far as it is a number, and takes the rest for nothing",
        status=INVALID_ARGUMENT,
        message=rf"failed to get model version from specified version string '{text}' \(details: stol\), "
        "version should be an integral value > 0",
    )


def unsigned(told: str) -> Difference:
    """`told`: what the model sees."""
    return Difference(
        "unsigned integers are welcome, as in newer versions",
        status=OK,
        body=(
            'model_name = "curious"',
            'model_version = "1"',
            'outputs[0].name = "REQUEST"',
            'outputs[0].datatype = "BYTES"',
            "outputs[0].shape = [1, 1]",
            rf"~raw_output_contents\[0\] = .*{told}.*",
        ),
    )


def counts(model: str, **changes: tuple[int, int]) -> dict[str, str]:
    """Return the changed lines of statistics: `field=(theirs, ours)`."""
    lines = {}
    for name, (theirs, ours) in changes.items():
        middle = name if name.endswith("_count") else f"inference_stats.{name}.count"
        lines[f"model_stats[{model}:1].{middle} = {theirs}"] = f"model_stats[{model}:1].{middle} = {ours}"
    return lines


def executed(theirs: int, ours: int) -> dict[str, tuple[int, int]]:
    """What is counted for each request that was executed with success."""
    names = ("inference_count", "success", "queue", "compute_input", "compute_infer", "compute_output")
    return dict.fromkeys(names, (theirs, ours))


CANCELLED = "a request that was cancelled while it ran counts as failed for that reason, not as a success"

NEITHER = "a name that isn't a setting's is a mistake"

NORMAL = (
    '[{0}].infer_response.model_name = "batch8"',
    '[{0}].infer_response.model_version = "1"',
    '[{0}].infer_response.id = "n"',
    "[{0}].infer_response.parameters[triton_final_response].bool_param = true",
    '[{0}].infer_response.outputs[0].name = "Y"',
    '[{0}].infer_response.outputs[0].datatype = "FP32"',
    "[{0}].infer_response.outputs[0].shape = [1, 2]",
    "[{0}].infer_response.raw_output_contents[0] = 0000803f 00000040",
)

VERSION = Difference("our own version", lines={'version = "2.51.0"': r'~version = "\d+\.\d+\.\d+.*"'})


def of_models(lines: Mapping[str, str]) -> dict[str, str]:
    """Return lines of an index over HTTP as they are over gRPC."""

    def each(line: str) -> str:
        return f"~models{line[1:]}" if line.startswith("~") else f"models{line}"

    return {each(old): "\n".join(each(line) for line in new.split("\n")) for old, new in lines.items()}


GRPC_INDEX = Difference(INDEX.reason, lines=of_models(INDEX.lines))


def never_loaded(model: str) -> Difference:
    """A model that the reference loads and ours doesn't: all its statistics are missing."""
    lines = [f'name = "{model}"', 'version = "1"']
    for name in (
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    ):
        lines += [f"inference_stats.{name}.count = 0", f"inference_stats.{name}.ns = <masked>"]
    return Difference(
        "a class without execute is refused when it is loaded",
        lines={f"model_stats[{model}:1].{line}": "" for line in lines},
    )


DIFFERENCES: Mapping[str, Difference] = {
    # The server.
    "gRPC: live, with what is no message": UNPARSABLE,
    "gRPC: health check, no message": UNPARSABLE,
    "gRPC: bytes that are no message": UNPARSABLE,
    "gRPC: server metadata": VERSION,
    "gRPC: restricted, opened: ServerMetadata": VERSION,
    "gRPC: an unknown method": UNKNOWN,
    "gRPC: an unknown service": UNKNOWN,
    "gRPC: another package": UNKNOWN,
    "gRPC: restricted, an unknown method": UNKNOWN,
    "gRPC: health watch": Difference(
        "watching is answered: a message for each state, until the client has had enough",
        status=DEADLINE_EXCEEDED,
        body=("[0].message = 0801",),
    ),
    **dict.fromkeys(
        ("gRPC: reflection v1", "gRPC: reflection v1alpha"),
        Difference("the services can be looked up", status=OK, body=(r"~\[0\]\.message = 12 023a0032 .*",)),
    ),
    **{
        f"gRPC: {asked}: version '{text}'": not_a_version(text)
        for asked in ("model ready", "metadata")
        for text in ("1x", " 1", "1.5")
    },
    # Tensors.
    "gRPC: INT8 truncates": truncated("INT8", -128, 127),
    "gRPC: INT16 truncates": truncated("INT16", -32768, 32767),
    "gRPC: UINT8 truncates": truncated("UINT8", 0, 255),
    "gRPC: UINT16 truncates": truncated("UINT16", 0, 65535),
    "gRPC: size -1 of the batch": Difference(
        "the reference takes it for a very large number",
        message=r"\[request id: <id_unknown>\] All input dimensions should be specified for input 'X' for model 'batch8', "
        r"got \[-1,2\]",
    ),
    "gRPC: a shape of more elements than there can be": Difference(
        "the reference sees the lower half of the batch size only",
        message=r"\[request id: <id_unknown>\] inference request batch-size must be <= 8 for 'batch8'",
    ),
    "gRPC: batches differ": Difference(
        "the reference walks the inputs in the order of a hash table; ours in the request's",
        message=r"\[request id: <id_unknown>\] input 'B' batch size does not match other inputs for 'two'",
    ),
    "gRPC: required input absent": Difference(
        "the reference only counts inputs, and the model fails",
        status=INVALID_ARGUMENT,
        message=r"\[request id: <id_unknown>\] expected number of inputs between 1 and 3 but got 1 inputs for model 'optional'\. "
        r"Got input\(s\) \['B'\], but missing required input\(s\) \['A'\]\. Please provide all required input\(s\)\.",
    ),
    "gRPC: unknown input beside the right one": Difference(
        "where nothing is missing, the list of what is missing is empty, not cut off",
        message=r"\[request id: <id_unknown>\] expected 1 inputs but got 2 inputs for model 'batch8'\. "
        r"Got input\(s\) \['NOPE','X'\], but missing required input\(s\) \[\]\. Please provide all required input\(s\)\.",
    ),
    # Parameters.
    "gRPC: parameters: an unsigned integer": unsigned(r"u.*:7\}"),
    "gRPC: parameters: a large unsigned integer": unsigned(r"u.*:18446744073709551615\}"),
    "gRPC: parameters: sequence number unsigned": unsigned(r'"correlation_id": 9223372036854775808,'),
    # What models do.
    "gRPC: behave: twice": Difference(
        "the reference mixes up two outputs of one name",
        lines={
            "outputs[0].shape = [1, 1]": "outputs[0].shape = [1]",
            'outputs[1].name = "OUT"': 'outputs[1].name = "OUT"\noutputs[1].datatype = "FP32"\noutputs[1].shape = [1]',
        },
    ),
    "gRPC: ensemble, first step answers an error": step('a NOT_FOUND "error"', 0),
    "gRPC: ensemble, second step raises": step("ValueError: wrong value", 1),
    "gRPC: counted: a failing ensemble": step("ValueError: far too small", 0),
    # Streams.
    "gRPC stream: behave: send": Difference(
        "the one answer of a model that answers once is its last, whatever the model says about it",
        lines={
            "[0].infer_response.parameters[triton_final_response].bool_param = false": (
                "[0].infer_response.parameters[triton_final_response].bool_param = true"
            )
        },
    ),
    "gRPC stream: bytes that are no message, then a normal one": Difference(
        "the mistake is told and the stream goes on; the reference ends it without a word",
        body=(
            r'~\[0\]\.error_message = "Unable to parse request as inference\.ModelInferRequest: .+"',
            "[0].infer_response = {}",
            *(line.format(1) for line in NORMAL),
        ),
    ),
    "gRPC stream: an ensemble fails": Difference(
        "the error of an ensemble's step names the step",
        lines={
            r"~\[0\]\.error_message = .*": "[0].error_message = \"in ensemble 'ensemble_failing', step 0 (model 'behave'): "
            'a NOT_FOUND \\"error\\""'
        },
    ),
    "gRPC stream: errors as the stream's status": Difference(
        "this metadata is heeded, as in newer versions",
        status=NOT_FOUND,
        body=("error = \"Request for unknown model: 'nope' is not found\"",),
    ),
    # Who goes away.
    "gRPC: watch: counted before one is queued": Difference(
        CANCELLED, lines=counts("watch", **executed(9, 5), fail=(0, 4))
    ),
    "gRPC: watch: counted after one was queued": Difference(
        CANCELLED, lines=counts("watch", **executed(11, 6), fail=(1, 6))
    ),
    "gRPC: watch: counted after the queue was full": Difference(
        CANCELLED, lines=counts("watch", **executed(16, 11), fail=(2, 7))
    ),
    # Shared memory, settings.
    "gRPC: register: no bytes": Difference(
        "the error tells what is wrong, not what mmap said",
        message=r"failed to register shared memory region 'mine': 0 bytes from 0 on are no region",
    ),
    "gRPC: register: more bytes than there can be": Difference(
        "the error doesn't tell what mmap said", message="failed to register shared memory region 'mine': invalid args"
    ),
    "gRPC: trace settings: rate is negative": Difference(
        "a number below zero is no rate; the reference wraps it",
        status=INVALID_ARGUMENT,
        message=r"Unable to parse 'trace_rate', value is out of range \[ 0, 4294967295 \], got: -1",
    ),
    "gRPC: trace settings: count is negative": Difference(
        "the same words on both wires", message=r"Unable to parse 'trace_count'\. Expecting value >= -1, got:-2"
    ),
    "gRPC: trace settings: mode": Difference(
        NEITHER,
        status=INVALID_ARGUMENT,
        message="there is no trace setting 'trace_mode' that can be updated; there are .*",
    ),
    "gRPC: trace settings: an unknown setting": Difference(
        NEITHER, status=INVALID_ARGUMENT, message="there is no trace setting 'nope' that can be updated; there are .*"
    ),
    # Statistics. Over HTTP the same was told before; the numbers go on.
    **{
        f"gRPC: statistics: {name}": Difference(
            FAILED, lines=counts("counted", **{**executed(*done), "inference_count": rows}, fail=failures)
        )
        for name, rows, done, failures in (
            ("before", (12, 11), (6, 5), (2, 3)),
            ("of successes", (16, 15), (8, 7), (2, 3)),
            ("after a refusal", (16, 15), (8, 7), (2, 3)),
            ("after an exception", (16, 15), (8, 7), (3, 4)),
            ("after an error answer", (17, 15), (9, 7), (3, 5)),
            ("after a stream", (23, 21), (13, 11), (4, 6)),
        )
    },
    "gRPC: statistics: of all": never_loaded("no_execute"),
    "gRPC: statistics: of a version without a model": never_loaded("no_execute"),
    "gRPC: index: explicit, at the start": GRPC_INDEX,
    "gRPC: index: explicit, at the end": GRPC_INDEX,
    # Loading.
    "gRPC: load without explicit mode": MODE,
    "gRPC: unload without explicit mode": MODE,
    "gRPC: load: an unknown model": Difference(WITH_REASON.reason, status=NOT_FOUND, message=WITH_REASON.message),
    "gRPC: load: no name": Difference(
        "a name that is none is the client's mistake", status=INVALID_ARGUMENT, message="invalid model name '', .+"
    ),
    "gRPC: load: file without config": WITH_REASON,
    "gRPC: load: config that is no JSON": WITH_PLACE,
    "gRPC: load: config that is wrong": WITH_REASON,
    "gRPC: load: one whose config is broken": WITH_PLACE,
}
