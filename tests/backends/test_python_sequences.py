"""Python models with sequence_batching, wherever they run: controls, state, null requests, RESCHEDULE. Nothing sleeps."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import numpy as np
import pytest

from kernel import Code, Kernel, ServingError, Tensor
from kernel_python.api import memory

START, END = 1, 2
TEXT = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "S" data_type: TYPE_STRING dims: [ 1 ] } ]'
CONTROLS = """
control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } ] },
  { name: "END" control [ { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } ] },
  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } ] },
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] }
]
"""
STATE = 'state [ { input_name: "TOTAL" output_name: "TOTAL_NEXT" data_type: TYPE_FP32 dims: [ 1 ] } ]'
SEQUENCES = f"sequence_batching {{ direct {{ }} max_sequence_idle_microseconds: 3600000000 {CONTROLS} {STATE} }}"
ITERATIVE = f"sequence_batching {{ iterative_sequence: true {CONTROLS} }}"

#: Where a model may run, and whether its `execute` is async there.
PLACES = [
    ("loop", "def"),
    ("loop", "async def"),
    ("thread", "def"),
    ("thread", "async def"),
    ("process", "def"),
    ("process", "async def"),
]
places = pytest.mark.parametrize(("placement", "define"), PLACES, ids=[f"{place} {how}" for place, how in PLACES])

ADDING = """
class TritonPythonModel:
    DEFINE execute(self, requests):
        seen, responses = [], []
        for request in requests:
            values = {}
            for tensor in request.inputs():
                array = tensor.as_numpy()
                item = array.ravel()[0]
                values[tensor.name()] = item.decode() if isinstance(item, bytes) else item.item()
                if array.dtype == np.float32:
                    array[...] = 99  # it is the model's own
            seen.append(values)
            seen[-1]["flags"], seen[-1]["outputs"] = request.flags(), sorted(request.requested_output_names())
        for values in seen:
            total = np.array([[values["TOTAL"] + values["X"]]], np.float32)
            text = np.array([[json.dumps(seen)]], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("S", text), pb_utils.Tensor("TOTAL_NEXT", total)]))
        return responses
"""

COUNTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    DEFINE execute(self, requests):
        responses = []
        for request in requests:
            seen = self.seen.setdefault(request.request_id(), [])
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item()
            seen.append([request.flags(), start, x.item(), bool(request.correlation_id())])
            x[...] = 99  # the next execution sees what the client sent
            text = pb_utils.Tensor("S", np.array([[json.dumps(seen)]], dtype=object))
            if len(seen) < 3:
                if PARTIAL:
                    request.get_response_sender().send(pb_utils.InferenceResponse([text]))
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
            elif PARTIAL:
                sender = request.get_response_sender()
                sender.send(pb_utils.InferenceResponse([text]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                responses.append(pb_utils.InferenceResponse([text]))
        return None if PARTIAL else responses
"""


async def ask(kernel: Kernel, x: float, id: str = "", flags: int = 0, **fields: Any) -> Any:
    response = await kernel.infer("m", {"X": np.array([[x]], np.float32)}, correlation_id=id, flags=flags, **fields)
    assert [tensor.name for tensor in response.outputs] == ["S"]
    return json.loads(response["S"].item())


def code(text: str, define: str, partial: bool = False) -> str:
    return text.replace("DEFINE", define).replace("PARTIAL", str(partial))


@places
def test_state_comes_back_to_the_model(repo: Any, placement: str, define: str) -> None:
    """The reference's python backend does not feed it back; ours does, wherever the model runs."""
    repo.add("m", code(ADDING, define), io=TEXT, max_batch_size=2, parameters={"placement": placement}, extra=SEQUENCES)

    async def main(kernel: Kernel) -> None:
        first = await ask(kernel, 1, "a", START)
        assert first == [
            {"X": 1, "START": 1, "END": False, "READY": 1, "ID": "a", "TOTAL": 0, "flags": 1, "outputs": ["S"]}
        ]
        assert [seen["TOTAL"] for seen in await ask(kernel, 2, "a", outputs=["S"])] == [1]
        null, second = await ask(kernel, 10, "b", START)
        assert null == {
            "X": 0,
            "START": 0,
            "END": False,
            "READY": 0,
            "ID": "",
            "TOTAL": 0,
            "flags": 0,
            "outputs": null["outputs"],
        }
        assert (second["ID"], second["TOTAL"]) == ("b", 0)
        assert [seen["TOTAL"] for seen in await ask(kernel, 4, "a", END)] == [3]
        assert [seen["TOTAL"] for seen in await ask(kernel, 4, "b", END)][1] == 10
        with pytest.raises(ServingError, match="must specify the START flag"):
            await ask(kernel, 1, "a")
        (counted,) = kernel.statistics("m")
        assert (counted.inference_count, counted.fail.count) == (5, 0)

    repo.run(main)


@places
def test_a_sequence_that_had_to_wait_is_executed(repo: Any, placement: str, define: str) -> None:
    """Its batch knows what it waited for; that is one like all others to who executes it."""
    repo.add("m", code(ADDING, define), io=TEXT, max_batch_size=1, parameters={"placement": placement}, extra=SEQUENCES)

    async def main(kernel: Kernel) -> None:
        await ask(kernel, 1, "a", START)
        waits = asyncio.ensure_future(ask(kernel, 2, "b", START))
        await ask(kernel, 3, "a", END)
        async with asyncio.timeout(60):
            ((seen,), _) = await asyncio.gather(waits, ask(kernel, 4, "b", END))
        assert (seen["ID"], seen["TOTAL"]) == ("b", 0)

    repo.run(main)


