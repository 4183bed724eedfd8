"""Requests and the response cache, in virtual time: what is answered without an execution, what is kept, what is counted."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Behaviour, Client, TestBackend, answer, run, sleeping, write_repository

from kernel import (
    Batch,
    Cache,
    CacheUsage,
    Code,
    InferenceResponse,
    Kernel,
    LocalCache,
    Result,
    ServingError,
    StoredResponse,
    Tensor,
    hookimpl,
)

CACHED = BASE + "response_cache { enable: true }\n"
BATCHED = CACHED + "max_batch_size: 4\n"
TWO = BATCHED.replace("output [ {", 'output [ { name: "Z" data_type: TYPE_STRING dims: [ -1 ] }, {')


@asynccontextmanager
async def serving(
    folder: Path, models: Mapping[str, str], behaviours: Mapping[str, Behaviour] | None = None, cache: Any = None, *more: object
) -> AsyncIterator[tuple[Client, TestBackend]]:
    backend = TestBackend(behaviours or {})
    write_repository(folder, models)
    cache = LocalCache(1 << 20) if cache is None else cache
    plugins = [backend, *more]
    async with Kernel(folder, plugins=plugins, control_mode="explicit", load_models=["*"], cache=cache) as kernel:
        yield Client(kernel), backend
        for model in kernel.models():
            assert model.scheduler.in_flight == 0
            assert model.scheduler.pending == 0


def counts(client: Client, model: str = "m") -> dict[str, int]:
    (record,) = client.kernel.statistics(model)
    return {
        "inferences": record.inference_count,
        "executions": record.execution_count,
        "success": record.success.count,
        "fail": record.fail.count,
        "queue": record.queue.count,
        "computed": record.compute_infer.count,
        "hits": record.cache_hit.count,
        "misses": record.cache_miss.count,
    }


def counting() -> Behaviour:
    """Return a behaviour whose answer says which execution made it: Y = X + its number, Z its number in letters."""
    executions = 0

    def execute(batch: Batch) -> Result:
        nonlocal executions
        executions += 1
        responses = []
        for request in batch.requests:
            array = request.inputs["X"].array
            outputs = [
                Tensor("Z", "BYTES", np.full(array.shape, str(executions).encode(), np.object_)),
                Tensor("Y", "FP32", array + executions),
            ]
            outputs = [tensor for tensor in outputs if tensor.name in request.wanted]
            responses.append(InferenceResponse(outputs, parameters={"execution": executions}))
        return responses

    return execute


def outputs_of(client: Client, id: str) -> dict[str, Any]:
    assert client.outcome(id)[1] == "ok"
    response = client.answers[id][-1][1]
    assert response is not None
    return {tensor.name: tensor.array.tolist() for tensor in response.outputs}


# -- hits and misses -------------------------------------------------------------------------------------------------------


def test_the_second_is_answered_at_once_whatever_else_is_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "first", [1, 2])
            await asyncio.sleep(5)
            client.send("m", "busy", [3])
            client.send("m", "waits", [4])
            client.send("m", "second", [1, 2], priority=3, correlation_id=7, flags=3, parameters={"k": 1})
            assert client.outcome("second") == (5, "ok")
            response = client.answers["second"][0][1]
            assert response is not None
            assert (response.model_name, response.model_version, response.id) == ("m", "1", "second")
            assert response["Y"].tolist() == [1, 2]
            await asyncio.sleep(5)
            assert client.outcomes() == {"first": (1, "ok"), "busy": (6, "ok"), "waits": (7, "ok"), "second": (5, "ok")}
            assert backend.executions("m") == [["first"], ["busy"], ["waits"]]

    run(main())


def test_statistics_of_hits_and_misses(tmp_path: Path) -> None:
    """A hit is a success that was neither executed nor inferred and leaves `last_inference` (observability, section 1.2)."""

    async def main() -> None:
        async with serving(tmp_path, {"m": BATCHED}, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "a", [[1], [2]])
            await asyncio.sleep(2)
            (before,) = client.kernel.statistics("m")
            one = {"inferences": 2, "executions": 1, "success": 1, "fail": 0, "queue": 1, "computed": 1, "hits": 0, "misses": 1}
            assert counts(client) == one
            await asyncio.sleep(2)
            client.send("m", "b", [[1], [2]])
            assert counts(client) == {**one, "success": 2, "queue": 2, "hits": 1}
            (after,) = client.kernel.statistics("m")
            assert after.last_inference_ms == before.last_inference_ms > 0
            assert after.batch_stats == before.batch_stats
            assert client.kernel.cache is not None
            figures = client.kernel.cache.figures()
            assert (figures.hits, figures.misses, figures.lookups, figures.usage.entries) == (1, 1, 2, 1)

    run(main())


def test_the_shape_counts(tmp_path: Path) -> None:
    """The reference answers with whatever has the same bytes, in the other's shape."""

    async def main() -> None:
        async with serving(tmp_path, {"m": TWO}, {"m": counting()}) as (client, _):
            client.send("m", "a", [[7, 8]])
            client.send("m", "b", [[7], [8]])
            await asyncio.sleep(1)
            assert outputs_of(client, "a") == {"Z": [[b"1", b"1"]], "Y": [[8, 9]]}
            assert outputs_of(client, "b") == {"Z": [[b"2"], [b"2"]], "Y": [[9], [10]]}

    run(main())


