"""Clients with much to send and a modest one, on a real kernel in virtual time: nobody waits behind hundreds of one other's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from frontends.callers import Caller, message
from frontends.fakes import Client, infer, parse, tensor
from frontends.fakes_grpc import Service, Streaming, floats, memory, request
from frontends.wires import data, settings, window_update
from virtual import BASE, TestBackend, answer, run, sleeping, write_repository

from kernel import ANSWER_BYTES_AHEAD, ANSWERS_AT_ONCE, Batch, InferenceResponse, Kernel, Tensor, made_at_once
from kernel_grpc.inference.infer import Inference
from kernel_grpc.inference.limited import is_limited
from kernel_grpc.inference.shares import AT_ONCE, PATIENCE, Share
from kernel_grpc.rpc.calls import open_call
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.rpc.server import Server
from kernel_grpc.services.methods import inference_methods
from kernel_http.connection.protocol import Connection
from kernel_http.connection.turns import FREE_BYTES, MOST_SECONDS, SERVING_SECONDS, Receiving
from kernel_http.frontend import MAX_INPUT_SIZE, make_server

GREEDY, EACH, SECONDS = 31, 64, 0.015
#: How long a modest client waits at most: behind four of each, and what keeps the instance busy. It was behind all: 30 s.
WAIT = (GREEDY * 4 + 16) * SECONDS


def serving(folder: Path, text: str = BASE, **options: Any) -> Kernel:
    options = {"control_mode": "explicit", "load_models": ["*"]} | options
    return Kernel(write_repository(folder, {"m": text}), plugins=[TestBackend({"m": sleeping(SECONDS)})], **options)


class HttpClient:
    """One connection. `answered`: how many of its requests."""

    def __init__(self, server: Any) -> None:
        self._client = Client(server.kernel, server=server)
        self._answered = 0

    @staticmethod
    def server(kernel: Kernel) -> Any:
        return make_server(kernel, max_input_size=MAX_INPUT_SIZE)

    def ask(self, count: int = 1) -> None:
        self._client.send(infer("m", {"inputs": [tensor("X", "FP32", [1], [1.0])]}) * count)

    @property
    def answered(self) -> int:
        answers = parse(self._client.take())
        assert all(one.status == 200 for one in answers)
        self._answered += len(answers)
        return self._answered

    def leave(self) -> None:
        self._client.lose()


class GrpcClient:
    """The same over gRPC, with unary calls."""

    def __init__(self, server: Any) -> None:
        self._caller = Caller(like=SimpleNamespace(kernel=server.kernel, service=None, server=server))  # type: ignore[arg-type]
        self._answered = 0

    @staticmethod
    def server(kernel: Kernel) -> Any:
        return Server(kernel, inference_methods(kernel), open_call)  # type: ignore[arg-type]

    def ask(self, count: int = 1, name: str = "m", *, stream: bool = False) -> None:
        """`stream`: by as many streams, not by unary calls."""
        payload = message(request(name, ("X", "FP32", [1]), raw=[floats(5)]).SerializeToString())
        for _ in range(count):
            method = "ModelStreamInfer" if stream else "ModelInfer"
            id = self._caller.begin(**{":path": f"/inference.GRPCInferenceService/{method}"})
            self._caller.send(data(id, payload, end=True))

    @property
    def answered(self) -> int:
        self._caller.read()
        answers = self._caller.answers
        for id in [id for id, one in answers.items() if one.ended]:
            assert answers.pop(id).status == 0
            self._answered += 1
        return self._answered

    def cancel(self, number: int) -> None:
        self._caller.cancel(2 * number + 1)

    def leave(self) -> None:
        self._caller.peer.connection_lost(None)


WIRES = [HttpClient, GrpcClient]


def crowd(wire: Any, server: Any, count: int) -> list[Any]:
    """Return so many clients, each of which has asked for EACH answers at once."""
    clients = [wire(server) for _ in range(count)]
    for client in clients:
        client.ask(EACH)
    return clients


async def answered(clients: list[Any], count: int, seconds: float = 60.0) -> float:
    """Wait until so many are answered together; return how long that took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while sum(one.answered for one in clients) < count:
        assert loop.time() < begin + seconds, sum(one.answered for one in clients)
        await asyncio.sleep(SECONDS / 3)
    return loop.time() - begin


