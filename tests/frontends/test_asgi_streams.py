"""The ASGI application while answers are on their way: clients that go, servers that give up, streams and their pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
import virtual
from frontends.asgi_server import Exchange, app_of, turns
from frontends.fakes import FakeKernel, infer, request, tensor

from kernel import Code, InferenceResponse, Tensor
from kernel_http.asgi import KernelApp
from kernel_http.asgi.connection import LISTEN_AFTER
from kernel_http.connection import streams

INFER = infer("types", {"inputs": [tensor("IN_INT32", "INT32", [1], [1])]})
STREAM = request("POST", "/v2/models/gen/generate_stream", b'{"X":[1,2]}')
GENERATE = request("POST", "/v2/models/gen/generate", b'{"X":[1,2]}')

Test = Callable[[KernelApp, FakeKernel], Coroutine[Any, Any, None]]


def with_app(test: Test) -> Callable[[], None]:
    """Run a test on the virtual loop with an application whose models answer when they are told to."""

    async def main() -> None:
        app, kernel = app_of()
        kernel.hold = True
        await test(app, kernel)

    def run() -> None:
        virtual.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def response(value: Any = 1.0) -> InferenceResponse:
    array = np.array(value, np.float32).reshape(-1)
    return InferenceResponse([Tensor("Y", "FP32", array)], model_name="gen", model_version="1")


def event(shown: str) -> bytes:
    return b'data: {"Y":%b,"model_name":"gen","model_version":"1"}\n\n' % shown.encode()


# --- the client goes


@with_app
async def test_an_answer_that_takes_a_moment(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, INFER).start()
    assert not exchange.sent
    kernel.finish(kernel.held[0])
    await exchange.end()
    assert exchange.complete and exchange.status == 200
    assert exchange.received == 1, "for a moment nobody listens for the client's end"


@with_app
async def test_an_answer_that_takes_long(app: KernelApp, kernel: FakeKernel) -> None:
    """Somebody listens for the client's end, and goes too (`end` looks for tasks that are left)."""
    exchange = await Exchange(app, INFER).start()
    await asyncio.sleep(2 * LISTEN_AFTER)
    assert exchange.received == 2
    kernel.finish(kernel.held[0])
    await exchange.end()
    assert exchange.complete and not kernel.cancelled


@pytest.mark.parametrize("data", [INFER, STREAM, GENERATE], ids=["infer", "generate_stream", "generate"])
@pytest.mark.parametrize("wait", [0.0, 1.0], ids=["at once", "later"])
def test_the_client_goes_before_its_answer(data: bytes, wait: float) -> None:
    async def main() -> None:
        app, kernel = app_of()
        kernel.hold = True
        loop = asyncio.get_running_loop()
        exchange = await Exchange(app, data).start()
        await asyncio.sleep(wait)
        exchange.lose()
        gone = loop.time()
        await exchange.end()
        assert not exchange.sent and kernel.cancelled == kernel.held and loop.time() - gone <= LISTEN_AFTER

    virtual.run(main())


@with_app
async def test_the_client_goes_before_its_body_is_there(app: KernelApp, kernel: FakeKernel) -> None:
    for exchange in (Exchange(app, INFER, size=10, more=True), Exchange(app, INFER)):
        if not exchange.incoming[0]["more_body"]:  # type: ignore[index]
            exchange.incoming.clear()
        exchange.lose()
        await exchange.end()
        assert not exchange.sent and not kernel.requests


