"""The `onnx` package's own cases, one or more for each operator, through the served model: inputs in, expected outputs out.

Each runs twice, with a config that says everything and with none. A case that can't be served has to fail at load, with the
right words, for a reason in the tables below; one that onnxruntime itself answers otherwise has to be answered as it does.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import TYPES, OnnxRepo, unary

from kernel import Kernel, ServingError, Tensor

#: No KServe datatype: the element types of the cases that are not in TYPES, and what is not a tensor.
UNSERVED = ("there are datatypes for", "Unsupported ONNX Type")

#: What releases of onnxruntime may lack for the CPU: names of cases -> what it is. They may fail to load, with its own words.
NOT_IN_THE_RUNTIME = {
    r"flexattention": "the operator is a preview",
    r"adagrad|adam|momentum|nesterov": "operators of training",
    r"image_decoder": "it has no ImageDecoder",
    r"optional_(has|get)_element": "it knows their older versions only",
    r"(de)?quantizelinear": "it knows their older versions only",
    r"cast(like)?_.*(FLOAT4E2M1|E8M0|INT2|BFLOAT16)": "it does not cast those types",
    r"bernoulli|swiglu|swish|roialign": "it has not got their newest versions",
    r".*_bf16.*|.*bfloat16.*": "it computes little in bfloat16 on a CPU",
    r"(max|min)_u?int16|pow_types_float32_u|top_k_uint64|bitcast_bool": "not with those types",
    r"(gru|lstm|simple_rnn)_batchwise": "not with layout 1",
    r"strnormalizer": "needs the locale en_US.UTF-8",
}

#: Cases whose expected output onnxruntime does not give; it is what the served model has to give then.
ANSWERED_OTHERWISE = {
    r"attention_4d_with_past_and_present_qk_matmul_bias_[34]d_mask_causal": "where masks meet, other infinities",
    r"maxunpool_export_with_output_shape": "it spreads the places over the larger output",
    r"resize_downsample_scales_(linear|cubic)_align_corners": "it rounds the size otherwise",
}

#: Cases that onnxruntime refuses to run: the served model's answer has to be its error.
REFUSED = {
    r"attention_4d_diff_heads_mask4d_padded_kv": "shapes that it does not take",
    r"convinteger_with_padding": "a zero point for each channel",
    r"reduce_max_empty_set_bool": "the maximum of no booleans",
}

#: Random by nature: datatype and shape are compared.
RANDOM = r"training_dropout|bernoulli|random|multinomial"

#: Cases of which the result is right to within more than the tolerance that they state.
TOLERANCE = {r"dft|stft": (1e-3, 1e-3), r".*fp16|.*float16": (4e-3, 1e-3), r".*bf16|.*bfloat16": (2e-2, 2e-2)}

#: How many cases at least have to be answered with what they expect.
ENOUGH = 1000

ONE_THREAD = """\
backend: "onnxruntime"
instance_group { kind: KIND_CPU count: 1 }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
NAMES = {number: name for name, number in TYPES.items()}


def newest_opset() -> int:
    """The newest version of ONNX's operators that the installed onnxruntime accepts."""
    found = 0
    for opset in range(13, onnx.defs.onnx_opset_version() + 1):
        model = unary("Neg")
        model.opset_import[0].version = opset
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:
            break
        found = opset
    return found


def collect() -> dict[str, Any]:
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, while the expected outputs are computed
        return {case.name.removeprefix("test_"): case for case in node.collect_testcases(None)}


CASES = collect()
OPSET = newest_opset()


def listed(table: Any, name: str) -> Any:
    """Return the entry of a table for a case, or None."""
    return next((table[pattern] for pattern in table if re.match(pattern + r"(_expanded)?", name)), None)


def array_of(value: Any) -> np.ndarray[Any, Any]:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def served(case: Any) -> bool:
    """Whether every input and output of the case has a datatype here."""
    return all(
        io.type.WhichOneof("value") == "tensor_type" and io.type.tensor_type.elem_type in NAMES
        for io in (*case.model.graph.input, *case.model.graph.output)
    )


def explicit(case: Any) -> str:
    """Return a config that says all that there is to say about the inputs and outputs of a case."""
    lines = [ONE_THREAD]
    for kind, ios in (("input", case.model.graph.input), ("output", case.model.graph.output)):
        for io in ios:
            tensor = io.type.tensor_type
            datatype = NAMES.get(tensor.elem_type, "FP32").replace("BYTES", "STRING")
            dims = [size.dim_value or -1 for size in tensor.shape.dim] or [1]
            lines.append(f'{kind} {{ name: "{io.name}" data_type: TYPE_{datatype} dims: {dims} }}')
    return "\n".join(lines)


class Outcome:
    """What became of one case: why it did not load, its error, or its outputs."""

    def __init__(self) -> None:
        self.not_loaded = ""
        self.error = ""
        self.outputs: dict[str, Tensor] = {}


