"""ONNX models in service: batches, memory, datatypes, inputs that may be left out."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper
from onnx_models import BATCHES, CPU, LOOP, SCALE, OnnxRepo, ask, executions, graph, node, rows, unary
from virtual import VirtualLoop

import kernel_onnx.executor
from kernel import InferenceRequest, InferenceResponse, Kernel, Tensor
from kernel_onnx.backend import OnnxBackend


@pytest.fixture
def repo(tmp_path: Path) -> OnnxRepo:
    return OnnxRepo(tmp_path / "models")


# -- batches ---------------------------------------------------------------------------------------------------------------


def test_what_waits_runs_together_and_each_gets_its_rows(repo: OnnxRepo) -> None:
    repo.add("m", SCALE, BATCHES % 5_000_000)

    async def main(kernel: Kernel) -> None:
        asked = [rows(1), rows(2, 3), rows(4), rows(5, 6, 7, 8)]  # eight rows: the batch is full
        answers = await asyncio.gather(*(ask(kernel, "m", {"X": x}) for x in asked))
        for x, answer in zip(asked, answers):
            assert answer["Y"].tolist() == (x * 3).tolist()
        assert executions(kernel, "m") == 1

    repo.run(main)


def test_batches_form_by_the_clock(repo: OnnxRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time: the delay, the full batch, and shapes that do not go together."""
    monkeypatch.setattr(OnnxBackend, "creates_on_loop", True)
    repo.add("m", unary("Neg", "FP32", ["n", "m"]), BATCHES % 1_000_000 + LOOP)
    ran: list[tuple[float, int]] = []
    execute = kernel_onnx.executor.OnnxExecutor.execute

    def noted(self: Any, batch: Any) -> Any:
        ran.append((asyncio.get_running_loop().time() - 1000, len(batch.requests)))
        return execute(self, batch)

    monkeypatch.setattr(kernel_onnx.executor.OnnxExecutor, "execute", noted)

    async def main() -> None:
        async with Kernel(repo.folder) as kernel:
            assert (await ask(kernel, "m", {"X": rows(1)}))["Y"].tolist() == [[-1, -1]]  # alone: after the delay
            await asyncio.gather(*(ask(kernel, "m", {"X": rows(1)}) for _ in range(9)))  # full: at once, the rest later
            wide = np.ones((1, 3), np.float32)
            answers = await asyncio.gather(*(ask(kernel, "m", {"X": x}) for x in (rows(1), rows(2), wide)))
            assert [answer["Y"].shape for answer in answers] == [(1, 2), (1, 2), (1, 3)]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    assert [(round(when, 3), size) for when, size in ran] == [(1, 1), (1, 8), (2, 1), (2, 2), (3, 1)]


def test_without_a_batcher_requests_run_one_by_one(repo: OnnxRepo) -> None:
    io = 'input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }'
    repo.add("m", SCALE, f"{CPU} max_batch_size: 8 {io}")

    async def main(kernel: Kernel) -> None:
        answers = await asyncio.gather(*(ask(kernel, "m", {"X": rows(k)}) for k in range(5)))
        assert [answer["Y"].tolist() for answer in answers] == [[[3 * k, 3 * k]] for k in range(5)]
        assert executions(kernel, "m") == 5

    repo.run(main)


def test_rows_that_are_not_the_batchs_are_an_error(repo: OnnxRepo) -> None:
    """A model that mixes rows up can't be batched; alone or in company, it is told the same way."""
    flat = graph([node("Reshape", ["X", "S"], ["Y"])], {"X": ("FP32", ["n", 2])}, {"Y": ("FP32", ["m"])}, {"S": np.array([-1])})
    io = 'input { name: "X" dims: [ 2 ] } output { name: "Y" dims: [ 1 ] reshape { shape: [ ] } }'
    repo.add("m", flat, BATCHES % 0 + io)

    async def main(kernel: Kernel) -> None:
        words = "INTERNAL: output 'Y' of model 'm' has {} rows for a batch of {}"
        assert await asyncio.gather(*(ask(kernel, "m", {"X": rows(1)}) for _ in range(3))) == [words.format(6, 3)] * 3
        assert await ask(kernel, "m", {"X": rows(1)}) == words.format(2, 1)

    repo.run(main)


