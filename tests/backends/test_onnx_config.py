"""What an ONNX model's config may leave out and what it may not contradict; the model's files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import OnnxRepo, ask, config_of, graph, node, unary

import kernel_onnx.backend
from kernel import Kernel
from kernel_onnx.autocomplete import completed
from kernel_onnx.shapes import without_shape
from kernel_onnx.signature import ModelTensor, Signature

CPU = "instance_group { kind: KIND_CPU count: 1 }\n"
ADD = graph([node("Add", ["A", "B"], ["C"])], {"A": ("FP32", ["n", 3]), "B": ("FP32", ["n", 3])}, {"C": ("FP32", ["n", 3])})
FIXED = graph([node("Add", ["A", "B"], ["C"])], {"A": ("FP32", [2, 3]), "B": ("FP32", [2, 3])}, {"C": ("FP32", [2, 3])})
SCALAR = unary("Neg", "INT32", [])
PER_ROW = unary("Neg", "FP32", ["n"])
EMPTY = unary("Neg", "FP32", [0, 2])
SHAPELESS = graph([node("Neg", ["X"], ["Y"])], {"X": ("FP32", ["n"])}, {"Y": ("FP32", None)})
OVERRIDE = graph(
    [node("Add", ["X", "W"], ["Y"])], {"X": ("FP32", [3]), "W": ("FP32", [3])}, {"Y": ("FP32", [3])},
    {"W": np.array([1, 2, 3], np.float32)},
)  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path) -> OnnxRepo:
    return OnnxRepo(tmp_path / "models")


# -- auto-complete -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, config, batch, inputs, outputs",
    [
        (ADD, None, 4, {"A": [3], "B": [3]}, {"C": [3]}),
        (ADD, "max_batch_size: 8", 8, {"A": [3], "B": [3]}, {"C": [3]}),
        (FIXED, None, 0, {"A": [2, 3], "B": [2, 3]}, {"C": [2, 3]}),
        (SCALAR, None, 0, {"X": [1]}, {"Y": [1]}),
        (PER_ROW, None, 4, {"X": [1]}, {"Y": [1]}),
        (EMPTY, None, 0, {"X": [-1, 2]}, {"Y": [-1, 2]}),
        (unary("Neg", "FP32", ["n", None, 3]), None, 4, {"X": [-1, 3]}, {"Y": [-1, 3]}),
        # An initializer is no input unless the config makes it one.
        (OVERRIDE, None, 0, {"X": [3]}, {"Y": [3]}),
        # Whole shapes in the config say that there is no batching.
        (ADD, 'output { name: "C" data_type: TYPE_FP32 dims: [ -1, 3 ] }', 0, {"A": [-1, 3], "B": [-1, 3]}, {"C": [-1, 3]}),
        (ADD, 'output { name: "C" data_type: TYPE_FP32 dims: [ 3 ] }', 4, {"A": [3], "B": [3]}, {"C": [3]}),
        # What is there is kept, what is missing in it is filled in.
        (FIXED, 'input [ { name: "B" }, { name: "A" } ] output { name: "C" }', 0, {"B": [2, 3], "A": [2, 3]}, {"C": [2, 3]}),
    ],
    ids=["batches", "size-given", "fixed", "scalar", "vector", "empty", "variable", "initializer", "whole", "rows", "partial"],
)  # fmt: skip
def test_what_the_config_leaves_out_comes_from_the_model_file(
    repo: OnnxRepo, model: Any, config: str | None, batch: int, inputs: dict[str, Any], outputs: dict[str, Any]
) -> None:
    repo.add("m", model, config and f'backend: "onnxruntime"\n{config}')
    found = repo.config("m")
    assert found["max_batch_size"] == batch
    assert {one["name"]: one["dims"] for one in found["input"]} == inputs
    assert {one["name"]: one["dims"] for one in found["output"]} == outputs
    assert ("dynamic_batching" in found) == (batch > 1)


def test_a_model_without_a_config_is_known_by_its_file(repo: OnnxRepo) -> None:
    repo.add("plain", ADD)
    repo.add("folder", ADD, file="1/model.onnx/model.onnx")
    repo.add("platform", ADD, 'platform: "onnxruntime_onnx"')

    async def main(kernel: Kernel) -> None:
        for name in ("plain", "folder", "platform"):
            config = kernel.model(name).config
            assert (config.backend, config.platform) == ("onnxruntime", "onnxruntime_onnx")
            assert config.metadata_platform == "onnxruntime_onnx"
            assert config.default_model_filename == "model.onnx"
            assert [(one.kind, one.count) for one in config.instance_groups] == [("CPU", 2)]
            a = np.ones((2, 3), np.float32)
            assert (await ask(kernel, name, {"A": a, "B": a}))["C"].tolist() == [[2, 2, 2], [2, 2, 2]]

    repo.run(main)


def test_datatypes_are_filled_in_by_the_names_of_configs(repo: OnnxRepo) -> None:
    cast = graph(
        [node("Cast", ["A"], ["B"], to=16), node("Identity", ["S"], ["T"]), node("Not", ["C"], ["D"])],
        {"A": ("FP16", [1]), "S": ("BYTES", [1]), "C": ("BOOL", [1])},
        {"B": ("BF16", [1]), "T": ("BYTES", [1]), "D": ("BOOL", [1])},
    )
    repo.add("m", cast)
    model = {one.name: one for one in cast.graph.input}
    assert list(model) == ["A", "S", "C"]
    # Strings together with bfloat16 can't be run; the types are filled in all the same.
    assert "inputs of strings and tensors of bfloat16" in repo.load_error("m")
    signature = Signature(
        {"A": ModelTensor("A", "tensor(float16)", "FP16", (1,)), "S": ModelTensor("S", "tensor(string)", "BYTES", (1,))},
        {"B": ModelTensor("B", "tensor(bfloat16)", "BF16", (1,)), "D": ModelTensor("D", "tensor(bool)", "BOOL", (1,))},
        {},
    )
    filled = completed(config_of(repo.folder, ""), signature, 4).as_dict()
    assert [one["data_type"] for one in filled["input"]] == ["TYPE_FP16", "TYPE_STRING"]
    assert [one["data_type"] for one in filled["output"]] == ["TYPE_BF16", "TYPE_BOOL"]


@pytest.mark.parametrize("default, batch", [(0, 0), (1, 1), (16, 16), (-3, 0)])
def test_the_default_batch_size_is_the_backends(tmp_path: Path, default: int, batch: int) -> None:
    tensors = {"X": ModelTensor("X", "tensor(float)", "FP32", (-1, 3))}
    filled = completed(config_of(tmp_path, ""), Signature(tensors, tensors, {}), default)
    assert filled.max_batch_size == batch
    assert (filled.dynamic_batching is not None) == (batch > 1)


@pytest.mark.parametrize("name", ["", "onnxruntime"])
def test_the_default_batch_size_may_be_set(repo: OnnxRepo, name: str) -> None:
    repo.add("m", ADD)
    found = repo.config("m", backend_config={name: {"default-max-batch-size": "7"}})
    assert found["max_batch_size"] == 7


def test_a_batcher_of_the_config_is_kept(repo: OnnxRepo) -> None:
    repo.add("m", ADD, 'backend: "onnxruntime" dynamic_batching { max_queue_delay_microseconds: 7 }')
    found = repo.config("m")
    assert found["dynamic_batching"]["max_queue_delay_microseconds"] == 7
    assert found["dynamic_batching"]["preferred_batch_size"] == [4]


def test_autofilled_batching_is_told_in_the_log(repo: OnnxRepo, caplog: pytest.LogCaptureFixture) -> None:
    repo.add("m", ADD)
    with caplog.at_level(logging.WARNING):
        repo.config("m")
    assert "model 'm': max_batch_size is set to 4" in caplog.text


def test_a_complete_config_asks_the_model_for_nothing(repo: OnnxRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    io = 'input [ { name: "A" data_type: TYPE_FP32 dims: [ -1, 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]'
    repo.add("m", ADD, f'backend: "onnxruntime" {CPU} {io} output {{ name: "C" data_type: TYPE_FP32 dims: [ -1, 3 ] }}')

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the model file was loaded to look at it")

    monkeypatch.setattr(kernel_onnx.backend, "open_session", refuse)
    found = repo.config("m")
    assert found["max_batch_size"] == 0 and "dynamic_batching" not in found


def test_a_shape_that_the_file_does_not_state(repo: OnnxRepo, caplog: pytest.LogCaptureFixture) -> None:
    """onnxruntime shows it like a scalar's; it is not taken for one."""
    loop = graph(
        [node("If", ["C"], ["Y"],
              then_branch=helper.make_graph([node("Constant", [], ["t"], value_floats=[1.0, 2.0])], "t", [], [value("t", None)]),
              else_branch=helper.make_graph([node("Constant", [], ["e"], value_float=3.0)], "e", [], [value("e", None)]))],
        {"C": ("BOOL", [])}, {"Y": ("FP32", None)},
    )  # fmt: skip
    repo.add("m", loop)
    repo.add("explicit", loop, 'backend: "onnxruntime" output { name: "Y" dims: [ -1, -1 ] }')

    async def main(kernel: Kernel) -> None:
        assert kernel.model("m").config.as_dict()["output"][0]["dims"] == [-1]
        assert (await ask(kernel, "m", {"C": np.array([True])}))["Y"].tolist() == [1.0, 2.0]
        assert (await ask(kernel, "m", {"C": np.array([False])}))["Y"].tolist() == [3.0]
        assert (await ask(kernel, "explicit", {"C": np.array([False])}))["Y"].tolist() == [[3.0]]

    with caplog.at_level(logging.WARNING):
        repo.run(main)
    assert "the model file doesn't say which shape 'Y' has" in caplog.text


