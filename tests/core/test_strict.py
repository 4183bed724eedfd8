"""Answers that differ from the config: errors where outputs are strict, passed on with one warning elsewhere (BC10)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.written import CALLS, LOOP, THREAD, write
from virtual import BASE, Client, TestBackend, run, write_repository

from kernel import Batch, InferenceResponse, Kernel, Result, ServingError, Tensor
from kernel.scheduling.output_check import FIRST_ANSWERS
from kernel.testing import Kit

DIMS = BASE.replace('name: "Y" data_type: TYPE_FP32 dims: [ -1 ]', 'name: "Y" data_type: TYPE_FP32 dims: [ 2 ]')
MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return [{} for _ in requests]\n"


def giving(*tensors: Tensor) -> Any:
    def execute(batch: Batch) -> Result:
        return [InferenceResponse(list(tensors)) for _ in batch.requests]

    return execute


def y(array: Any, dtype: Any = np.float32, datatype: str = "FP32", name: str = "Y") -> Tensor:
    return Tensor(name, datatype, np.array(array, dtype))


WRONG = {
    "datatype": (DIMS, y([1, 2], np.float64, "FP64"), "output 'Y' is FP64, its config declares FP32"),
    "shape": (DIMS, y([1, 2, 3]), "output 'Y' has shape [3], its config declares [2]"),
    "rank": (DIMS, y([[1, 2]]), "output 'Y' has shape [1, 2], its config declares [2]"),
    "name": (DIMS, y([1, 2], name="YY"), "output 'YY' is not in its config, which declares Y; did you mean 'Y'?"),
    "array": (DIMS, y([1, 2], np.float64), "output 'Y' is called FP32, but its array holds 'float64'"),
    "rows": (
        DIMS + "max_batch_size: 4",
        y(np.zeros((5, 2))),
        "output 'Y' has 5 rows (shape [5, 2]) for a request of 1 row",
    ),
    "no batch": (
        DIMS + "max_batch_size: 4",
        y([1, 2]),
        "output 'Y' has shape [2], its config declares [2] behind the batch dimension",
    ),
    "reshape": (
        DIMS.replace("dims: [ 2 ]", "dims: [ 2 ] reshape { shape: [ 1, 2 ] }"),
        y([1, 2]),
        "output 'Y' has shape [2], its config declares [1, 2]",
    ),
}


PAIR = DIMS + 'output { name: "Z" data_type: TYPE_FP32 dims: [ 1 ] }\n'


@pytest.mark.parametrize("strict", [True, False])
def test_an_output_that_is_left_out(strict: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The reference lets models do so, and so does this server where it isn't told to be strict, with one line in the log."""

    async def main() -> None:
        backend = TestBackend({"m": giving(y([1, 2]))})
        write_repository(tmp_path, {"m": PAIR})
        async with Kernel(tmp_path, plugins=[backend], strict_outputs=strict) as kernel:
            x = {"X": np.zeros(1, np.float32)}
            assert (await kernel.infer("m", x, outputs=["Y"]))["Y"].tolist() == [1, 2]  # the other one is not wanted
            for outputs in (None, ["Z", "Y"]):
                try:
                    response = await kernel.infer("m", x, outputs=outputs)
                except ServingError as error:
                    assert strict and "model 'm' does not keep to its config: output 'Z' is missing" in error.message
                else:
                    assert not strict and [tensor.name for tensor in response.outputs] == ["Y"]

    run(main())
    told = [] if strict else ["model 'm': output 'Z' is missing in an answer, which is passed on without it"]
    assert [record.getMessage() for record in caplog.records] == told


async def outcome(folder: Path, config: str, behaviour: Any, *, strict: bool, times: int = 1) -> Any:
    """Return what a client got, and the statistics."""
    backend = TestBackend({"m": behaviour})
    write_repository(folder, {"m": config})
    async with Kernel(folder, plugins=[backend], strict_outputs=strict) as kernel:
        client = Client(kernel)
        value = [[1.0]] if "max_batch_size" in config else [1.0]
        for k in range(times):
            client.send("m", str(k), value)
        (model,) = kernel.models()
        return client, model.statistics(), model.scheduler.output_check


@pytest.mark.parametrize("kind", WRONG)
def test_strict(kind: str, tmp_path: Path) -> None:
    config, tensor, words = WRONG[kind]
    client, statistics, _ = run(outcome(tmp_path, config, giving(tensor), strict=True))
    assert client.outcome("0") == (0, f"[request id: 0] model 'm' does not keep to its config: {words}")
    assert (statistics.success.count, statistics.failures["BACKEND"]) == (0, 1)