def test_requested_outputs(tmp_path: Path) -> None:
    """Who asks for some gets those, also of a full answer; an answer that has only some is no answer to who asks for all.

    The reference gives what is kept, too much or too little.
    """

    async def main() -> None:
        async with serving(tmp_path, {"m": TWO}, {"m": counting()}) as (client, _):

            async def ask(id: str, value: float, *names: str) -> dict[str, Any]:
                client.send("m", id, [[value]], requested_outputs=list(names) or None)
                await asyncio.sleep(1)
                return outputs_of(client, id)

            assert await ask("all", 1) == {"Z": [[b"1"]], "Y": [[2]]}
            assert await ask("only Y", 1, "Y") == {"Y": [[2]]}
            assert await ask("only Z", 1, "Z") == {"Z": [[b"1"]]}
            assert await ask("both by name", 1, "Y", "Z") == {"Z": [[b"1"]], "Y": [[2]]}
            assert await ask("some", 2, "Y") == {"Y": [[4]]}
            assert await ask("the same", 2, "Y") == {"Y": [[4]]}
            assert await ask("the other", 2, "Z") == {"Z": [[b"3"]]}
            assert await ask("all of it", 2) == {"Z": [[b"4"]], "Y": [[6]]}
            assert await ask("from the full one", 2, "Y") == {"Y": [[6]]}
            found = counts(client)
            assert (found["executions"], found["hits"], found["misses"]) == (4, 5, 4)

    run(main())


def test_parameters_of_an_answer_are_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": TWO}, {"m": counting()}) as (client, _):
            client.send("m", "a", [[1]])
            await asyncio.sleep(1)
            client.send("m", "b", [[1]])
            said = [client.answers[id][0][1] for id in "ab"]
            assert [response.parameters for response in said if response is not None] == [{"execution": 1}, None]

    run(main())


def test_an_answer_without_outputs_is_kept_too(tmp_path: Path) -> None:
    async def main() -> None:
        def nothing(batch: Batch) -> Result:
            return [InferenceResponse([]) for _ in batch.requests]

        async with serving(tmp_path, {"m": CACHED}, {"m": nothing}) as (client, _):
            for id in "ab":
                client.send("m", id)
                assert outputs_of(client, id) == {}
            assert counts(client)["hits"] == 1

    run(main())