def value(name: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, 1, shape)


def test_files_are_searched_for_missing_shapes_only(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    for model, names in ((SHAPELESS, {"Y"}), (SCALAR, set()), (ADD, set())):
        file.write_bytes(model.SerializeToString())
        assert without_shape(file) == names
    whole = SHAPELESS.SerializeToString()
    for cut in range(len(whole)):  # whatever a file holds, the answer is no exception
        file.write_bytes(whole[:cut] if cut % 2 else whole[cut:])
        assert without_shape(file) <= {"Y", "X"}
    assert without_shape(tmp_path / "nothing") == frozenset()


@pytest.mark.parametrize("auto_complete", [True, False])
def test_auto_complete_can_be_switched_off(repo: OnnxRepo, auto_complete: bool) -> None:
    repo.add("m", ADD, 'backend: "onnxruntime" input [ { name: "A" }, { name: "B" } ]')
    if auto_complete:
        assert repo.config("m")["input"][0]["data_type"] == "TYPE_FP32"
    else:
        assert "model input 'A' must specify 'data_type'" in repo.load_error("m", auto_complete=False)


# -- disagreement ----------------------------------------------------------------------------------------------------------

A = 'input { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }\n'
B = 'input { name: "B" data_type: TYPE_FP32 dims: [ 3 ] }\n'
C = 'output { name: "C" data_type: TYPE_FP32 dims: [ 3 ] }\n'
BATCHES = "max_batch_size: 4\n"

DISAGREEMENTS = {
    "missing input": (ADD, BATCHES + A + C,
        "unable to load model 'm', configuration expects 1 inputs, model provides 2 — missing are 'B' (tensor(float), shape "
        "[-1,3])"),
    "unknown input": (ADD, BATCHES + A + B.replace('"B"', '"BB"') + C,
        "unexpected inference input 'BB', allowed inputs are: A, B — for model 'm' ("),
    "unknown output": (ADD, BATCHES + A + B + C.replace('"C"', '"Z"'),
        "unexpected inference output 'Z', allowed outputs are: C"),
    "unknown without a type": (ADD, BATCHES + A + 'input { name: "BB" }' + C,
        "unexpected inference input 'BB', allowed inputs are: A, B"),
    "input datatype": (ADD, BATCHES + A.replace("FP32", "INT32") + B + C,
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'A', model provides TYPE_FP32 — "
        "the model has tensor(float)"),
    "output datatype": (ADD, BATCHES + A + B + C.replace("FP32", "STRING"),
        "configuration expects datatype TYPE_STRING for output 'C', model provides TYPE_FP32"),
    "input rank": (ADD, BATCHES + A.replace("[ 3 ]", "[ 3, 1 ]") + B + C,
        "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies 3 dimensions "
        "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
        "[-1,3,1])"),
    "input dim": (ADD, BATCHES + A.replace("[ 3 ]", "[ 4 ]") + B + C, "making complete shape [-1,4])"),
    "output dim": (ADD, BATCHES + A + B + C.replace("[ 3 ]", "[ -1 ]"), "making complete shape [-1,-1])"),
    "no batching": (FIXED, BATCHES + A + B + C,
        "model 'm', tensor 'A': for the model to support batching the shape should have at least 1 dimension and the first "
        "dimension must be -1; but shape expected by the model is [2,3] — got max_batch_size 4"),
    "no batching, no io": (FIXED, BATCHES,
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified — got 4, and "
        "the first dimension has to be variable: 'A' has shape [2,3]; 'B' has shape [2,3]; 'C' has shape [2,3]"),
    "whole shape": (FIXED, A + B + C,
        "model 'm', tensor 'A': the model expects 2 dimensions (shape [2,3]) but the model configuration specifies 1 dimensions "
        "(shape [3])"),
    "scalar": (SCALAR, 'input { name: "X" dims: [ 2 ] } output { name: "Y" }',
        "unable to load model 'm', scalar tensor 'X', should only provide 1 in the model configuration when the model doesn't "
        "support batching. Model configuration provided: [2]."),
    "optional but needed": (FIXED, 'input [ { name: "A" optional: true }, { name: "B" } ]',
        "input 'A' is optional in the configuration — the model can't do without it; inputs that may be left out are its "
        "initializers: none"),
    "initializer not optional": (OVERRIDE, 'input [ { name: "X" }, { name: "W" } ]',
        "input 'W' is an initializer of the model — a request may override it or leave it out: set optional: true"),
    "optional with batching": (
        graph([node("Add", ["X", "W"], ["Y"])], {"X": ("FP32", ["n", 3]), "W": ("FP32", [1, 3])}, {"Y": ("FP32", ["n", 3])},
              {"W": np.ones((1, 3), np.float32)}),
        'max_batch_size: 4 input [ { name: "X" }, { name: "W" optional: true } ]',
        "optional input 'W' is not supported for models that support batching — got max_batch_size 4"),
    "decoupled": (ADD, "model_transaction_policy { decoupled: true }",
        "model 'm' can't be decoupled — an ONNX model gives one answer for each request"),
    "sequence": (
        graph([node("SequenceConstruct", ["X"], ["Y"])], {"X": ("FP32", [1])}, {}),
        None, "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'Y', expected 'ONNX_TYPE_TENSOR'. Model 'm' has a "
        "seq(tensor(float)) there"),
}  # fmt: skip
_sequence = DISAGREEMENTS["sequence"][0].graph.output
_sequence.append(helper.make_tensor_sequence_value_info("Y", 1, None))


@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_what_contradicts_the_model_is_refused(repo: OnnxRepo, case: str) -> None:
    model, config, words = DISAGREEMENTS[case]
    repo.add("m", model, None if config is None else f'backend: "onnxruntime"\n{CPU}{config}')
    assert words in repo.load_error("m")


def test_all_disagreements_are_told_at_once(repo: OnnxRepo) -> None:
    text = BATCHES + A.replace("FP32", "FP16") + B.replace("[ 3 ]", "[ 5 ]") + C.replace("[ 3 ]", "[ -1 ]")
    repo.add("m", ADD, f'backend: "onnxruntime"\n{CPU}{text}')
    reason = repo.load_error("m")
    lines = reason.split("\n")
    assert ["'A'" in lines[0], "'B'" in lines[1], "'C'" in lines[2]] == [True] * 3, reason
    assert all("config.pbtxt:" in line for line in lines[:3])


def test_an_input_may_be_declared_narrower_than_the_model_takes_it(repo: OnnxRepo) -> None:
    repo.add("m", unary("Neg", "FP32", ["n", "m"]), 'backend: "onnxruntime" max_batch_size: 2 input { name: "X" dims: [ 5 ] }')

    async def main(kernel: Kernel) -> None:
        assert (await ask(kernel, "m", {"X": np.ones((1, 5), np.float32)}))["Y"].shape == (1, 5)
        assert "unexpected shape for input 'X'" in await ask(kernel, "m", {"X": np.ones((1, 4), np.float32)})

    repo.run(main)


def test_reshape_stands_between_client_and_model(repo: OnnxRepo) -> None:
    io = (
        'input { name: "X" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } }'
        'output { name: "Y" data_type: TYPE_FP32 dims: [ 1, 6 ] reshape { shape: [ 2, 3 ] } }'
    )
    repo.add("m", unary("Neg", "FP32", ["n", 2, 3]), f'backend: "onnxruntime" max_batch_size: 4 {io}')
    repo.add("wrong", unary("Neg", "FP32", ["n", 6]), f'backend: "onnxruntime" max_batch_size: 4 {io}')

    async def main(kernel: Kernel) -> None:
        x = np.arange(12, dtype=np.float32).reshape(2, 6)
        assert (await ask(kernel, "m", {"X": x}))["Y"].tolist() == (-x).reshape(2, 1, 6).tolist()
        (entry,) = [one for one in kernel.index() if one.name == "wrong"]
        assert "making complete shape [-1,2,3])" in entry.reason

    repo.run(main, exit_on_error=False)


# -- files -----------------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(repo: OnnxRepo) -> None:
    repo.add("m", None, 'backend: "onnxruntime"')
    assert f"unable to find '{repo.folder}/m/1/model.onnx' for model instance 'm'" in repo.load_error("m")
    repo.add("n", ADD, 'backend: "onnxruntime" default_model_filename: "other.onnx"')
    assert f"Unavailable: unable to find '{repo.folder}/n/1/other.onnx' for model instance 'n'" in repo.load_error("n")


def test_another_file_name(repo: OnnxRepo) -> None:
    repo.add("m", ADD, 'backend: "onnxruntime" default_model_filename: "other.onnx"', file="1/other.onnx")
    assert repo.config("m")["max_batch_size"] == 4


@pytest.mark.parametrize(
    "content, words",
    [
        (b"rubbish" * 30, "onnx runtime error 7: Load model from {file} failed:Protobuf parsing failed."),
        (b"", "onnx runtime error "),
        (ADD.SerializeToString()[:60], "onnx runtime error 7"),
        (unary("NoSuchOperator").SerializeToString(), "NoSuchOperator"),
    ],
    ids=["rubbish", "empty", "cut", "operator"],
)
def test_a_broken_file_is_named_with_the_cause(repo: OnnxRepo, content: bytes, words: str) -> None:
    file = repo.add("m", content)
    reason = repo.load_error("m")
    assert words.format(file=file) in reason
    assert f"while loading {file} for model 'm'" in reason
