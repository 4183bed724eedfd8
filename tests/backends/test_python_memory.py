"""Memory is private, and nothing is copied that nobody else can see (design, section 4). COPIES tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import triton_python_backend_utils as pb_utils
from kernel import InferenceRequest, InferenceResponse, Kernel, Tensor
from kernel_python import COPIES
from kernel_python.api.received import Received
from kernel_python.api.responses import answers, small_answer
from kernel_python.calling import Instance

BIG = 1 << 18  # floats: 1 MiB
PLACEMENTS = ["thread", "loop"]


@pytest.fixture(autouse=True)
def fresh() -> None:
    COPIES.reset()


async def ask(kernel: Kernel, model: str, *makers: Any) -> list[InferenceResponse]:
    """Send one request for each array or maker of one, as a front end does: the request owns its array."""
    futures = []
    for make in makers:
        future = asyncio.get_running_loop().create_future()
        inputs = {"X": Tensor("X", "FP32", make() if callable(make) else make)}
        kernel.submit(InferenceRequest(model, inputs, lambda one, final, to=future: to.set_result(one)))
        futures.append(future)
        del inputs
    responses = await asyncio.wait_for(asyncio.gather(*futures), 5)
    for response in responses:
        assert response.error is None, response.error
    return responses


def from_a_socket() -> np.ndarray[Any, Any]:
    """An array as the HTTP front end makes it: a view of the buffer the body was read into."""
    buffer = bytearray(BIG * 4 + 16)
    array = np.frombuffer(buffer, np.float32, BIG, 16)
    array[:] = np.arange(BIG)
    return array


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_identity_copies_nothing(repo: Any, helpers: Any, placement: str, asynchronous: bool) -> None:
    code = helpers.ECHO.replace("def execute", "async def execute") if asynchronous else helpers.ECHO
    repo.add("a", code, parameters={"placement": placement})

    async def main(kernel: Kernel) -> None:
        for _ in range(3):
            addresses = []

            def make(addresses: list[int] = addresses) -> np.ndarray[Any, Any]:
                array = from_a_socket()
                addresses.append(array.ctypes.data)
                return array

            (response,) = await ask(kernel, "a", make)
            assert [response["Y"].ctypes.data] == addresses
            del response

    repo.run(main)
    assert (COPIES.large, COPIES.small, COPIES.passed) == (0, 0, 3)


def test_a_result_of_the_models_own_is_not_copied(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            out = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                y = (x * 2).reshape(2, -1)  # a view of an array that nobody else has
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
            return out
    """
    repo.add("a", code)
    (response,) = repo.run(lambda kernel: ask(kernel, "a", from_a_socket))
    assert response["Y"].shape == (2, BIG // 2)
    assert COPIES.large == 0


KEEPS = {
    "the array": "self.keep = y = x * 2; t = pb_utils.Tensor('Y', y); r = pb_utils.InferenceResponse([t])",
    "a view": "y = x * 2; self.keep = y[5:]; r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', y)])",
    "the base": "self.keep = x * 2; r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', self.keep[:])])",
    "a memoryview": "y = x * 2; self.keep = memoryview(y); r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', y)])",
    "foreign memory": "self.keep = bytearray(x.tobytes()); "
    "r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.frombuffer(self.keep, np.float32))])",
    "dlpack": "self.keep = x * 2; r = pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack('Y', self.keep)])",
    "the tensor": "self.keep = t = pb_utils.Tensor('Y', x * 2); r = pb_utils.InferenceResponse([t])",
    "the response": "self.keep = r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', x * 2)])",
    "the input": "self.keep = x; r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', x)])",
    "a view of the input": "self.keep = x[3:]; r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', x)])",
    "the request": "self.keep = requests[0]; r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', x)])",
    "the input tensor": "self.keep = requests[0].inputs()[0]; r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', x)])",
    "two outputs": "y = x * 2; r = pb_utils.InferenceResponse([pb_utils.Tensor('Y', y), pb_utils.Tensor('Y', y)])",
}


@pytest.mark.parametrize("kept", KEEPS)
def test_what_the_model_keeps_is_copied(repo: Any, kept: str) -> None:
    code = f"""
    class TritonPythonModel:
        def execute(self, requests):
            x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
            {KEEPS[kept]}
            return [r]
    """
    repo.add("a", code)
    repo.run(lambda kernel: ask(kernel, "a", from_a_socket))
    assert COPIES.output >= 1


def test_a_list_that_is_kept_is_copied(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.answer = [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(5000, np.float32))])]
        def execute(self, requests):
            return self.answer
    """
    repo.add("a", code)

    async def main(kernel: Kernel) -> list[float]:
        (first,) = await ask(kernel, "a", np.zeros(1, np.float32))
        first["Y"][:] = 7
        (second,) = await ask(kernel, "a", np.zeros(1, np.float32))
        return [float(first["Y"][0]), float(second["Y"][0])]

    assert repo.run(main) == [7, 0]


def test_a_reused_output_buffer_is_copied(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.buffer = np.zeros(5000, np.float32)
        def execute(self, requests):
            self.buffer += 1
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.buffer)]) for r in requests]
    """
    repo.add("a", code)

    async def main(kernel: Kernel) -> list[float]:
        answers = [(await ask(kernel, "a", np.zeros(1, np.float32)))[0] for _ in range(3)]
        return [float(answer["Y"][0]) for answer in answers]

    assert repo.run(main) == [1, 2, 3]
    assert COPIES.output == 3


