"""The standard health service: what it says, when it says more, and how a watch ends. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from frontends.fakes_grpc import FakeCall
from frontends.grpc_calls import Caller
from virtual import BASE, TestBackend, run, write_repository

from kernel import Code, Kernel
from kernel_grpc.schemas import health_pb2 as pb
from kernel_grpc.services import health

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"

SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"

Test = Callable[[Caller, Kernel, list[bool]], Awaitable[None]]


@pytest.fixture
def serve(tmp_path: Path) -> Callable[[Test], None]:
    """Return what runs a test on a kernel whose readiness is what the test's list holds."""
    write_repository(tmp_path, {"m": BASE})

    def serve(test: Test) -> None:
        async def main() -> None:
            async with Kernel(tmp_path, plugins=[TestBackend({})], control_mode="explicit") as kernel:
                ready = [True]
                really = kernel.is_ready
                kernel.is_ready = lambda: ready[0] and really()  # type: ignore[method-assign]
                await test(Caller(health.methods(kernel)), kernel, ready)

        run(main())

    return serve


def watch(client: Caller, service: str = "") -> tuple[FakeCall, Any]:
    call, stream = client.open(WATCH)
    stream.message(pb.HealthCheckRequest(service=service).SerializeToString())
    stream.half_closed()
    return call, stream


def test_check(serve: Callable[[Test], None]) -> None:
    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        for name in ("", "inference.GRPCInferenceService", "nobody"):
            request = pb.HealthCheckRequest(service=name)
            ready[0] = True
            assert client.ask(CHECK, request).status == pb.HealthCheckResponse.SERVING
            ready[0] = False
            assert client.ask(CHECK, request).status == pb.HealthCheckResponse.NOT_SERVING
        code, message = client.start(CHECK, b"\xff").failure
        assert code is Code.INVALID_ARG
        assert message.startswith("Unable to parse request as grpc.health.v1.HealthCheckRequest: ")
        await kernel.stop()
        assert client.ask(CHECK).status == pb.HealthCheckResponse.NOT_SERVING

    serve(test)


def test_watch_tells_at_once_and_at_every_change(serve: Callable[[Test], None]) -> None:
    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        first, _ = watch(client)
        assert first.take() == [SERVING]
        await asyncio.sleep(10)
        assert first.take() == []
        ready[0] = False
        second, _ = watch(client, "nobody")
        assert second.take() == [NOT_SERVING]
        await asyncio.sleep(0.1)
        assert (first.take(), second.take()) == ([NOT_SERVING], [])
        ready[0] = True
        await asyncio.sleep(0.1)
        assert (first.take(), second.take()) == ([SERVING], [SERVING])
        assert not first.done
        first.cancel()
        second.cancel()

    serve(test)


def test_nobody_looks_when_nobody_watches(serve: Callable[[Test], None]) -> None:
    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        looks: list[None] = []
        kernel.is_ready = lambda: looks.append(None) or True  # type: ignore[method-assign, func-returns-value]
        calls = [watch(client)[0] for _ in range(50)]
        looks.clear()
        await asyncio.sleep(0.95)
        assert len(looks) == 9  # one for all
        for call in calls:
            call.cancel()
            call.cancel()
        await asyncio.sleep(10)
        assert len(looks) == 9
        watch(client)[0].cancel()

    serve(test)


def test_a_client_that_does_not_read_gets_the_newest_state(serve: Callable[[Test], None]) -> None:
    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        call, _ = watch(client)
        call.writable = False
        for _ in range(5):
            ready[0] = not ready[0]
            await asyncio.sleep(0.2)
        assert call.take() == [SERVING]
        call.writable = True
        await asyncio.sleep(0.2)
        assert call.take() == [NOT_SERVING]
        call.cancel()

    serve(test)


def test_a_stopping_server_says_so_and_ends_the_watch(serve: Callable[[Test], None]) -> None:
    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        call, _ = watch(client)
        await kernel.stop()
        await asyncio.sleep(0.2)
        assert call.take() == [SERVING, NOT_SERVING]
        assert call.failure == (Code.UNAVAILABLE, "Server exiting")

    serve(test)


def test_watch_takes_one_request(serve: Callable[[Test], None]) -> None:
    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        wanted = (Code.UNSUPPORTED, "grpc.health.v1.Health/Watch takes exactly one request")
        call, stream = watch(client)
        assert call.take() == [SERVING]
        stream.message(b"")
        assert call.failure == wanted
        call, stream = client.open(WATCH)
        stream.half_closed()
        assert call.failure == wanted
        call, stream = client.open(WATCH)
        stream.message(b"\xff")
        assert call.failure[0] is Code.INVALID_ARG
        await asyncio.sleep(1)  # and no timer is left that would fail the test

    serve(test)


def test_many_who_watch_are_told_some_in_a_turn_and_left_alone_otherwise(
    serve: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, told = health.Watch.tell, [0]

    def counted(watch: health.Watch, state: Any) -> bool:
        told[0] += 1
        return tell(watch, state)

    monkeypatch.setattr(health.Watch, "tell", counted)

    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        calls = [watch(client)[0] for _ in range(3 * health.AT_ONCE)]
        await asyncio.sleep(5.05)
        assert told[0] == len(calls)
        ready[0] = False
        turns = 0
        while told[0] < 2 * len(calls):
            before = told[0]
            await asyncio.sleep(0 if told[0] > len(calls) else 0.01)
            assert told[0] - before <= health.AT_ONCE
            turns += told[0] > before
        assert turns == 3 and all(call.take() == [SERVING, NOT_SERVING] for call in calls)
        await asyncio.sleep(1)
        assert told[0] == 2 * len(calls)
        for call in calls:
            call.cancel()

    serve(test)


def test_who_begins_to_watch_between_two_looks_is_told_what_comes_next(serve: Callable[[Test], None]) -> None:
    """Also where nobody else has to be told anything."""

    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        first, _ = watch(client)
        await asyncio.sleep(0.15)
        ready[0] = False
        second, _ = watch(client)
        ready[0] = True
        await asyncio.sleep(0.2)
        assert (first.take(), second.take()) == ([SERVING], [NOT_SERVING, SERVING])
        first.cancel()
        second.cancel()

    serve(test)


def test_who_begins_to_watch_while_others_are_told_is_not_told_what_was(serve: Callable[[Test], None]) -> None:
    async def test(client: Caller, kernel: Kernel, ready: list[bool]) -> None:
        calls = [watch(client)[0] for _ in range(4 * health.AT_ONCE)]
        ready[0] = False
        for _ in range(100):
            if any(len(call.sent) > 1 for call in calls):
                break
            await asyncio.sleep(0.01)
        ready[0] = True
        new, _ = watch(client)
        await asyncio.sleep(1)
        assert new.take() == [SERVING]
        assert {tuple(call.take()) for call in calls} == {(SERVING,), (SERVING, NOT_SERVING, SERVING)}
        for call in (*calls, new):
            call.cancel()

    serve(test)
