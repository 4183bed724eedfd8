"""Sequences in virtual time: slots, backlog, controls, time-outs, state, null requests. Times are exact seconds since the start.

The rows of the contract (scheduling, section 5), each as a timeline.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stateful import CONTROLS, END, START, STATE, config, send, serving
from virtual import answer, echo, run, sleeping

from kernel import Batch, InferenceRequest, Result


def said(request: InferenceRequest, *names: str) -> list[Any]:
    """Return what the model is told by the inputs of those names."""
    return [request.inputs[name].array.item() for name in names]


class Recording:
    """A model that keeps what it was given: for each execution, one entry a request."""

    def __init__(self, seconds: float = 0.0, *names: str) -> None:
        self.names = names or ("START", "END", "READY", "CORRID")
        self.seconds = seconds
        self.executions: list[list[list[Any]]] = []

    async def execute(self, batch: Batch) -> Result:
        self.executions.append([said(request, *self.names) for request in batch.requests])
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return [answer(request) for request in batch.requests]


# -- what is refused -----------------------------------------------------------------------------------------------------


def test_what_is_no_request_of_a_sequence_is_refused(tmp_path: Path) -> None:
    """BC47, in the reference's order: two rows and no id is told for the rows."""

    async def main() -> None:
        async with serving(tmp_path, config(2)) as (client, _):
            send(client, "rows", 8, START, [[1], [2]])
            send(client, "rows and no id", 0, 0, [[1], [2]])
            send(client, "no id", value=[[1]])
            send(client, "empty id", "", value=[[1]])
            send(client, "no start", 7)
            send(client, "end without start", 7, END)
            send(client, "both", 9, START | END)
            send(client, "after the end", 9)
            await asyncio.sleep(0)
            rows = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
            none = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
            start = (
                "inference request for sequence {} to model 'm' must specify the START flag on the first request of "
                "the sequence"
            )
            assert {name: words for name, (_, words) in client.outcomes().items()} == {
                "rows": rows,
                "rows and no id": rows,
                "no id": none,
                "empty id": none,
                "no start": start.format(7),
                "end without start": start.format(7),
                "both": "ok",
                "after the end": start.format(9),
            }
            counted = client.kernel.statistics("m")[0]
            assert (counted.success.count, counted.fail.count) == (1, 0)  # refusals are counted nowhere

    run(main())


def test_the_type_of_the_id_has_to_be_the_controls(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config()) as (client, _):
            send(client, "text", "a", START, value=[[1]])
            send(client, "large", 1 << 63, START, value=[[1]])
            send(client, "fits", (1 << 63) - 1, START | END)
            await asyncio.sleep(0)
            words = {name: words for name, (_, words) in client.outcomes().items()}
            assert words["text"] == (
                "[request id: text] sequence batching control 'CORRID' data-type is 'BYTES', but model 'm' expects 'INT64'"
            )
            assert words["large"] == (
                "[request id: large] correlation ID 9223372036854775808 does not fit sequence batching control 'CORRID' of model "
                "'m', which is INT64 (-9223372036854775808 to 9223372036854775807)"
            )
            assert words["fits"] == "ok"

    run(main())


def test_a_string_id_is_given_as_it_is(tmp_path: Path) -> None:
    """No padding: the reference pads to 128 bytes."""
    seen = Recording(0, "CORRID")

    async def main() -> None:
        text = config().replace("TYPE_INT64", "TYPE_STRING")
        async with serving(tmp_path, text, seen.execute) as (client, _):
            send(client, "a", "grüß", START | END)
            send(client, "b", 5, START | END)
            await asyncio.sleep(0.1)
            assert seen.executions == [[["grüß".encode()]]]
            assert client.outcome("a")[1] == "ok"
            assert "data-type is 'UINT64', but model 'm' expects 'BYTES'" in client.outcome("b")[1]

    run(main())


# -- controls ------------------------------------------------------------------------------------------------------------


