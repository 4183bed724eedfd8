"""Every difference between the reference's answers and ours that is wanted, and why.

A difference says what ours answers instead, and everything it doesn't mention is the same. The tests hold both ways: a
difference that isn't listed fails, and so does one that is listed and gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import grpc

from .wire import Answer

__all__ = ["DIFFERENCES", "Difference"]

PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
    **{code.value[0]: code.name for code in grpc.StatusCode},
}
JSON, TEXT = ("Content-Type: application/json",), ("Content-Type: text/plain",)


@dataclass(frozen=True)
class Difference:
    """What ours does otherwise.

    `status`: the status instead, with its phrase. `message`: what the whole error message is instead, as a regular
    expression in which `{reference}` stands for the reference's message. `lines`: lines of the answer instead of others; an
    empty string takes a line away, and line breaks make several of one. `body`: all lines instead. `headers`: likewise.
    A line that starts with `~`, old or new, is a regular expression.
    """

    reason: str
    status: int | None = None
    message: str = ""
    lines: Mapping[str, str] = field(default_factory=dict)
    body: tuple[str, ...] | None = None
    headers: tuple[str, ...] | None = None

    def expected(self, theirs: Answer) -> Answer:
        """Return what ours has to answer where the reference answers `theirs`, patterns where patterns are listed."""
        answer = theirs
        if self.status is not None:
            answer = replace(answer, status=self.status, phrase=PHRASES[self.status])
        if self.headers is not None:
            answer = replace(answer, headers=self.headers)
        if self.body is not None:
            return replace(answer, lines=self.body)
        if self.message:
            return replace(answer, lines=("~" + self.message,))
        lines = list(answer.lines)
        for old, new in self.lines.items():
            found = [line for line in lines if (re.fullmatch(old[1:], line) if old.startswith("~") else old == line)]
            assert found, f"the reference doesn't answer what the difference starts from: {old}"
            at = lines.index(found[0])
            lines[at : at + 1] = new.split("\n") if new else []
        return replace(answer, lines=tuple(lines))

    def hide(self, theirs: Answer, ours: Answer) -> Answer:
        """Return ours with the patterns of `expected` in place of the lines that they match."""
        if self.message:
            pattern = self.message.replace("{reference}", re.escape(theirs.error or ""))
            matches = ours.error is not None and re.fullmatch(pattern, ours.error, re.DOTALL)
            return replace(ours, lines=("~" + self.message,)) if matches else ours
        lines = list(ours.lines)
        listed = [line for new in self.body or self.lines.values() for line in new.split("\n")]
        for wanted in (line for line in listed if line.startswith("~")):
            for index, line in enumerate(lines):
                if re.fullmatch(wanted[1:], line, re.DOTALL):
                    lines[index] = wanted
                    break
        return replace(ours, lines=tuple(lines))


# --- kinds of differences ------------------------------------------------------------------------------------------------

#: The reference's message, perhaps with more behind it.
SAME_WORDS = r"{reference}.*"


def malformed(field: str, message: str = SAME_WORDS) -> Difference:
    """A malformed request: ours says 400, in the reference's words, and names the field or input."""
    reason = "a malformed request is the client's mistake: 400, not 500, and the message names the place"
    return Difference(reason, status=400, message=rf"(?=.*{re.escape(field)}){message}")


NAMED = Difference("ours says which input it is", message=r"{reference} \(input 'X'\)")
#: The reference speaks of polling where nobody polls.
MODE = Difference(
    "ours says what the mode is, and what it has to be",
    message=r"{reference} \(the model control mode is 'none', wanted is 'explicit'\)",
)

UNPARSABLE = Difference(
    "JSON that can't be parsed is the client's mistake: 400, not 500; the parser's own words and place differ",
    status=400,
    message=r"failed to parse the request JSON buffer: .+ at \d+",
)


def out_of_range(name: str, datatype: str) -> Difference:
    return Difference(
        "an integer that its datatype can't hold is refused with the range: not wrapped, no 500",
        status=400,
        message=rf"Unable to parse 'data': (?=.*'{name}')(?=.*{datatype} holds -?\d+ to \d+).*",
    )