@with_app
async def test_the_client_goes_within_a_stream(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    kernel.held[0].respond(response(), False)
    await turns()
    exchange.lose()
    await exchange.end()
    assert exchange.pieces == [event("1.0")] and kernel.cancelled == kernel.held


@with_app
async def test_the_server_tells_of_the_clients_end_when_something_is_sent(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    exchange.lose()
    kernel.held[0].respond(response(), False)
    await exchange.end()
    assert not exchange.sent and kernel.cancelled == kernel.held


@pytest.mark.parametrize("silent", [True, False])
def test_the_client_goes_while_it_takes_nothing(silent: bool) -> None:
    """A server may not even let a waiting `send` go on then: what the model does is ended all the same."""

    async def main() -> None:
        app, kernel = app_of()
        kernel.hold = True
        exchange = await Exchange(app, STREAM, silent=silent).start()
        kernel.held[0].respond(response(), False)
        exchange.may_send.clear()
        await asyncio.sleep(1)
        exchange.is_gone.set()
        await turns()
        assert kernel.cancelled == kernel.held
        exchange.may_send.set()
        await exchange.end()

    virtual.run(main())


@pytest.mark.parametrize("data", [INFER, STREAM], ids=["infer", "generate_stream"])
@pytest.mark.parametrize("wait", [0.0, 1.0], ids=["at once", "later"])
def test_the_server_gives_the_request_up(data: bytes, wait: float) -> None:
    """A time-out around the application, or the end of the server."""

    async def main() -> None:
        app, kernel = app_of()
        kernel.hold = True
        exchange = await Exchange(app, data).start()
        await asyncio.sleep(wait)
        assert exchange.task is not None
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.end()
        assert kernel.cancelled == kernel.held and asyncio.all_tasks() == {asyncio.current_task()}

    virtual.run(main())


@with_app
async def test_a_load_goes_on_without_its_client(app: KernelApp, kernel: FakeKernel) -> None:
    go = asyncio.Event()

    async def load(name: str, **more: Any) -> None:
        await go.wait()
        kernel.calls.append(("loaded", name))

    kernel.load = load  # type: ignore[method-assign]
    exchange = await Exchange(app, request("POST", "/v2/repository/models/m/load")).start()
    exchange.lose()
    assert exchange.task is not None
    await exchange.task
    go.set()
    await turns()
    assert kernel.calls == [("loaded", "m")] and not exchange.sent


@with_app
async def test_a_middleware_that_gives_the_body_again_and_again(app: KernelApp, kernel: FakeKernel) -> None:
    """Many an app replaces `receive` by a function that always returns the body: asking it for ever would block the loop."""
    exchange = Exchange(app, INFER)
    message = exchange.incoming[0]

    async def again() -> Any:
        exchange.incoming.append(again)
        return message

    exchange.incoming = [again]
    await exchange.start()
    await asyncio.sleep(1)
    kernel.finish(kernel.held[0])
    await exchange.end()
    assert exchange.complete and exchange.received == 2


@with_app
async def test_a_receive_that_fails(app: KernelApp, kernel: FakeKernel) -> None:
    async def fail() -> Any:
        raise RuntimeError("called twice")

    exchange = Exchange(app, INFER)
    exchange.incoming.append(fail)
    await exchange.start()
    await asyncio.sleep(1)
    kernel.finish(kernel.held[0])
    await exchange.end()
    assert exchange.complete


@with_app
async def test_late_answers_are_nobodys(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, INFER).start()
    exchange.lose()
    await exchange.end()
    kernel.finish(kernel.held[0])
    await turns()
    assert not exchange.sent


# --- streams


@with_app
async def test_events_come_as_they_are_made(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    held = kernel.held[0]
    assert not exchange.sent
    for k in range(3):
        held.respond(response(k), False)
        await turns()
        assert exchange.pieces == [event(f"{j}.0") for j in range(k + 1)]
    await asyncio.sleep(3600)
    assert not exchange.complete
    held.respond(response(9), True)
    await exchange.end()
    assert exchange.body.endswith(event("2.0") + event("9.0"))
    assert exchange.status == 200
    assert exchange.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }


@with_app
async def test_a_burst_costs_few_messages(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    for k in range(100):
        kernel.held[0].respond(response(k), False)
    kernel.held[0].respond(None, True)
    await exchange.end()
    assert exchange.body == b"".join(event(f"{k}.0") for k in range(100)) and len(exchange.pieces) == 2


@with_app
async def test_no_events(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    kernel.held[0].respond(None, True)
    await exchange.end()
    assert (exchange.status, exchange.pieces) == (200, [b""])


@with_app
async def test_the_first_response_makes_the_status(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    kernel.held[0].respond(InferenceResponse.failure(Code.UNAVAILABLE, "not now"), True)
    await exchange.end()
    assert (exchange.status, exchange.body) == (503, b'data: {"error":"not now"}\n\n')


@with_app
async def test_generate_wants_one_response(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, GENERATE).start()
    kernel.held[0].respond(response(), False)
    kernel.held[0].respond(response(), False)
    await exchange.end()
    assert exchange.status == 400 and kernel.cancelled == kernel.held
    assert json.loads(exchange.body)["error"].startswith("generate expects model to produce exactly 1 response")


@with_app
async def test_the_pace_is_the_clients(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    held = kernel.held[0]
    held.respond(response(0), False)
    await turns()
    exchange.may_send.clear()
    for k in range(1, 10):
        held.respond(response(k), False)
        await turns()
    assert len(exchange.pieces) == 1
    exchange.may_send.set()
    await turns()
    assert len(exchange.pieces) == 3, "one was being sent, the others had gathered"
    held.respond(None, True)
    await exchange.end()
    assert exchange.body == b"".join(event(f"{k}.0") for k in range(10))


@with_app
async def test_the_end_comes_while_the_client_takes_nothing(app: KernelApp, kernel: FakeKernel) -> None:
    exchange = await Exchange(app, STREAM).start()
    exchange.may_send.clear()
    for k in range(3):
        kernel.held[0].respond(response(k), False)
        await turns()
    kernel.held[0].respond(response(3), True)
    await asyncio.sleep(3600)
    exchange.may_send.set()
    await exchange.end()
    assert exchange.body == b"".join(event(f"{k}.0") for k in range(4))


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_WAITING", 1000)


async def overrun() -> tuple[Exchange, FakeKernel]:
    """Let a client take nothing until it is too much."""
    app, kernel = app_of()
    kernel.hold = True
    exchange = await Exchange(app, STREAM).start()
    exchange.may_send.clear()
    for k in range(100):
        kernel.held[0].respond(response(k), False)
    return exchange, kernel


def test_a_client_that_lets_too_much_wait(little: None) -> None:
    """An exception tells the server to cut the connection: without the end of its chunks nobody takes it for complete."""

    async def main() -> None:
        exchange, kernel = await overrun()
        assert kernel.cancelled == kernel.held
        with pytest.raises(ConnectionAbortedError, match="the client of /v2/models/gen/generate_stream does not take its"):
            await exchange.end()
        assert not exchange.complete and asyncio.all_tasks() == {asyncio.current_task()}

    virtual.run(main())


def test_a_server_that_gives_up_such_a_client_at_the_same_time(little: None) -> None:
    async def main() -> None:
        exchange, _ = await overrun()
        assert exchange.task is not None
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.end()

    virtual.run(main())
