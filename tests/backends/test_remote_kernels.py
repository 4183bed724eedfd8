"""Remote models in virtual time: a kernel and its far ends, which may be kernels: who gets a request, and what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from network import Far, Line, Network, Request, run_network, serve
from virtual import TestBackend, answer

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, ServingError, Tensor
from kernel.frontends import trail
from kernel_grpc.http2.errors import ErrorCode
from kernel_grpc.http2.frames import goaway
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.answers import Answers, response_of
from kernel_remote.executor import RemoteModel
from kernel_remote.loads import Loads
from kernel_remote.messages import trace_fields

TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
IDEMPOTENT = 'parameters { key: "idempotent" value { string_value: "true" } }'
X = {"X": np.arange(3, dtype=np.float32)}


@pytest.fixture(autouse=True)
def loaded_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load waits for the far end on a thread of its own, of which there are none in virtual time."""
    monkeypatch.setattr(Loads, "_ask", lambda *_: SimpleNamespace(ready=True))


@contextlib.asynccontextmanager
async def near(folder: Path, hosts: str = "a,b", more: str = "") -> AsyncIterator[Kernel]:
    """A kernel with the model `m`, which is executed at `hosts`."""
    (folder / "near/m/1").mkdir(parents=True)
    endpoints = ",".join(f"{host}:8001" for host in hosts.split(","))
    text = f'backend: "remote" {TENSORS} {more} parameters {{ key: "endpoints" value {{ string_value: "{endpoints}" }} }}'
    (folder / "near/m/config.pbtxt").write_text(text)
    async with Kernel(folder / "near", drain_seconds=1.0) as kernel:
        yield kernel


@contextlib.asynccontextmanager
async def far_kernel(
    network: Network, folder: Path, host: str, behaviour: Callable[[Batch], Any], more: str = ""
) -> AsyncIterator[Line]:
    """A kernel that executes `m` at `host`."""
    (folder / host / "m/1").mkdir(parents=True)
    (folder / host / "m/config.pbtxt").write_text(f'backend: "test" {TENSORS} {more}')
    async with Kernel(folder / host, plugins=[TestBackend({"m": behaviour})], drain_seconds=1.0) as kernel:
        line, server = serve(network, kernel, host)
        yield line
        server.abort()


def answered(request: Request, **parameters: bool) -> bytes:
    """Return the message that answers a call with what it has brought."""
    asked = pb.ModelInferRequest.FromString(bytes(request.body[5:]))
    message = pb.ModelInferResponse(model_name="m", raw_output_contents=asked.raw_input_contents)
    message.outputs.add(name="Y", datatype="FP32", shape=asked.inputs[0].shape)
    for name, value in parameters.items():
        message.parameters[name].bool_param = value
    return message.SerializeToString()


def echo(request: Request) -> None:
    request.answer(answered(request))


def echo_twice(request: Request) -> None:
    """Answer a call of a decoupled model: two responses, and then that there are no more."""
    response = pb.ModelInferResponse.FromString(answered(request, triton_final_response=False))
    last = pb.ModelInferResponse(model_name="m")
    last.parameters["triton_final_response"].bool_param = True
    messages = [pb.ModelStreamInferResponse(infer_response=one).SerializeToString() for one in (response, response, last)]
    request.say(messages[0])
    asyncio.get_running_loop().call_later(0.01, lambda: request.done or request.answer(*messages[1:]))


async def streamed(kernel: Kernel, timeout: float) -> str:
    """Return "ok", or the error's words, of a request to a decoupled model."""
    count = 0
    try:
        async for response in kernel.stream("m", X, timeout=timeout):
            assert response["Y"].tolist() == [0, 1, 2]
            count += 1
    except ServingError as error:
        return error.message
    assert count == 2
    return "ok"


async def outcome(asked: Any) -> str:
    """Return "ok", or the error's words."""
    try:
        response = await asked
    except ServingError as error:
        return error.message
    assert response["Y"].tolist() == [0, 1, 2]
    return "ok"