def test_neither_input_nor_output_can_be_altered_for_others(tmp_path: Path) -> None:
    """The model writes to its input and keeps its output's memory; whoever gets an answer writes to it."""
    buffer = np.zeros(2, np.float32)

    def writes(batch: Batch) -> Result:
        (request,) = batch.requests
        buffer[:] = request.inputs["X"].array
        request.inputs["X"].array[:] = 99
        return [answer(request, Y=buffer)]

    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}, {"m": writes}) as (client, backend):
            for id in "abc":
                client.send("m", id, [1, 2])
                assert outputs_of(client, id) == {"Y": [1, 2]}
                response = client.answers[id][0][1]
                assert response is not None
                response["Y"][:] = -1
                buffer[:] = -2
            assert backend.executions("m") == [["a"]]

    run(main())


def test_reshaped_models_keep_what_clients_see(tmp_path: Path) -> None:
    config = """
        backend: "test"
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape: { shape: [ 4 ] } } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape: { shape: [ 4 ] } } ]
        response_cache { enable: true }
    """

    async def main() -> None:
        async with serving(tmp_path, {"m": config}) as (client, backend):
            for id in "ab":
                client.send("m", id, [[1, 2], [3, 4]])
                assert outputs_of(client, id) == {"Y": [[1, 2], [3, 4]]}
            assert backend.executions("m") == [["a"]]

    run(main())


# -- what is not kept ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
def test_errors_are_never_kept(tmp_path: Path, told: bool) -> None:
    """The reference keeps the error's empty answer and gives that, as a success, to whoever asks again."""

    def fails(batch: Batch) -> Result:
        if told:
            return [InferenceResponse.failure(Code.INVALID_ARG, "no") for _ in batch.requests]
        raise ServingError(Code.INVALID_ARG, "no")

    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}, {"m": fails}) as (client, _):
            for id in "ab":
                client.send("m", id)
                assert client.outcome(id) == (0, "no")
            found = counts(client)
            assert (found["executions"], found["fail"], found["hits"], found["misses"]) == (2, 2, 0, 2)
            assert client.kernel.cache is not None
            assert client.kernel.cache.figures().usage.entries == 0

    run(main())


def test_who_was_cancelled_or_refused_is_no_miss(tmp_path: Path) -> None:
    config = BATCHED + "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n"

    async def main() -> None:
        async with serving(tmp_path, {"m": config}, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "runs", [[1]])
            await asyncio.sleep(0.5)
            queued = client.send("m", "queued", [[2]])
            client.send("m", "late", [[3]], deadline=client.kernel.clock() + 0.1)
            client.send("m", "refused", [[4]])
            client.kernel.cancel(queued)
            client.kernel.cancel(client.requests["runs"])
            await asyncio.sleep(5)
            assert client.outcome("refused")[1].endswith("Exceeds maximum queue size")
            found = counts(client)
            assert (found["success"], found["fail"], found["hits"], found["misses"]) == (0, 3, 0, 0)
            client.send("m", "again", [[1]])
            await asyncio.sleep(5)
            assert counts(client)["misses"] == 1, "what was given up is not kept either"

    run(main())


def test_two_that_ask_at_the_same_time_are_both_executed(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BATCHED + "dynamic_batching { }\n"}, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "a", [[1]])
            client.send("m", "b", [[1]])
            await asyncio.sleep(2)
            client.send("m", "c", [[1]])
            assert backend.executions("m") == [["a", "b"]]
            found = counts(client)
            assert (found["success"], found["hits"], found["misses"]) == (3, 1, 2)
            assert client.kernel.cache is not None
            assert client.kernel.cache.figures().usage.entries == 1

    run(main())


def test_too_large_an_answer_is_said_once_and_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}, {}, LocalCache(2000)) as (client, _):
            for id in "abc":
                client.send("m", id, np.zeros(1000))
                assert client.outcome(id) == (0, "ok")
            assert counts(client)["misses"] == 3

    run(main())
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "model 'm': an answer of 4641 bytes is too large for the response cache, which takes at most 2000; "
        "this is said once a model"
    ]


def test_decoupled_models_are_refused(tmp_path: Path) -> None:
    words = "Response Cache does not currently support model m with 'decoupled' transaction policy."

    async def main() -> None:
        config = CACHED + "model_transaction_policy { decoupled: true }\n"
        backend = TestBackend({})
        async with Kernel(write_repository(tmp_path, {"m": config}), plugins=[backend], control_mode="explicit") as kernel:
            with pytest.raises(ServingError, match=words):
                await kernel.load("m")

    run(main())