def test_controls_say_where_in_its_sequence_a_request_stands(tmp_path: Path) -> None:
    seen = Recording()

    async def main() -> None:
        async with serving(tmp_path, config(), seen.execute) as (client, _):
            send(client, "a", 3, START)
            send(client, "b", 3)
            send(client, "c", 3, END)
            send(client, "d", 3, START | END)
            await asyncio.sleep(1)
            assert seen.executions == [
                [[1, False, 5.0, 3]],
                [[0, False, 5.0, 3]],
                [[0, True, 5.0, 3]],
                [[1, True, 5.0, 3]],
            ]
            assert all(words == "ok" for _, words in client.outcomes().values())

    run(main())


@pytest.mark.parametrize(("rows", "shape", "value"), [(0, (1,), (1.0,)), (4, (1, 1), ((1.0,),))])
def test_the_shape_of_controls_has_a_batch_dimension_where_the_model_has_one(
    tmp_path: Path, rows: int, shape: tuple[int, ...], value: Any
) -> None:
    shapes: list[Any] = []

    def look(batch: Batch) -> Result:
        shapes.extend(
            (name, batch.requests[0].inputs[name].array.shape) for name in ("START", "END", "READY", "CORRID", "S")
        )
        return echo(batch)  # type: ignore[return-value]

    async def main() -> None:
        async with serving(tmp_path, config(rows, more=CONTROLS + STATE), look) as (client, _):
            send(client, "a", 3, START | END, value)
            await asyncio.sleep(0)
            assert client.outcome("a")[1] == "ok"
            assert shapes == [(name, shape) for name in ("START", "END", "READY", "CORRID")] + [("S", (*shape[:-1], 2))]

    run(main())


# -- direct: slots and null requests ---------------------------------------------------------------------------------------


def test_an_empty_slot_below_is_a_null_request_one_above_is_left_out(tmp_path: Path) -> None:
    seen = Recording()

    async def main() -> None:
        async with serving(tmp_path, config(3), seen.execute) as (client, _):
            for id in (4, 5, 6):
                send(client, f"start {id}", id, START)
                await asyncio.sleep(0.1)
            send(client, "5", 5)
            await asyncio.sleep(0.1)
            send(client, "4", 4)
            await asyncio.sleep(0.1)
            send(client, "6 end", 6, END)
            send(client, "4 end", 4, END)
            await asyncio.sleep(0.1)
            null = [0, False, 0.0, 0]
            assert seen.executions == [
                [[1, False, 5.0, 4]],
                [null, [1, False, 5.0, 5]],
                [null, null, [1, False, 5.0, 6]],
                [null, [0, False, 5.0, 5]],
                [[0, False, 5.0, 4]],
                [[0, True, 5.0, 4], null, [0, True, 5.0, 6]],
            ]
            counted = client.kernel.statistics("m")[0]
            # Rows count with the null ones in batch_stats alone (reference behaviour).
            assert (counted.inference_count, counted.execution_count, counted.success.count) == (7, 6, 7)
            assert {size: times[0].count for size, times in counted.batch_stats.items()} == {1: 2, 2: 2, 3: 2}

    run(main())


def test_a_null_request_has_the_inputs_of_its_batch_all_zeros(tmp_path: Path) -> None:
    nulls: list[InferenceRequest] = []

    def look(batch: Batch) -> Result:
        if len(batch.requests) == 2:
            nulls.append(batch.requests[0])
        return echo(batch)  # type: ignore[return-value]

    async def main() -> None:
        async with serving(tmp_path, config(2, more=CONTROLS + STATE), look) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(0.1)
            send(client, "b", 2, START, [[1, 2, 3]])
            await asyncio.sleep(0.1)
            (null,) = nulls
            assert {name: tensor.array.tolist() for name, tensor in null.inputs.items()} == {
                "X": [[0, 0, 0]],
                "START": [[0]],
                "END": [[False]],
                "READY": [[0.0]],
                "CORRID": [[0]],
                "S": [[0, 0]],
            }
            assert not null.wanted
            assert client.outcome("b")[1] == "ok"

    run(main())


