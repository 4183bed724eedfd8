"""Implicit state: what a model writes comes back to it with the sequence's next request, and to nobody else."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stateful import CONTROLS, END, START, STATE, config, send, serving
from virtual import Client, answer, run

from kernel import Batch, InferenceResponse, Result, Tensor

DIRECT, OLDEST = "direct { }", "oldest { max_candidate_sequences: 4 }"


def counting(batch: Batch) -> Result:
    """Answer Y = S, and count every element of S up by one."""
    answers = []
    for request in batch.requests:
        state = request.inputs["S"].array
        response = answer(request, Y=state)
        response.outputs.append(Tensor("S_NEXT", "INT32", state + 1))
        answers.append(response)
    return answers


def values(client: Client, *names: str) -> list[Any]:
    found = []
    for name in names:
        response = client.answers[name][-1][1]
        assert response is not None
        found.append(response["Y"].tolist() if response.error is None else response.error.message)
    return found


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_state_goes_round_and_each_sequence_has_its_own(tmp_path: Path, strategy: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(4, strategy, CONTROLS + STATE), counting) as (client, _):
            for turn in range(3):
                for id in (1, 2):
                    send(client, f"{id}.{turn}", id, START if not turn else 0)
                await asyncio.sleep(0.1)
            send(client, "2.start", 2, START)
            send(client, "2.after", 2, END)
            send(client, "1.end", 1, END)
            send(client, "1.new", 1, START | END)
            await asyncio.sleep(0.1)
            assert values(client, "1.0", "1.1", "1.2", "1.end", "1.new") == [[[n, n]] for n in (0, 1, 2, 3, 0)]
            assert values(client, "2.0", "2.1", "2.2", "2.start", "2.after") == [[[n, n]] for n in (0, 1, 2, 0, 1)]
            scheduler = client.kernel.model("m").scheduler
            assert not scheduler.queue._memories  # type: ignore[attr-defined]

    run(main())


def test_clients_see_no_state_but_what_is_an_output_and_was_asked_for(tmp_path: Path) -> None:
    text = config(1, DIRECT, CONTROLS + STATE).replace(
        "output [ {", 'output [ { name: "S_NEXT" data_type: TYPE_INT32 dims: [ 2 ] }, {'
    )

    async def main() -> None:
        async with serving(tmp_path, text, counting) as (client, _):
            send(client, "all", 1, START)
            send(client, "one", 1, requested_outputs=["Y"])
            send(client, "state", 1, requested_outputs=["S_NEXT"])
            await asyncio.sleep(0.1)
            outputs = {
                name: {tensor.name: tensor.array.tolist() for tensor in client.answers[name][0][1].outputs}  # type: ignore[union-attr]
                for name in ("all", "one", "state")
            }
            assert outputs["all"] == {"Y": [[0, 0]], "S_NEXT": [[1, 1]]}
            assert outputs["one"] == {"Y": [[1, 1]]}
            assert outputs["state"]["S_NEXT"] == [[3, 3]]
            client.answers["state"][0][1]["S_NEXT"][...] = 77  # type: ignore[index]  # theirs, not the state's
            send(client, "last", 1, END, requested_outputs=["Y"])
            await asyncio.sleep(0.1)
            assert values(client, "last") == [[[3, 3]]]

    run(main())


def test_state_that_is_no_output_is_no_mistake_and_never_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS + STATE), counting, strict_outputs=True) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(0.1)
            response = client.answers["a"][0][1]
            assert response is not None and response.error is None
            assert [tensor.name for tensor in response.outputs] == ["Y"]

    run(main())


def test_pairs_are_those_of_the_config_whatever_the_order_of_names(tmp_path: Path) -> None:
    """BC49."""
    pairs = """
      state [
        { input_name: "c" output_name: "c_next" data_type: TYPE_FP32 dims: [ -1 ] },
        { input_name: "c_len" output_name: "a_len_next" data_type: TYPE_INT64 dims: [ 1 ] }
      ]
    """
    seen = []

    def growing(batch: Batch) -> Result:
        (request,) = batch.requests
        c, length = request.inputs["c"].array, request.inputs["c_len"].array
        seen.append((c.tolist(), length.tolist(), request.inputs["c"].datatype, request.inputs["c_len"].datatype))
        response = answer(request)
        response.outputs += [
            Tensor("a_len_next", "INT64", length + 10),
            Tensor("c_next", "FP32", np.concatenate([c, [[7]]], 1).astype(np.float32)),
        ]
        return [response]

    async def main() -> None:
        async with serving(tmp_path, config(2, DIRECT, CONTROLS + pairs), growing) as (client, _):
            for name, flags in (("a", START), ("b", 0), ("c", END)):
                send(client, name, 5, flags)
            await asyncio.sleep(1)
            assert [words for _, words in client.outcomes().values()] == ["ok"] * 3
            assert seen == [
                ([[0]], [[0]], "FP32", "INT64"),
                ([[0, 7]], [[10]], "FP32", "INT64"),
                ([[0, 7, 7]], [[20]], "FP32", "INT64"),
            ]

    run(main())


def test_states_of_different_sizes_are_not_put_into_one_batch(tmp_path: Path) -> None:
    state = 'state [ { input_name: "S" output_name: "S_NEXT" data_type: TYPE_INT32 dims: [ -1 ] } ]'

    def growing(batch: Batch) -> Result:
        whole = batch.gather("S")  # as backends do that compute on whole batches
        answers = []
        for request, row in zip(batch.requests, whole):
            response = answer(request, Y=[row])
            response.outputs.append(Tensor("S_NEXT", "INT32", np.concatenate([[row], [[1]]], 1).astype(np.int32)))
            answers.append(response)
        return answers

    async def main() -> None:
        async with serving(tmp_path, config(4, OLDEST, CONTROLS + state), growing) as (client, backend):
            send(client, "a", 1, START)
            await asyncio.sleep(0.1)
            send(client, "b", 1)
            send(client, "c", 2, START)
            send(client, "d", 3, START)
            await asyncio.sleep(0.1)
            assert backend.executions("m") == [["a"], ["b"], ["c", "d"]]
            assert values(client, "a", "b", "c") == [[[0]], [[0, 1]], [[0]]]

    run(main())


# -- how it begins -------------------------------------------------------------------------------------------------------


def initial(datatype: str, dims: str, more: str, state_dims: str = "") -> str:
    return (
        f'state [ {{ input_name: "S" output_name: "S_NEXT" data_type: {datatype} dims: [ {state_dims or dims} ] '
        f'use_same_buffer_for_input_output: true initial_state [ {{ name: "i" data_type: {datatype} dims: [ {dims} ] '
        f"{more} }} ] }} ]"
    )


@pytest.mark.parametrize(
    ("state", "data", "value"),
    [
        (initial("TYPE_INT32", "2", "zero_data: true"), b"", [[0, 0]]),
        (initial("TYPE_INT32", "3", "zero_data: true", "-1"), b"", [[0, 0, 0]]),
        (initial("TYPE_STRING", "2", "zero_data: true"), b"", [[b"", b""]]),
        (initial("TYPE_INT32", "2", 'data_file: "first"'), struct.pack("<3i", 5, 6, 7), [[5, 6]]),
        (initial("TYPE_STRING", "2", 'data_file: "first"'), struct.pack("<I2sI1s", 2, b"ab", 1, b"c"), [[b"ab", b"c"]]),
        (
            'state [ { input_name: "S" output_name: "S_NEXT" data_type: TYPE_BOOL dims: [ 2, -1 ] } ]',
            b"",
            [[[False], [False]]],
        ),
    ],
    ids=["zeros", "variable", "no strings", "file", "strings of a file", "nothing said"],
)
def test_state_begins_as_the_config_says(tmp_path: Path, state: str, data: bytes, value: Any) -> None:
    seen = []

    def look(batch: Batch) -> Result:
        seen.append(batch.requests[0].inputs["S"].array.tolist())
        return [answer(batch.requests[0])]

    async def main() -> None:
        folder = tmp_path / "m" / "initial_state"
        folder.mkdir(parents=True)
        (folder / "first").write_bytes(data)
        async with serving(tmp_path, config(1, DIRECT, CONTROLS + state), look) as (client, _):
            send(client, "a", 1, START)
            send(client, "b", 1)  # what is not written stays
            await asyncio.sleep(0.1)
            assert seen == [value, value]

    run(main())


def test_nobody_can_write_to_what_all_sequences_begin_with(tmp_path: Path) -> None:
    def vandal(batch: Batch) -> Result:
        array = batch.requests[0].inputs["S"].array
        assert not array.flags.writeable  # who wants to write is told so, and takes a copy
        return [answer(batch.requests[0])]

    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS + STATE), vandal) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(0.1)
            assert client.outcome("a") == (0, "ok")

    run(main())


# -- what does not fit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            Tensor("S_NEXT", "FP32", np.zeros((1, 2), np.float32)),
            "[request id: b] state output 'S_NEXT' of model 'm' is FP32, its config declares INT32",
        ),
        (
            Tensor("S_NEXT", "INT32", np.zeros((1, 3), np.int32)),
            "[request id: b] state output 'S_NEXT' of model 'm' has shape [1, 3], its config declares [1, 2]",
        ),
        (
            Tensor("S_NEXT", "INT32", np.zeros((2, 2), np.int32)),
            "[request id: b] state output 'S_NEXT' of model 'm' has shape [2, 2], its config declares [1, 2]",
        ),
    ],
)
def test_state_that_does_not_fit_is_an_error_and_is_not_kept(tmp_path: Path, written: Tensor, words: str) -> None:
    def wrong(batch: Batch) -> Result:
        (request,) = batch.requests
        if request.id != "b":
            return counting(batch)
        return [InferenceResponse([Tensor("Y", "FP32", np.zeros((1, 1), np.float32)), written])]

    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS + STATE), wrong) as (client, _):
            for name, flags in (("a", START), ("b", 0), ("c", 0)):
                send(client, name, 5, flags)
            await asyncio.sleep(1)
            assert values(client, "a", "b", "c") == [[[0, 0]], words, [[1, 1]]]
            assert client.kernel.statistics("m")[0].failures["BACKEND"] == 1

    run(main())


def test_state_of_a_sender_that_is_late_counts_from_then_on(tmp_path: Path) -> None:
    """A model may answer a request while the next one waits, or after it has begun; the next after that sees what it wrote."""

    async def late(batch: Batch) -> Result:
        (request,) = batch.requests
        kernel = request.model.kernel
        if request.id != "a":
            await asyncio.sleep(1.0)
            return counting(batch)
        (response,) = counting(batch)  # type: ignore[misc]
        kernel.loop.call_later(0.5, kernel.send, request, response, True)
        return None

    async def main() -> None:
        patient = f"{DIRECT} max_sequence_idle_microseconds: 60000000"
        async with serving(tmp_path, config(1, patient, CONTROLS + STATE), late) as (client, _):
            for name, flags in (("a", START), ("b", 0), ("c", START), ("d", 0)):
                send(client, name, 5, flags)
            await asyncio.sleep(9)
            assert values(client, "a", "b", "c", "d") == [[[0, 0]], [[0, 0]], [[0, 0]], [[1, 1]]]
            assert client.outcome("a") == (0.5, "ok")

    run(main())


def test_an_answer_that_comes_after_the_sequence_began_anew_writes_nothing_into_it(tmp_path: Path) -> None:
    async def late(batch: Batch) -> Result:
        (request,) = batch.requests
        kernel = request.model.kernel
        (response,) = counting(batch)  # type: ignore[misc]
        if request.id == "a":
            response.outputs[1].array[...] = 99
            kernel.loop.call_later(0.5, kernel.send, request, response, True)
            return None
        await asyncio.sleep(1.0)
        return [response]

    async def main() -> None:
        patient = f"{DIRECT} max_sequence_idle_microseconds: 60000000"
        async with serving(tmp_path, config(1, patient, CONTROLS + STATE), late) as (client, _):
            for name, flags in (("a", START), ("b", START), ("c", 0)):
                send(client, name, 5, flags)
            await asyncio.sleep(9)
            assert values(client, "a", "b", "c") == [[[0, 0]], [[0, 0]], [[1, 1]]]

    run(main())
