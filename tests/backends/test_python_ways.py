"""Where a short way stands beside a long one in the python backend, both mean the same (docs/internals/python.md)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telling import ADD_ONE, TEXT

import triton_python_backend_utils as pb_utils
from kernel import InferenceRequest, Kernel
from kernel_python.api.received import Received
from kernel_python.api.responses import small_answer
from kernel_python.calling import Instance
from kernel_python.executor import ModelExecutor

# -- what comes of an execution ----------------------------------------------------------------------------------------


def floats(count: int) -> Any:
    return np.arange(count, dtype=np.float32)


#: What a model may answer one request with, of arrays that it may keep.
MADE: dict[str, Callable[[list[Any]], Any]] = {
    "small": lambda kept: response(kept, X=floats(3)),
    "two": lambda kept: response(kept, X=floats(0), Y=floats(1024)),
    "large": lambda kept: response(kept, X=floats(3000), Y=floats(2)),
    "a part of one": lambda kept: response(kept, Y=floats(9000)[2000:6000]),
    "strings": lambda kept: response(kept, X=np.array(["a", "ü"], object)),
    "bytes": lambda kept: response(kept, X=np.array([b"a" * 3000, b""], object)),
    "not wanted": lambda kept: response(kept, X=floats(2), Z=floats(2)),
    "not declared": lambda kept: response(kept, X=floats(2), other=floats(2)),
    "no output": lambda kept: response(kept),
    "an error": lambda kept: pb_utils.InferenceResponse([], pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)),
}


def response(kept: list[Any], **arrays: Any) -> pb_utils.InferenceResponse:
    kept += arrays.values()
    parameters = {"count": len(arrays)} if len(arrays) == 1 else None
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()], parameters=parameters)


def concluded(way: str, kinds: list[str], keeps: bool, strict: bool) -> Any:
    """Return what is answered, by that way, for an execution of so many requests."""
    instance = Instance(None, "a_0", "a", "", "execute")
    instance.outputs, instance.strict = frozenset({"X", "Y", "Z"}), strict
    executor: Any = ModelExecutor.__new__(ModelExecutor)
    executor.instance, executor._told = instance, set()
    cores = [InferenceRequest("a", {}, lambda response, final: None) for _ in kinds]
    for core in cores:
        core.wanted = frozenset({"X", "Y"})
    requests: Any = [Received(core, instance) for core in cores]
    kept: list[Any] = []
    result: Any = [MADE[kind](kept) for kind in kinds]
    if not keeps:
        kept.clear()
    batch: Any = type("", (), {"requests": cores})
    if way == "small_answer":
        small = small_answer(requests[0], result) if len(kinds) == 1 else None
        if small is None:
            return None  # left to the others
        answers: Any = [small]
    else:
        held = [result]
        del result
        answers = getattr(executor, way)(batch, requests, held.pop())
    for answer in answers:
        for tensor in answer.outputs:
            if tensor.name != "other":  # which the core refuses
                assert not any(array.dtype != object and np.shares_memory(tensor.array, array) for array in kept)
    return [shown(answer) for answer in answers], instance.undeclared


def shown(answer: Any) -> Any:
    error = answer.error
    outputs = [(one.name, one.datatype, one.array.tolist(), one.array.flags.writeable) for one in answer.outputs]
    return outputs, answer.parameters, None if error is None else (error.code, error.message, error.reason)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_what_execute_returns_is_answered_the_same(kinds: list[str], keeps: bool, strict: bool) -> None:
    """`ModelExecutor._conclude` in one go ~ `_sort_out` ~ `small_answer`; and no answer lies in memory that the model keeps."""
    usual = concluded("_conclude", kinds, keeps, strict)
    assert concluded("_sort_out", kinds, keeps, strict) == usual
    assert concluded("small_answer", kinds, keeps, strict) in (None, usual)


X = floats(2)
MATRIX = np.arange(6, dtype=np.int64).reshape(2, 3)
TENSORS = [("X", X), ("Y", MATRIX), ("é", np.array(["a"], object)), ("S", np.array([b"a"])), ("B", np.zeros(0, bool))]
REQUESTS = [("m", [], []), ("m", [pb_utils.Tensor("X", X)], ["Y"]), ("", [pb_utils.Tensor("X", X)] * 2, ["Y", "Z", "Y"])]


@pytest.mark.parametrize("given", TENSORS, ids=lambda given: given[0])
def test_a_tensor_is_made_the_same(given: Any) -> None:
    """`Tensor.__init__` ~ `_init`, which looks closer."""
    usual, other = pb_utils.Tensor(*given), object.__new__(pb_utils.Tensor)
    other._init(*given, (), {})
    assert (usual._name, usual._datatype, usual._state) == (other._name, other._datatype, other._state)
    assert usual._array is other._array is given[1]


@pytest.mark.parametrize("given", REQUESTS, ids=lambda given: str(len(given[1])))
def test_a_request_is_made_the_same(given: Any) -> None:
    """`InferenceRequest.__init__` ~ `_init`, which looks closer."""
    named = dict(zip(("model_name", "inputs", "requested_output_names"), given))
    usual, other = pb_utils.InferenceRequest(**named), object.__new__(pb_utils.InferenceRequest)
    rest = inspect.signature(pb_utils.InferenceRequest).parameters
    defaults = {name: one.default for name, one in rest.items() if one.kind is not one.VAR_KEYWORD}
    other._init({**defaults, **named, "unknown": {}})
    for name in pb_utils.InferenceRequest.__slots__:
        ours, theirs = getattr(usual, name), getattr(other, name)
        assert ours == theirs and type(ours) is type(theirs), name
        assert ours is not theirs or type(ours) is not list, "lists of its own"


# -- calls -------------------------------------------------------------------------------------------------------------

#: ADD_ONE, which says what it was told, too.
INNER = ADD_ONE.replace(
    'x + 1)])',
    'x + 1)], parameters={"said": json.dumps([r.request_id(), r.correlation_id(), json.loads(r.parameters()), r.timeout()])})',
)
GEN = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            r.get_response_sender().send(flags=1)
"""
OUTER = """
import asyncio
import concurrent.futures
T = pb_utils.Tensor
x = np.ones(1, np.float32)
big = np.ones(5000, np.float32)
GPU = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU)
def made(model, inputs, names=(), **more):
    return pb_utils.InferenceRequest(model_name=model, inputs=inputs, requested_output_names=list(names), **more)
CALLS = {{
    "good": lambda: made("inner", [T("X", x)], request_id="i", correlation_id=7, parameters={{"a": 1}}, timeout=5),
    "large": lambda: made("inner", [T("X", big)]),
    "a version": lambda: made("inner", [T("X", x)], ["Y"], model_version=1),
    "no such model": lambda: made("nope", [T("X", x)]),
    "no such version": lambda: made("inner", [T("X", x)], model_version=7),
    "another input": lambda: made("inner", [T("Z", x)]),
    "another type": lambda: made("inner", [T("X", x.astype(np.int32))]),
    "no such output": lambda: made("inner", [T("X", x)], ["W"]),
    "another shape": lambda: made("inner", [T("X", x.reshape(1, 1))], request_id="rid"),
    "an error": lambda: made("inner", [T("X", -x)]),
    "an exception": lambda: made("inner", [T("X", -2 * x)]),
    "decoupled": lambda: made("gen", [T("X", x)]),
    "gpu": lambda: made("inner", [T("X", x)], preferred_memory=GPU),
}}
def show(r):
    if r.has_error():
        return str(r.error().code()).partition(".")[2] + ": " + r.error().message()
    return [(t.name(), t.as_numpy().tolist(), t.as_numpy().flags.writeable) for t in r.output_tensors()], r.parameters()
class TritonPythonModel:
    {define} execute(self, requests):
        told = {{}}
        for name, make in CALLS.items():
            {call}
            told[name] = show(response)
        return [pb_utils.InferenceResponse([T("S", np.array([json.dumps(told)], dtype=object))]) for _ in requests]
"""

