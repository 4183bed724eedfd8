"""The compiled graph: who takes a tensor, what is pruned, how deep a step lies, how shapes are fitted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from work import is_linear

from kernel import EnsembleStep, ServingError, TensorSpec
from kernel_ensemble.graph import Plan, compile_plan, fit


def spec(name: str) -> TensorSpec:
    return TensorSpec(name, "FP32", (-1,))


def plan(
    inputs: str, outputs: str, steps: Sequence[tuple[str, str, str]], wanted: str = "", decoupled: Sequence[int] = ()
) -> Plan:
    """Steps are (model, inputs, outputs); the model's names are the tensors' in lower case."""
    config: Any = SimpleNamespace(
        name="e",
        inputs=tuple(map(spec, inputs)),
        outputs=tuple(map(spec, outputs)),
        ensemble=tuple(
            EnsembleStep(model, -1, {name.lower(): name for name in reads}, {name.lower(): name for name in writes})
            for model, reads, writes in steps
        ),
    )
    return compile_plan(config, [index in decoupled for index in range(len(steps))], frozenset(wanted or outputs))


def test_routes_go_to_steps_and_to_places_of_the_answer() -> None:
    made = plan("X", "ZY", [("one", "X", "Y"), ("two", "XY", "Z")])
    assert made.feed.routes == (("X", ((0, "x"), (1, "x"))),)
    assert made.at[0].feed.routes == (("y", ((1, "y"), (~1, "Y"))),)
    assert made.at[1].feed.routes == (("z", ((~0, "Z"),)),)
    assert made.waiting == (1, 2)
    assert made.sources == (1, 0)


@pytest.mark.parametrize("backward", [False, True])
def test_twice_the_steps_are_twice_the_work(backward: bool) -> None:
    def chain(count: int) -> list[EnsembleStep]:
        made = [EnsembleStep("m", -1, {"A": f"t{index}"}, {"B": f"t{index + 1}"}) for index in range(count)]
        return made[::-1] if backward else made

    def compiled(steps: list[EnsembleStep]) -> Plan:
        last = f"t{len(steps)}"
        config: Any = SimpleNamespace(name="e", inputs=(spec("t0"),), outputs=(spec(last),), ensemble=tuple(steps))
        return compile_plan(config, [False] * len(steps), frozenset({last}))

    assert is_linear(compiled, chain(200), chain(400))


def test_the_order_of_the_config_does_not_matter() -> None:
    made = plan("X", "Z", [("two", "Y", "Z"), ("one", "X", "Y")])
    assert [step.model_name for step in made.steps] == ["two", "one"]
    assert made.waiting == (1, 1)
    assert made.at[1].feed.routes == (("y", ((0, "y"),)),)


def test_steps_that_contribute_to_no_wanted_output_are_left_out() -> None:
    steps = [("a", "X", "P"), ("b", "X", "Q"), ("c", "P", "Y"), ("d", "PQ", "Z")]
    made = plan("X", "YZ", steps, wanted="Y")
    assert [step.model_name for step in made.steps] == ["a", "c"]
    assert made.feed.routes == (("X", ((0, "x"),)),), "the pruned step takes nothing: no copy is made for it"
    assert made.at[0].feed.routes == (("p", ((2, "p"),)),)
    assert made.outputs == ("Y",)


def test_an_output_that_nobody_wants_has_no_route() -> None:
    made = plan("X", "YZ", [("a", "X", "YZ")], wanted="Z")
    assert made.at[0].feed.routes == (("z", ((~0, "Z"),)),)


def test_tensors_for_different_takers_are_kept_apart() -> None:
    assert plan("X", "YZ", [("a", "X", "YP"), ("b", "P", "Z")]).at[0].feed.apart
    assert not plan("X", "Z", [("a", "X", "PQ"), ("b", "PQ", "Z")]).at[0].feed.apart
    assert not plan("X", "YZ", [("a", "X", "YZ")]).at[0].feed.apart


def test_depth_counts_the_decoupled_steps_before() -> None:
    steps = [("a", "X", "P"), ("d", "P", "Q"), ("b", "Q", "R"), ("d", "R", "Y")]
    made = plan("X", "Y", steps, decoupled=[1, 3])
    assert [step.depth for step in made.steps] == [0, 0, 1, 1]
    assert made.depth == 2
    assert plan("X", "Y", steps).depth == 0


@pytest.mark.parametrize(
    ("outputs", "steps", "decoupled", "who"),
    [
        ("Y", [("d", "X", "P"), ("join", "XP", "Y")], [0], "join"),
        ("Y", [("d", "X", "P"), ("d", "X", "Q"), ("join", "PQ", "Y")], [0, 1], "join"),
        ("YZ", [("d", "X", "Y"), ("a", "X", "Z")], [0], "e"),
    ],
)
def test_different_decoupled_origins_cannot_be_joined(outputs: str, steps: Any, decoupled: Any, who: str) -> None:
    with pytest.raises(ServingError) as caught:
        plan("X", outputs, steps, decoupled=decoupled)
    assert caught.value.message == (
        f"in ensemble e, step of model '{who}' receives inputs originated from different decoupled models"
    )


@pytest.mark.parametrize(
    ("shape", "dims", "batched", "batching", "fitted"),
    [
        ((3, 4), (4,), True, True, (3, 4)),
        ((4,), (4,), False, True, (1, 4)),
        ((3, 4), (4,), False, True, (3, 4)),
        ((3, 4), (-1, 4), True, False, (3, 4)),
        ((1, 4), (4,), True, False, (4,)),
        ((1, 4), (-1, 4), True, False, (1, 4)),
        ((2, 4), (4,), True, False, (2, 4)),
        ((), (1,), False, True, ()),
    ],
)
def test_fit(shape: Any, dims: Any, batched: bool, batching: bool, fitted: Any) -> None:
    array = np.zeros(shape, np.float32)
    result = fit(array, dims, batched, batching)
    assert result.shape == fitted
    assert np.shares_memory(result, array), "fitting never copies"
