"""The check of a request's form: what is remembered of those that passed changes no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import TestBackend, run, write_repository

from kernel import InferenceRequest, Kernel, Model, ServingError, Tensor
from kernel.models.request_check import FORMS, Form, RequestCheck

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
            first = made({"A": ("FP32", (3, 2))}, ("Y",))
            model.check(first)
            form = Form(first)
            other = form.request("m", dict(first.inputs), first.respond, "1", "an id", ("Y",), {"a": 1}, 2, 3, 4.0, 5, 6)
            assert (other.model, other.batch_size, other.wanted) == (model, 3, {"Y"})
            assert (other.model_name, other.inputs, other.respond) == ("m", first.inputs, first.respond)
            assert (other.model_version, other.id, other.requested_outputs) == ("1", "an id", ("Y",))
            assert (other.parameters, other.priority, other.timeout_us, other.deadline) == ({"a": 1}, 2, 3, 4.0)
            assert (other.correlation_id, other.flags, other.parent, other.trace) == (5, 6, None, None)

    run(main())
