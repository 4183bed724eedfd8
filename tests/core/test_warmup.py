"""Warmup on virtual time: what the model is given, what counts, what fails, and calls of models that are still on their way."""

from __future__ import annotations

import asyncio
import logging
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Behaviour, Client, TestBackend, answer, echo, run, sleeping, write_repository

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, Result, ServingError, Tensor
from kernel.requests.request import RESCHEDULED

BATCHED = BASE + "max_batch_size: 4\n"
ZERO = 'inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }'
FILE = ZERO.replace("zero_data: true", 'input_data_file: "f"')
SLOW = BASE + 'parameters { key: "max_concurrency" value { string_value: "4" } }\n'


def sample(inputs: str = ZERO, name: str = "s", batch_size: int = 1, count: int = 1) -> str:
    return f'model_warmup [ {{ name: "{name}" batch_size: {batch_size} count: {count} {inputs} }} ]\n'


def kernel(
    folder: Path, models: Mapping[str, str], behaviours: Mapping[str, Behaviour] | None = None, **options: Any
) -> tuple[Kernel, TestBackend]:
    backend = TestBackend(behaviours or {})
    write_repository(folder, models)
    options = {"control_mode": "explicit", "load_models": ["*"], **options}
    return Kernel(folder, plugins=[backend], **options), backend


class Seen:
    """A behaviour that notes what it was given: for each execution, for each of its requests the inputs."""

    def __init__(self) -> None:
        self.executions: list[list[dict[str, list[Any]]]] = []
        self.requests: list[InferenceRequest] = []
        self.arrays: list[np.ndarray[Any, Any]] = []

    def __call__(self, batch: Batch) -> Result:
        self.requests += batch.requests
        self.arrays += [one.array for request in batch.requests for one in request.inputs.values()]
        shown = [{name: one.array.tolist() for name, one in request.inputs.items()} for request in batch.requests]
        self.executions.append(shown)
        return echo(batch)  # type: ignore[return-value]


def warmed(folder: Path, config: str, files: Mapping[str, bytes] | None = None) -> Seen:
    """Load a model and return what its warmup has shown it."""
    seen = Seen()
    for name, content in (files or {}).items():
        (folder / "m" / "warmup").mkdir(parents=True, exist_ok=True)
        (folder / "m" / "warmup" / name).write_bytes(content)

    async def main() -> None:
        one, _ = kernel(folder, {"m": config}, {"m": seen})
        async with one:
            assert one.ready("m")

    run(main())
    return seen


def refusal(folder: Path, config: str, behaviour: Behaviour = echo, files: Mapping[str, bytes] | None = None) -> str:
    """Return why a model can't be loaded; nothing is left of it."""
    for name, content in (files or {}).items():
        (folder / "m" / "warmup").mkdir(parents=True, exist_ok=True)
        (folder / "m" / "warmup" / name).write_bytes(content)

    async def main() -> str:
        one, backend = kernel(folder, {"m": config}, {"m": behaviour}, load_models=[])
        async with one:
            with pytest.raises(ServingError) as caught:
                await one.load("m")
            assert not one.ready("m")
        ended = [(what, name) for _, what, name in backend.log if what in ("initialize", "finalize")]
        assert len(ended) == 2 * len({name for _, name in ended}), "each instance that was made is finalized"
        return caught.value.message

    return run(main())


# -- what the model is given ----------------------------------------------------------------------------------------------


def test_a_batch_is_made_of_single_requests_and_repeated(tmp_path: Path) -> None:
    seen = warmed(tmp_path, BATCHED + sample(batch_size=2, count=3))
    assert seen.executions == [[{"X": [[0.0, 0.0]]}] * 2] * 3
    for request in seen.requests:
        assert (request.id, request.priority, request.timeout_us, request.parameters) == ("", 0, 0, None)
        assert request.wanted == {"Y"}


def test_without_batching_there_is_no_batch_dimension(tmp_path: Path) -> None:
    assert warmed(tmp_path, BASE + sample()).executions == [[{"X": [0.0, 0.0]}]]


def test_samples_come_in_their_order_and_without_a_count_once(tmp_path: Path) -> None:
    config = BATCHED + sample(count=0) + sample(name="t", batch_size=3) + sample(name="skipped", batch_size=0)
    assert [len(one) for one in warmed(tmp_path, config).executions] == [1, 3]