async def run(kernel: Kernel, model: str, case: Any) -> Outcome:
    outcome = Outcome()
    try:
        await kernel.load(model)
    except ServingError as error:
        outcome.not_loaded = error.message
        return outcome
    inputs = {}
    for io, value in zip(case.model.graph.input, case.data_sets[0][0]):
        array = array_of(value)
        array = array.reshape(array.shape or (1,))
        datatype = NAMES[io.type.tensor_type.elem_type]
        if datatype == "BF16":
            array = array.view(np.uint16)
        elif datatype == "BYTES":
            array = text(array)
        inputs[io.name] = Tensor(io.name, datatype, array)
    try:
        response = await asyncio.wait_for(kernel.infer(model, inputs), 30)
        outcome.outputs = {one.name: one for one in response.outputs}
    except ServingError as error:
        outcome.error = error.message
    kernel.unload(model)
    return outcome


def text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = np.empty(array.size, np.object_)
    result[:] = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
    return result.reshape(array.shape)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Outcome]]:
    """Load, ask and unload each case in both ways, one after another in one kernel."""
    repo = OnnxRepo(tmp_path_factory.mktemp("cases"))
    for name, case in CASES.items():
        repo.add(f"auto.{name}", case.model, ONE_THREAD)
        repo.add(f"explicit.{name}", case.model, explicit(case))
    found: dict[tuple[str, str], Outcome] = {}

    async def main(kernel: Kernel) -> None:
        for name, case in CASES.items():
            for way in ("auto", "explicit"):
                found[way, name] = await run(kernel, f"{way}.{name}", case)

    repo.run(main, control_mode="explicit", strict_outputs=True, seconds=300)
    yield found


@pytest.mark.parametrize("name", CASES)
def test_case(outcomes: dict[tuple[str, str], Outcome], name: str) -> None:
    case = CASES[name]
    newest = max((one.version for one in case.model.opset_import if one.domain == ""), default=0)
    if newest > OPSET:
        pytest.skip(f"opset {newest} is newer than this onnxruntime, which knows {OPSET}")
    lacking = None
    for way in ("auto", "explicit"):
        outcome = outcomes[way, name]
        if outcome.not_loaded:
            lacking = not_loaded(case, name, outcome.not_loaded)
        elif outcome.error:
            assert listed(REFUSED, name), outcome.error
            assert re.match(r"onnx runtime error \d+: Non-zero status code returned while running ", outcome.error)
            assert f"model '{way}.{name}', instance '{way}.{name}_0_0'" in outcome.error
        else:
            assert served(case)
            compare(case, name, outcome.outputs)
    if lacking:
        pytest.skip(f"not in this onnxruntime: {lacking}")


def not_loaded(case: Any, name: str, message: str) -> str | None:
    """Return what onnxruntime lacks for a case, None where there is nothing to serve it by; fails for any other reason."""
    if not served(case) and any(words in message for words in UNSERVED):
        return None
    assert re.search(r"onnx runtime error \d+: ", message), message
    assert "/1/model.onnx for model '" in message
    reason = listed(NOT_IN_THE_RUNTIME, name)
    assert reason is not None or not served(case), message
    return str(reason or "types that are not served, either")


def compare(case: Any, name: str, outputs: dict[str, Tensor]) -> None:
    """Compare what was served with what the case expects."""
    expected = [array_of(value) for value in case.data_sets[0][1]]
    if listed(ANSWERED_OTHERWISE, name):
        feeds = {io.name: array_of(value) for io, value in zip(case.model.graph.input, case.data_sets[0][0])}
        session = ort.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, feeds)
    rtol, atol = listed(TOLERANCE, name) or (case.rtol, case.atol)
    assert list(outputs) == [io.name for io in case.model.graph.output]
    for io, wanted in zip(case.model.graph.output, expected):
        tensor = outputs[io.name]
        got = tensor.array
        assert tensor.datatype == NAMES[io.type.tensor_type.elem_type]
        if tensor.datatype == "BF16":
            got = got.view(ml_dtypes.bfloat16)
        elif tensor.datatype == "BYTES":
            wanted = text(np.asarray(wanted))
        assert got.shape == (wanted.shape or (1,))
        assert got.dtype == wanted.dtype
        if re.match(RANDOM, name):
            continue
        if got.dtype.kind in "fV":
            got, wanted = got.astype(np.float64), wanted.astype(np.float64).reshape(got.shape)
            np.testing.assert_allclose(got, wanted, rtol=max(rtol, case.rtol), atol=atol)
        else:
            np.testing.assert_array_equal(got, wanted.reshape(got.shape))


def test_most_cases_are_answered(outcomes: dict[tuple[str, str], Outcome]) -> None:
    for way in ("auto", "explicit"):
        answered = [name for (how, name), outcome in outcomes.items() if how == way and outcome.outputs]
        assert len(answered) >= ENOUGH, f"{len(answered)} of {len(CASES)}"


def test_a_config_that_says_everything_is_answered_the_same(outcomes: dict[tuple[str, str], Outcome]) -> None:
    different = [
        name
        for name in CASES
        if bool(outcomes["auto", name].outputs) != bool(outcomes["explicit", name].outputs)
        and not outcomes["explicit", name].not_loaded
    ]
    assert different == []


def test_types_that_are_not_tensors_are_there(outcomes: dict[tuple[str, str], Outcome]) -> None:
    """So that the rule above is not one about nothing."""
    reasons = [outcome.not_loaded for outcome in outcomes.values()]
    for words in (*UNSERVED, "float8e4m3fn", "seq(tensor(float))"):
        assert any(words in reason for reason in reasons), words
    assert helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT) == np.float32
