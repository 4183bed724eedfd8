"""Where a short way stands beside a long one in the core, a request's life is the same on both (docs/internals/scheduling.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, TestBackend, run, write_repository

from kernel import (
    RESCHEDULED,
    SKIPPED,
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    Kernel,
    Reason,
    ServingError,
    Tensor,
)
from kernel.requests.request import RequestState, nobody
from kernel.scheduling.lifecycle import Lifecycle
from kernel.scheduling.queues import Queue

#: What an executor may give for one of its requests.
GIVEN: dict[str, Callable[[], Any]] = {
    "response": lambda: InferenceResponse([Tensor("Y", "FP32", np.ones(1, np.float32))], parameters={"a": 1}),
    "failure": lambda: InferenceResponse.failure(Code.NOT_FOUND, "no"),
    "nothing": lambda: None,
    "once more": lambda: RESCHEDULED,
    "junk": lambda: 7,
}

#: And for all of them, in the place of a list.
INSTEAD: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "skipped": lambda: SKIPPED,
    "junk": lambda: "text",
    "an error": lambda: ServingError(Code.UNAVAILABLE, "not now", Reason.BACKEND),
    "an exception": lambda: ValueError("boom"),
    "cancelled": asyncio.CancelledError,
}

#: What has happened to a request while it was executed.
MEANWHILE = ["", "", "", "cancelled", "answered", "responded"]

executions = st.fixed_dictionaries(
    {
        "rows": st.lists(st.integers(1, 3), min_size=1, max_size=3),
        "meanwhile": st.lists(st.sampled_from(MEANWHILE), min_size=3, max_size=3),
        "given": st.lists(st.sampled_from(["response", "response", *GIVEN]), max_size=3),
        "more": st.sampled_from([0, 0, 0, 0, -1, 1]),
        "as": st.sampled_from([list, list, list, tuple]),
        "instead": st.sampled_from(["", "", "", *INSTEAD]),
        "deadline": st.booleans(),
    }
)


class Told:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def answered(self, records: Any) -> None:
        self.records += records

    def first_response(self, seconds: float) -> None:
        self.records.append(seconds)


def shown(response: InferenceResponse | None) -> Any:
    if response is None:
        return None
    error = response.error
    words = None if error is None else (error.code, error.message, error.reason)
    outputs = [(tensor.name, tensor.array.tolist()) for tensor in response.outputs]
    return outputs, words, response.parameters, response.model_name, response.model_version, response.id


def lived(way: str, plans: list[dict[str, Any]], is_ensemble: bool, observed: bool) -> Any:
    """Conclude executions by that way; return all that anybody may see of it."""
    now = [100.0]
    config: Any = SimpleNamespace(name="m", dynamic_batching=None, decoupled=False, is_ensemble=is_ensemble)
    life = Lifecycle(config, 1, lambda: now[0], Queue())
    conclude = getattr(life, way)
    told = Told()
    if observed:
        life.statistics.observers = (told,)  # type: ignore[assignment]
    seen: list[Any] = []
    for number, plan in enumerate(plans):
        requests, parent = [], Batch([], 0)
        parent.children, parent.instance = set(), SimpleNamespace(name="caller_0_0")
        parent.requests.append(InferenceRequest("caller", {}, nobody))
        for place, rows in enumerate(plan["rows"]):
            name = f"{number}.{place}"
            request = InferenceRequest(
                "m", {"X": GIVEN["response"]().outputs[0]}, lambda *it, name=name: seen.append((name, shown(it[0]), it[1])),
                id=name, deadline=500.0 if plan["deadline"] else None, parent=parent,
            )  # fmt: skip
            parent.children.add(request)
            request.batch_size, request.enqueued, request.order = rows, now[0] + place / 4, 10 * number + place + 1
            if request.deadline is not None:
                life.deadlines.add(request)
            requests.append(request)
        batch = Batch(requests, sum(plan["rows"]))
        batch.instance = SimpleNamespace(name="m_0_0", cancelled=lambda batch, request: None)
        for request in requests:
            request.state, request.batch = RequestState.EXECUTING, batch
        batch.handed_over = batch.started = now[0] + 1
        now[0] += 2
        for request, event in zip(requests, plan["meanwhile"]):
            if event == "cancelled":
                life.cancel(request)
            elif event:
                life.send(request, GIVEN["response"](), event == "answered")
        batch.input_ended, batch.output_started, batch.ended = now[0], now[0] + 0.5, now[0] + 1
        now[0] += 4
        count = max(len(requests) + plan["more"], 0)
        kinds = (plan["given"] + ["response"] * count)[:count]
        result = INSTEAD[plan["instead"]]() if plan["instead"] else plan["as"](GIVEN[kind]() for kind in kinds)
        try:
            conclude(batch, result)
        except Exception as problem:  # as `Scheduler.finished` does
            life.fail(batch, problem)
        for request in requests:
            error = request.error
            why = None if error is None else (error.code, error.message, error.reason)
            owed = request in life.open
            seen.append((request.state, request.counted, why, len(request.inputs), request.batch is None, owed))
        seen.append((len(parent.children), len(life.deadlines)))
        assert not life._touched
    statistics = life.statistics
    statistics.settle()
    counted = {name: getattr(statistics, name) for name in statistics.__slots__ if name not in ("observers", "_ones")}
    return seen, counted, sorted(told.records, key=str)


@settings(max_examples=300, deadline=None)
@given(st.lists(executions, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_an_execution_is_concluded_the_same(plans: list[dict[str, Any]], is_ensemble: bool, observed: bool) -> None:
    """`Lifecycle._answer_each` ~ `_sort_out`."""
    assert lived("_answer_each", plans, is_ensemble, observed) == lived("_sort_out", plans, is_ensemble, observed)


@given(st.sampled_from(["response", "failure"]), st.text(max_size=3), st.sampled_from(["", "other"]))
def test_a_response_is_signed_the_same(kind: str, id: str, before: str) -> None:
    """`Release.sign` ~ what `release` does itself."""
    config: Any = SimpleNamespace(name="m", dynamic_batching=None, decoupled=False, is_ensemble=False)
    life = Lifecycle(config, 3, lambda: 0.0, Queue())
    signed = []
    for way in ("sign", "release"):
        response = GIVEN[kind]()
        response.model_name = response.model_version = response.id = before
        answers: list[Any] = []
        request = InferenceRequest("m", {}, lambda response, final, to=answers: to.append(response), id=id)
        request.counted = True
        if way == "sign":
            assert life.sign(request, response) is response
        else:
            life.release(request, response)
            assert answers == [response]
        signed.append(shown(response))
        assert {response.model_name, response.model_version, response.id} == {"m", "3", id}
    assert signed[0] == signed[1]


ASKED: dict[str, Callable[[Any], InferenceRequest]] = {
    "good": lambda respond: InferenceRequest("m", {"X": x()}, respond, id="a"),
    "of a version": lambda respond: InferenceRequest("m", {"X": x()}, respond, "1", requested_outputs=["Y"]),
    "another input": lambda respond: InferenceRequest("m", {"Z": x()}, respond),
    "another type": lambda respond: InferenceRequest("m", {"X": Tensor("X", "INT8", np.ones(1, np.int8))}, respond),
    "no such output": lambda respond: InferenceRequest("m", {"X": x()}, respond, requested_outputs=["W"]),
    "late": lambda respond: InferenceRequest("m", {"X": x()}, respond, deadline=1.0),
}


def x() -> Tensor:
    return Tensor("X", "FP32", np.ones(1, np.float32))


@pytest.mark.parametrize("kind", ASKED)
def test_a_request_is_taken_over_the_same(kind: str, tmp_path: Path) -> None:
    """`Kernel.submit` ~ `submit_to` for who has just looked the model up, such as calls and ensembles."""

    async def asked(way: str) -> Any:
        seen: list[Any] = []
        request = ASKED[kind](lambda response, final: seen.append((shown(response), final)))
        async with Kernel(tmp_path, plugins=[TestBackend({})], control_mode="explicit", load_models=["*"]) as kernel:
            model = kernel.find(request.model_name, request.model_version)
            if way == "submit":
                kernel.submit(request)
            else:
                kernel.submit_to(model, request)
            await asyncio.sleep(1)
            statistics = model.scheduler.statistics
            statistics.settle()
            return seen, request.state, statistics.success, statistics.fail, statistics.refused

    write_repository(tmp_path, {"m": BASE})
    assert run(asked("submit")) == run(asked("submit_to"))