# --- messages


def message_of(value: float, name: str = "Y", id: str = "", datatype: str = "FP32", raw: bytes = b"") -> bytes:
    message = pb.ModelInferResponse(model_name="m", id=id)
    for each in (name, "Z"):
        message.outputs.add(name=each, datatype=datatype, shape=[2])
        message.raw_output_contents.append(raw or np.full(2, value, np.float32).tobytes())
    return message.SerializeToString()


def test_messages_that_come_again_but_for_the_data_say_what_the_schema_says() -> None:
    answers = Answers("m")
    first = answers.read(message_of(1.0), "far")
    assert first["Y"].tolist() == [1, 1]
    first["Y"][:] = 7  # whoever gets it may write to it
    for message in (
        message_of(2.0),
        message_of(3.0, name="X"),  # as long as the one before, and another output
        message_of(4.0),
        message_of(5.0, id="1"),
        message_of(6.0, datatype="INT8", raw=b"ab"),
        message_of(6.0, datatype="INT8", raw=b"cd"),
        message_of(0, datatype="BYTES", raw=b"\1\0\0\0a\1\0\0\0b"),
        message_of(0, datatype="BYTES", raw=b"\0\0\0\0\2\0\0\0b?"),
        message_of(7.0),
    ):
        known, _ = response_of(pb.ModelInferResponse.FromString(message), "far")
        for response in (answers.read(message, "far"), answers.read(message, "far")):
            said = [(one.name, one.datatype, one.array.tolist()) for one in response.outputs]
            assert said == [(one.name, one.datatype, one.array.tolist()) for one in known.outputs]
    with pytest.raises(ServingError, match="endpoint far answers with output 'Y' of INT8"):
        answers.read(message_of(6.0, datatype="INT8", raw=b"abc"), "far")


# --- what is sent again

GONE = "has closed the connection"

#: What the first far end does -> words of the outcome, and those for a model that may be executed twice.
FIRST: dict[str, tuple[Callable[[Request], None], str, str]] = {
    "refuses the stream": (lambda one: one.refuse(), "ok", "ok"),
    "goes away before it": (lambda one: one.far.send(goaway(0, ErrorCode.NO_ERROR)), "ok", "ok"),
    "goes away behind it": (lambda one: (one.far.send(goaway(one.id, ErrorCode.NO_ERROR)), echo(one)), "ok", "ok"),  # type: ignore[func-returns-value]
    "resets the stream": (lambda one: one.refuse(ErrorCode.INTERNAL_ERROR), "has reset the stream (INTERNAL_ERROR)", "ok"),
    "closes": (lambda one: one.far.transport.close(), GONE, "ok"),
    "is unavailable": (lambda one: one.answer(status=14, text="busy"), "endpoint {}: busy", "ok"),
    "fails": (lambda one: one.answer(status=13, text="broken"), "endpoint {}: broken", "endpoint {}: broken"),
    "has no answer": (lambda one: one.answer(), *["ends a request without its answer"] * 2),
    "answers twice": (lambda one: one.answer(answered(one), answered(one)), *["answers one request twice"] * 2),
    "answers for another": (lambda one: one.answer(b"\x0a\1x"), *["answers for model 'x', where 'm' was asked"] * 2),
    "answers nonsense": (lambda one: one.answer(b"\xff"), *["with what is no message"] * 2),
}


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("what", FIRST)
def test_what_is_sent_again(tmp_path: Path, what: str, idempotent: bool) -> None:
    act, *words = FIRST[what]

    async def main(network: Network) -> None:
        came: list[Request] = []

        def first_then_echo(request: Request) -> None:
            came.append(request)
            if len(came) == 1:
                act(request)
            else:
                echo(request)

        for host in "ab":
            network.listen(host, Far(first_then_echo))
        async with near(tmp_path, more=IDEMPOTENT * idempotent) as kernel:
            said = await outcome(kernel.infer("m", X))
            where = came[0].fields[b":authority"].decode()
            assert words[idempotent].format(where) in said
            again = (words[idempotent] == "ok") and "behind" not in what
            assert len(came) == 1 + again and (not again or came[1].far.owner is not came[0].far.owner)

    run_network(main)