@places
def test_a_request_is_executed_again_when_the_model_says_so(repo: Any, placement: str, define: str) -> None:
    repo.add(
        "m", code(COUNTING, define), io=TEXT, max_batch_size=2, parameters={"placement": placement}, extra=ITERATIVE
    )

    async def main(kernel: Kernel) -> None:
        answers = await asyncio.gather(*(ask(kernel, float(name), id=name) for name in ("1", "2", "3")))
        for name, seen in zip((1, 2, 3), answers):
            assert seen == [[1, 1, name, True], [0, 0, name, True], [0, 0, name, True]]
        (counted,) = kernel.statistics("m")
        assert (counted.inference_count, counted.success.count, counted.fail.count) == (9, 9, 0)

    async def ask(kernel: Kernel, x: float, id: str) -> Any:
        response = await kernel.infer("m", {"X": np.array([[x]], np.float32)}, id=id)
        return json.loads(response["S"].item())

    repo.run(main)


@places
def test_a_decoupled_model_sends_as_it_goes(repo: Any, placement: str, define: str) -> None:
    repo.add(
        "m",
        code(COUNTING, define, True),
        io=TEXT,
        max_batch_size=2,
        decoupled=True,
        parameters={"placement": placement},
        extra=ITERATIVE,
    )

    async def main(kernel: Kernel) -> None:
        async def stream(name: str) -> list[int]:
            inputs = {"X": np.array([[1.0]], np.float32)}
            return [len(json.loads(one["S"].item())) async for one in kernel.stream("m", inputs, id=name)]

        assert await asyncio.gather(stream("a"), stream("b"), stream("c")) == [[1, 2, 3]] * 3

    repo.run(main)


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_a_model_that_is_not_iterative_is_told(
    repo: Any, placement: str, decoupled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = """
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return None if DECOUPLED else [None for _ in requests]
    """.replace("DECOUPLED", str(decoupled))
    repo.add("m", model, io=TEXT, max_batch_size=2, decoupled=decoupled, parameters={"placement": placement})
    words = (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such "
        "a flag."
    )

    async def main(kernel: Kernel) -> None:
        with pytest.raises(ServingError) as caught:
            await kernel.infer("m", {"X": np.array([[1.0]], np.float32)})
        assert caught.value.code is Code.INTERNAL
        if decoupled:
            assert "was dropped without having sent the final flag" in caught.value.message
        else:
            assert words in caught.value.message

    with caplog.at_level(logging.ERROR):
        repo.run(main)
    assert not decoupled or words in caplog.text


def test_a_model_may_call_a_model_with_state_and_wait_for_it(repo: Any) -> None:
    """The answer goes by the loop, where the state is taken out of it, not from thread to thread."""
    repo.add("m", code(ADDING, "def"), io=TEXT, max_batch_size=1, parameters={"placement": "thread"}, extra=SEQUENCES)
    repo.add(
        "outer",
        """
        class TritonPythonModel:
            def execute(self, requests):
                totals = []
                for flags in (1, 0, 2):
                    call = pb_utils.InferenceRequest(
                        model_name="m", inputs=[pb_utils.Tensor("X", np.array([[2]], np.float32))],
                        requested_output_names=[], correlation_id="inner", flags=flags,
                    )
                    response = call.exec()
                    assert not response.has_error(), response.error().message()
                    (tensor,) = response.output_tensors()
                    totals.append(json.loads(tensor.as_numpy().item())[0]["TOTAL"])
                text = np.array([json.dumps(totals)], dtype=object)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("S", text)]) for _ in requests]
        """,
        io=TEXT,
        parameters={"placement": "thread"},
    )

    async def main(kernel: Kernel) -> None:
        response = await kernel.infer("outer", {"X": np.array([1.0], np.float32)})
        assert json.loads(response["S"].item()) == [0, 2, 4]

    repo.run(main)


def test_large_state_is_not_copied(repo: Any) -> None:
    """As it goes, the model has given it away; as it comes, only `as_numpy`, whose array is writable, takes a copy."""
    state = STATE.replace("dims: [ 1 ]", "dims: [ 5000 ]")
    repo.add(
        "m",
        """
        class TritonPythonModel:
            def execute(self, requests):
                (request,) = requests
                total = pb_utils.get_input_tensor_by_name(request, "TOTAL")
                text = np.array([[str(float(total.as_numpy()[0, -1]))]], dtype=object)
                return [pb_utils.InferenceResponse([
                    pb_utils.Tensor("S", text), pb_utils.Tensor("TOTAL_NEXT", total.as_numpy() + 1)
                ])]
        """,
        io=TEXT,
        max_batch_size=1,
        parameters={"placement": "loop"},
        extra=SEQUENCES.replace(STATE, state),
    )

    async def main(kernel: Kernel) -> None:
        memory.COPIES.reset()
        for turn in range(4):
            inputs = {"X": Tensor("X", "FP32", np.array([[1.0]], np.float32))}
            response = await kernel.infer("m", inputs, correlation_id="a", flags=(START, 0, 0, END)[turn])
            assert response["S"].item() == str(float(turn)).encode()
        assert (memory.COPIES.output, memory.COPIES.received) == (0, 4)

    repo.run(main)