def test_a_slot_whose_shapes_do_not_fit_waits_for_the_next_round(tmp_path: Path) -> None:
    seen = Recording(1.0, "READY", "CORRID")

    async def main() -> None:
        async with serving(tmp_path, config(3), seen.execute) as (client, _):
            send(client, "a", 1, START)
            send(client, "b", 2, START, [[1, 2]])
            send(client, "c", 3, START)
            await asyncio.sleep(5)
            assert seen.executions == [[[5, 1], [0, 0], [5, 3]], [[0, 0], [5, 2]]]
            assert client.outcomes() == {"a": (1, "ok"), "c": (1, "ok"), "b": (2, "ok")}

    run(main())


def test_a_slot_that_does_not_fit_is_not_overtaken_for_ever(tmp_path: Path) -> None:
    seen = Recording(1.0, "READY", "CORRID")

    async def main() -> None:
        patient = "direct { } max_sequence_idle_microseconds: 60000000"
        async with serving(tmp_path, config(2, patient), seen.execute) as (client, _):
            for name in "abc":
                send(client, name, 1, START if name == "a" else 0)
            send(client, "other", 2, START, [[1, 2]])
            await asyncio.sleep(5)
            assert client.outcome("other")[0] == 4  # those of slot 0 came before it …
            send(client, "d", 1)
            send(client, "e", 1)
            await asyncio.sleep(0.5)
            send(client, "other 2", 2, 0, [[1, 2]])
            send(client, "f", 1)
            await asyncio.sleep(9)
            assert client.outcome("e") == (7, "ok")
            assert client.outcome("other 2") == (8, "ok")  # … and this one before the one it can't go with
            assert client.outcome("f") == (9, "ok")

    run(main())


@pytest.mark.parametrize(("sequences", "when"), [(1, 0.5), (2, 0.5), (3, 0.0), (4, 0.0)])
def test_minimum_slot_utilization_waits_for_company(tmp_path: Path, sequences: int, when: float) -> None:
    direct = "direct { max_queue_delay_microseconds: 500000 minimum_slot_utilization: 0.3 }"

    async def main() -> None:
        async with serving(tmp_path, config(10, direct)) as (client, backend):
            for id in range(1, sequences + 1):
                send(client, str(id), id, START)
            await asyncio.sleep(5)
            assert set(client.outcomes().values()) == {(when, "ok")}
            assert len(backend.executions("m")) == 1

    run(main())


@pytest.mark.parametrize("direct", ["max_queue_delay_microseconds: 500000", "minimum_slot_utilization: 1.0"])
def test_delay_or_utilization_alone_wait_for_nobody(tmp_path: Path, direct: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(4, f"direct {{ {direct} }}")) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(5)
            assert client.outcome("a") == (0, "ok")

    run(main())


def test_one_execution_at_a_time_with_direct(tmp_path: Path) -> None:
    async def main() -> None:
        text = config(2) + 'parameters { key: "max_concurrency" value { string_value: "4" } }'
        async with serving(tmp_path, text, sleeping(1.0)) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(0.5)
            send(client, "b", 2, START)
            await asyncio.sleep(5)
            assert client.outcomes() == {"a": (1, "ok"), "b": (2, "ok")}

    run(main())


# -- slots and backlog ---------------------------------------------------------------------------------------------------


def test_new_sequences_take_the_lowest_slots_of_the_instances_in_turn(tmp_path: Path) -> None:
    where: dict[int, tuple[str, int]] = {}

    def look(batch: Batch) -> Result:
        for slot, request in enumerate(batch.requests):
            if request.correlation_id:
                where[int(request.correlation_id)] = (batch.instance.name, slot)
        return echo(batch)  # type: ignore[return-value]

    async def main() -> None:
        async with serving(tmp_path, config(2, count=2), look) as (client, _):
            for id in (1, 2, 3, 4):
                send(client, str(id), id, START)
                await asyncio.sleep(0.01)
            assert where == {1: ("m_0_0", 0), 2: ("m_0_1", 0), 3: ("m_0_0", 1), 4: ("m_0_1", 1)}
            send(client, "3 end", 3, END)
            send(client, "2 end", 2, END)
            await asyncio.sleep(0.01)
            send(client, "5", 5, START)
            await asyncio.sleep(0.01)
            assert where[5] == ("m_0_1", 0)

    run(main())


