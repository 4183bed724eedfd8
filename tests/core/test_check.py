"""The check of a request's form: what is remembered of those that passed changes no answer."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import TestBackend, run, write_repository

from kernel import InferenceRequest, Kernel, Model, ServingError, Tensor
from kernel.models.request_check import FORMS, Form, RequestCheck

PLUGINS = Path(__file__).parents[2] / "plugins"

IO = """
backend: "test"
input [ { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 2, -1 ] optional: true } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.tuples(st.sampled_from(["FP32", "INT32"]), shapes)
rows = st.integers(1, 3)
likely = st.fixed_dictionaries(
    {"A": st.tuples(st.just("FP32"), st.tuples(rows, st.integers(1, 2)) | st.tuples(rows))},
    optional={"B": st.tuples(st.just("INT32"), st.tuples(rows, st.just(2), rows) | st.tuples(st.just(2), rows))},
)
requests = st.tuples(
    likely | st.dictionaries(st.sampled_from(["A", "B", "C"]), tensors, max_size=3),
    st.sampled_from([None, None, (), ("Y",), ("Z",)]),
)


def made(inputs: dict[str, tuple[str, tuple[int, ...]]], outputs: tuple[str, ...] | None) -> InferenceRequest:
    dtypes = {"FP32": np.float32, "INT32": np.int32}
    return InferenceRequest(
        "m",
        {name: Tensor(name, kind, np.zeros(shape, dtypes[kind])) for name, (kind, shape) in inputs.items()},
        lambda response, final: None,
        requested_outputs=outputs,
    )


def checker(model: Model) -> RequestCheck:
    found: Any = model.check
    assert isinstance(found.__self__, RequestCheck)
    return found.__self__


def outcome(check: Any, request: InferenceRequest) -> tuple[Any, ...]:
    try:
        check(request)
    except ServingError as error:
        return error.code, error.message
    return request.model.name, request.batch_size, request.wanted


def test_what_passed_before_is_no_reason_to_pass(tmp_path: Path) -> None:
    models: list[Model] = []

    async def main() -> None:
        write_repository(tmp_path, {"batches": IO + "max_batch_size: 2", "whole": IO})
        async with Kernel(tmp_path, plugins=[TestBackend({})]) as kernel:
            models.extend(kernel.models())

    run(main())

    for model, shape in zip(models, ((1, 2), (2,)), strict=True):
        for outputs in (None, ("Y",)):
            model.check(made({"A": ("FP32", shape)}, outputs))
        assert shape in checker(model)._forms["A"][1] and ("Y",) in checker(model)._wanted  # something is remembered

    @settings(deadline=None, max_examples=60)
    @given(history=st.lists(requests, min_size=5, max_size=15))
    def compare(history: list[Any]) -> None:
        for inputs, outputs in history:
            for model in models:
                anew = outcome(checker(model).check_anew, made(inputs, outputs))
                assert outcome(model.check, made(inputs, outputs)) == anew

    compare()


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": IO})
        async with Kernel(tmp_path, plugins=[TestBackend({})]) as kernel:
            model = kernel.model("m")
            for length in range(1, 5 * FORMS):
                model.check(made({"A": ("FP32", (length,))}, None))
                model.check(made({"A": ("FP32", (2,))}, ("Y",) * length))
                assert len(checker(model)._forms["A"][1]) <= FORMS >= len(checker(model)._wanted)

    run(main())


def test_what_was_said_of_a_request_holds_for_others_like_it(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": IO + "max_batch_size: 4"})
        async with Kernel(tmp_path, plugins=[TestBackend({})]) as kernel:
            model = kernel.model("m")
            first, checked = (made({"A": ("FP32", (3, 2))}, ("Y",)) for _ in range(2))
            model.check(first)
            other = InferenceRequest("m", first.inputs, lambda *_: None, requested_outputs=("Y",), form=Form(first))
            assert outcome(lambda request: None, other) == outcome(model.check, checked) == ("m", 3, {"Y"})
            assert other.model is model

    run(main())


class Writers(ast.NodeVisitor):
    """Finds who assigns what the check says: a field of that name, of anything but an object's own `self`."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def visit_Attribute(self, node: ast.Attribute) -> None:
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "head")  # an HTTP head has a `model`, too
        if isinstance(node.ctx, ast.Store) and node.attr in ("model", "batch_size", "wanted") and not own:
            self.found.append((node.lineno, node.attr))
        self.generic_visit(node)


#: Requests of the python backend's own that no model's check has seen, with why they need none.
OWN = {
    "kernel_python/process/child/executions.py": "the server's check has said it, in the message that the request is made of",
    "kernel_python/api/calibration.py": "no model is ever asked: the request measures how arrays are counted",
}


@pytest.mark.parametrize("path", sorted(PLUGINS.rglob("*.py")), ids=lambda path: path.relative_to(PLUGINS).as_posix())
def test_nobody_but_the_check_says_what_a_request_is_to_its_model(path: Path) -> None:
    if path.relative_to(PLUGINS).as_posix() not in OWN:
        writers = Writers()
        writers.visit(ast.parse(path.read_text()))
        assert not writers.found, "checked requests come from Model.check and a Form alone"


def test_the_search_for_writers_can_fail() -> None:
    writers = Writers()
    text = "request.model = 1\nself.model = 2\n(a.b.wanted, c) = 3, 4\nrequest.batch_size += 1\nx = request.model"
    writers.visit(ast.parse(text))
    assert writers.found == [(1, "model"), (3, "wanted"), (4, "batch_size")]