def refused(name: str, datatype: str) -> Difference:
    """`out_of_range` where the reference answers a success."""
    return replace(out_of_range(name, datatype), headers=JSON)


WITH_PLACE = Difference(
    "the reference keeps the reason to its log; ours tells it behind the reference's words, with the place at the end",
    message=r"{reference}: .+ \(.+:\d+:\d+\)",
)
WITH_REASON = Difference(
    "the reference keeps the reason to its log; ours tells it behind the reference's words",
    message=r"{reference}: .+",
)


#: A place in a configuration.
PLACE = r" \(\S*/config\.pbtxt:\d+:\d+\)"


def placed(detail: str, before: str = "version 1 is at UNAVAILABLE state: Invalid argument: ") -> Difference:
    """A load failure that the reference tells: ours adds what to do, then file, line and column."""
    return Difference(
        "the reason of a failed load comes with file, line and column, and with what would do",
        message=rf"load failed for model '\w+': {before}{re.escape(detail)}.*{PLACE};?\n",
    )


def failed(model: str, pattern: str, *, known: str = "", version: bool = False) -> dict[str, str]:
    """Return the changed lines of an index for a model whose load failed: ours tells the reason, with its place.

    `known`: the reason that the reference tells. It tells none of a configuration that can't be read, nor of an ensemble
    that doesn't fit its models; `version`: whether ours tells the version there.
    """
    if known:
        return {f'[{model}:1].reason = "{known}"': rf'~\[{model}:1\]\.reason = ".*{pattern}.*"'}
    label = f"{model}:1" if version else model
    lines = [f'[{label}].name = "{model}"', *([f'[{label}].version = "1"'] if version else [])]
    lines += [f'[{label}].state = "UNAVAILABLE"', rf'~\[{label}\]\.reason = "Invalid argument: {pattern}.*"']
    return {f'[{model}].name = "{model}"': "\n".join(lines)}


def called_unknown(model: str) -> Difference:
    failure = "Error when running inference: Failed for execute the inference request."
    line = f"outputs[0].data = [\"Model {model} - {failure} Model '{model}' is not ready."
    return Difference(
        "a call of an unknown model says that it is unknown, not only that it isn't ready",
        lines={f'{line}"]': f"{line} Request for unknown model: '{model}' is not found\"]"},
    )


ONCE = Difference(
    "the parameters are in the answer once, not once for each output; the outputs come in the order of the config",
    body=(
        'model_name = "ensemble_two"',
        'model_version = "1"',
        "parameters.sequence_id = 0",
        "parameters.sequence_start = false",
        "parameters.sequence_end = false",
        'outputs[0].name = "SUM"',
        'outputs[0].datatype = "INT32"',
        "outputs[0].shape = [1, 2]",
        "outputs[0].data = [4, 6]",
        'outputs[1].name = "TWICE_A"',
        'outputs[1].datatype = "INT32"',
        "outputs[1].shape = [1, 2]",
        "outputs[1].data = [2, 4]",
    ),
)


def step(words: str, number: int = 0) -> Difference:
    """The error of an ensemble's step: ours names the step too, behind the reference's prefix."""
    return Difference(
        "the error of an ensemble's step names the step",
        message=rf"in ensemble '\w+', .*step {number}\b.*{words}.*",
    )


def counts(**changes: tuple[int, int]) -> dict[str, str]:
    """Return the changed lines of statistics: `field=(theirs, ours)`."""
    lines = {}
    for name, (theirs, ours) in changes.items():
        middle = name if name.endswith("_count") else f"inference_stats.{name}.count"
        lines[f"model_stats[0].{middle} = {theirs}"] = f"model_stats[0].{middle} = {ours}"
    return lines


#: The line with what the model `curious` tells of a request that has one parameter, i.
BIG = (
    r'outputs[0].data = ["{{\"request_id\": \"\", \"correlation_id\": 0, \"flags\": 0, \"timeout\": 0, '
    r"\"parameters\": \"{{\\\"i\\\":{}}}\", \"requested_output_names\": [\"REQUEST\"], "
    r'\"inputs\": [[\"X\", [1, 1]]], \"is_cancelled\": false}}"]'
)