def test_a_request_that_is_cancelled_as_another_one_of_its_batch_is_refused_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail_field = RemoteModel.trail_field

    def refusing(model: RemoteModel, request: InferenceRequest) -> bytes:
        if request.id == "first":
            raise ServingError(Code.INVALID_ARG, "too many wait for it")
        return trail_field(model, request)

    monkeypatch.setattr(RemoteModel, "trail_field", refusing)

    async def main(network: Network) -> None:
        far = Far(echo_twice)
        network.listen("a", far)
        batching = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 } "
        async with near(tmp_path, "a", batching + DECOUPLED) as kernel:
            ends: list[str] = []

            def request(id: str, respond: Callable[[Any, bool], None]) -> InferenceRequest:
                return InferenceRequest("m", {"X": Tensor("X", "FP32", np.zeros((1, 3), np.float32))}, respond, "", id)

            def refused(response: InferenceResponse, final: bool) -> None:
                ends.append("first")
                kernel.cancel(second)

            second = request("second", lambda response, final: ends.append("second"))
            kernel.submit(request("first", refused))
            kernel.submit(second)
            await asyncio.sleep(1)
            assert ends == ["first", "second"] and not far.requests

    run_network(main)


def test_who_cannot_be_reached_costs_nothing(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        good = Far(echo)
        network.listen("a", good)
        async with near(tmp_path) as kernel:
            assert [await outcome(kernel.infer("m", X)) for _ in range(100)] == ["ok"] * 100
            network.listen("b", Far(echo))
            await asyncio.sleep(30)
            for _ in range(100):
                await kernel.infer("m", X)
                await asyncio.sleep(0.1)
            assert len(good.requests) < 170, "who comes back gets its part"

    run_network(main)


def test_where_nobody_can_be_reached_the_reason_is_told(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        async with near(tmp_path) as kernel:
            assert await outcome(kernel.infer("m", X)) in [
                f"endpoint {host}:8001 can't be connected to (Connection refused)" for host in "ab"
            ]

    run_network(main)


def test_a_response_that_has_come_is_not_asked_for_again(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        def one_and_close(request: Request) -> None:
            message = pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse.FromString(answered(request)))
            request.say(message.SerializeToString())
            request.far.transport.close()

        fars = [Far(one_and_close), Far(one_and_close)]
        for host, far in zip("ab", fars):
            network.listen(host, far)
        async with near(tmp_path, more=DECOUPLED + IDEMPOTENT) as kernel:
            got = []
            with pytest.raises(ServingError, match=GONE):
                async for response in kernel.stream("m", X):
                    got.append(response["Y"].tolist())
            assert got == [[0, 1, 2]] and sum(len(far.requests) for far in fars) == 1

    run_network(main)


# --- time


def test_deadlines_are_kept_whatever_the_line_does_and_the_far_end_learns_of_it(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        far = Far()
        line = network.listen("a", far)
        async with near(tmp_path, "a") as kernel:
            begun = network.time()
            asked = asyncio.ensure_future(kernel.infer("m", X, timeout=3.0))
            await asyncio.sleep(1)
            line.cut()
            assert "deadline of the request to model 'm' passed after 3.0" in await outcome(asked)
            assert network.time() - begun < 3.005
            line.mend()
            await asyncio.sleep(0.1)
            assert far.requests[0].code == ErrorCode.CANCEL
            assert 2_997_990 < int(far.requests[0].fields[b"grpc-timeout"].rstrip(b"u")) <= 2_998_000

    run_network(main)


def test_a_cut_line_sends_requests_elsewhere_within_a_second_and_is_used_again_soon(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        fars = {"a": Far(echo), "b": Far(echo)}
        lines = {host: network.listen(host, far) for host, far in fars.items()}
        async with near(tmp_path) as kernel:
            asked: list[tuple[float, asyncio.Future[str]]] = []

            async def traffic(seconds: float) -> None:
                for _ in range(int(seconds * 100)):
                    asked.append((network.time(), asyncio.ensure_future(outcome(kernel.infer("m", X)))))
                    await asyncio.sleep(0.01)

            await traffic(2)
            begun = network.time()
            lines["a"].cut()
            await traffic(8)
            late = [time - begun for time, one in asked if not one.done()]
            assert late and max(late) < 1.02
            lines["a"].mend()
            before = len(fars["a"].requests)
            await traffic(2)
            assert len(fars["a"].requests) > before + len(late)
            assert {await one for _, one in asked} == {"ok"}

    run_network(main)


def test_the_end_of_a_model_ends_what_it_has_sent(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        far = Far()
        network.listen("a", far)
        async with near(tmp_path, "a") as kernel:
            asked = asyncio.ensure_future(outcome(kernel.infer("m", X)))
            await asyncio.sleep(0.1)
        assert await asked == "Server is stopping, request to model 'm' was given up"
        await asyncio.sleep(0.1)
        assert far.requests[0].code is not None

    run_network(main)


def test_a_trace_goes_on_at_the_far_end(tmp_path: Path) -> None:
    assert trace_fields(None) == trace_fields("") == b""

    async def main(network: Network) -> None:
        far = Far(echo)
        network.listen("a", far)
        async with near(tmp_path, "a") as kernel:
            request = InferenceRequest("m", {"X": Tensor("X", "FP32", X["X"])}, lambda response, final: None)
            request.trace = SimpleNamespace(context='{"traceparent":"00-0af7-b7ad-01","other":"x"}')  # type: ignore[assignment]
            model = next(iter(kernel.model("m").scheduler.instances)).executor
            batch = Batch([request], 1)
            batch.instance = SimpleNamespace(finished=lambda *_: None)
            model.execute(batch)
            await asyncio.sleep(1)
            assert far.requests[0].fields[b"traceparent"] == b"00-0af7-b7ad-01"
            assert b"other" not in far.requests[0].fields

    run_network(main)


def test_the_log_tells_who_is_left_out_and_who_is_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kernel_remote")

    async def main(network: Network) -> None:
        async with near(tmp_path, "a") as kernel:
            for _ in range(2):
                await outcome(kernel.infer("m", X))
                await asyncio.sleep(0.5)
            line = network.listen("a", Far(echo))
            await asyncio.sleep(10)
            assert await outcome(kernel.infer("m", X)) == "ok"
            line.cut()
            asked = asyncio.ensure_future(outcome(kernel.infer("m", X)))
            await asyncio.sleep(5)
            line.mend()
            assert await asked == "ok"

    run_network(main)
    told = [record.message for record in caplog.records if record.name == "kernel_remote"]
    assert told == [
        "endpoint a:8001 can't be connected to (Connection refused)",
        "endpoint a:8001 is left out for 0.5 s: endpoint a:8001 can't be connected to (Connection refused)",
        "endpoint a:8001 is connected to again",
        "endpoint a:8001 has not answered a PING: requests go elsewhere as long as it doesn't",
        "endpoint a:8001 answers again",
    ]


def test_nothing_of_a_request_waits_for_the_garbage_collector(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        network.listen("a", Far(lambda one: one.answer(status=13) if one.id % 4 == 1 else echo(one)))
        async with near(tmp_path, "a") as kernel:
            await outcome(kernel.infer("m", X))
            gc.collect()
            gc.disable()
            try:
                for _ in range(10):
                    await outcome(kernel.infer("m", X))
                asked = kernel.infer("m", X)
                asked.cancel()
                await asyncio.sleep(1)
                kinds = ("_Delivery", "_Unary", "_Streamed", "_Execution")
                left = [type(one).__name__ for one in gc.get_objects() if str(type(one).__module__).startswith("kernel_remote")]
                assert not [name for name in left if name in kinds]
            finally:
                gc.enable()

    run_network(main)


# --- sequences


def summing(executed: list[tuple[str, Any, float]], host: str) -> Callable[[Batch], Any]:
    """A model that adds up what comes on a sequence, and answers the sum."""
    sums: dict[Any, float] = {}

    def execute(batch: Batch) -> Any:
        answers = []
        for request in batch.requests:
            if request.flags & 1:
                sums[request.correlation_id] = 0.0
            sums[request.correlation_id] += float(request.inputs["X"].array[0])
            executed.append((host, request.correlation_id, sums[request.correlation_id]))
            answers.append(answer(request, Y=[sums[request.correlation_id]]))
        return answers

    return execute


SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 100 } }"


def step(kernel: Kernel, id: int, value: int, start: bool = False, end: bool = False) -> asyncio.Future[str]:
    """Send one request of a sequence; return what comes of it: the sum, or the error's words."""
    done: asyncio.Future[str] = kernel.loop.create_future()

    def respond(response: InferenceResponse | None, final: bool) -> None:
        assert response is not None and final
        done.set_result(str(float(response["Y"][0])) if response.error is None else response.error.message)

    x = {"X": Tensor("X", "FP32", np.full(1, value, np.float32))}
    kernel.submit(InferenceRequest("m", x, respond, correlation_id=id, flags=start + 2 * end))
    return done


def test_sequences_have_their_endpoints_and_their_order(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        executed: list[tuple[str, Any, float]] = []
        async with contextlib.AsyncExitStack() as stack:
            for host in "abcd":
                await stack.enter_async_context(far_kernel(network, tmp_path, host, summing(executed, host), SEQUENCES))
            kernel = await stack.enter_async_context(near(tmp_path, "a,b,c,d"))
            asked = {
                id: [step(kernel, id, number, number == 1, number == 9) for number in range(1, 10)] for id in range(1, 41)
            }  # all at once: nobody waits for the answer before
            for answers in asked.values():
                assert [await one for one in answers] == [str(n * (n + 1) / 2) for n in range(1, 10)]
            hosts = {id: {host for host, other, _ in executed if other == id} for id in asked}
            assert all(len(found) == 1 for found in hosts.values())
            assert set(Counter(next(iter(found)) for found in hosts.values())) == set("abcd")

    run_network(main)


def test_a_sequence_whose_endpoint_dies_is_right_or_refused(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        executed: list[tuple[str, Any, float]] = []
        async with contextlib.AsyncExitStack() as stack:
            lines = {}
            for host in "ab":
                lines[host] = await stack.enter_async_context(
                    far_kernel(network, tmp_path, host, summing(executed, host), SEQUENCES)
                )
            kernel = await stack.enter_async_context(near(tmp_path))
            for id in range(1, 21):
                assert await step(kernel, id, 1, start=True) == "1.0"
            owners = {id: host for host, id, _ in executed}
            assert set(owners.values()) == {"a", "b"}
            lines["a"].refuses = True
            for end in lines["a"].connections:
                end.close()
            await asyncio.sleep(0.01)
            for id in range(1, 21):
                said = await step(kernel, id, 2)
                assert said == "3.0" if owners[id] == "b" else "endpoint a:8001" in said, said
            for id in range(101, 121):  # new ones begin where somebody is
                assert await step(kernel, id, 1, start=True) == "1.0"
                assert await step(kernel, id, 2) == "3.0"
            lines["a"].refuses = False
            await asyncio.sleep(20)
            for id in range(101, 121):
                assert await step(kernel, id, 3, end=True) == "6.0", "it stays where it began"
            for id in range(1, 21):
                said = await step(kernel, id, 3, end=True)
                assert said == "6.0" or "must specify the START flag" in said or owners[id] == "a", said

    run_network(main)


def test_a_batch_of_ours_is_several_requests_there(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        far = Far(lambda one: one.refuse(ErrorCode.INTERNAL_ERROR) if one.id == 3 else echo(one))
        network.listen("a", far)
        more = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000000 preferred_batch_size: 4 }"
        async with near(tmp_path, "a", more) as kernel:
            x = {"X": np.arange(3, dtype=np.float32).reshape(1, 3)}
            asked = [asyncio.ensure_future(kernel.infer("m", x)) for _ in range(4)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [isinstance(one, ServingError) for one in found] == [False, True, False, False]
            assert len(far.requests) == 4

    run_network(main)


# --- circles through other servers


def ensemble_of(model: str) -> str:
    """The config of an ensemble with one step."""
    maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
    step = f'{{ model_name: "{model}" model_version: -1 {maps} }}'
    return f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ step [ {step} ] }}'


def remote_at(host: str, model: str) -> str:
    values = {"endpoints": f"{host}:8001", "remote_model": model}
    return f'backend: "remote" {TENSORS}' + "".join(
        f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )


@contextlib.asynccontextmanager
async def served(network: Network, folder: Path, host: str, configs: dict[str, str]) -> AsyncIterator[Kernel]:
    """A kernel with these models, at `host`; `test` answers what it is asked."""
    for name, config in configs.items():
        (folder / host / name / "1").mkdir(parents=True)
        (folder / host / name / "config.pbtxt").write_text(config)
    backend = TestBackend({"test": lambda batch: [answer(request) for request in batch.requests]})
    async with Kernel(folder / host, plugins=[backend], drain_seconds=1.0) as kernel:
        _, server = serve(network, kernel, host)
        yield kernel
        server.abort()


async def last_words(kernel: Kernel, model: str) -> str:
    """Return the words of the error that a request ends with."""
    with pytest.raises(ServingError) as caught:
        async for _ in kernel.stream(model, X, timeout=20):
            pass
    return caught.value.message


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_circle_through_another_server_is_refused_with_its_models(tmp_path: Path, decoupled: bool) -> None:
    more = DECOUPLED * decoupled

    async def main(network: Network) -> None:
        there = {"m": ensemble_of("back"), "back": remote_at("a", "e") + more}
        here = {"e": ensemble_of("on"), "on": remote_at("b", "m") + more}
        async with served(network, tmp_path, "b", there) as far, served(network, tmp_path, "a", here) as kernel:
            said = await last_words(kernel, "e")
            words = "request to model 'e', which waits for it, through other servers: "
            assert said.endswith(words + "'e' -> 'on' -> 'm' -> 'back' -> 'e'"), said
            said = await last_words(far, "back")  # it is called by a model of its own server
            words = "request to model 'back', which waits for it, through other servers: "
            assert said.endswith(words + "'back' -> 'e' -> 'on' -> 'm' -> 'back'"), said

    run_network(main)


def test_who_calls_back_another_model_than_those_that_wait_is_answered(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        there = {"m": ensemble_of("back"), "back": remote_at("a", "test")}
        here = {"e": ensemble_of("on"), "on": remote_at("b", "m"), "test": f'backend: "test" {TENSORS}'}
        async with served(network, tmp_path, "b", there), served(network, tmp_path, "a", here) as kernel:
            assert [await outcome(kernel.infer("e", X)) for _ in range(3)] == ["ok"] * 3

    run_network(main)


def test_a_request_has_no_longer_trail_than_it_may(tmp_path: Path) -> None:
    """Where each server is another one, no model comes twice."""

    async def main(network: Network) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(trail.LONGEST, -1, -1):
                models = {"m": remote_at(f"h{number + 1}", "m")}
                kernel = await stack.enter_async_context(served(network, tmp_path, f"h{number}", models))
            said = await outcome(kernel.infer("m", X))
            words = f"{trail.LONGEST + 1} models, on this and other servers, would wait for it; {trail.LONGEST} may"
            assert said.endswith(words), said

    run_network(main)


# --- all of it at once


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_each_request_has_one_answer_in_time_whatever_happens(tmp_path: Path, seed: int, decoupled: bool) -> None:
    """Far ends that do anything, and lines that are cut: answers come once, within the deadline, and nothing is left behind."""
    rng = random.Random(seed)
    random.seed(seed)  # endpoints are drawn

    def act(request: Request) -> None:
        """Do something with a call, now or a little later."""
        later = asyncio.get_running_loop().call_later
        wait = rng.choice((0.0, 0.0, 0.01, 0.3))
        what = rng.random()
        if what < 0.8:
            later(wait, lambda: request.done or (echo_twice if decoupled else echo)(request))
        elif what < 0.85:
            later(wait, lambda: request.done or request.refuse(rng.choice((ErrorCode.REFUSED_STREAM, ErrorCode.INTERNAL_ERROR))))
        elif what < 0.9:
            later(wait, lambda: request.done or request.answer(status=rng.choice((3, 8, 13, 14)), text="so it is"))
        elif what < 0.92:
            later(wait, lambda: request.far.transport.close())
        elif what < 0.94:
            later(wait, lambda: request.far.send(goaway(max(0, request.id - rng.choice((0, 2, 4))), ErrorCode.NO_ERROR)))

    async def disturb(line: Line) -> None:
        while True:
            await asyncio.sleep(rng.choice((0.5, 2.0)))
            line.cut()
            line.refuses = rng.random() < 0.5
            await asyncio.sleep(rng.choice((0.1, 1.5, 6.0)))
            line.refuses = False
            line.mend()

    async def main(network: Network) -> None:
        lines = [network.listen(host, Far(act, most=rng.choice((3, 100)))) for host in "abc"]
        disturbing = [asyncio.create_task(disturb(line)) for line in lines]
        more = rng.choice(("", IDEMPOTENT)) + DECOUPLED * decoupled
        async with near(tmp_path, "a,b,c", more) as kernel:
            ends: list[tuple[float, float, str]] = []

            async def ask() -> None:
                limit = rng.choice((0.2, 3.0, 20.0))
                begun = network.time()
                said_of = streamed(kernel, limit) if decoupled else outcome(kernel.infer("m", X, timeout=limit))
                asked = asyncio.ensure_future(said_of)
                if rng.random() < 0.05:
                    network.call_later(rng.random(), asked.cancel)
                try:
                    said = await asked
                except asyncio.CancelledError:
                    said = "cancelled"
                ends.append((network.time() - begun, limit, said))

            asking = []
            for _ in range(300):
                asking.append(asyncio.create_task(ask()))
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.02, 0.1)))
            await asyncio.gather(*asking)
            assert len(ends) == 300
            assert all(took <= limit + 0.005 for took, limit, _ in ends), max(took - limit for took, limit, _ in ends)
            known = ("ok", "cancelled", "endpoint ", "[request id: ")
            assert all(said.startswith(known) for _, _, said in ends), {said for _, _, said in ends}
            assert sum(said == "ok" for _, _, said in ends) > 40
            for one in disturbing:
                one.cancel()
            for line in lines:
                line.mend()
            await asyncio.sleep(30)
            model = next(iter(kernel.model("m").scheduler.instances)).executor
            assert not model._executions and [one.outstanding for one in model.standings] == [0, 0, 0]
            assert await (streamed(kernel, 20) if decoupled else outcome(kernel.infer("m", X, timeout=20))) != "", "it goes on"

    run_network(main)
