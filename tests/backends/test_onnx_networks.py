"""Whole ONNX networks: recurrent, with loops and branches, of several inputs, of any shape; ragged batches; the sample."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx_models import BATCHES, CPU, SCALE, OnnxRepo, ask, executions, graph, node, rows, tensor

from kernel import InferenceRequest, Kernel, Tensor
from kernel.config import read_config
from kernel_onnx.ragged import BatchInputs


@pytest.fixture
def repo(tmp_path: Path) -> OnnxRepo:
    return OnnxRepo(tmp_path / "models")


# -- networks ----------------------------------------------------------------------------------------------------------------


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32) / 4


def lstm() -> onnx.ModelProto:
    """Batch first outside, time first inside, as exporters write it; both directions."""
    weights = {"W": random(2, 16, 3), "R": random(2, 16, 4), "B": random(2, 32)}
    return graph(
        [node("Transpose", ["X"], ["T"], perm=[1, 0, 2]),
         node("LSTM", ["T", "W", "R", "B"], ["S", "H", "C"], hidden_size=4, direction="bidirectional"),
         node("Transpose", ["S"], ["SEQUENCE"], perm=[2, 0, 1, 3]), node("Transpose", ["H"], ["LAST"], perm=[1, 0, 2])],
        {"X": ("FP32", ["n", "t", 3])}, {"SEQUENCE": ("FP32", ["n", "t", 2, 4]), "LAST": ("FP32", ["n", 2, 4])}, weights,
    )  # fmt: skip


def gru() -> onnx.ModelProto:
    """With lengths and an initial state: three inputs of three types and ranks."""
    weights = {"W": random(1, 12, 3), "R": random(1, 12, 4), "B": random(1, 24), "ZERO": np.array([0]), "ONE": np.array([1])}
    return graph(
        [node("Transpose", ["X"], ["T"], perm=[1, 0, 2]), node("Squeeze", ["LENGTH", "ONE"], ["L"]),
         node("Unsqueeze", ["STATE", "ZERO"], ["I"]),
         node("GRU", ["T", "W", "R", "B", "L", "I"], ["", "H"], hidden_size=4, linear_before_reset=1),
         node("Squeeze", ["H", "ZERO"], ["NEXT"])],
        {"X": ("FP32", ["n", "t", 3]), "LENGTH": ("INT32", ["n", 1]), "STATE": ("FP32", ["n", 4])}, {"NEXT": ("FP32", ["n", 4])},
        weights,
    )  # fmt: skip


def scan() -> onnx.ModelProto:
    """Running sums over the second dimension."""
    body = helper.make_graph(
        [node("Add", ["state", "x"], ["sum"]), node("Identity", ["sum"], ["out"])], "body",
        [tensor("state", ("FP32", None)), tensor("x", ("FP32", None))],
        [tensor("sum", ("FP32", None)), tensor("out", ("FP32", None))],
    )  # fmt: skip
    return graph(
        [node("ReduceSum", ["X", "AXIS"], ["SUMS"], keepdims=0), node("Sub", ["SUMS", "SUMS"], ["START"]),
         node("Scan", ["START", "X"], ["TOTAL", "RUNNING"],
              body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1])],
        {"X": ("FP32", ["n", "t", 2])},
        {"TOTAL": ("FP32", ["n", 2]), "RUNNING": ("FP32", ["n", "t", 2])}, {"AXIS": np.array([1])},
    )  # fmt: skip


def attention() -> onnx.ModelProto:
    """Tokens and a mask in; embeddings, attention with the mask, the mean over what is not masked."""
    weights = {"E": random(50, 8), "Q": random(8, 8), "K": random(8, 8), "BIG": np.float32(-1e9), "ONE": np.float32(1),
               "A1": np.array([1]), "A2": np.array([2])}  # fmt: skip
    return graph(
        [node("Gather", ["E", "TOKENS"], ["e"]), node("MatMul", ["e", "Q"], ["q"]), node("MatMul", ["e", "K"], ["k"]),
         node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["s"]),
         node("Cast", ["MASK"], ["m"], to=TensorProto.FLOAT),
         node("Sub", ["ONE", "m"], ["off"]), node("Mul", ["off", "BIG"], ["b"]),
         node("Unsqueeze", ["b", "A1"], ["b1"]), node("Add", ["s", "b1"], ["masked"]), node("Softmax", ["masked"], ["p"]),
         node("MatMul", ["p", "e"], ["c"]), node("Unsqueeze", ["m", "A2"], ["m2"]), node("Mul", ["c", "m2"], ["kept"]),
         node("ReduceSum", ["kept", "A1"], ["total"], keepdims=0), node("ReduceSum", ["m", "A1"], ["count"]),
         node("Div", ["total", "count"], ["EMBEDDING"])],
        {"TOKENS": ("INT64", ["n", "t"]), "MASK": ("BOOL", ["n", "t"])}, {"EMBEDDING": ("FP32", ["n", 8])}, weights,
    )  # fmt: skip


def detector() -> onnx.ModelProto:
    """Convolutions over images of any size, and boxes of which nobody knows how many."""
    weights = {"F": random(4, 3, 3, 3), "HALF": np.float32(0.1)}
    return graph(
        [node("Conv", ["IMAGE", "F"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", ["c"], ["MAP"]),
         node("Greater", ["MAP", "HALF"], ["g"]), node("NonZero", ["g"], ["z"]),
         node("Transpose", ["z"], ["PLACES"], perm=[1, 0])],
        {"IMAGE": ("FP32", [1, 3, "h", "w"])}, {"MAP": ("FP32", [1, 4, None, None]), "PLACES": ("INT64", [None, 4])}, weights,
    )  # fmt: skip


def collatz() -> onnx.ModelProto:
    """A loop with a condition, a branch in it and an output that grows: the sequence from N to 1."""
    then = helper.make_graph([node("Div", ["v", "TWO"], ["half"])], "even", [], [tensor("half", ("INT64", []))])
    other = helper.make_graph(
        [node("Mul", ["v", "THREE"], ["m"]), node("Add", ["m", "ONE"], ["odd"])], "odd", [], [tensor("odd", ("INT64", []))]
    )
    body = helper.make_graph(
        [node("Mod", ["v", "TWO"], ["rest"]), node("Equal", ["rest", "ZERO"], ["even"]),
         node("If", ["even"], ["next"], then_branch=then, else_branch=other),
         node("Greater", ["next", "ONE"], ["more"]), node("Identity", ["next"], ["seen"])], "body",
        [tensor("i", ("INT64", [])), tensor("go", ("BOOL", [])), tensor("v", ("INT64", []))],
        [tensor("more", ("BOOL", [])), tensor("next", ("INT64", [])), tensor("seen", ("INT64", []))],
    )  # fmt: skip
    weights = {"ZERO": np.array(0), "ONE": np.array(1), "TWO": np.array(2), "THREE": np.array(3), "T": np.array(True)}
    return graph(
        [node("Loop", ["", "T", "N"], ["END", "STEPS"], body=body)], {"N": ("INT64", [])},
        {"END": ("INT64", []), "STEPS": ("INT64", [None])}, weights,
    )  # fmt: skip


def tokens(rows: int, length: int) -> dict[str, Any]:
    return {
        "TOKENS": np.arange(rows * length).reshape(rows, length) % 50,
        "MASK": np.arange(length) < np.arange(1, rows + 1).reshape(rows, 1),
    }


def gru_inputs(rows: int, length: int) -> dict[str, Any]:
    lengths = np.arange(rows, dtype=np.int32).reshape(rows, 1) % length + 1
    return {"X": random(rows, length, 3), "LENGTH": lengths, "STATE": random(rows, 4)}


NETWORKS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "lstm": (lstm, [{"X": random(1, 5, 3)}, {"X": random(2, 5, 3)}, {"X": random(1, 1, 3)}, {"X": random(4, 9, 3)}]),
    "gru": (gru, [gru_inputs(1, 4), gru_inputs(3, 4), gru_inputs(2, 7)]),
    "scan": (scan, [{"X": random(1, 3, 2)}, {"X": random(2, 3, 2)}, {"X": random(3, 1, 2)}]),
    "attention": (attention, [tokens(1, 4), tokens(2, 4), tokens(1, 6), tokens(4, 6)]),
    "detector": (detector, [{"IMAGE": random(1, 3, 8, 8)}, {"IMAGE": random(1, 3, 5, 12)}]),
    "collatz": (collatz, [{"N": np.array([27])}, {"N": np.array([6])}, {"N": np.array([2])}]),
}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_answer_as_onnxruntime_does(repo: OnnxRepo, network: str) -> None:
    """Auto-completed and batched where they can be, many requests of different shapes at a time."""
    make, sent = NETWORKS[network]
    file = repo.add("m", make())
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]

    async def main(kernel: Kernel) -> None:
        config = kernel.model("m").config
        assert bool(config.max_batch_size) == (network not in ("detector", "collatz"))
        answers = await asyncio.gather(*(ask(kernel, "m", inputs) for inputs in sent * 5))
        for inputs, answer in zip(sent * 5, answers):
            scalar = network == "collatz"
            feeds = {name: array.reshape(()) if scalar else array for name, array in inputs.items()}
            for name, wanted in zip(names, session.run(names, feeds)):
                assert answer[name].dtype == wanted.dtype
                np.testing.assert_allclose(answer[name], wanted if wanted.ndim else [wanted], rtol=1e-5, atol=1e-6)
        if config.max_batch_size:
            assert executions(kernel, "m") < len(sent) * 5

    repo.run(main, strict_outputs=True)


def test_the_sample_reads_digits() -> None:
    """The repository of ONNX samples as it is, on images that its model has not seen."""
    samples = Path(__file__).parents[2]
    with np.load(samples / "repository" / "digits.npz") as file:
        images, digits = file["images"], file["labels"]
    names = (samples / "docs" / "onnx_repository" / "digits_cnn" / "labels.txt").read_text().split()

    async def main() -> None:
        async with Kernel(samples / "docs" / "onnx_repository", strict_outputs=True) as kernel:
            answers = await asyncio.gather(*(ask(kernel, "digits_cnn", {"IMAGE": image[None]}) for image in images))
            read = [answer["LABEL"][0, 0].decode() for answer in answers]
            assert sum(label == names[digit] for label, digit in zip(read, digits)) >= 18
            assert read == [names[answer["SCORES"].argmax()] for answer in answers]
            assert executions(kernel, "digits_cnn") < len(images)

    asyncio.run(main())


def test_the_samples_config_says_what_the_file_says(repo: OnnxRepo) -> None:
    """Without its inputs and outputs it is completed to the same."""
    sample = Path(__file__).parents[2] / "docs" / "onnx_repository" / "digits_cnn"
    shutil.copytree(sample, repo.folder / "digits_cnn")
    config = repo.folder / "digits_cnn" / "config.pbtxt"
    whole = repo.config("digits_cnn")
    text = config.read_text()
    config.write_text(text[: text.index("input {")])
    completed = repo.config("digits_cnn")
    whole["output"][0]["label_filename"] = ""
    assert completed == whole


# -- ragged batches ------------------------------------------------------------------------------------------------------------


def test_ragged_inputs_are_laid_end_to_end(repo: OnnxRepo) -> None:
    """Each request's numbers are doubled; where they lie is told by the accumulated counts."""
    model = graph(
        [node("Add", ["X", "X"], ["Y"]), node("Identity", ["ENDS"], ["E"])],
        {"X": ("FP32", [None]), "ENDS": ("FP32", [None])}, {"Y": ("FP32", [None]), "E": ("FP32", [None])},
    )  # fmt: skip
    config = """
max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 200000 }
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "E" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ENDS" data_type: TYPE_FP32 source_input: "X" }
batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
"""
    repo.add("m", model, CPU + config)

    async def main(kernel: Kernel) -> None:
        sent = [np.arange(size, dtype=np.float32).reshape(1, size) for size in (1, 3, 2)]
        answers = await asyncio.gather(*(ask(kernel, "m", {"X": x}) for x in sent))
        assert [answer["Y"].tolist() for answer in answers] == [(2 * x).tolist() for x in sent]
        assert [answer["E"].tolist() for answer in answers] == [[[1]], [[4]], [[6]]]
        assert executions(kernel, "m") == 1

    repo.run(main)