@pytest.mark.parametrize("wire", WIRES)
def test_a_modest_client_waits_behind_a_few_of_each(tmp_path: Path, wire: Any) -> None:
    """And the instance is busy all the while: what is not begun yet costs nothing."""

    async def main() -> None:
        async with serving(tmp_path) as kernel:
            server = wire.server(kernel)
            greedy, modest = crowd(wire, server, GREEDY), wire(server)
            await asyncio.sleep(0)
            begin = kernel.loop.time()
            for count in range(1, 6):
                modest.ask()
                assert await answered([modest], count) <= WAIT
            await answered([*greedy, modest], GREEDY * EACH + 5)
            assert kernel.loop.time() - begin <= (GREEDY * EACH + 6) * SECONDS
            shares = kernel.statistics("m")[0]
            assert shares.success.count == GREEDY * EACH + 5

    run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_the_greedy_have_turns(tmp_path: Path, wire: Any) -> None:
    """At no time has one had much more than another."""

    async def main() -> None:
        async with serving(tmp_path) as kernel:
            server = wire.server(kernel)
            greedy = crowd(wire, server, 8)
            for _ in range(15):
                await asyncio.sleep(20 * SECONDS)
                counts = [one.answered for one in greedy[1:]]  # the first was there before there was a crowd
                assert max(counts) - min(counts) <= 5, counts
            await answered(greedy, 8 * EACH)

    run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_one_client_alone_may_have_all_in_flight(tmp_path: Path, wire: Any) -> None:
    """Where instances and batches can take as much, the config says that answers are small, and the first ones have shown it."""
    text = BASE.replace("count: 1", "count: 64")
    text = text.replace('"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"Y" data_type: TYPE_FP32 dims: [ 1 ]')

    async def main() -> None:
        async with serving(tmp_path, text) as kernel:
            client = wire(wire.server(kernel))
            client.ask(4)
            await answered([client], 4)
            client.ask(EACH)
            await asyncio.sleep(0)
            assert kernel.model("m").scheduler.in_flight == EACH
            assert await answered([client], EACH + 4) <= 2 * SECONDS

    run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_clients_that_leave_are_passed_over(tmp_path: Path, wire: Any) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            server = wire.server(kernel)
            greedy = crowd(wire, server, 6)
            await asyncio.sleep(3 * SECONDS)
            for one in greedy[:5]:
                one.leave()
            assert await answered(greedy[5:], EACH) <= (EACH + 4) * SECONDS
            await asyncio.sleep(1)
            assert kernel.model("m").scheduler.in_flight == 0
            assert kernel.model("m").scheduler.life.on_release == ()

    run(main())