#: An error answer of a model counts as failed with us, and no failed request counts as inferred or computed.
FAILED = "a response that carries an error counts as a failure, not as a success"


BACKEND = "unable to find backend library for backend 'nonsense', try specifying runtime on the model configuration."
GROUP = "instance group bad_group_0 of model bad_group has kind KIND_GPU but no GPUs are available"
INPUT = "model input 'X' must specify 'data_type' for bad_input"
NO_CLASS = "Internal: AttributeError: module '1.model' has no attribute 'TritonPythonModel'"
POLICY = "at least one version must be available under the version policy of model 'no_version'"
INCONSISTENT = "in ensemble ensemble_{0}, ensemble tensor X: inconsistent {1} is inferred from model "

INDEX = Difference(
    "the index tells the reason of every failure, with its place; a class without execute is one, and so is a version policy "
    "that nothing fits, which the reference leaves out; the frames of the import system are left out",
    lines={
        **failed("bad_backend", BACKEND, known=f"Invalid argument: {BACKEND}"),
        **failed("bad_batching", "dynamic batching preferred size must be <= max batch size"),
        **failed("bad_config", "failed to read text proto from .*'dim'.*'dims'"),
        **failed("bad_group", GROUP, known=f"Invalid argument: {GROUP}"),
        **failed("bad_input", INPUT, known=f"Invalid argument: {INPUT}"),
        **failed("bad_name", "unexpected directory name 'bad_name' for model 'other'"),
        **failed("ensemble_no_model", ".* not available or ambiguous: nope", version=True),
        **failed("ensemble_shape", "in ensemble ensemble_shape, ensemble tensor X", version=True),
        **failed("ensemble_tensor", "in ensemble ensemble_tensor, ensemble tensor X", version=True),
        **failed("ensemble_type", "in ensemble ensemble_type, ensemble tensor X", version=True),
        **failed("ensemble_unused", "ensemble output 'Y'"),
        **failed("ensemble_version", ".* whose required version 7 is not loaded", version=True),
        r"~\[no_module:1\]\.reason = .*_find_and_load.*": r'~\[no_module:1\]\.reason = .*model\.py\(3\): <module>\\n"'
        '\n[no_version].name = "no_version"\n[no_version].state = "UNAVAILABLE"\n'
        rf'~\[no_version\]\.reason = "Invalid argument: {POLICY}.*"',
        **failed("no_class", "'TritonPythonModel' — wanted is a class", known=NO_CLASS),
        '[no_execute:1].state = "READY"': '[no_execute:1].state = "UNAVAILABLE"\n'
        r'~\[no_execute:1\]\.reason = "Internal: Python model .* does not implement `execute` method\. — .*"',
    },
)


#: The status of a stream's, or of the one, response. Its words are the reference's.
FIRST_STATUS = {
    status: Difference("an error's own code makes the status; the reference always says 400 there", status=status)
    for status in (404, 500, 503)
}

LENIENT = Difference("an empty name of an encoding is none")
CORRUPT = Difference(
    "what can't be decompressed is refused and told; the reference goes on with what it got",
    status=400,
    headers=TEXT,
    message="the compressed request can't be read: .+",
)
BATCH8 = (
    'model_name = "batch8"',
    'model_version = "1"',
    'outputs[0].name = "Y"',
    'outputs[0].datatype = "FP32"',
    "outputs[0].shape = [1, 2]",
    "outputs[0].data = [1.0, 2.0]",
)


def both(name: str, difference: Difference) -> dict[str, Difference]:
    """Return the difference for both routes of generate."""
    return {f"generate, {name}": difference, f"generate_stream, {name}": difference}


def of_field(field: str) -> Difference:
    """A member of a wrong type where the reference doesn't name it: `malformed`, and ours does."""
    return malformed(f"'{field}'", rf"Unable to parse '{field}': {{reference}}")


def not_a_number(setting: str, detail: str) -> Difference:
    return Difference(
        "a number that is out of range, or has something behind it, is refused; the reference makes of it what it can",
        status=400,
        message=rf"Unable to parse '{setting}'{re.escape(detail)}",
    )