def test_without_a_cache_in_the_server_the_config_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        backend = TestBackend({})
        write_repository(tmp_path, {"m": CACHED})
        async with Kernel(tmp_path, plugins=[backend]) as kernel:
            client = Client(kernel)
            client.send("m", "a")
            client.send("m", "b")
            assert backend.executions("m") == [["a"], ["b"]]
            assert counts(client)["misses"] == 0
            model = kernel.model("m")
            assert model.enqueue == model.scheduler.enqueue, "who has no cache pays nothing for it"

    run(main())
    assert "model 'm' asks for response_cache, and the server has none (--cache-config): nothing is kept" in caplog.text


# -- life ------------------------------------------------------------------------------------------------------------------


def test_a_changed_model_starts_afresh_an_unchanged_one_keeps_its_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": TWO}, {"m": counting()}) as (client, _):
            kernel = client.kernel
            client.send("m", "a", [[1]])
            await asyncio.sleep(1)
            await kernel.load("m")  # nothing has changed: it goes on
            client.send("m", "b", [[1]])
            assert outputs_of(client, "b") == outputs_of(client, "a")
            (tmp_path / "m" / "config.pbtxt").write_text(TWO + 'parameters { key: "k" value { string_value: "v" } }\n')
            await kernel.load("m")
            client.send("m", "c", [[1]])
            await asyncio.sleep(1)
            assert outputs_of(client, "c") == {"Z": [[b"2"]], "Y": [[3]]}
            found = counts(client)
            assert (found["hits"], found["misses"]) == (0, 1), "and so do its statistics"

    run(main())


def test_versions_and_models_of_one_content_have_answers_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        text = TWO + "version_policy { all { } }\n"
        write_repository(tmp_path, {"m": text}, versions=(1, 2))
        async with serving(tmp_path, {"m": text, "n": text}, {"m": counting(), "n": counting()}) as (client, _):
            for id, model, version in (("a", "m", "1"), ("b", "m", "2"), ("c", "n", "1"), ("d", "m", "1")):
                client.send(model, id, [[1]], model_version=version)
                await asyncio.sleep(1)
            assert [outputs_of(client, id)["Z"] for id in "abcd"] == [[[b"1"]], [[b"2"]], [[b"1"]], [[b"1"]]]

    run(main())


def test_a_server_that_stops_refuses_also_what_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}) as (client, _):
            client.send("m", "a")
            client.kernel.model("m").scheduler.stop()
            client.send("m", "b")
            assert client.outcome("b")[1].endswith(
                "Server is stopping, scheduler for model has stopped accepting new inference requests"
            )
            assert counts(client)["hits"] == 0

    run(main())


def test_a_request_that_comes_too_late_is_not_answered_from_the_cache(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}) as (client, _):
            client.send("m", "a")
            await asyncio.sleep(1)
            client.send("m", "late", deadline=client.kernel.clock() - 0.5)
            client.send("m", "in time", deadline=client.kernel.clock() + 0.5)
            assert "deadline of the request to model 'm' passed" in client.outcome("late")[1]
            assert client.outcome("in time") == (1, "ok")
            await asyncio.sleep(1)

    run(main())


def test_requests_leave_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}) as (client, _):
            gc.collect()
            gc.disable()
            try:
                left = []
                for _ in range(3):  # what threads of tests before have left may come in between, but not each time
                    for k in range(50):
                        client.send("m", f"{k}", [k % 5])
                    client.answers.clear()
                    client.requests.clear()
                    left.append(gc.collect())
                assert min(left) == 0, f"a request is a reference cycle: {left}"
            finally:
                gc.enable()

    run(main())


# -- calls of models -------------------------------------------------------------------------------------------------------