@pytest.mark.parametrize(
    "kind, shape, made",
    [
        ("BATCH_ELEMENT_COUNT", [None], [2, 6]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [None], [2, 8]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [None], [0, 2, 8]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [None], [0] * 6),
        ("BATCH_ITEM_SHAPE", [None, None], [[1, 2], [3, 1], [3, 1]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [None], [1, 2, 3, 1, 3, 1]),
    ],
)
def test_inputs_are_made_of_the_batch(kind: str, shape: Any, made: Any, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 4 '
        'input { name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true } '
        'output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } '
        f'batch_input {{ kind: {kind} target_name: "M" data_type: TYPE_INT32 source_input: "X" }}'
    )
    requests = [
        InferenceRequest("m", {"X": Tensor("X", "FP32", np.zeros(size, np.float32))}, lambda *_: None)
        for size in ((1, 1, 2), (2, 3, 1))
    ]
    feeds: dict[str, Any] = {}
    BatchInputs(read_config(folder)).add(requests, feeds)
    assert feeds["M"].dtype == np.int32
    assert feeds["M"].tolist() == made


def test_ragged_needs_a_vector_of_any_length(repo: OnnxRepo) -> None:
    io = 'input { name: "X" dims: [ 2 ] allow_ragged_batch: true }'
    repo.add("m", SCALE, BATCHES % 0 + io)
    assert (
        "configuration expects model provides input with shape [-1] for ragged input 'X', model provides [-1,2]"
        in repo.load_error("m")
    )


# -- with other models -------------------------------------------------------------------------------------------------------


def test_an_onnx_model_is_a_step_of_an_ensemble_and_called_by_python(repo: OnnxRepo) -> None:
    repo.add("scale", SCALE, BATCHES % 0)
    io = 'input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }'
    step = '{ model_name: "scale" model_version: -1 input_map { key: "X" value: "%s" } output_map { key: "Y" value: "%s" } }'
    scheduling = f"ensemble_scheduling {{ step [ {step % ('X', 'between')}, {step % ('between', 'Y')} ] }}"
    repo.add("twice", None, f'platform: "ensemble" max_batch_size: 8 {io} {scheduling}')
    code = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            call = pb_utils.InferenceRequest(model_name="scale", requested_output_names=["Y"], inputs=[x])
            answers = [await call.async_exec(), await call.async_exec()]
            first, second = (pb_utils.get_output_tensor_by_name(answer, "Y").as_numpy() for answer in answers)
            first += 100  # in place: nobody else's memory
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", second)]))
        return responses
"""
    repo.add("caller", None, f'backend: "python" max_batch_size: 8 {io}', file="1/model.onnx")
    (repo.folder / "caller" / "1" / "model.py").write_text(code)

    async def main(kernel: Kernel) -> None:
        assert (await ask(kernel, "twice", {"X": rows(1, 2)}))["Y"].tolist() == [[9, 9], [18, 18]]
        assert (await ask(kernel, "caller", {"X": rows(1, 2)}))["Y"].tolist() == [[3, 3], [6, 6]]

    repo.run(main)