def test_from_a_file_each_request_has_the_first_bytes(tmp_path: Path) -> None:
    seen = warmed(tmp_path, BATCHED + sample(FILE, batch_size=2), {"f": struct.pack("<4f", 1, 2, 3, 4)})
    assert seen.executions == [[{"X": [[1.0, 2.0]]}] * 2]


def test_random_data_is_of_the_type_and_the_same_each_time(tmp_path: Path) -> None:
    config = BASE + sample(ZERO.replace("zero", "random").replace("[ 2 ]", "[ 64 ]"), count=2)
    first, second = warmed(tmp_path, config).arrays
    assert first.dtype == np.float32 and first.view(np.uint8).any() and first.flags.writeable  # some bytes are no number
    assert first.tobytes() == second.tobytes() and not np.shares_memory(first, second)


@pytest.mark.parametrize("kind", ["zero_data: true", "zero_data: false", "random_data: true"])
def test_strings_are_empty(tmp_path: Path, kind: str) -> None:
    config = BASE.replace("TYPE_FP32", "TYPE_STRING", 1)
    inputs = f'inputs {{ key: "X" value {{ data_type: TYPE_STRING dims: [ 2 ] {kind} }} }}'
    assert warmed(tmp_path, config + sample(inputs)).executions == [[{"X": [b"", b""]}]]


def test_strings_from_a_file(tmp_path: Path) -> None:
    config = BASE.replace("TYPE_FP32", "TYPE_STRING", 1) + sample(FILE.replace("FP32", "STRING"))
    assert warmed(tmp_path, config, {"f": b"\1\0\0\0a\2\0\0\0bc"}).executions == [[{"X": [b"a", b"bc"]}]]


def test_booleans_are_booleans(tmp_path: Path) -> None:
    config = BASE.replace("TYPE_FP32", "TYPE_BOOL", 1)
    inputs = 'inputs { key: "X" value { data_type: TYPE_BOOL dims: [ 64 ] random_data: true } }'
    (array,) = warmed(tmp_path, config + sample(inputs)).arrays
    assert array.dtype == np.bool_ and set(array.tobytes()) == {0, 1}


def test_an_input_that_is_not_in_the_config_is_passed_on(tmp_path: Path) -> None:
    """As the controls of a sequence are."""
    more = ZERO + ' inputs { key: "START" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }'
    assert warmed(tmp_path, BATCHED + sample(more)).executions == [[{"X": [[0.0, 0.0]], "START": [[0]]}]]


def test_the_model_sees_the_reshaped_input(tmp_path: Path) -> None:
    config = BASE.replace("dims: [ -1 ] }", "dims: [ 2 ] reshape { shape: [ 1, 2 ] } }", 1)
    assert warmed(tmp_path, config + sample()).executions == [[{"X": [[0.0, 0.0]]}]]


# -- what counts ------------------------------------------------------------------------------------------------------------


def test_every_instance_is_warmed_up_side_by_side_and_all_of_it_counts(tmp_path: Path) -> None:
    async def main() -> None:
        config = BATCHED.replace("count: 1", "count: 2") + sample(batch_size=2, count=3)
        one, backend = kernel(tmp_path, {"m": config}, {"m": sleeping(1.0)})
        async with one:
            assert one.loop.time() == 1003.0  # two instances at a time
            (counted,) = one.statistics("m")
            assert (counted.inference_count, counted.execution_count, counted.success.count) == (12, 6, 12)
            assert counted.queue.count == 12 and counted.queue.ns == 0
            assert counted.batch_stats[2][1].count == 6 and counted.last_inference_ms > 0
            assert one.model("m").scheduler.in_flight == 0
            assert len(backend.executions("m")) == 6

    run(main())


def test_the_verbose_log_tells_each_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kernel")

    async def main() -> None:
        one, _ = kernel(tmp_path, {"m": BATCHED + sample(count=2)})
        async with one:
            pass

    run(main())
    words = "model 'm' instance m_0_0 is running warmup sample 's' for iteration {}"
    assert [line for line in caplog.messages if "warmup" in line] == [words.format(1), words.format(2)]