def test_each_request_gets_the_outputs_it_wants_and_no_others_are_made(
    repo: OnnxRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = graph(
        [node("Neg", ["X"], ["A"]), node("Abs", ["X"], ["B"]), node("Exp", ["X"], ["C"])],
        {"X": ("FP32", ["n", 2])}, {name: ("FP32", ["n", 2]) for name in "ABC"},
    )  # fmt: skip
    repo.add("m", three, BATCHES % 5_000_000)
    fetched: list[list[str]] = []
    run = ort.InferenceSession.run

    def noted(self: Any, names: list[str], *rest: Any) -> Any:
        fetched.append(names)
        return run(self, names, *rest)

    monkeypatch.setattr(ort.InferenceSession, "run", noted)

    async def main(kernel: Kernel) -> None:
        wanted = [["B"], ["A"], ["B", "A"], ["A"]]
        answers = await asyncio.gather(
            *(ask(kernel, "m", {"X": rows(k, -k)}, outputs=names) for k, names in enumerate(wanted, 1))
        )
        assert [sorted(answer) for answer in answers] == [sorted(names) for names in wanted]
        assert answers[2]["A"].tolist() == [[-3, -3], [3, 3]] and answers[2]["B"].tolist() == [[3, 3], [3, 3]]
        everything = await asyncio.gather(*(ask(kernel, "m", {"X": rows(*range(4))}) for _ in range(2)))
        assert [list(answer) for answer in everything] == [["A", "B", "C"]] * 2
        assert fetched == [["A", "B"], ["A", "B", "C"]]

    repo.run(main)


# -- memory ----------------------------------------------------------------------------------------------------------------


def test_answers_are_views_of_one_output_and_nobody_elses(repo: OnnxRepo) -> None:
    repo.add("m", SCALE, BATCHES % 5_000_000)

    async def main(kernel: Kernel) -> None:
        async def batch() -> list[Any]:
            answers = await asyncio.gather(*(ask(kernel, "m", {"X": rows(k, k)}) for k in range(4)))
            return [answer["Y"] for answer in answers]

        first = await batch()
        assert len({id(array.base) for array in first}) == 1  # four views of the run's output
        assert not any(np.shares_memory(first[0], other) for other in first[1:])
        first[0][:] = 77  # each owner may write
        second = await batch()
        assert [array.tolist() for array in first[1:]] == [array.tolist() for array in second[1:]]
        assert second[0].tolist() == [[0, 0], [0, 0]]

    repo.run(main)


def test_nothing_is_copied_on_the_way_in_and_out(repo: OnnxRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The array of a request is what the session reads, and what it has written is what the answer holds."""
    repo.add("m", SCALE, BATCHES % 0)
    seen: list[tuple[Any, Any]] = []
    run = ort.InferenceSession.run

    def noted(self: Any, names: Any, feeds: Any, options: Any) -> Any:
        made = run(self, names, feeds, options)
        seen.append((feeds["X"], made[0]))
        return made

    monkeypatch.setattr(ort.InferenceSession, "run", noted)

    async def main(kernel: Kernel) -> None:
        array = rows(1, 2)
        answered: asyncio.Future[InferenceResponse | None] = kernel.loop.create_future()
        kernel.submit(InferenceRequest("m", {"X": Tensor("X", "FP32", array)}, lambda one, _: answered.set_result(one)))
        response = await answered
        ((read, written),) = seen
        assert response is not None and response.error is None
        assert read is array or np.shares_memory(read, array)
        assert response["Y"] is written or np.shares_memory(response["Y"], written)

    repo.run(main)


def test_writing_into_an_answer_changes_no_weights(repo: OnnxRepo) -> None:
    """Outputs that are inputs or constants of the graph, directly or as good as."""
    model = graph(
        [node("Identity", ["X"], ["I"]), node("Identity", ["W"], ["J"]), node("Reshape", ["X", "S"], ["R"])],
        {"X": ("FP32", [2])}, {"I": ("FP32", [2]), "J": ("FP32", [2]), "W": ("FP32", [2]), "R": ("FP32", [1, 2])},
        {"W": np.array([5, 6], np.float32), "S": np.array([1, 2])},
    )  # fmt: skip
    repo.add("m", model, CPU)

    async def main(kernel: Kernel) -> None:
        x = np.array([1, 2], np.float32)
        for _ in range(3):
            arrays = await ask(kernel, "m", {"X": x})
            assert {name: array.ravel().tolist() for name, array in arrays.items()} == {
                "I": [1, 2], "J": [5, 6], "W": [5, 6], "R": [1, 2],
            }  # fmt: skip
            for array in arrays.values():
                array[:] = 99
        assert x.tolist() == [1, 2]

    repo.run(main)


def test_bfloat16_comes_out_without_a_copy_and_is_the_clients_own(repo: OnnxRepo) -> None:
    """The memory of an answer stays as long as that does, is nobody else's, and is no weight of the model."""
    model = graph(
        [node("Identity", ["X"], ["I"]), node("Identity", ["W"], ["J"]), node("Reshape", ["X", "S"], ["R"])],
        {"X": ("BF16", [2])}, {"I": ("BF16", [2]), "J": ("BF16", [2]), "W": ("BF16", [2]), "R": ("BF16", [1, 2])},
        {"W": np.array([5, 6], ml_dtypes.bfloat16), "S": np.array([1, 2])},
    )  # fmt: skip
    repo.add("m", model, CPU)
    x = np.array([1, 2], ml_dtypes.bfloat16).view(np.uint16)

    async def main(kernel: Kernel) -> None:
        kept: list[Any] = []
        for k in range(3):
            arrays = await ask(kernel, "m", {"X": Tensor("X", "BF16", x.copy())})
            values = {name: array.view(ml_dtypes.bfloat16).ravel().tolist() for name, array in arrays.items()}
            assert values == {"I": [1, 2], "J": [5, 6], "W": [5, 6], "R": [1, 2]}
            for array in arrays.values():
                array[:] = k
            kept.append(arrays)
        gc.collect()
        assert [{one for array in arrays.values() for one in array.ravel().tolist()} for arrays in kept] == [{0}, {1}, {2}]

    repo.run(main)


def test_tensors_may_lie_anywhere_in_memory(repo: OnnxRepo) -> None:
    """Behind text of odd length in a message, or as a slice of something larger."""
    repo.add("m", unary("Neg", "FP32", ["n", 2]), CPU)
    memory = np.zeros(17, np.uint8)
    unaligned = memory[1:].view(np.float32).reshape(2, 2)
    unaligned[:] = [[1, 2], [3, 4]]
    sliced = np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]
    assert not unaligned.flags.aligned and not sliced.flags.contiguous

    async def main(kernel: Kernel) -> None:
        for array in (unaligned, sliced):
            answered: asyncio.Future[InferenceResponse | None] = kernel.loop.create_future()
            request = InferenceRequest(
                "m", {"X": Tensor("X", "FP32", array)}, lambda response, _, to=answered: to.set_result(response)
            )
            kernel.submit(request)
            response = await answered
            assert response is not None and response.error is None
            assert response["Y"].tolist() == (-array).tolist()

    repo.run(main)


# -- datatypes -------------------------------------------------------------------------------------------------------------

DATATYPES = "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FP16 FP32 FP64 BF16 BYTES".split()


@pytest.mark.parametrize("batch", [0, 8])
def test_every_datatype_passes(repo: OnnxRepo, batch: int) -> None:
    shape = ["n", 2] if batch else [3, 2]
    for datatype in DATATYPES:
        config = BATCHES % 5_000_000 if batch else CPU
        repo.add(datatype, unary("Identity", datatype, shape), config)

    async def main(kernel: Kernel) -> None:
        for datatype in DATATYPES:
            array = values(datatype)
            sent = [array[:1], array[1:]] * 2 + [array[:2]] if batch else [array]
            answers = await asyncio.gather(
                *(ask(kernel, datatype, {"X": Tensor("X", datatype, part)}) for part in sent)
            )
            for part, answer in zip(sent, answers):
                got = answer["Y"]
                assert (got.dtype, got.shape) == (part.dtype, part.shape), datatype
                assert got.tobytes() == part.tobytes() if datatype != "BYTES" else got.tolist() == part.tolist()
            assert executions(kernel, datatype) == 1

    repo.run(main)


def values(datatype: str) -> np.ndarray[Any, Any]:
    """Six values of a datatype, awkward ones among them, in three rows."""
    if datatype == "BYTES":
        items = [b"", "Grüße".encode(), b"a\0b", b"x" * 70_000, "𝄞".encode(), b"'\""]
        array = np.empty(6, np.object_)
        array[:] = items
        return array.reshape(3, 2)
    if datatype == "BF16":
        return np.array([0x3F80, 0xBF80, 0x7F80, 0x7FC0, 0x0000, 0x8000], np.uint16).reshape(3, 2)
    if datatype == "BOOL":
        return np.array([True, False, True, True, False, False]).reshape(3, 2)
    if datatype.startswith("FP"):
        dtype = np.dtype(f"f{int(datatype[2:]) // 8}")
        return np.array([1.5, -0.0, np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).tiny], dtype).reshape(3, 2)
    dtype = np.dtype(datatype.lower())
    return np.array([0, 1, 2, 3, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype).reshape(3, 2)


def test_bfloat16_together_with_other_types(repo: OnnxRepo) -> None:
    model = graph(
        [node("Cast", ["X"], ["H"], to=TensorProto.BFLOAT16), node("Cast", ["B"], ["F"], to=TensorProto.FLOAT),
         node("Neg", ["N"], ["M"])],
        {"X": ("FP32", ["n", 1]), "B": ("BF16", ["n", 1]), "N": ("INT64", ["n", 1])},
        {"H": ("BF16", ["n", 1]), "F": ("FP32", ["n", 1]), "M": ("INT64", ["n", 1])},
    )  # fmt: skip
    repo.add("m", model, BATCHES % 5_000_000)
    repo.add("scalar", unary("Identity", "BF16", []), CPU)

    async def main(kernel: Kernel) -> None:
        def inputs(k: int) -> dict[str, Any]:
            bits = np.full((4, 1), 0x4000 + k, np.uint16)
            return {"X": np.full((4, 1), k, np.float32), "B": Tensor("B", "BF16", bits), "N": np.full((4, 1), k)}

        one, two = await asyncio.gather(ask(kernel, "m", inputs(1)), ask(kernel, "m", inputs(2)))
        assert one["H"].tolist() == [[0x3F80]] * 4 and two["H"].tolist() == [[0x4000]] * 4
        assert one["F"].tolist() == [[2.015625]] * 4 and two["M"].tolist() == [[-2]] * 4
        assert executions(kernel, "m") == 1
        only = await asyncio.gather(*(ask(kernel, "m", inputs(k), outputs=["M"]) for k in range(2)))
        assert [list(one) for one in only] == [["M"], ["M"]]
        scalar = await ask(kernel, "scalar", {"X": Tensor("X", "BF16", np.array([7], np.uint16))})
        assert scalar["Y"].tolist() == [7]

    repo.run(main)


def test_scalars_are_vectors_of_one_to_clients(repo: OnnxRepo) -> None:
    for datatype in ("FP32", "BYTES", "BOOL"):
        repo.add(datatype, unary("Identity", datatype, []), CPU)

    async def main(kernel: Kernel) -> None:
        for datatype in ("FP32", "BYTES", "BOOL"):
            array = values(datatype)[1, :1]
            got = (await ask(kernel, datatype, {"X": Tensor("X", datatype, array)}))["Y"]
            assert got.shape == (1,) and got.tobytes() == array.tobytes() if datatype != "BYTES" else got[0] == array[0]
            kernel_model = kernel.model(datatype)
            assert kernel_model.config.outputs[0].dims == (1,)

    repo.run(main)


def test_tensors_without_elements(repo: OnnxRepo) -> None:
    for datatype in DATATYPES:
        repo.add(datatype, unary("Identity", datatype, ["n", "m"]), CPU + 'input { name: "X" dims: [ -1, -1 ] }')

    async def main(kernel: Kernel) -> None:
        for datatype in DATATYPES:
            for shape in ((0, 3), (2, 0), (0, 0)):
                array = np.empty(shape, values(datatype).dtype)
                got = (await ask(kernel, datatype, {"X": Tensor("X", datatype, array)}))["Y"]
                assert (got.shape, got.dtype) == (shape, array.dtype)

    repo.run(main)


def test_a_string_that_is_no_text_fails_its_own_request_only(repo: OnnxRepo) -> None:
    repo.add("m", unary("Identity", "BYTES", ["n", 2]), BATCHES % 5_000_000)
    bad = np.array([[b"fine", b"\xff\xfe"]], np.object_)

    async def main(kernel: Kernel) -> None:
        good = np.array([[b"a", b"b"], [b"c", "ß".encode()], [b"e", b"f"]], np.object_)
        sent = [good[:1], bad, good, good[:2], bad]
        answers = await asyncio.gather(*(ask(kernel, "m", {"X": x}, id=str(k)) for k, x in enumerate(sent)))
        for k in (0, 2, 3):
            assert answers[k]["Y"].tolist() == sent[k].tolist()
        assert answers[1].startswith(
            "INVALID_ARG: [request id: 1] element 1 of input 'X' for model 'm' is not UTF-8, which strings of ONNX models have to"
            " be: "
        )
        assert "[request id: 4]" in answers[4]
        assert executions(kernel, "m") == 1
        assert "is not UTF-8" in await ask(kernel, "m", {"X": np.repeat(bad, 8, 0)})  # nobody is left to run for

    repo.run(main)


# -- inputs that may be left out, weights beside the file ---------------------------------------------------------------------


def test_initializers_can_be_overridden(repo: OnnxRepo) -> None:
    model = graph(
        [node("Mul", ["X", "W"], ["S"]), node("Add", ["S", "B"], ["Y"])],
        {"X": ("FP32", [2]), "W": ("FP32", [2]), "B": ("FP32", [])}, {"Y": ("FP32", [2])},
        {"W": np.array([2, 3], np.float32), "B": np.float32(1)},
    )  # fmt: skip
    config = 'input [ { name: "X" }, { name: "W" optional: true }, { name: "B" optional: true } ] dynamic_batching { }'
    repo.add("m", model, CPU + config)

    async def main(kernel: Kernel) -> None:
        x, w, b = (np.array(value, np.float32) for value in ([1, 1], [10, 20], [5]))
        calls: list[tuple[dict[str, Any], list[int]]] = [
            ({"X": x}, [3, 4]), ({"X": x, "W": w}, [11, 21]), ({"X": x, "B": b}, [7, 8]), ({"B": b, "W": w, "X": x}, [15, 25]),
        ]  # fmt: skip
        answers = await asyncio.gather(*(ask(kernel, "m", inputs) for inputs, _ in calls * 2))
        assert [answer["Y"].tolist() for answer in answers] == [wanted for _, wanted in calls] * 2
        assert "missing required input(s) ['X']" in await ask(kernel, "m", {"W": w})

    repo.run(main)


def external(folder: Path) -> None:
    """Write a model whose weights lie in a file of their own."""
    weights = numpy_helper.from_array(np.arange(400, dtype=np.float32).reshape(2, 200), "W")
    model = graph([node("MatMul", ["X", "W"], ["Y"])], {"X": ("FP32", ["n", 2])}, {"Y": ("FP32", ["n", 200])})
    model.graph.initializer.append(weights)
    folder.mkdir(parents=True)
    onnx.save(
        model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0,
    )  # fmt: skip


def test_weights_may_lie_in_files_beside_the_model(repo: OnnxRepo) -> None:
    external(repo.folder / "folder" / "1" / "model.onnx")
    external(repo.folder / "beside" / "1")

    async def main(kernel: Kernel) -> None:
        for name in ("folder", "beside"):
            got = (await ask(kernel, name, {"X": np.array([[1, 0], [0, 1]], np.float32)}))["Y"]
            assert got.tolist() == np.arange(400).reshape(2, 200).tolist()

    repo.run(main)


def test_what_git_lfs_has_not_fetched_is_named(repo: OnnxRepo) -> None:
    file = repo.add("m", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    words = "it is a pointer of Git LFS and not the model itself; 'git lfs pull' fetches that"
    assert f"failed to load {file} for model 'm': {words}" in repo.load_error("m")


def test_a_missing_file_of_weights_is_named(repo: OnnxRepo) -> None:
    external(repo.folder / "m" / "1")
    (repo.folder / "m" / "1" / "weights.bin").unlink()
    reason = repo.load_error("m")
    assert "weights.bin" in reason and f"while loading {repo.folder}/m/1/model.onnx for model 'm'" in reason