def test_a_call_that_is_cancelled_before_its_turn_is_never_executed(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            server = GrpcClient.server(kernel)
            client, other = GrpcClient(server), GrpcClient(server)
            client.ask(EACH)
            other.ask(EACH)
            for number in range(20, EACH):
                client.cancel(number)
            await answered([client, other], 20 + EACH)
            await asyncio.sleep(1)
            assert kernel.statistics("m")[0].success.count == 20 + EACH

    run(main())


def test_calls_that_wait_for_their_turn_wait_also_for_their_client_to_read(tmp_path: Path) -> None:
    """No more are executed than were begun already, until it reads; none is lost."""

    async def main() -> None:
        async with serving(tmp_path) as kernel:
            server = Server(kernel, inference_methods(kernel), open_call, limits=Limits(queue=100))  # type: ignore[arg-type]
            client = GrpcClient(server)
            client._caller.send(settings((4, 0)))
            client.ask(EACH)
            await asyncio.sleep(EACH * SECONDS)
            assert client.answered == 0 and 1 < kernel.statistics("m")[0].success.count <= 16
            client._caller.send(settings((4, 65535)))
            assert await answered([client], EACH) <= EACH * SECONDS
            client._caller.send(settings((4, 0)))
            client.ask(EACH)
            await asyncio.sleep(EACH * SECONDS)
            client.leave()
            await asyncio.sleep(EACH * SECONDS)
            assert kernel.statistics("m")[0].success.count <= EACH + 16
            assert kernel.model("m").scheduler.life.on_release == ()

    run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_a_reload_loses_none_of_those_that_wait_for_their_turn(tmp_path: Path, wire: Any) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            server = wire.server(kernel)
            greedy = crowd(wire, server, 3)
            await asyncio.sleep(5 * SECONDS)
            (tmp_path / "m" / "config.pbtxt").write_text(BASE.replace("count: 1", "count: 2") + "max_batch_size: 0\n# anew\n")
            (tmp_path / "m" / "1" / "new").write_text("")
            await kernel.load("m")
            await answered(greedy, 3 * EACH)

    run(main())


def test_streams_have_turns_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            service = Service(kernel)  # type: ignore[arg-type]
            streams: list[tuple[Streaming, list[Any]]] = [(service.stream(), []) for _ in range(GREEDY)]
            message = request("m", ("X", "FP32", [1]), raw=[floats(5)])
            left = dict.fromkeys(range(GREEDY), EACH)

            def send() -> None:
                for index, (stream, _) in enumerate(streams):
                    while left[index] and not stream.call.held:
                        stream.send(message)
                        left[index] -= 1

            send()
            modest = service.stream()
            modest.send(message)
            for _ in range(int(WAIT / SECONDS)):
                await asyncio.sleep(SECONDS)
                send()
                if got := modest.take():
                    break
            assert got and not modest.call.held
            while any(left.values()):
                await asyncio.sleep(SECONDS)
                send()
            await asyncio.sleep(GREEDY * 8 * SECONDS)
            assert all(len(stream.take()) == EACH for stream, _ in streams)

    run(main())


@pytest.mark.parametrize(
    "batching", ["dynamic_batching { default_queue_policy { max_queue_size: 100 } }", "sequence_batching { }"]
)
def test_a_queue_that_has_its_own_say_is_left_alone(tmp_path: Path, batching: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, BASE + "max_batch_size: 1 " + batching) as kernel:
            service = Service(kernel)  # type: ignore[arg-type]
            for index in range(60):
                made = request("m", ("X", "FP32", [1, 1]), raw=[floats(5)])
                made.parameters["sequence_id"].int64_param = index + 1
                made.parameters["sequence_start"].bool_param = True
                service.start(made)
            model = kernel.model("m")
            assert model.scheduler.queue.size > 50 and not model.backpressure.crowded

    run(main())


def wide(text: str = BASE, count: int = 64) -> str:
    return text.replace("count: 1", f"count: {count}")


LITTLE = BASE.replace('"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"Y" data_type: TYPE_FP32 dims: [ 1 ]')


def answering(folder: Path, size: int, text: str | None = None, seconds: float = SECONDS) -> Kernel:
    """Return a kernel whose model `m` has 64 instances and answers with `size` floats, and `little` with one."""

    def large(batch: Batch) -> Any:
        return [answer(request, Y=np.zeros(size)) for request in batch.requests]

    models = {"m": wide() if text is None else text, "little": wide(LITTLE)}
    backend = TestBackend({"m": sleeping(seconds, large), "little": sleeping(seconds)})
    return Kernel(write_repository(folder, models), plugins=[backend], control_mode="explicit", load_models=["*"])


def in_flight(kernel: Kernel, name: str = "m") -> int:
    return kernel.model(name).scheduler.in_flight


def test_before_a_model_has_answered_a_connection_has_few_of_its_calls_in_flight(tmp_path: Path) -> None:
    """Where its config does not say that answers are little: then they are, and all begin. Those of other models don't wait."""

    async def main() -> None:
        async with answering(tmp_path, 1) as kernel:
            server = GrpcClient.server(kernel)
            client, other = GrpcClient(server), GrpcClient(server)
            client.ask(EACH)
            client.ask(EACH, "little")
            other.ask()
            assert (in_flight(kernel), in_flight(kernel, "little")) == (ANSWERS_AT_ONCE + 1, EACH)
            assert await answered([client, other], 2 * EACH + 1) <= 4 * SECONDS
            client.ask(EACH)
            assert in_flight(kernel) == EACH  # it is known by now
            await answered([client], 2 * EACH)

    run(main())


def test_where_answers_are_large_few_are_made_at_a_time_for_a_connection(tmp_path: Path) -> None:
    """However many instances there are: who takes none of them would have all held in memory. None is lost."""

    async def main() -> None:
        async with answering(tmp_path, 2**20) as kernel:
            server = Server(kernel, inference_methods(kernel), open_call, limits=Limits(queue=2**40))  # type: ignore[arg-type]
            client = GrpcClient(server)
            client.ask(EACH)
            await asyncio.sleep(SECONDS / 2)
            assert in_flight(kernel) == ANSWERS_AT_ONCE
            most = 0
            while kernel.statistics("m")[0].success.count < EACH:
                await asyncio.sleep(SECONDS / 3)
                most = max(most, in_flight(kernel))
            assert most == ANSWER_BYTES_AHEAD // 2**22 - 1  # with its head it is a little more
            client._caller.send(settings((4, 2**31 - 1)) + window_update(0, 2**30))
            await answered([client], EACH)

    run(main())


def test_streams_have_the_same_share_as_calls(tmp_path: Path) -> None:
    """All streams of a connection together, and its calls."""

    async def main() -> None:
        async with answering(tmp_path, 1) as kernel:
            service = Service(kernel)  # type: ignore[arg-type]
            streams = [service.stream() for _ in range(EACH)]
            for stream in streams:
                stream.call.connection = streams[0].call.connection
            message = request("m", ("X", "FP32", [1]), raw=[floats(5)])
            for stream in streams:
                stream.send(message)
            assert in_flight(kernel) == ANSWERS_AT_ONCE
            assert [stream.call.held for stream in streams] == [False] * ANSWERS_AT_ONCE + [True] * (EACH - ANSWERS_AT_ONCE)
            streams[-1].call.cancel()
            await asyncio.sleep(5 * SECONDS)
            assert [len(stream.take()) for stream in streams] == [1] * (EACH - 1) + [0]
            assert not any(stream.call.held for stream in streams[:-1]) and kernel.statistics("m")[0].success.count == EACH - 1

    run(main())


def test_a_message_that_waits_for_a_share_is_counted_and_goes_with_its_stream(tmp_path: Path) -> None:
    count = 100_000

    async def main() -> None:
        async with answering(tmp_path, 1, seconds=1.0) as kernel:
            service, before = Service(kernel), kernel.memory.receive.used  # type: ignore[arg-type]
            streams = [service.stream() for _ in range(3 * ANSWERS_AT_ONCE)]
            sent = memory(request("m", ("X", "FP32", [count]), raw=[bytes(4 * count)]).SerializeToString())
            for stream in streams:
                stream.call.connection = streams[0].call.connection
                stream.send(sent)
            share = streams[-1].stream.share
            assert kernel.memory.receive.used - before == len(streams) * len(sent)
            for stream in streams[ANSWERS_AT_ONCE + 1 :]:
                stream.call.cancel()
            assert kernel.memory.receive.used - before == (ANSWERS_AT_ONCE + 1) * len(sent)
            assert len(share._waiting) == 1
            await asyncio.sleep(3.0)
            assert [len(stream.take()) for stream in streams[: ANSWERS_AT_ONCE + 1]] == [1] * (ANSWERS_AT_ONCE + 1)
            assert kernel.memory.receive.used == before and not kernel.model("m").backpressure.on_open

    run(main())


def test_a_stream_goes_on_behind_a_huge_message_that_waited_and_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_grpc.inference.stream.BYTES_IN_FLIGHT", 100_000)

    async def main() -> None:
        async with answering(tmp_path, 1, seconds=0.5) as kernel:
            service = Service(kernel)  # type: ignore[arg-type]
            streams = [service.stream() for _ in range(ANSWERS_AT_ONCE + 1)]
            last = streams[-1]
            for stream in streams[:-1]:
                stream.call.connection = last.call.connection
                stream.send(request("m", ("X", "FP32", [1]), raw=[floats(5)]))
            last.send(memory(request("m", ("X", "FP32", [50_000]), raw=[bytes(200_000)]).SerializeToString()))
            last.call.set_writable(True)
            assert last.call.held and last.stream.held
            last.call.server.draining = True
            await asyncio.sleep(1.0)
            last.call.server.draining = False
            assert not last.call.held and "shutting down" in last.take()[0].error_message
            last.send(request("m", ("X", "FP32", [1]), raw=[floats(5)]))
            await asyncio.sleep(1.0)
            assert [one.error_message for one in last.take()] == [""]

    run(main())


def test_the_first_response_of_a_stream_shows_how_large_they_are(tmp_path: Path) -> None:
    """Nobody waits for the end of what has many responses, and little ones."""
    text = wide() + "model_transaction_policy { decoupled: true }\n"

    async def main() -> None:
        async with answering(tmp_path, 1, text, seconds=1000.0) as kernel:
            service = Service(kernel)  # type: ignore[arg-type]
            streams = [service.stream() for _ in range(EACH)]
            for stream in streams:
                stream.call.connection = streams[0].call.connection
                stream.send(request("m", ("X", "FP32", [1]), raw=[floats(5)]))
            assert in_flight(kernel) == ANSWERS_AT_ONCE
            (first,) = streams[0].stream.answers
            first(answer(first.request, Y=np.zeros(1)), False)
            await asyncio.sleep(SECONDS)
            assert in_flight(kernel) == EACH
            for stream in streams:
                stream.call.cancel()

    run(main())


def test_where_nothing_is_answered_more_calls_begin_with_time(tmp_path: Path) -> None:
    """What is in flight may wait for those that come behind it."""

    async def main() -> None:
        async with answering(tmp_path, 1, seconds=1000.0) as kernel:
            client = GrpcClient(GrpcClient.server(kernel))
            client.ask(EACH)
            for second in range(1, 4):
                await asyncio.sleep(PATIENCE + 0.01)
                assert in_flight(kernel) == (second + 1) * ANSWERS_AT_ONCE
            client.leave()
            await asyncio.sleep(2 * PATIENCE)
            assert in_flight(kernel) == 0 and not kernel.model("m").backpressure.on_open

    run(main())


def test_as_many_calls_begin_as_a_model_makes_together_or_as_a_sequence_may_wait_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(tmp_path / "a", 1, wide() + "max_batch_size: 32\n") as kernel:
            assert made_at_once(kernel.model("m"), 0) == made_at_once(kernel.model("m"), 2**30) == 32
        async with answering(tmp_path / "b", 1, wide() + "sequence_batching { }\n") as kernel:
            client = GrpcClient(GrpcClient.server(kernel))
            client.ask(EACH)
            assert not kernel.model("m").attachments[Inference].replies.limited  # type: ignore[attr-defined]

    run(main())


@pytest.mark.parametrize("text", [LITTLE, BASE], ids=["turns", "share"])
def test_calls_that_are_cancelled_before_their_turn_are_not_kept(tmp_path: Path, text: str) -> None:
    """Also where nothing is answered and the line stands still: others take their places on the connection."""

    async def main() -> None:
        async with answering(tmp_path, 1, text, seconds=1e6) as kernel:
            methods = inference_methods(kernel)
            client = GrpcClient(Server(kernel, methods, open_call))  # type: ignore[arg-type]
            client.ask(EACH)
            for turn in range(1, 21):
                for number in range(EACH // 2):
                    client.cancel(turn * EACH // 2 + number)
                client.ask(EACH // 2)
            (line,) = methods[0].handler.__self__.turns.lines.values()  # type: ignore[attr-defined]
            assert sum(not call.done for call, _ in line.waiting) > EACH // 2 and len(line.waiting) < 2 * EACH

    run(main())


def test_who_finds_a_share_full_again_goes_on_with_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(tmp_path, 1) as kernel:
            share = Share(SimpleNamespace(model=kernel.model("m"), largest=0))  # type: ignore[arg-type]
            share.in_flight = ANSWERS_AT_ONCE - 1
            came: list[float] = []
            share.wait("somebody", lambda: came.append(kernel.loop.time()))
            share.in_flight += 1  # somebody else was there first
            begin = kernel.loop.time()
            await asyncio.sleep(2 * PATIENCE)
            assert came == [pytest.approx(begin + PATIENCE)]

    run(main())


@pytest.mark.parametrize("streams", [False, True])
def test_answers_that_are_encoded_on_a_thread_are_in_flight_until_then(tmp_path: Path, streams: bool) -> None:
    """How large strings become is not known before."""
    text = wide().replace('"Y" data_type: TYPE_FP32', '"Y" data_type: TYPE_STRING')
    strings = Tensor("Y", "BYTES", np.array([b"x"] * 100_000, object))

    def much(batch: Batch) -> Any:
        return [InferenceResponse([strings]) for _ in batch.requests]

    async def main() -> None:
        backend = TestBackend({"m": sleeping(SECONDS, much)})
        folder = write_repository(tmp_path, {"m": text})
        async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
            loop: Any = kernel.loop
            jobs: list[tuple[asyncio.Future[Any], Any]] = []

            def later(_: Any, function: Any, *args: Any) -> asyncio.Future[Any]:
                jobs.append((loop.create_future(), lambda: function(*args)))
                return jobs[-1][0]

            loop.run_in_executor = later
            client = GrpcClient(GrpcClient.server(kernel))
            client._caller.send(settings((4, 2**31 - 1)) + window_update(0, 2**30))
            client.ask(EACH, stream=streams)
            await asyncio.sleep(5 * SECONDS)
            assert len(jobs) == kernel.statistics("m")[0].success.count == ANSWERS_AT_ONCE
            while jobs:
                for future, job in jobs:
                    future.set_result(job())
                jobs.clear()
                await asyncio.sleep(5 * SECONDS)
            del loop.run_in_executor
            assert kernel.statistics("m")[0].success.count == EACH

    run(main())


ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step { model_name: "step" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
"""


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_queue_with_limits_sees_all_calls_of_a_connection_as_soon_as_they_come(tmp_path: Path, ensemble: bool) -> None:
    """However large the answers may be: its config says who may wait, and who is refused."""
    text = BASE + "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 20 } }\n"

    async def main() -> None:
        name, models = "m", {"m": text}
        if ensemble:
            name, models = "step", {"step": text, "m": ENSEMBLE + "max_batch_size: 1\n"}
        backend = TestBackend({name: sleeping(SECONDS)})
        folder = write_repository(tmp_path, models)
        async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
            caller = GrpcClient(GrpcClient.server(kernel))._caller
            payload = message(request("m", ("X", "FP32", [1, 1]), raw=[floats(5)]).SerializeToString())
            for _ in range(32):
                id = caller.begin(**{":path": "/inference.GRPCInferenceService/ModelInfer"})
                caller.send(data(id, payload, end=True))
            await asyncio.sleep(SECONDS / 2)
            caller.read()
            ended = [one for one in caller.answers.values() if one.ended]
            assert len(ended) == 32 - 21 and {one.status for one in ended} == {14}
            await asyncio.sleep(32 * SECONDS)

    run(main())


@pytest.mark.parametrize(
    ("batching", "limited"),
    [
        ("", True),
        ("dynamic_batching { }", True),
        ("dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000 } }", False),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 1 }", False),
        ("dynamic_batching { priority_levels: 1 default_priority_level: 1 }", True),
        ("sequence_batching { }", False),
    ],
)
def test_where_a_queue_has_its_own_say_calls_have_no_share(tmp_path: Path, batching: str, limited: bool) -> None:
    async def main() -> None:
        async with serving(tmp_path, BASE + "max_batch_size: 1 " + batching) as kernel:
            assert is_limited(kernel.model("m")) is limited is kernel.model("m").scheduler.queue.no_policy

    run(main())


def test_a_reload_loses_none_of_those_that_wait_for_their_share(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(tmp_path, 1, seconds=0.5) as kernel:
            client = GrpcClient(GrpcClient.server(kernel))
            client.ask(EACH)
            (tmp_path / "m" / "config.pbtxt").write_text(wide(count=63) + "max_batch_size: 0\n# anew\n")
            (tmp_path / "m" / "1" / "new").write_text("")
            await kernel.load("m")
            await answered([client], EACH)

    run(main())


@pytest.mark.parametrize("split", [False, True])
def test_where_hundreds_ask_over_http_at_once_some_wait_for_another_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: bool
) -> None:
    """However little each asks for, and whether its body comes with its head; those who wait are answered in their order."""
    now, served = [0.0], [0]
    dispatch = Connection._dispatch

    def counted(self: Connection, *args: Any) -> None:
        now[0] += 0.0001
        served[0] += 1
        dispatch(self, *args)

    monkeypatch.setattr(Connection, "_dispatch", counted)

    async def main() -> None:
        async with serving(tmp_path, wide()) as kernel:
            server = HttpClient.server(kernel)
            server._line.clock = server.receiving._clock = lambda: now[0]
            clients = [HttpClient(server) for _ in range(300)]
            data = infer("m", {"inputs": [tensor("X", "FP32", [1], [1.0])]})
            free = FREE_BYTES // len(data)
            if split:
                middle = data.index(b"\r\n\r\n") + 4
                for client in clients:
                    client._client.send(data[:middle])
                await asyncio.sleep(0)
                for client in clients:
                    client._client.send(data[middle:])
                free = FREE_BYTES // (len(data) - middle)
            else:
                for client in clients:
                    client.ask()
            assert served[0] == pytest.approx(free + round(MOST_SECONDS / 0.0001), abs=2)
            turns = 0
            while served[0] < len(clients):
                before = now[0]
                await asyncio.sleep(0)
                assert now[0] - before <= SERVING_SECONDS
                turns += 1
            assert 3 < turns < 20
            await answered(clients, len(clients))

    run(main())


class Late(Receiving):
    """Where what is read is late when it is said to be."""

    late: list[bool]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.free = 0

    def is_late(self) -> bool:
        return self.late[0]


def test_a_client_that_leaves_while_what_it_sent_waits_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            server = HttpClient.server(kernel)
            late = [True]
            server.receiving = Late(kernel.loop, kernel.clock)
            server.receiving.late = late
            clients = [HttpClient(server) for _ in range(3)]
            for client in clients:
                client.ask()
            clients[0].leave()
            await asyncio.sleep(1)
            assert not server._line.small and not server._line.others and kernel.statistics("m")[0].success.count == 2
            for client in clients[1:]:
                late[0] = False
                client._client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n" + bytes(3))
                late[0] = True
                client._client.send(bytes(1997))
            assert len(server._line.others) + len(server._line.small) == 2
            clients[1].leave()
            await asyncio.sleep(1)
            assert [one.status for one in parse(clients[2]._client.take())] == [200, 400] and not server._line.others
            assert kernel.memory.receive.used == 0

    run(main())


def test_a_line_of_calls_goes_on_by_several_in_a_turn() -> None:
    """With one in each turn of the loop no request to a model on the loop waits, and none is handed to another replica."""
    soon: list[Any] = []
    loop = SimpleNamespace(call_soon=lambda call, *args: soon.append(call))
    backpressure = SimpleNamespace(open=False, on_open={})
    config = SimpleNamespace(max_batch_size=0)
    model = SimpleNamespace(kernel=SimpleNamespace(loop=loop), backpressure=backpressure, config=config)
    share = Share(SimpleNamespace(model=model, largest=1))  # type: ignore[arg-type]
    begun: list[int] = []

    def go_on() -> None:
        begun.append(len(begun))
        if len(begun) < 20:
            share.wait("line", go_on)

    share.wait("line", go_on)
    turns = []
    while soon:
        soon.pop(0)()
        turns.append(len(begun))
    assert turns[:2] == [AT_ONCE, 20]
