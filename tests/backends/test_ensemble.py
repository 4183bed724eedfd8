"""Ensembles on virtual time, served by a real kernel: order, concurrency, errors, memory, iterations, cancellation."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual import Behaviour, Client, TestBackend, answer, echo, run, sleeping, write_repository

import kernel_ensemble
from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, Reason, ServingError, Tensor

INSTALLED = any(point.name == "kernel_ensemble" for point in importlib.metadata.entry_points(group="kernel"))


def io(kind: str, names: str, dims: str = "[ -1 ]", optional: str = "") -> str:
    return "".join(
        f'{kind} [ {{ name: "{name}" data_type: TYPE_FP32 dims: {dims} {"optional: true" if name in optional else ""} }} ]\n'
        for name in names
    )


def model(
    inputs: str = "X",
    outputs: str = "Y",
    *,
    dims: str = "[ -1 ]",
    optional: str = "",
    batch: int = 0,
    count: int = 1,
    decoupled: bool = False,
    more: str = "",
) -> str:
    return (
        f'backend: "test"\nmax_batch_size: {batch}\n{io("input", inputs, dims, optional)}{io("output", outputs, dims)}'
        f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n{more}"
        + ("model_transaction_policy { decoupled: true }\n" if decoupled else "")
    )


def ensemble(
    inputs: str,
    outputs: str,
    *steps: str,
    dims: str = "[ -1 ]",
    optional: str = "",
    batch: int = 0,
    decoupled: bool = False,
) -> str:
    """Steps read `model[@version] X=A,O=B -> Y=C`: the model's name of the tensor, then the ensemble's."""
    text = f'platform: "ensemble"\nmax_batch_size: {batch}\n{io("input", inputs, dims, optional)}{io("output", outputs, dims)}'
    if decoupled:
        text += "model_transaction_policy { decoupled: true }\n"
    parts = []
    for step in steps:
        name, reads, _, writes = step.split(" ")
        name, _, version = name.partition("@")
        maps = [
            f'{kind}_map {{ key: "{pair.split("=")[0]}" value: "{pair.split("=")[1]}" }}'
            for kind, pairs in (("input", reads), ("output", writes))
            for pair in pairs.split(",")
        ]
        parts.append(f'{{ model_name: "{name}" model_version: {version or -1} {" ".join(maps)} }}')
    return text + "ensemble_scheduling { step [ " + ", ".join(parts) + " ] }\n"


CHAIN = ensemble("X", "Y", "a X=X -> Y=M", "b X=M -> Y=N", "c X=N -> Y=Y")


@asynccontextmanager
async def serving(
    folder: Path,
    models: Mapping[str, str],
    behaviours: Mapping[str, Behaviour] | None = None,
    versions: tuple[int, ...] = (1,),
) -> AsyncIterator[tuple[Client, TestBackend]]:
    backend = TestBackend(behaviours or {})
    write_repository(folder, models, versions)
    plugins = [backend] if INSTALLED else [backend, kernel_ensemble]
    async with Kernel(folder, plugins=plugins, control_mode="explicit", load_models=["*"]) as kernel:
        yield Client(kernel), backend
        for one in kernel.models():
            scheduler = one.scheduler
            assert scheduler.in_flight == 0, f"'{one.name}' leaves requests behind"
            assert all(not instance.outstanding for instance in scheduler.instances), f"'{one.name}' is still running"


Main = Callable[[Client, TestBackend], Awaitable[None]]


def serve(
    folder: Path, models: Mapping[str, str], behaviours: Mapping[str, Behaviour], main: Main, **options: Any
) -> None:
    async def body() -> None:
        async with serving(folder, models, behaviours, **options) as (client, backend):
            await main(client, backend)

    run(body())


def compute(function: Callable[..., Any]) -> Behaviour:
    """Return a behaviour that answers with what `function`, given the input arrays by name, returns: outputs by name."""

    def execute(batch: Batch) -> Any:
        return [
            answer_of(function(**{name: tensor.array for name, tensor in request.inputs.items()}))
            for request in batch.requests
        ]

    return execute


def answer_of(outputs: Mapping[str, Any]) -> InferenceResponse:
    return InferenceResponse([Tensor(name, "FP32", array) for name, array in outputs.items()])


def adding(amount: float) -> Behaviour:
    return compute(lambda X: {"Y": X + np.float32(amount)})


def streaming(answers: Callable[[np.ndarray[Any, Any]], Sequence[Any]], gap: float = 0.0) -> Behaviour:
    """A decoupled model: sends Y = each item of `answers(X)`, a ServingError as an error; `gap` seconds apart."""

    async def execute(batch: Batch) -> None:
        kernel = batch.instance.executor.context.kernel
        for request in batch.requests:
            for item in answers(request.inputs["X"].array):
                if gap:
                    await asyncio.sleep(gap)
                if isinstance(item, ServingError):
                    kernel.send(request, InferenceResponse([], error=item), False)
                else:
                    kernel.send(request, answer(request, Y=item), False)
            kernel.send(request, None, True)

    return execute


COUNT = streaming(lambda x: [x + index for index in range(int(x[0]))])


def values(client: Client, id: str, output: str = "Y") -> list[Any]:
    """Return the values of the data responses, in order; an error's message stands for itself."""
    result: list[Any] = []
    for _, response, _ in client.answers[id]:
        if response is not None:
            result.append(response.error.message if response.error else response[output].tolist())
    assert [final for _, _, final in client.answers[id]].count(True) == 1
    assert client.answers[id][-1][2]
    return result


