"""The ASGI application against the HTTP front end: the same requests, the same answers.

The requests are those that are asked of the real Triton (tests/reference). Each goes as bytes to a connection of the HTTP front
end and as messages to the application, each with a kernel of its own, so that both tell the same story.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from frontends.asgi_server import Exchange
from frontends.fakes import Client, FakeTransport, parse
from reference import cases
from reference.wire import Case

from kernel import Kernel
from kernel_http.asgi import KernelApp
from kernel_http.frontend import make_server

MODELS = Path(__file__).parents[1] / "reference/models"
LIMIT_S = 30.0

#: What a client acts upon. Framing, and so Content-Length where the one answer is chunked, is the server's.
HEADERS = ("Content-Type", "Content-Encoding", "Inference-Header-Content-Length", "Accept-Encoding")

#: Durations and times in statistics are a matter of chance.
CHANCE = re.compile(rb'("ns"|"last_inference"):[0-9]+')

#: Requests that an ASGI server does not hand on.
NOT_HTTP = {"not HTTP", "lower-case method"}

Answer = tuple[int, dict[str, str], bytes]


class Transport(FakeTransport):
    """Tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def write(self, data: bytes) -> None:
        super().write(data)
        self.written.set()


async def ask_frontend(kernel: Kernel, request: bytes, server: Any) -> Answer:
    client = Client(kernel, server=server)  # type: ignore[arg-type]
    transport = client.transport = Transport()
    client.connection.answers.attach(transport)
    client.send(request)
    while not (response := complete(bytes(transport.out), without_body=request.startswith(b"HEAD"))):
        transport.written.clear()
        await transport.written.wait()
    client.lose()
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    return response.status, headers, CHANCE.sub(rb"\1:0", response.body)


def complete(data: bytes, *, without_body: bool) -> Any:
    """Return the response in `data`, None where there is more to come."""
    if without_body:
        data += b'{"error":"Method Not Allowed"}'  # as the application says it; cutting it off is the server's part
    try:
        (response,) = parse(data.replace(b"HTTP/1.0", b"HTTP/1.1"))
    except (AssertionError, ValueError):
        return None
    return response


async def ask_application(app: KernelApp, request: bytes) -> Answer:
    exchange = await Exchange(app, request, root="/some/where").start()
    assert exchange.task is not None
    await exchange.task
    assert exchange.complete
    headers = {name: exchange.headers[name.lower()] for name in HEADERS if name.lower() in exchange.headers}
    return exchange.status, headers, CHANCE.sub(rb"\1:0", exchange.body)


async def compare(asked: Sequence[Case], folder: Path, **options: Any) -> dict[str, tuple[Answer, Answer]]:
    """Ask both and return the answers of both, by the cases' names."""
    answers = {}
    async with Kernel(folder, exit_on_error=False, **options) as one, Kernel(folder, exit_on_error=False, **options) as other:
        server, app = make_server(one), KernelApp(other)
        for case in asked:
            if case.name in NOT_HTTP:
                continue
            async with asyncio.timeout(LIMIT_S):
                answers[case.name] = (
                    await ask_frontend(one, case.request(), server),
                    await ask_application(app, case.request()),
                )
                if case.settle:
                    await settle(one, other)
    return answers


async def settle(*kernels: Kernel) -> None:
    """Wait until no model is on its way."""
    while any(entry.state in ("LOADING", "UNLOADING") for kernel in kernels for entry in kernel.index()):  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("asked", "folder", "options"),
    [(cases.PLAIN, "plain", {}), (cases.EXPLICIT, "explicit", {"control_mode": "explicit"})],
    ids=["plain", "explicit"],
)
def test_same_answers(asked: Sequence[Case], folder: str, options: Any) -> None:
    with asyncio.Runner() as runner:
        answers = runner.run(compare(asked, MODELS / folder, **options))
    assert len(answers) >= len({case.name for case in asked}) - len(NOT_HTTP)
    different = {name: pair for name, pair in answers.items() if pair[0] != pair[1]}
    assert not different