def caller(kernel_of: list[Kernel], seconds: float = 0.0) -> Behaviour:
    """Return a behaviour that asks model `m` for its own input, and answers with what it has got."""

    async def execute(batch: Batch) -> Result:
        kernel = kernel_of[0]
        (request,) = batch.requests
        got: asyncio.Future[InferenceResponse | None] = kernel.loop.create_future()

        def respond(response: InferenceResponse | None, final: bool) -> None:
            got.set_result(response)

        await asyncio.sleep(seconds)
        call = type(request)("m", dict(request.inputs), respond, parent=batch, id="call")
        kernel.submit(call)
        response = await got
        assert response is not None
        if response.error is not None:
            raise response.error
        response["Y"][:] += 1  # what a caller gets is its own
        return [answer(request, Y=response["Y"])]

    return execute


def test_calls_of_models_are_answered_from_the_cache(tmp_path: Path) -> None:
    kernel_of: list[Kernel] = []

    async def main() -> None:
        models = {"m": CACHED, "outer": BASE}
        async with serving(tmp_path, models, {"m": sleeping(1.0), "outer": caller(kernel_of)}) as (client, backend):
            kernel_of.append(client.kernel)
            for id in "abc":
                client.send("outer", id, [5])
                await asyncio.sleep(3)
                assert outputs_of(client, id) == {"Y": [6]}
            assert backend.executions("m") == [["call"]]

    run(main())


def test_a_call_for_nobody_is_cancelled_not_answered(tmp_path: Path) -> None:
    kernel_of: list[Kernel] = []

    async def main() -> None:
        models = {"m": CACHED, "outer": BASE}
        async with serving(tmp_path, models, {"outer": caller(kernel_of, 1.0)}) as (client, _):
            kernel_of.append(client.kernel)
            client.send("m", "a", [5])
            outer = client.send("outer", "b", [5])
            await asyncio.sleep(0.5)
            client.kernel.cancel(outer)
            await asyncio.sleep(5)
            assert counts(client)["hits"] == 0
            assert client.kernel.model("m").scheduler.statistics.refused == 1

    run(main())


# -- other caches ----------------------------------------------------------------------------------------------------------


class Broken:
    """A cache that has lost its store."""

    largest = 1 << 20

    def lookup(self, key: bytes) -> StoredResponse | None:
        raise ConnectionError("no answer from the store")

    def insert(self, key: bytes, response: StoredResponse) -> None:
        raise ConnectionError("no answer from the store")

    def usage(self) -> CacheUsage:
        return CacheUsage(0, 0, 0, 0)


def test_a_cache_that_fails_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}, {}, Broken()) as (client, _):
            for id in "abc":
                client.send("m", id)
                assert client.outcome(id) == (0, "ok")
            assert counts(client)["misses"] == 3

    run(main())
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == (
        "the response cache could not be asked; requests are executed, further failures are not logged"
    )


class Supplier:
    """A plugin with a cache of its own: what it is given can be written down and read again anywhere."""

    def __init__(self) -> None:
        self.kept: dict[bytes, StoredResponse] = {}
        self.settings: dict[str, str] = {}
        self.largest = 1 << 20

    @hookimpl
    def make_cache(self, name: str, settings: Mapping[str, str]) -> Cache | None:
        if name != "mine":
            return None
        self.settings.update(settings)
        return self

    def lookup(self, key: bytes) -> StoredResponse | None:
        return self.kept.get(key)

    def insert(self, key: bytes, response: StoredResponse) -> None:
        self.kept[key] = response

    def usage(self) -> CacheUsage:
        return CacheUsage(self.largest, 0, len(self.kept), 0)


def test_a_plugin_supplies_another_cache(tmp_path: Path) -> None:
    plugin = Supplier()

    async def main() -> None:
        async with serving(tmp_path, {"m": CACHED}, {}, ("mine", {"host": "h"}), plugin) as (client, backend):
            for id in "ab":
                client.send("m", id, [1, 2])
                assert outputs_of(client, id) == {"Y": [1, 2]}
            assert backend.executions("m") == [["a"]]

    run(main())
    assert plugin.settings == {"host": "h"}
    ((output,),) = [kept.outputs for kept in plugin.kept.values()]
    assert (output.name, output.datatype, output.shape) == ("Y", "FP32", (2,))
    assert output.data == np.array([1, 2], np.float32).tobytes()