@pytest.mark.parametrize("kind", WRONG)
def test_lenient(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Passed on as it is, with one warning for the model, not for each request."""
    config, tensor, words = WRONG[kind]
    client, statistics, check = run(outcome(tmp_path, config, giving(tensor), strict=False, times=3))
    assert client.outcomes() == {"0": (0, "ok"), "1": (0, "ok"), "2": (0, "ok")}
    assert statistics.success.count == 3
    (record,) = [record for record in caplog.records if "passed on" in record.message]
    assert record.message.startswith(f"model 'm': {words}; it is passed on as it is") and record.levelno == logging.WARNING
    assert check is None


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    behaviour = giving(y([1.0], np.float64, "FP64"), y([1], name="Z"))
    client, _, _ = run(outcome(tmp_path, DIMS, behaviour, strict=True))
    assert client.outcome("0")[1].endswith(
        "output 'Y' is FP64, its config declares FP32; output 'Y' has shape [1], its config declares [2]; "
        "output 'Z' is not in its config, which declares Y"
    )


@pytest.mark.parametrize("strict", [True, False])
def test_what_fits_passes(strict: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client, statistics, _ = run(outcome(tmp_path, DIMS, giving(y([1, 2])), strict=strict, times=2))
    assert client.outcome("1") == (0, "ok") and statistics.success.count == 2
    assert not caplog.records


def test_a_lenient_model_is_looked_at_only_in_the_beginning(tmp_path: Path) -> None:
    _, _, check = run(outcome(tmp_path / "a", DIMS, giving(y([1, 2])), strict=False, times=FIRST_ANSWERS - 1))
    assert check is not None
    _, _, check = run(outcome(tmp_path / "b", DIMS, giving(y([1, 2])), strict=False, times=FIRST_ANSWERS))
    assert check is None


def test_each_response_of_a_decoupled_model(tmp_path: Path) -> None:
    kernels: list[Kernel] = []

    def execute(batch: Batch) -> Result:
        (request,) = batch.requests
        for tensor in (y([1, 2]), y([1, 2, 3])):
            kernels[0].send(request, InferenceResponse([tensor]), False)
        kernels[0].send(request, InferenceResponse([y([1], name="Z")]), True)
        return None

    async def main() -> None:
        backend = TestBackend({"m": execute})
        write_repository(tmp_path, {"m": DIMS + "model_transaction_policy { decoupled: true }"})
        async with Kernel(tmp_path, plugins=[backend], strict_outputs=True) as kernel:
            kernels.append(kernel)
            client = Client(kernel)
            client.send("m", "r")
            first, second, last = [(response, final) for _, response, final in client.answers["r"]]
            assert first[0] is not None and first[0].error is None and not first[1]
            assert second[0] is not None and second[0].error is not None and not second[1]
            assert "has shape [3], its config declares [2]" in second[0].error.message
            assert last[0] is not None and last[0].error is not None and last[1]
            assert "output 'Z' is not in its config" in last[0].error.message

    run(main())


@pytest.mark.parametrize("placement", [THREAD, LOOP])
def test_the_caller_of_a_model_is_told_in_the_same_words(placement: str, tmp_path: Path) -> None:
    """Also where the answer would be handed from thread to thread, past the loop."""
    inner = MODEL.format("answer([1], dtype=np.float64)")
    with Kit() as kit:
        kit.load_model(write(tmp_path, "inner", inner, placement))
        outer = kit.load_model(write(tmp_path, "outer", CALLS, placement))
        for _ in range(3):
            with pytest.raises(ServingError) as caught:
                outer.infer(X=[1])
            words = "model 'inner' does not keep to its config: output 'Y' is FP64, its config declares FP32"
            assert caught.value.message == f"[request id: <id_unknown>] {words}"


def test_python_models(tmp_path: Path) -> None:
    """What the python backend drops elsewhere: a tensor that the config lacks."""
    folder = write(tmp_path, "m", MODEL.format("answer([1], 'Z')"))
    with Kit() as kit, pytest.raises(ServingError, match="output 'Z' is not in its config, which declares Y"):
        kit.load_model(folder).infer(X=[1])
    with Kit(strict_outputs=False) as kit:
        assert kit.load_model(folder).infer(X=[1]).outputs == []
    with Kit() as kit:
        assert kit.load_model(folder, strict_outputs=False).infer(X=[1]).outputs == []