def test_loading_speaks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When it begins, when it is over, and every ten seconds what it is at."""
    caplog.set_level(logging.INFO, "kernel")

    async def main() -> None:
        one, _ = kernel(tmp_path, {"m": BATCHED + sample()}, {"m": sleeping(25)})
        async with one:
            await asyncio.sleep(60)

    run(main())
    assert caplog.messages == [
        "loading: m:1",
        "still loading: m:1 for 10 s (is warmed up)",
        "still loading: m:1 for 20 s (is warmed up)",
        "loaded m:1 in 25.0 s",
    ]


def test_it_goes_past_the_queue_its_limits_and_the_order(tmp_path: Path) -> None:
    async def main() -> None:
        batching = (
            "dynamic_batching { preserve_ordering: true max_queue_delay_microseconds: 5000000 "
            "default_queue_policy { max_queue_size: 1 default_timeout_microseconds: 1 } }\n"
        )
        one, backend = kernel(tmp_path, {"m": BATCHED + batching + sample(batch_size=3, count=2)})
        async with one:
            assert one.loop.time() == 1000.0
            assert backend.executions("m") == [["", "", ""]] * 2
            assert one.statistics("m")[0].success.count == 6

    run(main())


def test_no_request_is_served_before_it_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        one, _ = kernel(tmp_path, {"m": BASE + sample()}, {"m": sleeping(1.0)}, load_models=[])
        async with one:
            client = Client(one)
            loading = asyncio.ensure_future(one.load("m"))
            await asyncio.sleep(0.5)
            assert not one.ready("m") and [line.state for line in one.index()] == ["LOADING"]
            client.send("m", "early")
            assert "not at ready state" in client.outcome("early")[1] or "no available versions" in client.outcome("early")[1]
            await loading
            client.send("m", "late")
            await asyncio.sleep(2)
            assert client.outcome("late") == (2.0, "ok")

    run(main())


def test_an_answer_through_a_sender_before_execute_returns(tmp_path: Path) -> None:
    """The next execution waits for the return, too."""
    running: list[int] = []

    async def main() -> None:
        async def execute(batch: Batch) -> Result:
            running.append(1)
            assert len(running) == 1
            one.send(batch.requests[0], answer(batch.requests[0]), True)
            await asyncio.sleep(1.0)
            running.pop()
            return None

        one, _ = kernel(tmp_path, {"m": BASE + sample(count=2)}, {"m": execute})
        async with one:
            assert one.loop.time() == 1002.0
            assert one.statistics("m")[0].success.count == 2

    run(main())


def test_answers_that_come_after_execute_has_returned(tmp_path: Path) -> None:
    async def main() -> None:
        async def execute(batch: Batch) -> Result:
            one.loop.call_later(1.0, one.send, batch.requests[0], answer(batch.requests[0]), False)
            one.loop.call_later(2.0, one.send, batch.requests[0], None, True)
            return None

        config = BASE + "model_transaction_policy { decoupled: true }\n" + sample(count=2)
        one, _ = kernel(tmp_path, {"m": config}, {"m": execute})
        async with one:
            assert one.loop.time() == 1004.0
            counted = one.statistics("m")[0]
            assert (counted.success.count, counted.execution_count) == (2, 2)

    run(main())


def test_new_instances_of_a_model_that_serves_are_warmed_up_first(tmp_path: Path) -> None:
    async def main() -> None:
        batching = "dynamic_batching { preserve_ordering: true }\n"
        one, backend = kernel(tmp_path, {"m": BATCHED + batching + sample()}, {"m": sleeping(1.0)})
        async with one:
            client = Client(one)
            write_repository(tmp_path, {"m": BATCHED.replace("count: 1", "count: 2") + batching + sample()})
            loading = asyncio.ensure_future(one.load("m"))
            await asyncio.sleep(0.1)
            client.send("m", "r", [[1.0, 1.0]])
            await asyncio.sleep(0.5)
            assert len(one.model("m").scheduler.instances) == 1
            assert len(backend.log) == 5  # two initialized, two warmups; and the request has begun
            await loading
            assert len(one.model("m").scheduler.instances) == 2
            await asyncio.sleep(1)
            # Not behind the warmup, which has begun before it.
            assert client.outcome("r")[1] == "ok" and client.outcome("r")[0] < 2.2
            assert one.statistics("m")[0].success.count == 3

    run(main())


def test_new_instances_that_fail_change_nothing(tmp_path: Path) -> None:
    calls: list[str] = []

    def execute(batch: Batch) -> Result:
        calls.append(batch.instance.name)
        return echo(batch) if batch.instance.name == "m_0_0" else [InferenceResponse.failure(Code.INTERNAL, "no")]  # type: ignore[return-value]

    async def main() -> None:
        one, backend = kernel(tmp_path, {"m": BASE + sample()}, {"m": execute})
        async with one:
            write_repository(tmp_path, {"m": BASE.replace("count: 1", "count: 2") + sample()})
            with pytest.raises(ServingError, match="failed to run warmup sample 's': no; "):
                await one.load("m")
            assert [instance.name for instance in one.model("m").scheduler.instances] == ["m_0_0"]
            client = Client(one)
            client.send("m", "r")
            assert client.outcome("r")[1] == "ok"
        assert [what for _, what, name in backend.log if name == "m_0_1"] == ["initialize", "finalize"]

    run(main())


@pytest.mark.parametrize("strategy", ["oldest { }", "direct { }"])
def test_a_model_with_sequences(tmp_path: Path, strategy: str) -> None:
    """The sample brings the controls, if any; no sequence is begun by it."""

    async def main() -> None:
        inputs = ZERO + ' inputs { key: "START" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }'
        control = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
        config = BATCHED + f"sequence_batching {{ {strategy} {control} }}\n" + sample(inputs, batch_size=2, count=2)
        seen = Seen()
        one, _ = kernel(tmp_path, {"m": config}, {"m": seen})
        async with one:
            assert seen.executions == [[{"X": [[0.0, 0.0]], "START": [[0]]}] * 2] * 2
            assert one.statistics("m")[0].success.count == 4
            client = Client(one)
            client.send("m", "r", [[1.0]], correlation_id=1, flags=3)
            await asyncio.sleep(1)
            assert client.outcome("r")[1] == "ok"
            assert seen.executions[-1][0]["START"] == [[1]]

    run(main())


def test_an_iterative_model_is_not_executed_again(tmp_path: Path) -> None:
    async def main() -> None:
        config = BASE + "sequence_batching { iterative_sequence: true }\n" + sample()
        one, backend = kernel(tmp_path, {"m": config}, {"m": lambda batch: [RESCHEDULED]})
        async with one:
            assert len(backend.executions("m")) == 1
            assert one.model("m").scheduler.in_flight == 0

    run(main())


# -- what fails -------------------------------------------------------------------------------------------------------------


def test_each_request_that_fails_is_told(tmp_path: Path) -> None:
    def execute(batch: Batch) -> Result:
        first, *others = batch.requests
        return [answer(first), *(InferenceResponse.failure(Code.INTERNAL, "bad thing") for _ in others)]

    words = refusal(tmp_path, BATCHED + sample(batch_size=3, count=5), execute)
    assert words == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: "
        "failed to run warmup sample 's': bad thing; bad thing; ;\n"
    )


def test_the_first_failure_ends_it(tmp_path: Path) -> None:
    calls: list[int] = []

    def execute(batch: Batch) -> Result:
        calls.append(len(batch.requests))
        raise ValueError("boom")

    words = refusal(tmp_path, BATCHED + sample(batch_size=2, count=3) + sample(name="t"), execute)
    assert "failed to run warmup sample 's': model 'm' failed: ValueError: boom; " in words and words.count("boom") == 2
    assert calls == [2]


def test_the_others_are_over_before_the_load_has_failed(tmp_path: Path) -> None:
    async def main() -> None:
        async def execute(batch: Batch) -> Result:
            if batch.instance.name == "m_0_0":
                raise ValueError("boom")
            await asyncio.sleep(5)
            return echo(batch)  # type: ignore[return-value]

        one, backend = kernel(tmp_path, {"m": BASE.replace("count: 1", "count: 2") + sample()}, {"m": execute}, load_models=[])
        async with one:
            with pytest.raises(ServingError, match="boom"):
                await one.load("m")
            assert one.loop.time() == 1005.0
            assert sum(what == "finalize" for _, what, _ in backend.log) == 2

    run(main())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BATCHED + sample(batch_size=6), "warmup sample 's': " + 6 * "batch size 6 for 'm_0_0', max allowed is 4; "),
        (BASE + sample(batch_size=2), "warmup sample 's': " + 2 * "batch size 2 for 'm_0_0', max allowed is 1; "),
        (BATCHED + sample(ZERO.replace('"X"', '"Q"')), "expected 1 inputs but got 0 inputs for model 'm'. Got input(s) [], but"),
        (BATCHED + sample(""), "expected 1 inputs but got 0 inputs for model 'm'"),
        (
            BATCHED + sample(ZERO.replace("FP32", "INT32")),
            "[request id: <id_unknown>] inference input 'X' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            BATCHED.replace("dims: [ -1 ]", "dims: [ 3 ]", 1) + sample(),
            "[request id: <id_unknown>] unexpected shape for input 'X' for model 'm'. Expected [-1,3], got [1,2].",
        ),
        (
            BATCHED + sample(ZERO.replace("[ 2 ]", "[ -1 ]")),
            "Invalid argument: warmup setting expects all variable-size dimensions are specified for input 'X';\n",
        ),
        (
            BATCHED + sample(ZERO.replace("zero_data: true", "")),
            "[request id: <id_unknown>] warmup setting expects input 'X' to have input_data_type set",
        ),
        (BATCHED + sample(ZERO.replace("data_type: TYPE_FP32", "")), "input 'X' for model 'm' has no data_type"),
        (BATCHED + sample(FILE), "failed to open text file for read {folder}/m/warmup/f: No such file or directory ("),
    ],
)
def test_what_can_be_no_sample(tmp_path: Path, config: str, words: str) -> None:
    assert words.replace("{folder}", str(tmp_path)) in refusal(tmp_path, config)


@pytest.mark.parametrize(
    ("datatype", "content", "words"),
    [
        ("FP32", b"\0\0\0\0", "warmup setting expects 8 bytes, but the data provided from fonly has 4 bytes"),
        ("STRING", b"\1\0\0\0a", "expected 2 string elements for inference input 'X' for model 'm', got 1"),
        (
            "STRING",
            b"\1\0\0\0a\0\0\0\0\0\0\0\0",
            "unexpected number of string elements 3 for inference input 'X' for model 'm', expecting 2",
        ),
        ("STRING", b"\1\0\0\0a\5\0\0\0a", "incomplete string data for inference input 'X' for model 'm', got 1 bytes of it in f"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, datatype: str, content: bytes, words: str) -> None:
    config = BASE.replace("FP32", datatype, 1) + sample(FILE.replace("FP32", datatype))
    assert f"Invalid argument: [request id: <id_unknown>] {words}" in refusal(tmp_path, config, files={"f": content})


# -- calls of models that are still on their way ----------------------------------------------------------------------------


def calling(kernel_of: Mapping[str, Kernel], name: str) -> Behaviour:
    """A behaviour that passes its request on to model `name`."""

    async def execute(batch: Batch) -> Result:
        one = kernel_of["kernel"]
        responses: list[InferenceResponse | None] = []
        for request in batch.requests:
            done: asyncio.Future[InferenceResponse] = one.loop.create_future()

            def respond(response: InferenceResponse | None, final: bool, done: Any = done) -> None:
                done.set_result(response)

            tensor = Tensor("X", "FP32", request.inputs["X"].array.copy())
            one.submit(InferenceRequest(name, {"X": tensor}, respond, parent=batch))
            responses.append(await done)
        return responses

    return execute


def slow_to_come(backend: TestBackend, **seconds: float) -> None:
    """Make models take their time to come up."""

    class Thread:
        def __init__(self, kernel: Kernel) -> None:
            loader = kernel._registry.loader
            started = loader._started

            async def late(plan: Any, number: int, step: Any) -> Any:
                await asyncio.sleep(seconds.get(plan.config.name, 0.0))
                return await started(plan, number, step)

            loader._started = late  # type: ignore[method-assign]

    backend.slow = Thread  # type: ignore[attr-defined]


def at_start(
    folder: Path, models: Mapping[str, str], calls: Mapping[str, str], seconds: Mapping[str, float], **options: Any
) -> tuple[dict[str, tuple[str, str]], float]:
    """Start with models that call one another when they are warmed up; return state and reason of each, and how long it took."""

    async def main() -> tuple[dict[str, tuple[str, str]], float]:
        place: dict[str, Kernel] = {}
        behaviours = {name: calling(place, called) for name, called in calls.items()}
        one, backend = kernel(folder, models, behaviours, exit_on_error=False, **options)
        place["kernel"] = one
        slow_to_come(backend, **seconds)
        backend.slow(one)  # type: ignore[attr-defined]
        async with one:
            took = one.loop.time() - 1000.0
            return {line.name: (line.state, line.reason) for line in one.index()}, took

    return run(main())


@pytest.mark.parametrize("threads", [1, 4])
def test_the_call_of_a_model_that_is_being_loaded_waits_for_it(tmp_path: Path, threads: int) -> None:
    """BC17."""
    models = {"outer": BASE + sample(), "zinner": BASE}
    states, took = at_start(tmp_path, models, {"outer": "zinner"}, {"zinner": 2.0}, load_threads=threads)
    assert states == {"outer": ("READY", ""), "zinner": ("READY", "")} and took == 2.0


def test_a_chain_of_models_that_wait_for_one_another(tmp_path: Path) -> None:
    models = {name: BASE + sample() for name in "abcd"}
    states, took = at_start(tmp_path, models, {"a": "b", "b": "c", "c": "d"}, {"d": 3.0}, load_threads=1)
    assert set(states.values()) == {("READY", "")} and took == 3.0


def test_the_call_of_a_model_that_fails_to_load_fails_then(tmp_path: Path) -> None:
    models = {"outer": BASE + sample(), "zinner": BASE + sample(ZERO.replace('"X"', '"Q"'))}
    states, _ = at_start(tmp_path, models, {"outer": "zinner"}, {"zinner": 2.0})
    assert states["outer"][0] == "UNAVAILABLE"
    assert "failed to run warmup sample 's': Request for unknown model: 'zinner'" in states["outer"][1]


def test_the_call_of_a_model_that_nobody_loads_is_named_with_the_way_out(tmp_path: Path) -> None:
    states, _ = at_start(
        tmp_path, {"outer": BASE + sample(), "zinner": BASE}, {"outer": "zinner"}, {}, load_models=["outer"]
    )
    assert (
        "Request for unknown model: 'zinner' is not found; the warmup of model 'outer' calls 'zinner', which is not being "
        "loaded: load it before 'outer', or together with it" in states["outer"][1]
    )


@pytest.mark.parametrize(
    ("calls", "way"),
    [
        ({"a": "a"}, "a -> a"),
        ({"a": "b", "b": "a"}, "b -> a -> b"),
        ({"a": "b", "b": "c", "c": "a"}, "c -> a -> b -> c"),
    ],
)
def test_models_that_wait_for_one_another_are_told_so(tmp_path: Path, calls: dict[str, str], way: str) -> None:
    states, _ = at_start(tmp_path, {name: BASE + sample() for name in calls}, calls, {})
    assert any(f"({way})" in reason for _, reason in states.values()), states
    assert {state for state, _ in states.values()} == {"UNAVAILABLE"}


def test_a_load_that_comes_while_the_warmup_waits_is_none_of_its_business(tmp_path: Path) -> None:
    """The callee is loaded by another request."""

    async def main() -> None:
        place: dict[str, Kernel] = {}
        models = {"outer": BASE + sample(), "zinner": BASE}
        one, backend = kernel(tmp_path, models, {"outer": calling(place, "zinner")}, load_models=[])
        place["kernel"] = one
        slow_to_come(backend, zinner=2.0)
        backend.slow(one)  # type: ignore[attr-defined]
        async with one:
            inner = asyncio.ensure_future(one.load("zinner"))
            await asyncio.sleep(1)
            await one.load("outer")
            assert one.loop.time() == 1002.0 and one.ready("outer")
            await inner

    run(main())


def test_a_stop_gives_up_what_is_warmed_up_and_what_it_waits_for(tmp_path: Path) -> None:
    async def main() -> None:
        async def hang(batch: Batch) -> Result:
            await asyncio.get_running_loop().create_future()
            return None

        place: dict[str, Kernel] = {}
        models = {"outer": BASE + sample(), "hangs": BASE + sample()}
        one, _ = kernel(tmp_path, models, {"hangs": hang, "outer": calling(place, "hangs")}, load_models=[])
        place["kernel"] = one
        await one.start()
        loads = [asyncio.ensure_future(one.load(name)) for name in ("hangs", "outer")]
        await asyncio.sleep(1)
        await one.stop(0.5)
        for result in await asyncio.gather(*loads, return_exceptions=True):
            assert isinstance(result, ServingError), result

    run(main())


# -- random models ----------------------------------------------------------------------------------------------------------

graphs = st.integers(1, 5).flatmap(
    lambda size: st.tuples(
        st.lists(st.lists(st.integers(0, size - 1), max_size=3), min_size=size, max_size=size),
        st.lists(st.sampled_from([0.0, 0.0, 0.5, 2.0]), min_size=size, max_size=size),
        st.integers(1, 4),
    )
)


@settings(deadline=None, max_examples=60)
@given(graphs)
def test_a_start_ends_whoever_calls_whom(graph: tuple[list[list[int]], list[float], int]) -> None:
    """READY is who calls nobody that waits for itself in the end; a start that hung would be a deadlock of the loop."""
    calls, seconds, threads = graph

    def comes(node: int, above: tuple[int, ...] = ()) -> bool:
        return node not in above and all(comes(other, (*above, node)) for other in calls[node])

    async def main(folder: Path) -> dict[str, bool]:
        place: dict[str, Kernel] = {}

        def caller(others: list[int]) -> Behaviour:
            async def execute(batch: Batch) -> Result:
                for other in others:
                    (response,) = await calling(place, f"m{other}")(batch)  # type: ignore[misc]
                    if response.error is not None:
                        return [response]
                return echo(batch)  # type: ignore[return-value]

            return execute

        models = {f"m{k}": SLOW + sample() for k in range(len(calls))}
        behaviours = {f"m{k}": caller(others) for k, others in enumerate(calls)}
        one, backend = kernel(folder, models, behaviours, exit_on_error=False, load_threads=threads)
        place["kernel"] = one
        slow_to_come(backend, **{f"m{k}": each for k, each in enumerate(seconds)})
        backend.slow(one)  # type: ignore[attr-defined]
        async with one:
            ready = {name: one.ready(name) for name in models}
            for name in models:
                if ready[name]:
                    assert one.statistics(name)[0].success.count >= 1
                    assert one.model(name).scheduler.in_flight == 0
        ends = [(what, name) for _, what, name in backend.log if what in ("initialize", "finalize")]
        assert len(ends) == 2 * len(models)
        return ready

    with tempfile.TemporaryDirectory() as folder:
        assert run(main(Path(folder))) == {f"m{k}": comes(k) for k in range(len(calls))}


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=3),
    st.sampled_from(["now", "later", "sent", "fails", "second fails"]),
    st.sampled_from(
        ["", "dynamic_batching { }", "dynamic_batching { preserve_ordering: true }", "sequence_batching { direct { } }"]
    ),
)
def test_all_is_counted_or_the_load_fails(instances: int, samples: list[tuple[int, int]], what: str, scheduling: str) -> None:
    executions = sum(max(1, count) for size, count in samples if size)
    requests = sum(size * max(1, count) for size, count in samples)

    async def main(folder: Path) -> None:
        async def execute(batch: Batch) -> Result:
            if what == "later":
                await asyncio.sleep(0.1)
            if what == "fails":
                raise ValueError("planned")
            if what == "sent":
                for request in batch.requests:
                    one.loop.call_later(0.1, one.send, request, answer(request), True)
                return None
            responses = [answer(request) for request in batch.requests]
            if what == "second fails" and len(responses) > 1:
                responses[1] = InferenceResponse.failure(Code.INTERNAL, "planned")
            return responses

        text = BATCHED.replace("count: 1", f"count: {instances}") + scheduling + "\n"
        text += "".join(sample(name=f"s{k}", batch_size=size, count=count) for k, (size, count) in enumerate(samples))
        one, backend = kernel(folder, {"m": text}, {"m": execute}, exit_on_error=False)
        async with one:
            fails = (what == "fails" and executions) or (what == "second fails" and any(size > 1 for size, _ in samples))
            assert one.ready("m") is not bool(fails)
            if not fails:
                counted = one.statistics("m")[0]
                assert (counted.execution_count, counted.success.count) == (instances * executions, instances * requests)
                assert counted.inference_count == instances * requests and counted.fail.count == 0
                assert one.model("m").scheduler.is_idle and not one.model("m").scheduler.life.open
        assert sum(entry == "finalize" for _, entry, _ in backend.log) == instances

    with tempfile.TemporaryDirectory() as folder:
        run(main(Path(folder)))