def test_who_finds_no_slot_waits_in_line_with_all_that_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(), sleeping(0.1)) as (client, backend):
            send(client, "a1", 1, START)
            send(client, "b1", 2, START)
            send(client, "c1", 3, START | END)
            send(client, "b2", 2, END)
            send(client, "b3", 2, START | END)  # another sequence of that id: behind c
            await asyncio.sleep(0.5)
            assert backend.executions("m") == [["a1"]]  # its slot is not free
            send(client, "a2", 1, END)
            await asyncio.sleep(1)
            assert [ids[0] for ids in backend.executions("m")] == ["a1", "a2", "b1", "b2", "c1", "b3"]
            assert client.outcome("b1") == (0.7, "ok")

    run(main())


def test_the_slot_of_a_sequence_whose_end_is_executing_is_free_with_direct(tmp_path: Path) -> None:
    """So the next one waits in the slot, where no time-out of the backlog holds (reference behaviour)."""

    async def main() -> None:
        async with serving(tmp_path, config(), sleeping(0.8)) as (client, _):
            send(client, "a", 9, START | END)
            await asyncio.sleep(0.2)
            send(client, "b", 10, START | END, timeout_us=200_000)
            await asyncio.sleep(5)
            assert client.outcomes() == {"a": (0.8, "ok"), "b": (1.6, "ok")}

    run(main())


def test_a_sequence_that_waits_too_long_for_a_slot_expires_as_a_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(), sleeping(0.8)) as (client, _):
            send(client, "a", 9, START)
            await asyncio.sleep(0.2)
            send(client, "b1", 10, START, timeout_us=400_000)
            await asyncio.sleep(0.05)
            send(client, "b2", 10, timeout_us=150_000)
            send(client, "b3", 10)
            send(client, "c", 11, START)
            await asyncio.sleep(0.3)
            send(client, "b4", 10)
            await asyncio.sleep(5)
            words = "timeout of the corresponding sequence has been expired"
            assert {name: client.outcome(name) for name in ("b1", "b2", "b3")} == dict.fromkeys(
                ("b1", "b2", "b3"), (0.4, words)
            )
            assert "must specify the START flag" in client.outcome("b4")[1]
            assert client.outcome("c") == (1.8, "ok")  # once `a` was silent for a second
            assert client.kernel.statistics("m")[0].failures["REJECTED"] == 3

    run(main())


def test_a_start_of_a_running_sequence_goes_on_in_its_slot_after_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Recording(0.1, "START", "CORRID")

    async def main() -> None:
        async with serving(tmp_path, config(2), seen.execute) as (client, _):
            send(client, "a1", 1, START)
            send(client, "a2", 1)
            with caplog.at_level(logging.WARNING, "kernel"):
                send(client, "a3", 1, START)
            await asyncio.sleep(1)
            assert seen.executions == [[[1, 1]], [[0, 1]], [[1, 1]]]

    run(main())
    assert "sequence 1 for model 'm' has a conflict" in caplog.text


# -- idle ----------------------------------------------------------------------------------------------------------------


def test_clients_that_never_end_lose_their_slot(tmp_path: Path) -> None:
    """BC48."""

    async def main() -> None:
        async with serving(tmp_path, config(2, "direct { } max_sequence_idle_microseconds: 1500000")) as (client, _):
            send(client, "a", 1, START)
            send(client, "b", 2, START)
            await asyncio.sleep(0.2)
            send(client, "c", 3, START)
            await asyncio.sleep(3)
            assert client.outcome("c") == (1.5, "ok")
            send(client, "a2", 1)
            assert "must specify the START flag" in client.outcome("a2")[1]

    run(main())