# -- any history -----------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("send"), st.integers(0, 5), st.sampled_from([None, None, ["Y"], ["Z"]]))] * 3,
        st.tuples(st.just("advance"), st.sampled_from([0.0, 0.01, 0.2])),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("late"), st.integers(0, 5), st.sampled_from([0.0, 0.005, 0.05])),
        st.tuples(st.just("reload")),
    ),
    min_size=4,
    max_size=40,
)


@given(steps, st.integers(600, 4000), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_history(history: list[tuple[Any, ...]], size: int, batching: bool, fails: bool) -> None:
    """One final answer each, the right one for what was asked, the bound kept, and the counters add up."""
    config = TWO + ("dynamic_batching { max_queue_delay_microseconds: 5000 }\n" if batching else "")
    generation = 0

    async def execute(batch: Batch) -> Result:
        made = generation  # an execution that outlives a reload is still the old model's
        await asyncio.sleep(0.02)
        responses = []
        for request in batch.requests:
            array = request.inputs["X"].array
            if fails and array[0, 0] == 3:
                responses.append(InferenceResponse.failure(Code.INTERNAL, "three"))
                continue
            outputs = [
                Tensor("Z", "BYTES", np.full(array.shape, b"%d.%d" % (made, array[0, 0]), np.object_)),
                Tensor("Y", "FP32", array * 2 + 100 * made),
            ]
            responses.append(InferenceResponse([tensor for tensor in outputs if tensor.name in request.wanted]))
        return responses

    async def main(folder: Path) -> None:
        nonlocal generation
        async with serving(folder, {"m": config}, {"m": execute}, LocalCache(size)) as (client, _):
            kernel = client.kernel
            assert kernel.cache is not None
            sent: dict[str, tuple[int, list[str] | None, int]] = {}
            totals: list[dict[str, int]] = []
            for number, (what, *rest) in enumerate(history):
                id = str(number)
                if what in ("send", "late"):
                    value, names = rest[0], rest[1] if what == "send" else None
                    deadline = kernel.clock() + rest[1] if what == "late" else None
                    sent[id] = value, names, generation
                    client.send("m", id, [[value]], requested_outputs=names, deadline=deadline)
                elif what == "cancel" and str(rest[0]) in client.requests:
                    kernel.cancel(client.requests[str(rest[0])])
                elif what == "advance":
                    await asyncio.sleep(rest[0])
                elif what == "reload":
                    await asyncio.sleep(1.0)
                    totals.append(counts(client))
                    generation += 1
                    text = config + f'parameters {{ key: "g" value {{ string_value: "{generation}" }} }}\n'
                    (folder / "m" / "config.pbtxt").write_text(text)
                    await kernel.load("m")
                usage = kernel.cache.figures().usage
                assert usage.used <= usage.size
            await asyncio.sleep(1.0)
            totals.append(counts(client))
            for id, (value, names, made) in sent.items():
                _, words = client.outcome(id)
                if words == "ok":
                    wanted = {"Z": [[f"{made}.{value}".encode()]], "Y": [[value * 2 + 100 * made]]}
                    assert outputs_of(client, id) == {name: wanted[name] for name in wanted if name in (names or wanted)}
                    assert not (fails and value == 3)
                else:
                    assert words == "three" or "cancelled" in words or "deadline" in words, words
            assert sum(found["success"] + found["fail"] for found in totals) == len(sent)
            assert sum(found["hits"] for found in totals) == kernel.cache.hits
            for found in totals:
                assert found["success"] == found["computed"] + found["hits"]
                assert found["misses"] <= found["computed"] + found["fail"]
            assert kernel.cache.hits + kernel.cache.misses <= len(sent)

    with tempfile.TemporaryDirectory() as folder:
        run(main(Path(folder)))
