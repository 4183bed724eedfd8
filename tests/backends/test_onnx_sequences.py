"""Sequences of requests to ONNX models: control tensors and state that the core gives and takes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx_models import OnnxRepo, ask, executions, graph, node

from kernel import Kernel

START, END = 1, 2


@pytest.fixture
def repo(tmp_path: Path) -> OnnxRepo:
    return OnnxRepo(tmp_path / "models")


def accumulator(datatype: str = "FP32") -> onnx.ModelProto:
    """Y = X + (START ? 0 : SUM), which is the next SUM, too; the names sort the other way round than they belong together."""
    element = {"FP32": TensorProto.FLOAT, "BF16": TensorProto.BFLOAT16}[datatype]
    return graph(
        [node("Cast", ["BEGIN"], ["b"], to=TensorProto.BOOL), node("Cast", ["SUM"], ["s"], to=TensorProto.FLOAT),
         node("Where", ["b", "ZERO", "s"], ["old"]), node("Add", ["X", "old"], ["Y"]), node("Cast", ["Y"], ["A_SUM"], to=element),
         node("Add", ["COUNT", "ONE"], ["Z_COUNT"]), node("Cast", ["Z_COUNT"], ["STEPS"], to=TensorProto.FLOAT)],
        {"X": ("FP32", ["n", 2]), "BEGIN": ("INT32", ["n", 1]), "SUM": (datatype, ["n", 2]), "COUNT": ("INT64", ["n", 1])},
        {"Y": ("FP32", ["n", 2]), "STEPS": ("FP32", ["n", 1]), "A_SUM": (datatype, ["n", 2]), "Z_COUNT": ("INT64", ["n", 1])},
        {"ZERO": np.float32(0), "ONE": np.array(1)},
    )  # fmt: skip


CONTROL = """
  control_input { name: "BEGIN" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }"""
STATE = """
  state { input_name: "SUM" output_name: "A_SUM" data_type: TYPE_%s dims: [ 2 ] }
  state { input_name: "COUNT" output_name: "Z_COUNT" data_type: TYPE_INT64 dims: [ 1 ] }"""
SEQUENCES = """
backend: "onnxruntime"
max_batch_size: 4
instance_group {{ kind: KIND_CPU count: 1 }}
sequence_batching {{ {strategy} {control} {state}
}}
"""
OLDEST = "oldest { max_candidate_sequences: 4 }"


def config(strategy: str = OLDEST, control: str = CONTROL, state: str = STATE % "FP32") -> str:
    return SEQUENCES.format(strategy=strategy, control=control, state=state)


def x(*values: float) -> dict[str, Any]:
    return {"X": np.array([values], np.float32)}


@pytest.mark.parametrize("strategy", ["direct { }", OLDEST], ids=["direct", "oldest"])
@pytest.mark.parametrize("datatype", ["FP32", "BF16"])
def test_state_comes_back_with_the_next_request_of_its_sequence(repo: OnnxRepo, strategy: str, datatype: str) -> None:
    """Each state to the input that the config pairs it with, whatever the order of names; of several sequences at a time."""
    repo.add("m", accumulator(datatype), config(strategy, state=STATE % datatype))

    async def main(kernel: Kernel) -> None:
        model = kernel.model("m").config
        assert [spec.name for spec in model.inputs] == ["X"]  # what the core gives is none of the clients' business
        assert [spec.name for spec in model.outputs] == ["Y", "STEPS"]

        async def sequence(id: int) -> list[Any]:
            answers = []
            for step in range(4):
                flags = START if step == 0 else END if step == 3 else 0
                answers.append(await ask(kernel, "m", x(id, 2 * id), correlation_id=id, flags=flags))
            return answers

        for answers in [*await asyncio.gather(*map(sequence, range(1, 7))), await sequence(3)]:
            first = answers[0]["Y"]
            for step, answer in enumerate(answers, 1):
                assert set(answer) == {"Y", "STEPS"}
                np.testing.assert_array_equal(answer["Y"], first * step)
                assert answer["STEPS"].tolist() == [[step]]
        assert executions(kernel, "m") < 28

    repo.run(main, strict_outputs=True)


def test_what_is_kept_may_be_an_output_too(repo: OnnxRepo) -> None:
    names = {"Y": "FP32", "A_SUM": "FP32"}
    outputs = "".join(f'output {{ name: "{name}" data_type: TYPE_{kind} dims: [ 2 ] }}\n' for name, kind in names.items())
    repo.add("m", accumulator(), config() + outputs)

    async def main(kernel: Kernel) -> None:
        for step, flags in enumerate((START, 0, END), 1):
            answer = await ask(kernel, "m", x(1, 5), correlation_id=9, flags=flags)
            assert {name: array.tolist() for name, array in answer.items()} == {name: [[step, 5 * step]] for name in names}
            answer["A_SUM"][:] = 77  # the client's own

    repo.run(main, strict_outputs=True)


def test_a_client_gets_what_it_asked_for_and_the_state_goes_on(repo: OnnxRepo) -> None:
    repo.add("m", accumulator(), config())

    async def main(kernel: Kernel) -> None:
        for step, flags in enumerate((START, 0, END), 1):
            answer = await ask(kernel, "m", x(0, 0), correlation_id="text", flags=flags, outputs=["STEPS"])
            assert {name: array.tolist() for name, array in answer.items()} == {"STEPS": [[step]]}

    repo.run(main)


def test_a_failed_run_leaves_the_state_as_it_was(repo: OnnxRepo) -> None:
    """A shape that the model can't take together with the state, which the config can't say."""
    model = graph(
        [node("Add", ["X", "SUM"], ["NEXT"]), node("Identity", ["NEXT"], ["Y"])],
        {"X": ("FP32", ["n", "a"]), "SUM": ("FP32", ["n", 2])},
        {"Y": ("FP32", ["n", None]), "NEXT": ("FP32", ["n", None])},
    )
    state = 'state { input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 2 ] }'
    repo.add("m", model, config("direct { }", "", state))

    async def main(kernel: Kernel) -> None:
        def go(flags: int, *values: float) -> Any:
            return ask(kernel, "m", x(*values), correlation_id=1, flags=flags)

        assert (await go(START, 1, 2))["Y"].tolist() == [[1, 2]]
        assert (await go(0, 1, 2, 3)).startswith("INTERNAL: onnx runtime error")
        assert (await go(END, 1, 2))["Y"].tolist() == [[2, 4]]

    repo.run(main)


@pytest.mark.parametrize(
    ("control", "state", "words"),
    [
        (
            CONTROL.replace("BEGIN", "STARTED"),
            "",
            "configuration specified sequence control 'STARTED', but model does not provide that input — inputs of model 'm' "
            "are: X, BEGIN, SUM, COUNT",
        ),
        (
            CONTROL.replace("int32", "fp32"),
            "",
            "configuration expects datatype TYPE_FP32 for input 'BEGIN', model provides TYPE_INT32",
        ),
        (
            CONTROL,
            STATE.replace('"SUM"', '"TOTAL"') % "FP32",
            "configuration specified state input 'TOTAL', but model does not provide that input",
        ),
        (
            CONTROL,
            STATE.replace("Z_COUNT", "NONE") % "FP32",
            "configuration specified state output 'NONE', but model does not provide that output — outputs of model 'm' are: Y, ",
        ),
        (CONTROL, STATE % "FP64", "configuration expects datatype TYPE_FP64 for input 'SUM', model provides TYPE_FP32"),
        (CONTROL, STATE.replace("[ 2 ]", "[ 3 ]") % "FP32", "tensor 'SUM': the model expects 2 dimensions (shape [-1,2]) but"),
        (CONTROL, "", "configuration expects 2 inputs, model provides 4 — missing are 'SUM' (tensor(float), shape [-1,2])"),
    ],
    ids=["control", "control's type", "input", "output", "type", "dims", "no state"],
)
def test_controls_and_state_have_to_be_in_the_model(repo: OnnxRepo, control: str, state: str, words: str) -> None:
    io = """
    input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
    output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
    """
    repo.add("m", accumulator(), config(control=control, state=state) + io)
    reason = repo.load_error("m")
    assert words in reason
    assert "config.pbtxt:" in reason