# -- the graph ---------------------------------------------------------------------------------------------------------


def test_a_chain_answers_in_one_turn(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        ((when, response, final),) = client.answers["r"]
        assert response is not None and (when, final) == (0, True), "all on the loop: answered before submit returns"
        assert response["Y"].tolist() == [112]
        assert (response.model_name, response.model_version, response.id) == ("e", "1", "r")
        assert response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}

    models = {"e": CHAIN, "a": model(), "b": model(), "c": model()}
    serve(tmp_path, models, {"a": adding(1), "b": adding(10), "c": adding(100)}, main)


def test_steps_in_any_order_of_the_config(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        assert values(client, "r") == [[112]]

    chain = ensemble("X", "Y", "c X=N -> Y=Y", "b X=M -> Y=N", "a X=X -> Y=M")
    models = {"e": chain, "a": model(), "b": model(), "c": model()}
    serve(tmp_path, models, {"a": adding(1), "b": adding(10), "c": adding(100)}, main)


def test_an_input_that_is_an_output_is_passed_on(tmp_path: Path) -> None:
    """As the reference does; it was a KeyError at load."""

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        ((_, response, final),) = client.answers["r"]
        assert response is not None and final and response.error is None
        assert (response["X"].tolist(), response["Y"].tolist()) == ([1], [2])

    serve(tmp_path, {"e": ensemble("X", "XY", "a X=X -> Y=Y"), "a": model()}, {"a": adding(1)}, main)


def test_independent_steps_run_at_the_same_time(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(10)
        assert client.outcome("r") == (4.0, "ok"), "max(1, 3) + 1, not 1 + 3 + 1"
        assert values(client, "r") == [[2]]

    models = {
        "e": ensemble("X", "Y", "one X=X -> Y=P", "three X=X -> Y=Q", "sum A=P,B=Q -> Y=Y"),
        "one": model(),
        "three": model(),
        "sum": model("AB"),
    }
    total = compute(lambda A, B: {"Y": A + B})
    serve(tmp_path, models, {"one": sleeping(1), "three": sleeping(3), "sum": sleeping(1, total)}, main)


def test_a_model_in_two_steps_and_a_tensor_into_two_inputs(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        assert values(client, "r") == [[6]]

    models = {
        "e": ensemble("X", "Y", "inc X=X -> Y=M", "inc X=M -> Y=N", "sum A=N,B=N -> Y=Y"),
        "inc": model(),
        "sum": model("AB"),
    }
    serve(tmp_path, models, {"inc": adding(1), "sum": compute(lambda A, B: {"Y": A + B})}, main)


def test_ensembles_in_ensembles(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("outer", "r", [1])
        assert values(client, "r") == [[4]]

    models = {
        "outer": ensemble("X", "Y", "inner X=X -> Y=M", "inc X=M -> Y=Y"),
        "inner": ensemble("X", "Y", "inc X=X -> Y=M", "inc X=M -> Y=Y"),
        "inc": model(),
    }
    serve(tmp_path, models, {"inc": adding(1)}, main)


def test_a_long_chain_does_not_nest(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [0])
        assert client.outcome("r") == (0, "ok"), "40 steps, one execution within another's submission at a time"
        assert values(client, "r") == [[40]]

    names = ["X", *(f"T{index}" for index in range(39)), "Y"]
    steps = [f"inc X={one} -> Y={two}" for one, two in pairwise(names)]
    serve(tmp_path, {"e": ensemble("X", "Y", *steps), "inc": model()}, {"inc": adding(1)}, main)


def test_only_what_contributes_to_the_requested_outputs_runs(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1], requested_outputs=["Z"])
        (_, response, _), *_ = client.answers["r"]
        assert response is not None and [tensor.name for tensor in response.outputs] == ["Z"]
        assert backend.executions("a") == [] and backend.executions("b") == [["r"]]

    models = {"e": ensemble("X", "YZ", "a X=X -> Y=Y", "b X=X -> Y=Z"), "a": model(), "b": model()}
    serve(tmp_path, models, {}, main)


def test_outputs_in_the_order_of_the_config(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        (_, response, _), *_ = client.answers["r"]
        assert response is not None and [tensor.name for tensor in response.outputs] == ["Z", "Y"]

    models = {"e": ensemble("X", "ZY", "a X=X -> Y=Y", "a X=X -> Y=Z"), "a": model()}
    serve(tmp_path, models, {}, main)


def test_what_a_step_is_told_of_the_request(tmp_path: Path) -> None:
    seen: list[InferenceRequest] = []

    def look(batch: Batch) -> Any:
        seen.extend(batch.requests)
        return echo(batch)

    async def main(client: Client, backend: TestBackend) -> None:
        request = client.send(
            "e", "r", [1], parameters={"k": "v"}, priority=2, timeout_us=7_000_000, correlation_id="s", flags=3
        )
        assert values(client, "r") == [[1]]
        assert len(seen) == 2
        for one in seen:
            told = (one.id, one.parameters, one.priority, one.timeout_us, one.correlation_id, one.flags)
            assert told == ("r", {"k": "v"}, 2, 7_000_000, "s", 3)
            assert one is not request
        (_, response, _), *_ = client.answers["r"]
        assert response is not None
        assert response.parameters == {"sequence_id": "s", "sequence_start": True, "sequence_end": True}

    models = {"e": ensemble("X", "Y", "a X=X -> Y=M", "a X=M -> Y=Y"), "a": model()}
    serve(tmp_path, models, {"a": look}, main)


def test_only_the_mapped_outputs_are_asked_for(tmp_path: Path) -> None:
    asked: list[Any] = []

    def look(batch: Batch) -> Any:
        asked.extend(request.wanted for request in batch.requests)
        return [answer(request, Y=[1], Z=[2]) for request in batch.requests]

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        assert values(client, "r") == [[1]] and asked == [{"Y"}]

    serve(tmp_path, {"e": ensemble("X", "Y", "a X=X -> Y=Y"), "a": model(outputs="YZ")}, {"a": look}, main)


# -- versions, loading, unloading --------------------------------------------------------------------------------------


def test_minus_one_is_the_newest_version_and_a_number_is_that_one(tmp_path: Path) -> None:
    def tell(batch: Batch) -> Any:
        return [answer(request, Y=[batch.instance.executor.context.version]) for request in batch.requests]

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("newest", "r", [0])
        client.send("second", "s", [0])
        assert (values(client, "r"), values(client, "s")) == ([[3]], [[2]])

    models = {
        "newest": ensemble("X", "Y", "a X=X -> Y=Y"),
        "second": ensemble("X", "Y", "a@2 X=X -> Y=Y"),
        "a": model(more="version_policy { all { } }\n"),
    }
    serve(tmp_path, models, {"a": tell}, main, versions=(1, 2, 3))


def test_a_model_reloaded_meanwhile_fails_nothing(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(0.5)
        (tmp_path / "b" / "config.pbtxt").write_text(model(count=2))
        await client.kernel.load("b")
        await asyncio.sleep(5)
        assert client.outcome("r") == (1, "ok")

    models = {"e": ensemble("X", "Y", "a X=X -> Y=M", "b X=M -> Y=Y"), "a": model(), "b": model()}
    serve(tmp_path, models, {"a": sleeping(1)}, main)


def test_a_model_unloaded_meanwhile_is_a_prompt_error(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(0.5)
        client.kernel.unload("b")
        client.send("e", "late", [1])
        assert client.outcome("late")[1].startswith("Request for unknown model: 'e'")
        await asyncio.sleep(5)
        when, message = client.outcome("r")
        assert when == 1
        assert message == (
            "in ensemble 'e', step 1 (model 'b'): Request for unknown model: 'b' version 1 is not at ready state"
        )
        (_, response, _), *_ = client.answers["r"]
        assert response is not None and response.error is not None and response.error.code is Code.UNAVAILABLE
        await client.kernel.load("b")
        client.send("e", "again", [1])
        await asyncio.sleep(5)
        assert client.outcome("again")[1] == "ok", "the ensemble came back with its model"

    models = {"e": ensemble("X", "Y", "a X=X -> Y=M", "b X=M -> Y=Y"), "a": model(), "b": model()}
    serve(tmp_path, models, {"a": sleeping(1)}, main)


def test_a_model_that_becomes_decoupled_by_a_reload(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "one", [3])
        await asyncio.sleep(1)
        assert values(client, "one") == [[3]]
        (tmp_path / "a" / "config.pbtxt").write_text(model(decoupled=True))
        backend.behaviours = {**backend.behaviours, "a": COUNT}
        await client.kernel.load("a")
        client.send("e", "many", [3])
        await asyncio.sleep(1)
        assert values(client, "many") == [[3], [4], [5]]

    models = {"e": ensemble("X", "Y", "a X=X -> Y=M", "b X=M -> Y=Y", decoupled=True), "a": model(), "b": model()}
    serve(tmp_path, models, {}, main)


# -- batch dimension ---------------------------------------------------------------------------------------------------


def shapes_seen(models: Mapping[str, str], folder: Path, value: Any) -> tuple[list[tuple[int, ...]], str, Any]:
    """Send `value` to "e"; return the shapes that model "a" has met, the outcome, and the answer's shape."""
    seen: list[tuple[int, ...]] = []
    result: list[Any] = []

    def look(batch: Batch) -> Any:
        seen.extend(request.inputs["X"].shape for request in batch.requests)
        return echo(batch)

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", value)
        ((_, response, _),) = client.answers["r"]
        assert response is not None
        result.extend([client.outcome("r")[1], response["Y"].shape if not response.error else None])

    serve(folder, models, {"a": look}, main)
    return seen, result[0], result[1]


def test_a_batching_ensemble_strips_one_row_for_a_model_that_does_not_batch(tmp_path: Path) -> None:
    models = {"e": ensemble("X", "Y", "a X=X -> Y=Y", dims="[ 2 ]", batch=4), "a": model(dims="[ 2 ]")}
    assert shapes_seen(models, tmp_path, [[1, 2]])[0::2] == ([(2,)], (1, 2)), "and the answer has it again"


def test_a_model_that_does_not_batch_takes_full_shapes(tmp_path: Path) -> None:
    models = {"e": ensemble("X", "Y", "a X=X -> Y=Y", dims="[ 2 ]", batch=4), "a": model(dims="[ -1, 2 ]")}
    assert shapes_seen(models, tmp_path, [[1, 2], [3, 4], [5, 6]])[0::2] == ([(3, 2)], (3, 2))


def test_an_ensemble_that_does_not_batch_feeds_a_model_that_does(tmp_path: Path) -> None:
    models = {"e": ensemble("X", "Y", "a X=X -> Y=Y", dims="[ 2 ]"), "a": model(dims="[ 2 ]", batch=4)}
    assert shapes_seen(models, tmp_path, [1, 2])[0::2] == ([(1, 2)], (2,))


def test_shapes_that_do_not_fit_are_the_steps_own_error(tmp_path: Path) -> None:
    models = {"e": ensemble("X", "Y", "a X=X -> Y=Y", dims="[ -1 ]"), "a": model(dims="[ 2 ]")}
    seen, outcome, _ = shapes_seen(models, tmp_path, [1, 2, 3])
    assert seen == []
    assert outcome.startswith("in ensemble 'e', step 0 (model 'a'): [request id: r] unexpected shape for input 'X'")


# -- memory ------------------------------------------------------------------------------------------------------------


def test_what_is_only_passed_on_is_never_copied(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(batch: Batch) -> Any:
        seen.extend(request.inputs["X"].array for request in batch.requests)
        return echo(batch)

    async def main(client: Client, backend: TestBackend) -> None:
        array = np.ones(2, np.float32)
        answers: list[Any] = []
        client.kernel.submit(
            InferenceRequest("e", {"X": Tensor("X", "FP32", array)}, lambda one, _: answers.append(one))
        )
        assert all(one is array for one in seen) and len(seen) == 3
        assert answers[0]["Y"] is array

    models = {"e": ensemble("X", "Y", "a X=X -> Y=M", "a X=M -> Y=N", "a X=N -> Y=Y"), "a": model()}
    serve(tmp_path, models, {"a": look}, main)


def test_python_models_in_a_chain_pass_a_large_array_on_without_a_copy(repo: Any, helpers: Any) -> None:
    """They copy what somebody else might still hold, and in a chain nobody does: neither request nor ensemble nor step."""
    from kernel_python.api.copies import COPIES

    async def ask(kernel: Kernel) -> None:
        COPIES.reset()
        await kernel.infer("e", {"X": np.ones(5000, np.float32)})
        assert (COPIES.large, COPIES.small, COPIES.passed) == (0, 0, 3)

    repo.add("a", helpers.ECHO, parameters={"placement": "loop"})
    write_repository(repo.folder, {"e": ensemble("X", "Y", "a X=X -> Y=M", "a X=M -> Y=N", "a X=N -> Y=Y")})
    repo.run(ask)


def scribble(batch: Batch) -> Any:
    """Answer with a copy of X, after which X is no longer what it was."""
    responses = []
    for request in batch.requests:
        array = request.inputs["X"].array
        responses.append(answer(request, Y=array.copy()))
        array[:] = -1
    return responses


def test_the_branches_do_not_see_each_other(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1, 2])
        (_, response, _), *_ = client.answers["r"]
        assert response is not None
        assert [(tensor.name, tensor.array.tolist()) for tensor in response.outputs] == [
            (name, [1, 2]) for name in "MPQ"
        ]
        arrays = [tensor.array for tensor in response.outputs]
        assert not any(np.may_share_memory(one, two) for one in arrays for two in arrays if one is not two)

    models = {"e": ensemble("X", "MPQ", "a X=X -> Y=M", "b X=M -> Y=P", "b X=M -> Y=Q"), "a": model(), "b": model()}
    serve(tmp_path, models, {"b": scribble}, main)


def test_one_array_under_two_names_is_told_apart(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1, 2])
        (_, response, _), *_ = client.answers["r"]
        assert response is not None
        assert (response["P"].tolist(), response["Q"].tolist()) == ([1, 2], [1, 2])

    models = {
        "e": ensemble("X", "PQ", "twice X=X -> Y=M,Z=N", "b X=M -> Y=P", "b X=N -> Y=Q"),
        "twice": model(outputs="YZ"),
        "b": model(),
    }
    serve(tmp_path, models, {"twice": compute(lambda X: {"Y": X, "Z": X}), "b": scribble}, main)


# -- what is absent ----------------------------------------------------------------------------------------------------


def test_optional_input_absent_and_present(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "without", [1])
        assert values(client, "without") == [[101]]
        both = {name: np.array([value], np.float32) for name, value in (("X", 1), ("O", 5))}
        assert (await client.kernel.infer("e", both))["Y"].tolist() == [6]

    models = {"e": ensemble("XO", "Y", "a X=X,O=O -> Y=Y", optional="O"), "a": model("XO", optional="O")}
    serve(tmp_path, models, {"a": compute(lambda X, O=100: {"Y": X + np.float32(O)})}, main)  # noqa: E741


def leaving_out(outputs: str) -> Behaviour:
    """Y and Z are X, but those in `outputs` are left out for negative X."""
    return compute(lambda X: {name: X.copy() for name in "YZ" if X[0] >= 0 or name not in outputs})


def test_a_missing_intermediate_tensor_names_step_tensor_and_culprit(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [-5])
        assert client.outcome("r") == (
            0,
            "in ensemble 'e', step 1 (model 'b'): [request id: r] expected 2 inputs but got 1 inputs for model 'b'. "
            "Got input(s) ['N'], but missing required input(s) ['M']. Please provide all required input(s). "
            "Ensemble tensor 'P' for input 'M' is missing: step 0 (model 'a') succeeded without its output 'Y'.",
        )
        (_, response, _), *_ = client.answers["r"]
        assert response is not None and response.error is not None and response.error.code is Code.INVALID_ARG
        for index in range(100):
            client.send("e", f"good{index}", [index])
        await asyncio.sleep(1)
        assert {outcome for id, (_, outcome) in client.outcomes().items() if id != "r"} == {"ok"}

    models = {
        "e": ensemble("X", "Y", "a X=X -> Y=P,Z=Q", "b M=P,N=Q -> Y=Y"),
        "a": model(outputs="YZ"),
        "b": model("MN"),
    }
    serve(tmp_path, models, {"a": leaving_out("Y"), "b": compute(lambda M, N: {"Y": M + N})}, main)


def test_a_missing_final_output_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [-5])
        client.send("e", "s", [-5])
        (_, response, final), *_ = client.answers["r"]
        assert response is not None and response.error is None and final
        assert [tensor.name for tensor in response.outputs] == ["Z"]
        told = "output 'Y' was not produced: step 0 (model 'a') succeeded without its output 'Y'"
        assert response.parameters is not None and response.parameters["warning"] == told
        assert response.parameters["sequence_id"] == 0
        of_step, of_ensemble = [record.message for record in caplog.records]  # once each
        assert of_step == "model 'a': output 'Y' is missing in an answer, which is passed on without it"
        assert told in of_ensemble and "'e'" in of_ensemble

    caplog.set_level(logging.WARNING, "kernel")
    models = {"e": ensemble("X", "YZ", "a X=X -> Y=Y,Z=Z"), "a": model(outputs="YZ")}
    serve(tmp_path, models, {"a": leaving_out("Y")}, main)


def test_no_output_at_all_is_an_answer_without_sequence_parameters(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [-5])
        (_, response, final), *_ = client.answers["r"]
        assert response is not None and response.error is None and final
        assert response.outputs == [] and response.parameters is not None and list(response.parameters) == ["warning"]

    serve(tmp_path, {"e": ensemble("X", "Y", "a X=X -> Y=Y"), "a": model(outputs="YZ")}, {"a": leaving_out("Y")}, main)


# -- errors ------------------------------------------------------------------------------------------------------------


def failing(message: str, code: Code = Code.INTERNAL) -> Behaviour:
    def execute(batch: Batch) -> Any:
        raise ServingError(code, message, Reason.BACKEND)

    return execute


def test_a_steps_error_keeps_its_code_and_names_the_step(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        (_, response, _), *_ = client.answers["r"]
        assert response is not None and response.error is not None
        assert response.error.code is Code.NOT_FOUND
        assert response.error.message == "in ensemble 'e', step 1 (model 'b'): no such thing"
        assert backend.executions("c") == []
        statistics = {one.name: one for one in client.kernel.statistics()}
        assert statistics["e"].failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 2}
        assert statistics["b"].failures["BACKEND"] == 1
        assert (statistics["e"].inference_count, statistics["e"].success.count) == (0, 0)

    models = {"e": CHAIN, "a": model(), "b": model(), "c": model()}
    serve(tmp_path, models, {"b": failing("no such thing", Code.NOT_FOUND)}, main)


def test_nested_ensembles_are_all_named(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("outer", "r", [1])
        assert client.outcome("r")[1] == (
            "in ensemble 'outer', step 0 (model 'inner'): in ensemble 'inner', step 0 (model 'a'): boom"
        )

    models = {
        "outer": ensemble("X", "Y", "inner X=X -> Y=Y"),
        "inner": ensemble("X", "Y", "a X=X -> Y=Y"),
        "a": model(),
    }
    serve(tmp_path, models, {"a": failing("boom")}, main)


def test_the_first_error_wins_and_running_steps_are_awaited(tmp_path: Path) -> None:
    def late(batch: Batch) -> Any:
        raise ServingError(Code.UNAVAILABLE, "late", Reason.BACKEND)

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(2)
        assert client.answers["r"] == [], "the slow step still runs"
        await asyncio.sleep(10)
        assert client.outcome("r") == (5, "in ensemble 'e', step 1 (model 'quick'): early")
        assert backend.executions("after") == []

    models = {
        "e": ensemble("X", "YZ", "slow X=X -> Y=P", "quick X=X -> Y=Y", "after X=P -> Y=Z"),
        "slow": model(),
        "quick": model(),
        "after": model(),
    }
    behaviours = {"slow": sleeping(5, late), "quick": sleeping(1, failing("early"))}
    serve(tmp_path, models, behaviours, main)


def test_wrong_sequence_parameters_are_an_error_of_the_step(tmp_path: Path) -> None:
    def wrong(batch: Batch) -> Any:
        return [InferenceResponse([], parameters={"sequence_start": 1}) for _ in batch.requests]

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        assert client.outcome("r")[1] == (
            "in ensemble 'e', step 0 (model 'a'): expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"
        )

    serve(tmp_path, {"e": ensemble("X", "Y", "a X=X -> Y=Y"), "a": model()}, {"a": wrong}, main)


def test_sequence_parameters_of_a_step_hold_for_those_behind_it(tmp_path: Path) -> None:
    seen: list[tuple[Any, int]] = []

    def change(batch: Batch) -> Any:
        tensors = [[Tensor("Y", "FP32", request.inputs["X"].array)] for request in batch.requests]
        return [InferenceResponse(one, parameters={"sequence_id": 7, "sequence_end": True}) for one in tensors]

    def look(batch: Batch) -> Any:
        seen.extend((request.correlation_id, request.flags) for request in batch.requests)
        return echo(batch)

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1], correlation_id=3, flags=1)
        (_, response, _), *_ = client.answers["r"]
        assert response is not None
        assert seen == [(3, 1), (7, 2), (7, 2)], "before the step as the request, behind it as the step said, on and on"
        assert response.parameters == {"sequence_id": 7, "sequence_start": False, "sequence_end": True}

    steps = ["b X=X -> Y=M", "a X=M -> Y=N", "b X=N -> Y=P", "b X=P -> Y=Y"]
    serve(tmp_path, {"e": ensemble("X", "Y", *steps), "a": model(), "b": model()}, {"a": change, "b": look}, main)


# -- decoupled steps ---------------------------------------------------------------------------------------------------


def test_each_response_runs_through_what_follows(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        for count in (3, 1, 0):
            client.send("e", str(count), [count])
        await asyncio.sleep(1)
        assert values(client, "3") == [[103], [104], [105]]
        assert values(client, "1") == [[101]]
        assert client.answers["0"] == [(0.0, None, True)], "no response, only the final flag"

    models = {
        "e": ensemble("X", "Y", "d X=X -> Y=M", "b X=M -> Y=Y", decoupled=True),
        "d": model(decoupled=True),
        "b": model(),
    }
    serve(tmp_path, models, {"d": COUNT, "b": adding(100)}, main)


def test_order_is_kept_where_what_follows_is_slow_and_uneven(tmp_path: Path) -> None:
    async def uneven(batch: Batch) -> Any:
        await asyncio.sleep(10 - float(batch.requests[0].inputs["X"].array[0]))
        return echo(batch)

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [5])
        await asyncio.sleep(100)
        assert values(client, "r") == [[5], [6], [7], [8], [9]]
        assert [when for when, _, _ in client.answers["r"]] == [5.0] * 5, "the slowest is the first; all wait for it"
        assert [final for _, _, final in client.answers["r"]] == [False] * 4 + [True], "the last one says that it is"

    models = {
        "e": ensemble("X", "Y", "d X=X -> Y=M", "b X=M -> Y=Y", decoupled=True),
        "d": model(decoupled=True),
        "b": model(count=8),
    }
    serve(tmp_path, models, {"d": COUNT, "b": uneven}, main)


def closing(with_last: bool, pause: float = 0.0) -> Behaviour:
    """A decoupled model: X[0] responses; the final flag with the last of them, or by itself `pause` seconds later."""

    async def execute(batch: Batch) -> None:
        send = batch.instance.executor.context.kernel.send
        for request in batch.requests:
            count = int(request.inputs["X"].array[0])
            for index in range(count):
                send(request, answer(request, Y=[index]), with_last and index == count - 1)
            if pause:
                await asyncio.sleep(pause)
            send(request, None, True)

    return execute


LAST, FLAG = [False, False, True], [False, False, False, None]


@pytest.mark.parametrize(
    ("steps", "behaviour", "finals"),
    [
        (["d X=X -> Y=Y"], closing(True), LAST),
        (["b X=X -> Y=M", "d X=M -> Y=Y"], closing(True), LAST),
        (["d X=X -> Y=M", "b X=M -> Y=Y"], closing(True), LAST),
        (["d X=X -> Y=Y"], closing(False), FLAG),
        (["b X=X -> Y=M", "d X=M -> Y=Y"], closing(False), FLAG),
        (["d X=X -> Y=M", "b X=M -> Y=Y"], closing(False), LAST),
        (["d X=X -> Y=M", "b X=M -> Y=Y"], closing(False, 0.5), FLAG),
        (["d X=X -> Y=M", "slow X=M -> Y=Y"], closing(False, 0.5), LAST),
    ],
)
def test_the_last_response_is_final_where_that_is_known(
    steps: list[str], behaviour: Behaviour, finals: list[bool | None], tmp_path: Path
) -> None:
    """As the reference's: the flag comes with the last response if the model sent it so, or while a later step still computes."""

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [3])
        await asyncio.sleep(100)
        assert values(client, "r")[-1] == [2]
        told = [final if response is not None else None for _, response, final in client.answers["r"]]
        assert told == finals
        when = [when for when, response, _ in client.answers["r"] if response is not None]
        assert when == ([1.0, 2.0, 3.0] if "slow" in steps[-1] else [0.0] * 3), "what is complete does not wait for the flag"
        (statistics,) = client.kernel.statistics("e")
        assert (statistics.success.count, statistics.fail.count) == (1, 0)

    models = {
        "e": ensemble("X", "Y", *steps, decoupled=True),
        "d": model(decoupled=True),
        "b": model(),
        "slow": model(),
    }
    serve(tmp_path, models, {"d": behaviour, "b": adding(0), "slow": sleeping(1)}, main)


def test_an_error_behind_the_last_response_leaves_it_as_it_is(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(1)
        assert values(client, "r") == [[1], "in ensemble 'e', step 0 (model 'd'): boom"]
        assert [final for _, _, final in client.answers["r"]] == [False, True]

    models = {
        "e": ensemble("X", "Y", "d X=X -> Y=M", "b X=M -> Y=Y", decoupled=True),
        "d": model(decoupled=True),
        "b": model(),
    }
    serve(tmp_path, models, {"d": streaming(lambda x: [x, ServingError(Code.INTERNAL, "boom")])}, main)


def test_ensembles_hand_the_final_flag_on(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("outer", "r", [3])
        await asyncio.sleep(1)
        assert [final for _, _, final in client.answers["r"]] == LAST

    models = {
        "outer": ensemble("X", "Y", "inner X=X -> Y=Y", decoupled=True),
        "inner": ensemble("X", "Y", "d X=X -> Y=M", "b X=M -> Y=Y", decoupled=True),
        "d": model(decoupled=True),
        "b": model(),
    }
    serve(tmp_path, models, {"d": closing(False)}, main)


def test_more_responses_than_what_follows_can_take(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [30])
        await asyncio.sleep(100)
        assert values(client, "r") == [[30 + index] for index in range(30)]
        assert client.outcome("r") == (30.0, "ok")

    models = {
        "e": ensemble("X", "Y", "d X=X -> Y=M", "b X=M -> Y=Y", decoupled=True),
        "d": model(decoupled=True),
        "b": model(),
    }
    serve(tmp_path, models, {"d": COUNT, "b": sleeping(1)}, main)


def test_decoupled_behind_decoupled(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [2])
        await asyncio.sleep(1)
        assert values(client, "r") == [[2], [3], [3], [4], [5]]

    models = {"e": ensemble("X", "Y", "d X=X -> Y=M", "d X=M -> Y=Y", decoupled=True), "d": model(decoupled=True)}
    serve(tmp_path, models, {"d": COUNT}, main)


def test_a_decoupled_error_ends_the_ensemble(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(100)
        assert values(client, "r") == [[1], [2], "in ensemble 'e', step 0 (model 'd'): boom"]
        assert backend.executions("b") == [["r"], ["r"]], "what came after the error went nowhere"

    items = streaming(lambda x: [x, x + 1, ServingError(Code.INTERNAL, "boom"), x + 2], gap=1)
    models = {
        "e": ensemble("X", "Y", "d X=X -> Y=M", "b X=M -> Y=Y", decoupled=True),
        "d": model(decoupled=True),
        "b": model(),
    }
    serve(tmp_path, models, {"d": items}, main)


@pytest.mark.parametrize("steps", [["d X=X -> Y=Y"], ["b X=X -> Y=M", "d X=M -> Y=Y"], ["d X=X -> Y=M", "b X=M -> Y=Y"]])
@pytest.mark.parametrize("final", [False, True])
def test_responses_of_a_thread_that_then_sends_an_error_are_not_lost(
    steps: list[str], final: bool, tmp_path: Path
) -> None:
    """All of them wait for the loop together, so what the ensemble sends of the first waits behind the error."""

    async def execute(batch: Batch) -> None:
        send = batch.instance.executor.context.kernel.send
        (request,) = batch.requests

        def work() -> None:
            send(request, answer(request, Y=[1]), False)
            send(request, answer(request, Y=[2]), False)
            send(request, InferenceResponse([], error=ServingError(Code.INTERNAL, "boom")), final)
            if not final:
                send(request, None, True)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(100)
        place = next(place for place, step in enumerate(steps) if step.startswith("d"))
        assert values(client, "r") == [[1], [2], f"in ensemble 'e', step {place} (model 'd'): boom"]

    models = {"e": ensemble("X", "Y", *steps, decoupled=True), "d": model(decoupled=True), "b": model()}
    serve(tmp_path, models, {"d": execute, "b": adding(0)}, main)


def test_a_stream_can_be_left(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        stream = client.kernel.stream("e", {"X": np.array([3], np.float32)})
        assert (await anext(stream))["Y"].tolist() == [3]
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(100)
        assert backend.executions("b") == [[""]]

    models = {
        "e": ensemble("X", "Y", "d X=X -> Y=M", "b X=M -> Y=Y", decoupled=True),
        "d": model(decoupled=True),
        "b": model(),
    }
    items = streaming(lambda x: [x + index for index in range(3)], gap=1)
    serve(tmp_path, models, {"d": items}, main)


# -- cancellation ------------------------------------------------------------------------------------------------------


def test_cancelled_while_the_first_step_runs(tmp_path: Path) -> None:
    noticed: list[float] = []

    async def poll(batch: Batch) -> Any:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            await asyncio.sleep(0.1)
            if batch.requests[0].is_cancelled:
                noticed.append(round(loop.time() - 1000, 6))
                break
        return echo(batch)

    async def main(client: Client, backend: TestBackend) -> None:
        request = client.send("e", "r", [1])
        await asyncio.sleep(0.55)
        client.kernel.cancel(request)
        assert client.outcome("r") == (0.55, "[request id: r] Request cancelled")
        assert client.kernel.model("e").scheduler.instances[0].outstanding == 0, "the run has ended with it"
        await asyncio.sleep(10)
        assert noticed == [0.6]
        assert len(backend.executions("a")) == 1, "the second step never starts"
        assert client.kernel.statistics("e")[0].failures == {"REJECTED": 0, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}

    serve(tmp_path, {"e": ensemble("X", "Y", "a X=X -> Y=M", "a X=M -> Y=Y"), "a": model()}, {"a": poll}, main)


def test_cancelled_while_a_step_is_queued(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("a", "other", [1])
        request = client.send("e", "r", [1])
        await asyncio.sleep(1)
        client.kernel.cancel(request)
        await asyncio.sleep(20)
        assert client.outcome("r")[0] == 1
        assert backend.executions("a") == [["other"]]

    serve(tmp_path, {"e": ensemble("X", "Y", "a X=X -> Y=Y"), "a": model()}, {"a": sleeping(5)}, main)


def test_the_deadline_of_the_request_ends_its_steps(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1], deadline=client.kernel.clock() + 7)
        await asyncio.sleep(20)
        when, message = client.outcome("r")
        assert when == 7 and "deadline of the request to model 'e' passed" in message
        assert len(backend.executions("a")) == 2, "the third step never starts"

    steps = ["a X=X -> Y=M", "a X=M -> Y=N", "a X=N -> Y=Y"]
    serve(tmp_path, {"e": ensemble("X", "Y", *steps), "a": model()}, {"a": sleeping(5)}, main)


def test_a_step_cancelled_from_within_a_step_starts_nothing_more(tmp_path: Path) -> None:
    holder: list[Any] = []

    def give_up(batch: Batch) -> Any:
        client = holder[0]
        client.kernel.cancel(client.request)
        return echo(batch)

    async def main(client: Client, backend: TestBackend) -> None:
        holder.append(client)
        answers: list[Any] = []
        request = InferenceRequest(
            "e", {"X": Tensor("X", "FP32", np.ones(1, np.float32))}, lambda *answer: answers.append(answer)
        )
        client.request = request  # type: ignore[attr-defined]
        client.kernel.submit(request)
        assert len(answers) == 1 and answers[0][0].error.code is Code.CANCELLED
        assert backend.executions("b") == []

    models = {"e": ensemble("X", "Y", "a X=X -> Y=M", "b X=M -> Y=Y"), "a": model(), "b": model()}
    serve(tmp_path, models, {"a": give_up}, main)


# -- statistics --------------------------------------------------------------------------------------------------------


def test_times_are_the_sums_of_the_steps(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        await asyncio.sleep(20)
        statistics = client.kernel.statistics("e")[0]
        assert (statistics.inference_count, statistics.execution_count) == (1, 1)
        assert statistics.queue.ns == 0
        assert statistics.compute_infer.ns == 5_000_000_000, "2 s and 3 s, side by side"
        assert statistics.success.ns == 3_000_000_000

    models = {"e": ensemble("X", "YZ", "a X=X -> Y=Y", "b X=X -> Y=Z"), "a": model(), "b": model()}
    serve(tmp_path, models, {"a": sleeping(2), "b": sleeping(3)}, main)


def test_a_failure_is_no_execution(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("e", "r", [1])
        statistics = client.kernel.statistics("e")[0]
        assert (statistics.execution_count, statistics.batch_stats) == (0, {})

    serve(tmp_path, {"e": ensemble("X", "Y", "a X=X -> Y=Y"), "a": model()}, {"a": failing("boom")}, main)


# -- models that call ensembles ----------------------------------------------------------------------------------------


def calling(name: str) -> Behaviour:
    """A model on the loop that calls `name` and waits, with X - 1, until X is 0; answers with 0 or the error."""

    def execute(batch: Batch) -> Any:
        (request,) = batch.requests
        value = request.inputs["X"].array
        if value[0] <= 0:
            return [answer(request, Y=value)]
        got: list[InferenceResponse] = []
        child = InferenceRequest(
            name, {"X": Tensor("X", "FP32", value - 1)}, lambda response, final: got.append(response), parent=batch
        )
        batch.instance.executor.context.kernel.wait(child, batch)
        return got

    return execute


def test_a_model_that_waits_for_itself_through_an_ensemble_is_refused(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("m", "r", [1])
        await asyncio.sleep(1)
        when, message = client.outcome("r")
        assert when == 0 and "m -> e -> m" in message
        assert message.startswith("in ensemble 'e', step 0 (model 'm'): ")

    serve(tmp_path, {"e": ensemble("X", "Y", "m X=X -> Y=Y"), "m": model()}, {"m": calling("e")}, main)


def test_two_that_wait_for_each_other_through_ensembles_are_told(tmp_path: Path) -> None:
    async def main(client: Client, backend: TestBackend) -> None:
        client.send("m", "r", [1])
        client.send("m", "s", [1])
        await asyncio.sleep(10)
        outcomes = client.outcomes()
        assert outcomes["r"] == (1, "ok"), "the other one's refusal made room"
        assert outcomes["s"][0] == 1 and "could only wait for itself" in outcomes["s"][1]

    models = {
        "e": ensemble("X", "Y", "slow X=X -> Y=M", "m X=M -> Y=Y"),
        "slow": model(more='parameters { key: "max_concurrency" value { string_value: "8" } }\n'),
        "m": model(count=2),
    }
    serve(tmp_path, models, {"m": calling("e"), "slow": sleeping(1)}, main)
