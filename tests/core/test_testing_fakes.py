"""Models that a test makes up, with and without a config; how values become tensors, and how results are compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.written import CALLS, CALLS_ASYNC, DECOUPLED, ECHO, LOOP, X_TO_Y, write

from kernel import Code, ConfigErrors, InferenceResponse, ServingError, Tensor
from kernel.testing import FakeCall, Kit, VirtualTime, assert_close
from kernel.testing.values import as_tensor

REPOSITORY = Path(__file__).parents[2] / "repository"

STREAMS = """
class TritonPythonModel:
    async def execute(self, requests):
        return [await self.call(request) for request in requests]
    async def call(self, request):
        call = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=request.inputs())
        return answer([float(one.output_tensors()[0].as_numpy()[0]) async for one in await call.async_exec(decoupled=True)
                       if one.output_tensors()])
"""


def double(X: Any) -> dict[str, Any]:
    return {"Y": X * 2}


async def double_later(X: Any) -> dict[str, Any]:
    await asyncio.sleep(3600)
    return {"Y": X * 2}


def of_call(call: FakeCall, /, X: Any) -> dict[str, Any]:
    assert call["X"] is X and call.parameters == {} and call.id == "" and call.requested_outputs == ("Y",)
    return {"Y": X * 2, "unasked": X}


class Double:
    def __call__(self, **inputs: Any) -> dict[str, Any]:
        return {"Y": inputs["X"] * 2}


ANSWERS: dict[str, Any] = {
    "function": double,
    "async": double_later,
    "call": of_call,
    "object": Double(),
    "constant": {"Y": np.array([6], np.float32)},
    "response": lambda X: InferenceResponse([Tensor("Y", "FP32", X * 2)]),
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("code", [CALLS, CALLS_ASYNC], ids=["exec", "async_exec"])
@pytest.mark.parametrize("config", [None, f"{X_TO_Y}"], ids=["open", "declared"])
def test_answers(kind: str, code: str, config: str | None, tmp_path: Path) -> None:
    if config and kind == "call":
        config += ' output { name: "unasked" data_type: TYPE_FP32 dims: [ -1 ] }'
    with Kit(virtual_time=True) as kit:
        fake = kit.fake_model("inner", ANSWERS[kind], config=config)
        model = kit.load_model(write(tmp_path, "outer", code))
        assert model.infer(X=[3])["Y"].tolist() == [6]
        (call,) = fake.calls
        assert call["X"].tolist() == [3]
        with pytest.raises(KeyError, match="the call had no input 'Z'; it had X"):
            call["Z"]


def test_lists_become_what_the_config_declares(tmp_path: Path) -> None:
    with Kit() as kit:
        kit.fake_model("inner", lambda X: {"Y": [1, 2]}, config={"input": [_io("X")], "output": [_io("Y")]})
        assert kit.load_model(write(tmp_path, "outer", CALLS)).infer(X=[3])["Y"].dtype == np.float32


def _io(name: str) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_FP32", "dims": [-1]}


def generated(X: Any) -> Iterator[dict[str, Any]]:
    for k in range(3):
        yield {"Y": X + k}


async def generated_later(X: Any) -> AsyncIterator[dict[str, Any]]:
    for k in range(3):
        await asyncio.sleep(60)
        yield {"Y": X + k}


@pytest.mark.parametrize("answer", [generated, generated_later])
def test_decoupled(answer: Callable[..., Any], tmp_path: Path) -> None:
    with Kit(virtual_time=True) as kit:
        clock = VirtualTime(kit)
        kit.fake_model("inner", answer)
        model = kit.load_model(write(tmp_path, "outer", STREAMS))
        began = clock.now
        assert model.infer(X=[1])["Y"].tolist() == [1, 2, 3]
        assert clock.now - began == (180 if answer is generated_later else 0)


def test_a_decoupled_one_that_answers_once(tmp_path: Path) -> None:
    with Kit() as kit:
        kit.fake_model("inner", double, config=X_TO_Y + DECOUPLED)
        assert kit.load_model(write(tmp_path, "outer", STREAMS)).infer(X=[1])["Y"].tolist() == [2]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (ServingError(Code.UNAVAILABLE, "gone for lunch"), "gone for lunch"),
        (RuntimeError("down"), "the fake of 'inner' raised RuntimeError: down"),
    ],
)
def test_errors_reach_the_caller(problem: Exception, words: str, tmp_path: Path) -> None:
    def fail(X: Any) -> Any:
        raise problem

    for answer in (problem, fail):
        with Kit() as kit:
            kit.fake_model("inner", answer)
            model = kit.load_model(write(tmp_path / str(answer is fail), "outer", CALLS))
            with pytest.raises(ServingError, match=words):
                model.infer(X=[1])


def _wrong(X: Any) -> Any:
    assert X.tolist() == [2], "not what was wanted"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_wrong, "not what was wanted"),
        (lambda A, B: {}, r"sent X, which its function does not take: missing a required argument: 'A' \(it is <lambda>\(A, B"),
        (lambda X: X, r"answered with ndarray, wanted a mapping of outputs: \{'NAME': values, ...\}"),
        (lambda X: {"Y": ["a"]}, "'Y' of the fake of 'inner' wants FP32, got"),
    ],
)
def test_a_mistake_of_the_test_is_told_as_that(answer: Any, words: str, tmp_path: Path) -> None:
    """Whatever the model makes of the error: here it hides it."""
    hides = CALLS.replace("error=answer.error()", "[pb_utils.Tensor('Y', np.zeros(1, np.float32))]")
    with Kit() as kit:
        kit.fake_model("inner", answer, config=X_TO_Y)
        model = kit.load_model(write(tmp_path, "outer", hides))
        with pytest.raises(AssertionError, match=words):
            model.infer(X=[1])


def test_a_failure_that_nobody_has_asked_for_comes_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not what was wanted"), Kit(virtual_time=True) as kit:
        kit.fake_model("inner", _wrong)
        kit.load_model(write(tmp_path, "outer", CALLS)).submit(X=[1])
        VirtualTime(kit).advance(1)


def test_with_a_config_calls_and_answers_are_held_to_it(tmp_path: Path) -> None:
    folder = REPOSITORY / "add_sub"
    call = CALLS.replace('"inner"', '"add_sub"').replace('["Y"]', '["SUM"]')
    with Kit() as kit:
        kit.fake_model("add_sub", lambda A, B: {"SUM": np.zeros(1, np.float64)}, config=folder)
        with pytest.raises(ServingError, match="expected 2 inputs but got 1 inputs for model 'add_sub'"):
            kit.load_model(write(tmp_path, "outer", call)).infer(X=[1])
        both = call.replace("request.inputs()", "[pb_utils.Tensor(name, np.zeros(1, np.float32)) for name in 'AB']")
        with pytest.raises(ServingError, match="output 'SUM' is FP64, its config declares FP32"):
            kit.load_model(write(tmp_path, "outer2", both)).infer(X=[1])


def test_a_step_of_an_ensemble(tmp_path: Path) -> None:
    image = np.zeros((1, 16, 16, 3), np.uint8)
    with Kit(roots=[REPOSITORY]) as kit:
        pixels = np.zeros((1, 8, 8, 3), np.float32)
        fake = kit.fake_model("preprocess", {"PIXELS": pixels}, config="preprocess/config.pbtxt")
        assert kit.load_model("pipeline_ensemble").infer(IMAGE=image)["LABEL"].shape == (1, 1)
        assert fake.calls[0]["IMAGE"].shape == image.shape
    with Kit() as kit:
        kit.fake_model("preprocess", {"PIXELS": pixels})
        with pytest.raises(ServingError) as caught:
            kit.load_model(REPOSITORY / "pipeline_ensemble")
        assert caught.value.__notes__ == ["The fake of 'preprocess' has no config, and the steps of ensembles need one"]


def test_in_place_of_a_model_of_the_repository(tmp_path: Path) -> None:
    write(tmp_path, "inner", "import no_such_module\n")
    write(tmp_path, "outer", CALLS, LOOP)
    with Kit() as kit:
        kit.fake_model("inner", double)
        models = kit.load_repository(tmp_path)
        assert list(models) == ["outer"] and models["outer"].infer(X=[1])["Y"].tolist() == [2]
        with pytest.raises(ValueError, match="'inner' has a fake already"):
            kit.fake_model("inner", double)
        with pytest.raises(ValueError, match="model 'outer' is loaded already; fake it before whatever loads it"):
            kit.fake_model("outer", double)
        with pytest.raises(ValueError, match="model 'inner' has a fake in this test"):
            kit.load_model(tmp_path / "inner")


def test_after_the_model_that_calls_it(tmp_path: Path) -> None:
    with Kit() as kit:
        model = kit.load_model(write(tmp_path, "outer", CALLS))
        kit.fake_model("inner", double)
        assert model.infer(X=[1])["Y"].tolist() == [2]


def test_mistakes_in_a_config(tmp_path: Path) -> None:
    with Kit() as kit:
        with pytest.raises(ConfigErrors, match=r"config\.pbtxt:1:9: .*no field 'nam'"):
            kit.fake_model("a", double, config='input { nam: "X" }')
        with pytest.raises(FileNotFoundError, match="no file or model folder 'nowhere' for the config of the fake of 'b'"):
            kit.fake_model("b", double, config="nowhere")


def test_the_repositorys_failures_together(tmp_path: Path) -> None:
    write(tmp_path, "good", ECHO)
    for name in ("bad", "worse"):
        write(tmp_path, name, ECHO + f"    def initialize(self, args):\n        raise OSError('{name}')\n")
    with Kit() as kit, pytest.raises(ServingError, match=r"2 of 3 models can't be loaded:\n  bad: (.|\n)*\n  worse: "):
        kit.load_repository(tmp_path)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "datatype", "wanted"),
    [
        ([1, 2], "FP32", np.array([1, 2], np.float32)),
        (3, "INT8", np.array([3], np.int8)),
        ([[True, False]], "BOOL", np.array([[True, False]])),
        ("a", "BYTES", np.array([b"a"], object)),
        ([["a"], [b"\xff"]], "BYTES", np.array([[b"a"], [b"\xff"]], object)),
        ([], "INT64", np.zeros(0, np.int64)),
        ([np.float32(0.5)], "FP64", np.array([0.5])),
        ([1.0, float("nan")], "BF16", np.array([0x3F80, 0x7FC0], np.uint16)),
        (range(3), "UINT64", np.arange(3, dtype=np.uint64)),
        ([2**64 - 1], "UINT64", np.array([2**64 - 1], np.uint64)),
    ],
)
def test_values(value: Any, datatype: str, wanted: np.ndarray[Any, Any]) -> None:
    tensor = as_tensor("X", value, datatype, "model 'm'")
    assert tensor.datatype == datatype and tensor.array.dtype == wanted.dtype
    assert tensor.array.shape == wanted.shape and tensor.array.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("value", "datatype", "words"),
    [
        ([1.5], "INT32", r"'X' of model 'm' wants INT32, got [1.5] (float64)"),
        ([300], "UINT8", "'X' of model 'm' wants UINT8 (0 to 255), got 300"),
        ([-1], "UINT64", "'X' of model 'm' wants UINT64 (0 to 18446744073709551615), got -1"),
        ([1], "BOOL", "'X' of model 'm' wants BOOL, got [1] (int64)"),
        ([True], "FP32", "'X' of model 'm' wants FP32, got [True] (bool)"),
        ([1], "BYTES", "'X' of model 'm' wants strings (BYTES), 1 is none"),
        ([[1], [1, 2]], "FP32", "'X' of model 'm' has no shape: "),
        (np.zeros(1, "M8[s]"), "INT64", "'X' of model 'm' has numpy dtype 'datetime64[s]', which is no tensor datatype"),
    ],
)
def test_values_that_do_not_fit(value: Any, datatype: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        as_tensor("X", value, datatype, "model 'm'")
    assert str(caught.value).startswith(words)


def test_arrays_are_taken_as_they_are() -> None:
    given = np.array([1, 2])
    tensor = as_tensor("X", given, "FP32", "model 'm'")
    assert tensor.datatype == "INT64" and not np.shares_memory(tensor.array, given)
    assert as_tensor("X", np.array(["é"]), None, "it").array.tolist() == ["é".encode()]
    assert as_tensor("X", np.zeros(1, np.uint16), "BF16", "it").datatype == "BF16"


def test_assert_close() -> None:
    response = InferenceResponse(
        [
            Tensor("Y", "FP32", np.array([[1, 2], [3, 4]], np.float32)),
            Tensor("TEXT", "BYTES", np.array(["é".encode()], object)),
            Tensor("HALF", "BF16", np.array([0x3F80], np.uint16)),
        ]
    )
    assert_close(response, {"Y": [[1, 2.000001], [3, 4]], "TEXT": ["é"], "HALF": [1.0]})
    assert_close(response["Y"], [[1, 2], [3, 5]], atol=1)
    assert_close([float("nan")], [float("nan")])
    assert_close(np.array([2**62]), [2**62])
    failures: list[tuple[Any, Any, str]] = [
        (response, {"Y": [[1, 2], [3, 5]]}, "output 'Y'[1, 1] is 4.0, expected 5; 1 of 4 elements differ"),
        (response, {"Y": [1, 2]}, "output 'Y' has shape [2, 2], expected [2]"),
        (response, {"TEXT": ["e"]}, "output 'TEXT'[0] is 'é', expected 'e'"),
        (np.array([2**62]), [2**62 + 1], "the array[0] is 4611686018427387904, expected 4611686018427387905"),
        ([True], [False], "the array[0] is True, expected False"),
    ]
    for actual, expected, words in failures:
        with pytest.raises(AssertionError) as caught:
            assert_close(actual, expected)
        assert str(caught.value) == words
    with pytest.raises(TypeError, match="has to be a mapping"):
        assert_close(response, [1])
    with pytest.raises(KeyError, match="no output 'Z' in the response"):
        assert_close(response, {"Z": [1]})
