"""A request whose deadline can't be met, as clients see it: HTTP with `timeout`, gRPC with `timeout` or the call's deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from frontends.fakes import Client, Response, infer, parse, tensor
from frontends.fakes_grpc import Service, floats, request
from virtual import BASE, TestBackend, run, sleeping, write_repository

from kernel import Code, Kernel
from kernel_http.connection import replies
from kernel_http.frontend import MAX_INPUT_SIZE

WORDS = "by prediction would begin in 2 s at the earliest: 1 row waits in front, and an execution lasts 1 s (refuse_late)"


def serving(folder: Path) -> Kernel:
    repository = write_repository(folder, {"m": BASE})
    return Kernel(repository, plugins=[TestBackend({"m": sleeping(1.0)})], refuse_late=0.0)


@pytest.mark.parametrize("status", [503, 429])
def test_over_http(tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies.overload, "status", status)

    async def main() -> None:
        async with serving(tmp_path) as kernel:
            one = infer("m", {"inputs": [tensor("X", "FP32", [1], [1.0])]})
            late = infer("m", {"parameters": {"timeout": 2_500_000}, "inputs": [tensor("X", "FP32", [1], [1.0])]})
            clients = [Client(kernel, max_input_size=MAX_INPUT_SIZE) for _ in range(4)]  # type: ignore[arg-type]
            clients[0].send(one)
            await asyncio.sleep(1.5)

            def answers(client: Client) -> list[Response]:
                return parse(client.take())

            assert answers(clients[0])[0].status == 200
            for client, data in zip(clients, (one, one, late, late.replace(b"2500000", b"3500000"))):
                client.send(data)
            await asyncio.sleep(0)
            (refused,) = answers(clients[2])
            assert (refused.status, refused.headers["Retry-After"]) == (status, "1")
            assert "has its deadline in 2.5 s, and " + WORDS in refused.error
            await asyncio.sleep(5)
            assert [answers(client)[0].status for client in (clients[0], clients[1], clients[3])] == [200] * 3

    run(main())


def test_over_grpc(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as kernel:
            service = Service(kernel)  # type: ignore[arg-type]
            one = request("m", ("X", "FP32", [1]), raw=[floats(5)])
            late = request("m", ("X", "FP32", [1]), raw=[floats(5)])
            late.parameters["timeout"].int64_param = 2_500_000
            service.start(one)
            await asyncio.sleep(1.5)
            accepted = [service.start(one), service.start(one)]
            for refused in (service.start(late), service.start(one, deadline=kernel.clock() + 2.5)):
                assert refused.done and refused.failure[0] is Code.UNAVAILABLE
                assert "has its deadline in 2.5 s, and " + WORDS in refused.text
            accepted.append(service.start(one, deadline=kernel.clock() + 3.5))
            await asyncio.sleep(5)
            assert all(call.response.model_name == "m" for call in accepted)

    run(main())