@pytest.mark.parametrize("size", [4, 5000])
def test_two_requests_that_get_one_array_do_not_share_it(repo: Any, size: int) -> None:
    code = f"""
    class TritonPythonModel:
        def execute(self, requests):
            y = np.zeros(({1}, {size}), np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for r in requests]
    """
    extra = "dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 2 ] }"
    repo.add("a", code, max_batch_size=2, extra=extra)

    async def main(kernel: Kernel) -> list[float]:
        one, two = await ask(kernel, "a", np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32))
        one["Y"][:] = 7
        return [float(two["Y"][0, 0]), float(one["Y"][0, 0])]

    assert repo.run(main) == [0, 7]


def test_shared_input_memory_is_copied_before_the_model_writes(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
            x += 1
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
    """
    repo.add("a", code)
    mine = np.zeros(5000, np.float32)
    shared = mine.view()
    shared.flags.writeable = False
    (response,) = repo.run(lambda kernel: ask(kernel, "a", shared))
    assert response["Y"][0] == 1
    assert mine[0] == 0
    assert (COPIES.received, COPIES.output) == (1, 0)


def test_zero_copy_gives_read_only_views_and_copies_nothing(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.buffer = np.zeros(4, np.float32)
        def execute(self, requests):
            x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
            try:
                x[0] = 1
            except ValueError:
                self.buffer[0] = -1
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.buffer)])]
    """
    repo.add("a", code, parameters={"zero_copy": "true"})
    (response,) = repo.run(lambda kernel: ask(kernel, "a", from_a_socket))
    assert response["Y"].tolist() == [-1, 0, 0, 0]
    assert not response["Y"].flags.writeable
    assert (COPIES.large, COPIES.small) == (0, 0)


@pytest.mark.parametrize("size", [4, 5000])
@pytest.mark.parametrize("way", ["exec", "async", "iterate"])
def test_bls_caller_and_callee_see_nothing_of_each_other(repo: Any, way: str, size: int) -> None:
    callee = """
    class TritonPythonModel:
        def initialize(self, args):
            self.kept = []
        def execute(self, requests):
            out = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                y = x + 1
                self.kept.append((x, y))
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
                if len(self.kept) > 1:
                    seen = [float(self.kept[0][0][0]), float(self.kept[0][1][0])]
                    out[-1] = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(seen, np.float32))])
                x[:] = -5
            self.kept[0][0][:] = -6
            return out
    """
    calls = {
        "exec": ("def", "req.exec()"),
        "async": ("async def", "await req.async_exec()"),
        "iterate": ("def", "next(iter(req.exec(decoupled=True)))"),
    }
    define, call = calls[way]
    caller = f"""
    class TritonPythonModel:
        {define} execute(self, requests):
            x = np.full({size}, 3, np.float32)
            req = pb_utils.InferenceRequest(model_name="callee", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"])
            y = ({call}).output_tensors()[0].as_numpy()
            mine = [float(x[0]), float(y[0])]
            x[:] = 100
            y[:] = 200
            req = pb_utils.InferenceRequest(model_name="callee", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"])
            theirs = ({call}).output_tensors()[0].as_numpy()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([*mine, *theirs], np.float32))])]
    """
    repo.add("callee", callee)
    repo.add("caller", caller)
    (response,) = repo.run(lambda kernel: ask(kernel, "caller", np.zeros(1, np.float32)))
    # The caller's input is still 3; its result was 4. The callee's own are -6 and 4, whatever the caller wrote into its own.
    assert response["Y"].tolist() == [3, 4, -6, 4]


def test_a_bls_call_that_gives_its_input_away_copies_nothing(repo: Any, helpers: Any) -> None:
    caller = """
    class TritonPythonModel:
        def execute(self, requests):
            response = pb_utils.InferenceRequest(
                model_name="callee", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", np.ones(5000, np.float32))]
            ).exec()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", response.output_tensors()[0].as_numpy())])]
    """
    repo.add("callee", helpers.ECHO)
    repo.add("caller", caller)
    repo.run(lambda kernel: ask(kernel, "caller", np.zeros(1, np.float32)))
    assert (COPIES.called, COPIES.received, COPIES.small) == (0, 0, 0)
    assert COPIES.passed >= 2  # the last hop copies when the callee's thread has not let go of its request yet


@pytest.mark.parametrize("kept", [False, True])
def test_sent_responses(repo: Any, kept: bool) -> None:
    array = "self.keep" if kept else "np.zeros(5000, np.float32)"
    code = f"""
    class TritonPythonModel:
        def initialize(self, args):
            self.keep = np.zeros(5000, np.float32)
        def execute(self, requests):
            requests[0].get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", {array})]), flags=1)
            self.keep[:] = 9
    """
    repo.add("a", code)
    (response,) = repo.run(lambda kernel: ask(kernel, "a", np.zeros(1, np.float32)))
    assert response["Y"][0] == 0
    assert COPIES.sent == kept


def test_string_outputs_become_bytes_of_their_own(repo: Any) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.words = np.array(["ü", b"b", 3, None], dtype=object)
        def execute(self, requests):
            out = [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.words)]) for r in requests]
            return out
    """
    repo.add(
        "a",
        code,
        io='input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] '
        'output [ { name: "Y" data_type: TYPE_STRING dims: [ -1 ] } ]',
    )

    async def main(kernel: Kernel) -> list[Any]:
        (first,) = await ask(kernel, "a", np.zeros(1, np.float32))
        result = first["Y"].tolist()
        first["Y"][:] = b""
        (second,) = await ask(kernel, "a", np.zeros(1, np.float32))
        return [result, second["Y"].tolist()]

    words = ["ü".encode(), b"b", b"3", b"None"]
    assert repo.run(main) == [words, words]


SMALL_ANSWERS: dict[str, tuple[Callable[[], pb_utils.InferenceResponse], bool]] = {
    "two outputs": (lambda: response_with(X=3, Y=1024), True),
    "an empty array": (lambda: response_with(X=0), True),
    "no output": (lambda: pb_utils.InferenceResponse([]), True),
    "parameters": (lambda: pb_utils.InferenceResponse([tensor_of("X", 3)], parameters={"a": 1}), True),
    "a large output": (lambda: response_with(X=3, Y=1025), False),
    "an output that nobody wants": (lambda: response_with(X=3, Z=3), False),
    "an output that the config lacks": (lambda: response_with(other=3), False),
    "strings": (lambda: pb_utils.InferenceResponse([pb_utils.Tensor("X", np.array(["a"], object))]), False),
    "an error": (lambda: pb_utils.InferenceResponse([], pb_utils.TritonError("no")), False),
}


def tensor_of(name: str, count: int) -> pb_utils.Tensor:
    return pb_utils.Tensor(name, np.arange(count, dtype=np.float32))


def response_with(**counts: int) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([tensor_of(name, count) for name, count in counts.items()])


@pytest.mark.parametrize("kind", SMALL_ANSWERS)
def test_small_answers_go_out_as_all_do(kind: str) -> None:
    """They have a way of their own, which is to come to the same; it leaves to the other what it is not meant for."""
    make, is_small = SMALL_ANSWERS[kind]
    instance = Instance(None, "a", "a", "", "execute")
    instance.outputs = frozenset({"X", "Y", "Z"})
    request = InferenceRequest("a", {}, lambda response, final: None)
    request.wanted = frozenset({"X", "Y"})

    def told(response: InferenceResponse) -> tuple[Any, ...]:
        outputs = [(one.name, one.datatype, one.array.tolist(), one.array.base is None) for one in response.outputs]
        return outputs, response.error, response.parameters

    made = make()
    small = small_answer(Received(request, instance), [made])
    counted = COPIES.small
    assert (small is not None) == is_small
    if small is not None:
        COPIES.reset()
        (usual,) = answers(instance, [request], [make()])
        assert told(small) == told(usual)
        assert COPIES.small == counted
        assert not any(np.shares_memory(ours.array, theirs._array) for ours, theirs in zip(small.outputs, made._tensors))