UNKNOWN_SETTING = Difference(
    "a setting that isn't there is a mistake that should be told",
    status=400,
    message=r"there is no trace setting '(nope|trace_mode)' that can be updated; there are .+",
)


# --- the table -----------------------------------------------------------------------------------------------------------

DIFFERENCES: dict[str, Difference] = {
    # Malformed requests.
    "BOOL from numbers": malformed("IN_BOOL"),
    "BOOL from a string": malformed("IN_BOOL"),
    "UINT8 out of range": refused("IN_UINT8", "UINT8"),
    "UINT8 negative": malformed("IN_UINT8"),
    "UINT64 out of range": out_of_range("IN_UINT64", "UINT64"),
    "INT8 out of range": refused("IN_INT8", "INT8"),
    "INT32 from a float": malformed("IN_INT32"),
    "INT32 from a string": malformed("IN_INT32"),
    "INT32 from null": malformed("IN_INT32"),
    "INT32 from a bool": malformed("IN_INT32"),
    "INT64 out of range": out_of_range("IN_INT64", "INT64"),
    "FP32 from a string": malformed("IN_FP32"),
    "FP32 from null": malformed("IN_FP32"),
    "FP32 from a bool": malformed("IN_FP32"),
    "BYTES from a number": malformed("IN_BYTES"),
    "too few elements": malformed("IN_INT32"),
    "too many elements": malformed("IN_INT32"),
    "data isn't an array": malformed("IN_INT32"),
    "data is an object": malformed("IN_INT32"),
    "not JSON": UNPARSABLE,
    "cut-off JSON": UNPARSABLE,
    "trailing comma": UNPARSABLE,
    "text behind the JSON": UNPARSABLE,
    "a list": malformed("inputs"),
    "a number": malformed("inputs"),
    "an empty object": malformed("inputs"),
    "inputs is a number": malformed("inputs"),
    "inputs is an object": malformed("inputs"),
    "inputs is null": malformed("inputs"),
    "an input is a number": malformed("inputs[0]"),
    "an input is null": malformed("inputs[1]"),
    "an output is null": malformed("outputs[0]"),
    "outputs is an object": malformed("outputs"),
    "id is a number": malformed("id"),
    "id is null": malformed("id"),
    "input without a name": malformed("name"),
    "input without a datatype": malformed("datatype"),
    "input without a shape": malformed("shape"),
    "name is a number": malformed("name"),
    "datatype is a number": malformed("datatype"),
    "shape is a number": malformed("shape"),
    "negative shape": malformed("shape"),
    "shape with a float": malformed("shape"),
    "shape with a string": malformed("shape"),
    "output without a name": malformed("name"),
    "output name is a number": malformed("name"),
    "binary_data is a number": malformed("binary_data"),
    "binary_data_output is a number": malformed("binary_data_output"),
    "negative size": malformed("binary_data_size"),
    "size is a string": malformed("binary_data_size"),
    "header length isn't a number": Difference(
        "the reference reads it as 0 and takes the whole body for raw data; newer ones refuse it like ours",
        headers=TEXT,
        message="Unable to parse Inference-Header-Content-Length, got: abc",
    ),
    "header length too short": UNPARSABLE,
    "parameters is a list": malformed("params"),
    "parameters is a number": malformed("params"),
    "parameters is null": malformed("params"),
    "sequence number negative": malformed("sequence_id"),
    "sequence number a float": malformed("sequence_id"),
    "sequence start is a number": malformed("sequence_start"),
    "priority is a string": malformed("priority"),
    "time-out negative": malformed("timeout"),
    "time-out is a float": malformed("timeout"),
    "index, ready isn't a bool": malformed("'ready'", r".*{reference}.*"),
    "index, body isn't JSON": UNPARSABLE,
    "load with a parameter that isn't a string": malformed("'config'", r".*{reference}.*"),
    # Transport.
    "lower-case method": Difference(
        "an answer tells more than a closed connection",
        status=405,
        headers=TEXT,
        body=('error = "Method Not Allowed"',),
    ),
    "server metadata": Difference(
        "our own version",
        lines={'version = "2.51.0"': r'~version = "\d+\.\d+\.\d+.*"'},
    ),
    # Checks.
    "no data": NAMED,
    "data and binary size": NAMED,
    "input from a region, and data": NAMED,
    "input from a region, and a binary size": NAMED,
    "input with a size of a region that isn't named": NAMED,
    "unknown datatype": Difference("ours says what came", message=r"{reference} \('FOO'\)"),
    "datatype in lower case": Difference("ours says what came", message=r"{reference} \('[a-z]+32'\)"),
    "load without explicit mode": MODE,
    "unload without explicit mode": MODE,
    "batches differ": Difference(
        "the reference walks the inputs in the order of a hash table; ours in the request's",
        message=r"\[request id: <id_unknown>\] input 'B' batch size does not match other inputs for 'two'",
    ),
    "a required input among optional ones is missing": Difference(
        "the reference only counts inputs, and the model fails",
        status=400,
        headers=JSON,
        message=r"\[request id: <id_unknown>\] expected number of inputs between 1 and 3 but got 1 inputs for model 'optional'\. "
        r"Got input\(s\) \['B'\], but missing required input\(s\) \['A'\]\. Please provide all required input\(s\)\.",
    ),
    "unknown input beside the right one": Difference(
        "where nothing is missing, the list of what is missing is empty, not cut off",
        message=r"\[request id: <id_unknown>\] expected 1 inputs but got 2 inputs for model 'batch8'\. "
        r"Got input\(s\) \['NOPE','X'\], but missing required input\(s\) \[\]\. Please provide all required input\(s\)\.",
    ),
    # Classes, compression.
    "classes, a negative number": malformed("NAMED"),
    "classes, a string": malformed("NAMED"),
    "no encoding by name": replace(LENIENT, status=200, headers=JSON, body=BATCH8),
    "not compressed at all": CORRUPT,
    "compressed and cut off": CORRUPT,
    "an error to who accepts gzip": UNPARSABLE,
    # Generate.
    **dict.fromkeys(
        (
            "generate, two responses",
            "generate, no response",
            "generate, an error later",
            "generate, what JSON can't carry, later",
        ),
        Difference("not exactly one response is an error, and its status says so", status=400),
    ),
    "generate, an error": FIRST_STATUS[404],
    "generate_stream, an error": FIRST_STATUS[404],
    "generate_stream, an error first": FIRST_STATUS[503],
    "generate, the model raises": FIRST_STATUS[500],
    "generate_stream, the model raises": FIRST_STATUS[500],
    **both("nested lists", malformed("'X'")),
    **both("a string for a number", malformed("'X'")),
    **both("null for a number", malformed("'X'")),
    **both("id is a number", malformed("'id'")),
    **both("parameters is a number", malformed("'parameters'")),
    "generate, nothing": UNPARSABLE,
    "generate, not JSON": UNPARSABLE,
    "generate, a list": malformed("non-object"),
    "generate, INT8 out of range": replace(out_of_range("IN_INT8", "INT8"), headers=JSON),
    "generate, BYTES from a number": malformed("'IN_BYTES'"),
    "ragged data of the right size": Difference(
        "lists of unequal length are a mistake, also where their elements happen to add up",
        status=400,
        headers=JSON,
        message=r"Unable to parse 'data': Shape does not match true shape of 'data' field \(input '.*' (is ragged|mixes) .*\)",
    ),
    "BYTES, cut-off payload": Difference(
        "found while the request is checked, not when the model reads it", headers=JSON
    ),
    "all inputs of a batching model absent": Difference(
        "optional inputs may all be absent, with a batch dimension as without",
        status=200,
        headers=JSON,
        body=(
            'model_name = "curious"',
            'model_version = "1"',
            'outputs[0].name = "REQUEST"',
            'outputs[0].datatype = "BYTES"',
            "outputs[0].shape = [1, 1]",
            "~outputs\\[0\\]\\.data = .*inputs.*: \\[\\].*",
        ),
    ),
    "parameter larger than 64 bits": Difference(
        "the same number, written with an exponent",
        lines={BIG.format("9223372036854776000.0"): BIG.format("9.223372036854776e+18")},
    ),
    # What models do.
    "behave: unicode_array": Difference(
        "numpy's arrays of str are strings",
        status=200,
        headers=JSON,
        body=(
            'model_name = "behave"',
            'model_version = "1"',
            'outputs[0].name = "TEXT"',
            'outputs[0].datatype = "BYTES"',
            "outputs[0].shape = [1]",
            'outputs[0].data = ["abc"]',
        ),
    ),
    "behave: complex_array": Difference(
        "the error names the dtype and the fix",
        message=r"Failed to process .*: TritonModelException: NumPy dtype is not supported\. .*complex64.*\n\nAt:\n.*",
    ),
    "bls_sync calls nope": called_unknown("nope"),
    "bls_sync calls nothing": called_unknown(""),
    "bls_async calls nope": called_unknown("nope"),
    "bls_async calls nothing": called_unknown(""),
    # Ensembles.
    "ensemble, two outputs": ONCE,
    "ensemble, first step answers an error": step('a NOT_FOUND "error"', 0),
    "ensemble, second step answers an error": step('a UNAVAILABLE "error"', 1),
    "ensemble, first step raises": step("ValueError: wrong value", 0),
    "ensemble, second step raises": step("ValueError: wrong value", 1),
    "ensemble, a tensor between steps is missing": step(r"missing required input\(s\) \['WHAT'\]", 1),
    "ensemble, a tensor between steps has the wrong shape": step(r"Expected \[1\], got \[7\]\.", 1),
    "ensemble, the last output is missing": Difference(
        "an output that no step produced is told, not left out in silence",
        body=(
            'model_name = "ensemble_failing"',
            'model_version = "1"',
            r"~parameters\.warning = \"output 'OUT' was not produced: step 1 \(model 'behave'\).*",
            "outputs = []",
        ),
    ),
    "counted: a failing ensemble": step("ValueError: far too small", 0),
    # Statistics.
    "statistics after an error answer": Difference(
        FAILED,
        lines=counts(
            inference_count=(8, 7),
            success=(4, 3),
            fail=(1, 2),
            queue=(4, 3),
            compute_input=(4, 3),
            compute_infer=(4, 3),
            compute_output=(4, 3),
        ),
    ),
    "statistics of its steps": Difference(
        FAILED,
        lines=counts(
            inference_count=(12, 11),
            success=(6, 5),
            fail=(1, 2),
            queue=(6, 5),
            compute_input=(6, 5),
            compute_infer=(6, 5),
            compute_output=(6, 5),
        ),
    ),
    # Loading.
    "load an unknown model": replace(WITH_REASON, status=404),
    "load with a broken configuration": WITH_PLACE,
    "load with a wrong configuration": WITH_REASON,
    "load with a file but no configuration": WITH_REASON,
    "load no_version": placed(POLICY, ""),
    "load no_module": Difference(
        "the frames of the import system are left out",
        message=r"load failed .*: ModuleNotFoundError: No module named 'surely_not_installed'\n\n"
        r"At:\n  \S+/no_module/1/model\.py\(3\): <module>\n;\n",
    ),
    "load no_class": Difference(
        "what was wanted stands behind the words, and the place, where there is a line",
        message=r"load failed .*: AttributeError: module '1\.model' has no attribute 'TritonPythonModel' — wanted is (.|\n)*;\n",
    ),
    "load no_execute": Difference(
        "a class without execute is refused when it is loaded, not when it is used",
        status=400,
        message=r"load failed .*: Internal: Python model \S+/no_execute/1/model\.py does not implement `execute` method\. — "
        r"(.|\n)*;\n",
    ),
    "load bad_config": WITH_PLACE,
    "load bad_name": WITH_PLACE,
    "load bad_batching": WITH_PLACE,
    "load bad_input": placed(INPUT),
    "load bad_backend": placed(BACKEND),
    "load bad_group": placed(GROUP),
    "load ensemble_no_model": placed(
        "ensemble ensemble_no_model contains models that are not available or ambiguous: nope", ""
    ),
    "load ensemble_type": placed(INCONSISTENT.format("type", "data type: TYPE_INT32"), ""),
    "load ensemble_shape": placed(INCONSISTENT.format("shape", "shape: [3]"), ""),
    "load ensemble_tensor": placed(
        "in ensemble ensemble_tensor, ensemble tensor X is mapping to non-existing input Z in model echo", ""
    ),
    "load ensemble_version": placed(
        "ensemble 'ensemble_version' depends on 'echo' whose required version 7 is not loaded.", ""
    ),
    "load ensemble_unused": WITH_PLACE,
    "index of what failed": INDEX,
    "index at the end": INDEX,
    "unload with a parameter that isn't a bool": Difference(
        "a malformed request is the client's mistake: 400, not silence",
        status=400,
        message=r".*'unload_dependents'.*attempt to access JSON non-boolean as boolean.*",
    ),
    # Shared memory.
    "register: no body": UNPARSABLE,
    "register: not JSON": UNPARSABLE,
    "register: key is a number": of_field("key"),
    "register: size is a string": of_field("byte_size"),
    "register: size is negative": of_field("byte_size"),
    "register: size is a float": of_field("byte_size"),
    "register: offset is null": of_field("offset"),
    "register: no bytes": Difference(
        "the error tells what is wrong, not what mmap said",
        message=r"failed to register shared memory region 'mine': 0 bytes from 0 on are no region",
    ),
    "register: an offset within a page": Difference(
        "a region may begin anywhere in its object, not only at a page", status=200, body=()
    ),
    "register: a second region, larger than the first": Difference(
        "several regions may lie in one object; the reference refuses all but the first", status=200, body=()
    ),
    "input from a region, size is a string": malformed("'X'"),
    "input from a region, offset is negative": malformed("'X'"),
    "input from a region, name is a number": malformed("'X'"),
    "output to a region, size is a string": malformed("'Y'"),
    "output to a region, name is a number": malformed("'Y'"),
    "output to a region and what is no bool": malformed(
        "'Y'", r"Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean \(output 'Y'\)"
    ),
    "CUDA register: no body": UNPARSABLE,
    "CUDA register: handle is a number": of_field("b64"),
    "CUDA register: handle isn't text": of_field("b64"),
    "CUDA register: no size": of_field("byte_size"),
    "CUDA register: no device": of_field("device_id"),
    "CUDA register: device is a string": of_field("device_id"),
    "headers forwarded, an empty value": Difference(
        "white space around a header's value is no part of it",
        lines={r'outputs[0].data = ["{\"X-User\": \" \"}"]': r'outputs[0].data = ["{\"X-User\": \"\"}"]'},
    ),
    # Settings.
    "trace settings: no body": UNPARSABLE,
    "trace settings: not JSON": UNPARSABLE,
    "trace settings: level is a string": of_field("trace_level"),
    "trace settings: level of numbers": of_field("trace_level"),
    "trace settings: rate is a number": of_field("trace_rate"),
    "trace settings: rate is a list": of_field("trace_rate"),
    "trace settings: rate and a word": not_a_number("trace_rate", ", got: 5x"),
    "trace settings: rate is negative": not_a_number("trace_rate", ", value is out of range [ 0, 4294967295 ], got: -1"),
    "trace settings: frequency is negative": not_a_number(
        "log_frequency", ", value is out of range [ 0, 4294967295 ], got: -1"
    ),
    "trace settings: an unknown setting": UNKNOWN_SETTING,
    "trace settings: mode": UNKNOWN_SETTING,
    "log settings: no body": UNPARSABLE,
    "log settings: not JSON": UNPARSABLE,
    "log settings: info is a number": of_field("log_info"),
    "log settings: info is a string": of_field("log_info"),
    "log settings: error is a list": of_field("log_error"),
    "log settings: verbose is negative": of_field("log_verbose_level"),
    "log settings: verbose is a bool": of_field("log_verbose_level"),
    "log settings: verbose is a string": of_field("log_verbose_level"),
    "log settings: verbose is a float": of_field("log_verbose_level"),
    "log settings: format is a number": of_field("log_format"),
}