def test_silence_is_counted_from_the_last_arrival_even_while_it_executes(tmp_path: Path) -> None:
    """As the reference does: what is slower than the limit needs a longer limit."""

    async def main() -> None:
        async with serving(tmp_path, config(), sleeping(2.5)) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(0.2)
            send(client, "b", 1)  # still in time
            send(client, "other", 2, START | END)
            await asyncio.sleep(1.6)
            send(client, "c", 1)
            await asyncio.sleep(9)
            assert client.outcome("a") == (2.5, "ok")
            assert client.outcome("b") == (5, "ok")
            assert client.outcome("other") == (7.5, "ok")
            assert "must specify the START flag" in client.outcome("c")[1]

    run(main())


def test_sequences_without_a_slot_are_not_silent(tmp_path: Path) -> None:
    """And what has got one has its whole time from then on."""

    async def main() -> None:
        async with serving(tmp_path, config()) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(0.9)
            send(client, "b", 2, START)
            send(client, "a2", 1)
            await asyncio.sleep(1.9)
            assert client.outcome("b") == (1.9, "ok")
            send(client, "b2", 2)
            await asyncio.sleep(0)
            assert client.outcome("b2") == (2.8, "ok")

    run(main())


# -- oldest --------------------------------------------------------------------------------------------------------------


def test_oldest_batches_the_first_requests_of_all_sequences(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(4, "oldest { max_candidate_sequences: 4 }"), sleeping(0.5)) as (
            client,
            backend,
        ):
            send(client, "a1", 1, START | END)
            await asyncio.sleep(0.1)
            send(client, "b1", 2, START)
            send(client, "c1", 3, START)
            send(client, "b2", 2, END)
            send(client, "c2", 3, END)
            send(client, "d1", 4, START | END)
            await asyncio.sleep(5)
            assert backend.executions("m") == [["a1"], ["b1", "c1", "d1"], ["b2", "c2"]]

    run(main())


@pytest.mark.parametrize(("sequences", "when"), [(1, 0.1), (2, 0.0), (3, 0.1)])
def test_oldest_has_the_dynamic_batchers_delay_and_sizes(tmp_path: Path, sequences: int, when: float) -> None:
    async def main() -> None:
        oldest = (
            "oldest { max_candidate_sequences: 8 preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 100000 }"
        )
        async with serving(tmp_path, config(4, oldest)) as (client, _):
            for id in range(1, sequences + 1):
                send(client, str(id), id, START)
            await asyncio.sleep(5)
            assert client.outcome(str(sequences)) == (when, "ok")

    run(main())


def test_oldest_keeps_a_slot_until_the_end_was_executed(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, "oldest { }"), sleeping(0.8)) as (client, _):
            send(client, "a", 9, START | END)
            await asyncio.sleep(0.2)
            send(client, "b", 10, START | END, timeout_us=200_000)
            await asyncio.sleep(5)
            assert client.outcome("a") == (0.8, "ok")
            assert client.outcome("b") == (0.4, "timeout of the corresponding sequence has been expired")

    run(main())


def test_oldest_gives_no_null_requests(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(3, "oldest { max_candidate_sequences: 3 }")) as (client, backend):
            for id in (1, 2, 3):
                send(client, str(id), id, START)
                await asyncio.sleep(0.1)
            send(client, "3 again", 3)
            await asyncio.sleep(0.1)
            assert backend.executions("m") == [["1"], ["2"], ["3"], ["3 again"]]

    run(main())


def test_batches_of_sequences_have_equal_shapes(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(4, "oldest { }")) as (client, backend):
            for id, columns in enumerate((2, 2, 3, 2), 1):
                send(client, str(id), id, START, np.ones((1, columns)))
            await asyncio.sleep(1)
            assert backend.executions("m") == [["1", "2"], ["3"], ["4"]]

    run(main())