#: Which way is taken -> how execute is written, where it runs, and how it calls.
POOL = "with concurrent.futures.ThreadPoolExecutor(1) as pool: response = {}"
CALLING = {
    "wait, left and entered again": ("def", "loop", "response = make().exec()"),
    "wait, blocked": ("def", "thread", "response = make().exec()"),
    "wait, in a task": ("async def", "loop", "response = make().exec()"),
    "wait, on a loop of its own": ("async def", "thread", "response = make().exec()"),
    "_submit": ("async def", "loop", "response = await make().async_exec()"),
    "_submit_from_afar": ("async def", "thread", "response = await make().async_exec()"),
    "_call_by_helper": (
        "async def", "loop", POOL.format("await asyncio.get_running_loop().run_in_executor(pool, make().exec)"),
    ),
    "by a thread of the model": ("def", "thread", POOL.format("pool.submit(make().exec).result()")),
    "in a process": ("def", "process", "response = make().exec()"),
}  # fmt: skip


def counted(kernel: Kernel) -> list[int]:
    (found,) = kernel.statistics("inner")
    return [found.success.count, found.fail.count, found.execution_count, found.inference_count]


@pytest.mark.parametrize("callee", ["loop", "thread"])
def test_all_ways_to_call_mean_the_same(repo: Any, helpers: Any, callee: str) -> None:
    """`waiting.wait` in each placement ~ `bls._submit` ~ `_submit_from_afar` ~ `_call_by_helper` ~ a child's message: they find
    the model themselves, or have `Kernel.submit` do it, and an answer goes by the loop or straight to the thread that waits.
    """
    repo.add("inner", INNER, parameters={"placement": callee})
    repo.add("gen", GEN, decoupled=True)
    for way, (define, placement, call) in CALLING.items():
        code = OUTER.format(define=define, call=call)
        repo.add(way.replace(" ", "-"), code, io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        told = {}
        for way in CALLING:
            before = counted(kernel)
            (text,) = await helpers.ask(kernel, way.replace(" ", "-"), (1.0,))
            told[way] = [json.loads(text), [now - then for now, then in zip(counted(kernel), before)]]
        return told

    told = repo.run(main)
    usual = told["wait, blocked"]
    assert usual[0]["good"][0] == [["Y", [2.0], True]] and usual[1] == [3, 2, 5, 3]
    for way, other in told.items():
        assert other == usual, way
