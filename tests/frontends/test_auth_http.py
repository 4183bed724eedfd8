"""kernel_auth over HTTP: bytes in and out of real connections, on a time that is told."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from frontends.fakes import Client, FakeKernel, Response, binary, infer, parse, request, tensor
from frontends.keys import CLIENTS, write_keys
from frontends.test_http_restricted import EVERY_PATH
from virtual import BASE, TestBackend, run, write_repository

from kernel import Asking, Kernel, ServingError, Stay
from kernel_auth.gate import KeyDoor, KeyGate
from kernel_http import add_options
from kernel_http.asgi import KernelApp
from kernel_http.connection.routes import CHANGING, ROUTES, SETTINGS
from kernel_http.frontend import HttpFrontend

BODY = {"inputs": [tensor("X", "FP32", [2], [1, 2])]}
INPUTS = [tensor("X", "FP32", [2], binary_data_size=8)]


class Gated:
    """A kernel with a gate, and its clients. `file`: of keys."""

    def __init__(self, file: Path, text: str = "", **options: Any) -> None:
        self.file = write_keys(file, text)
        self.kernel = FakeKernel()
        self.kernel.clock = self.kernel.loop.time  # type: ignore[attr-defined]
        self.gate = self.kernel.gate = KeyGate(self.kernel, self.file)  # type: ignore[arg-type]
        self.client = Client(self.kernel, **options)

    def another(self) -> Client:
        return Client(self.kernel, server=self.client.server)


@pytest.fixture
def gated(tmp_path: Path) -> Gated:
    return Gated(tmp_path / "keys.toml")


def bearer(name: str) -> str:
    return f"Authorization: Bearer key-{name}"


def said(response: Response) -> tuple[int, str]:
    return response.status, response.error


def test_every_route_wants_a_key(gated: Gated) -> None:
    for name, category, path in (line.split() for line in EVERY_PATH.strip().splitlines()):
        (methods,) = {route.methods for route in ROUTES if route.name == name}
        for method in methods.split():
            asked = request(method, path.replace("/repository/r/", "/repository/"))
            response = gated.client.ask(asked)
            if category == "health":
                assert response.status != 401
                continue
            assert response.status == 401 and response.headers["WWW-Authenticate"] == "Bearer", path
            gated.client.send(asked.replace(b"Host: test", b"Host: test\r\nx-api-key: key-all"))
            gated.kernel.loop.run_tasks()
            while gated.kernel.loop.jobs:  # what is made on another thread
                gated.kernel.loop.run_jobs()
            gated.kernel.loop.advance(1.0)  # what takes long has its turn behind others
            assert [response.status == 401 for response in parse(gated.client.take())] == [False]
    assert not gated.client.transport.closing
    assert {route.name for route in ROUTES} >= CHANGING | SETTINGS


def test_who_is_refused_and_why(gated: Gated) -> None:
    ask = gated.client.ask
    assert said(ask(infer("multi", BODY))) == (401, "a key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
    assert said(ask(infer("multi", BODY, bearer("nobody")))) == (401, "the key is not known")
    assert ask(infer("multi", BODY, bearer("some"))).status == 200
    assert said(ask(infer("batch8", BODY, bearer("some")))) == (403, "client 'some' may not use 'inference' of model 'batch8'")
    assert said(ask(infer("nowhere", BODY, bearer("some"))))[0] == 403  # whether there is one, he isn't told
    assert said(ask(request("GET", "/v2", b"", bearer("some")))) == (
        403, "client 'some' may not use 'metadata' of what belongs to no one model",
    )  # fmt: skip
    assert ask(infer("nowhere", BODY, bearer("all"))).status == 404
    assert ask(request("GET", "/nowhere")).status == 404
    assert len(gated.kernel.requests) == 1


def test_open_categories(tmp_path: Path) -> None:
    gated = Gated(tmp_path / "a.toml", 'open = ["metadata"]')
    assert gated.client.ask(request("GET", "/v2")).status == 200
    assert gated.client.ask(request("GET", "/v2/health/live")).status == 401
    closed = Gated(tmp_path / "b.toml", "open = []")
    assert closed.client.ask(request("GET", "/v2/health/live")).status == 401
    assert closed.client.ask(request("GET", "/v2/health/live", b"", bearer("all"))).status == 200


def test_a_repeated_request_asks_each_time(gated: Gated) -> None:
    """The second and later ones are recognised by their bytes; the gate is asked all the same."""
    asked = binary("multi", INPUTS, b"\0" * 8, bearer("slow"))
    statuses = [gated.client.ask(asked).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    response = gated.client.ask(asked)
    assert said(response) == (429, "client 'slow' may send 1 requests a second; try again in 1 s")
    assert response.headers["Retry-After"] == "1"
    assert gated.another().ask(asked).status == 429  # it is the client that is counted, not the connection
    gated.kernel.loop.advance(1.0)
    assert [gated.client.ask(asked).status for _ in range(2)] == [200, 429]
    assert gated.client.connection.answers.layout is not None


def test_a_repeated_request_that_nobody_counts_asks_once_a_second(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the file is to be looked at again, or has been read anew, the answer would be the same."""
    asked: list[str] = []

    def enter(door: KeyDoor, asking: Asking) -> Stay | None:
        asked.append(asking.client)
        return entered(door, asking)

    entered = KeyDoor.enter
    monkeypatch.setattr(KeyDoor, "enter", enter)
    some, slow = (binary("multi", INPUTS, b"\0" * 8, bearer(name)) for name in ("some", "slow"))
    assert [gated.client.ask(some).status for _ in range(9)] == [200] * 9 and len(asked) == 1
    assert [gated.client.ask(slow).status for _ in range(3)] == [200, 200, 429] and len(asked) == 4
    gated.kernel.loop.advance(1.0)
    assert [gated.client.ask(some).status for _ in range(9)] == [200] * 9 and len(asked) == 5
    write_keys(gated.file, clients={"all": 'may = [{ models = ["*"], categories = ["*"] }]'})
    gated.kernel.loop.advance(1.0)
    assert [gated.client.ask(some).status for _ in range(3)] == [200, 401, 401]  # the first has a thread read the file


def test_keys_in_turn_on_one_connection(gated: Gated) -> None:
    """What is remembered of one key says nothing of another one, also where the requests come at once."""
    names = ("all", "nobody", "some", "all", "none", "some")
    burst = b"".join(binary("multi", INPUTS, b"\0" * 8, bearer(name)) for name in names)
    for _ in range(3):
        gated.client.send(burst)
        assert [response.status for response in parse(gated.client.take())] == [200, 401, 200, 200, 401, 200]
    forbidden, allowed = (binary(model, INPUTS, b"\0" * 8, bearer("some")) for model in ("batch8", "multi"))
    assert [gated.client.ask(one).status for one in (allowed, forbidden, allowed, forbidden)] == [200, 403, 200, 403]


def test_so_many_at_a_time(gated: Gated) -> None:
    asked = binary("multi", INPUTS, b"\0" * 8, bearer("one"))
    assert [gated.client.ask(asked).status for _ in range(3)] == [200, 200, 200]
    gated.kernel.hold = True
    gated.client.send(asked)
    other = gated.another()
    refused = other.ask(asked)
    assert said(refused) == (429, "client 'one' has 1 requests under way, which are as many as it may have")
    assert refused.headers["Retry-After"] == "1"
    gated.client.send(asked)  # in its turn behind the one that is under way
    gated.kernel.finish(gated.kernel.held.pop())
    assert [response.status for response in parse(gated.client.take())] == [200, 429]
    gated.client.send(asked)
    gated.client.lose()  # nobody waits for the answer
    gated.kernel.hold = False
    assert other.ask(asked).status == 200
    assert other.ask(request("POST", "/v2/models/multi/generate", b"{", bearer("one"))).status == 400
    assert gated.gate._usages["one"].running == 0


def test_the_body_of_who_may_not_is_thrown_away(gated: Gated) -> None:
    head = "POST /v2/models/batch8/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 300000\r\n{}\r\n\r\n"
    for name, status in (("nobody", 401), ("some", 403), ("all", 400)):
        gated.client.send(head.format(bearer(name)).encode())
        body = gated.client.connection._arrival.body
        assert body is not None and (body.discard is not None) == (status != 400)
        gated.client.send(b" " * 300_000)
        while gated.kernel.loop.jobs:
            gated.kernel.loop.run_jobs()
        assert [response.status for response in parse(gated.client.take())] == [status]
    assert not gated.client.transport.closing


def test_the_file_is_read_again(gated: Gated, caplog: pytest.LogCaptureFixture) -> None:
    loop, ask = gated.kernel.loop, gated.client.ask
    asked = binary("multi", INPUTS, b"\0" * 8, bearer("some"))
    slow = binary("multi", INPUTS, b"\0" * 8, bearer("slow"))
    assert [ask(asked).status for _ in range(2)] == [200, 200]
    assert [ask(slow).status for _ in range(3)] == [200, 200, 429]
    write_keys(gated.file, clients={name: more for name, more in CLIENTS.items() if name != "some"})
    assert ask(asked).status == 200  # it is looked at once a second
    loop.advance(1.0)
    ask(request("GET", "/v2/health/live"))  # whoever asks makes it look
    assert ask(asked).status == 401
    assert [ask(slow).status for _ in range(2)] == [200, 429]  # and what was used stays used
    gated.file.write_text("[[client]")
    loop.advance(1.0)
    assert ask(slow).status == 200
    assert caplog.messages[-1].startswith("the file of keys has changed and can't be used, the old one stays in force: ")
    assert f"{gated.file}:1:9: " in caplog.messages[-1]
    said_so = len(caplog.messages)
    loop.advance(5.0)
    assert ask(slow).status == 200 and len(caplog.messages) == said_so  # once for each state of the file
    gated.file.unlink()
    loop.advance(5.0)
    assert ask(slow).status == 200 and "can't be read" in caplog.messages[-1]
    write_keys(gated.file)
    loop.advance(5.0)
    ask(slow)
    assert ask(asked).status == 200


def test_audit(gated: Gated, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kernel_auth")
    gated.client.transport.extra["peername"] = ("10.0.0.7", 5)
    ask = gated.client.ask
    ask(request("POST", "/v2/repository/models/multi/unload", b"", bearer("all")))
    ask(request("GET", "/v2/logging", b"", bearer("all")))
    ask(infer("multi", BODY, bearer("all")))
    ask(request("POST", "/v2/logging", b"{}", bearer("all")))
    ask(request("POST", "/v2/repository/models/multi/load", b"", bearer("some")))
    operation = "/v2/repository/models/multi"
    assert caplog.messages == [
        f'audit result=allowed client=all peer="HTTP 10.0.0.7:5" operation="POST {operation}/unload" model=multi',
        'audit result=allowed client=all peer="HTTP 10.0.0.7:5" operation="POST /v2/logging"',
        f'audit result=forbidden client=some peer="HTTP 10.0.0.7:5" operation="POST {operation}/load" model=multi '
        "why=\"client 'some' may not use 'model-repository' of model 'multi'\"",
    ]
    assert "key-" not in caplog.text


@pytest.mark.parametrize("flags", [[], ["--safe"]])
def test_a_key_is_as_good_as_being_on_the_same_machine(flags: list[str], gated: Gated) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--safe", action="store_true")
    made: Any = gated.kernel
    frontend = HttpFrontend(made, parser.parse_args(flags))
    assert not frontend.open_to_all  # though it is for every interface
    client = Client(gated.kernel, server=frontend.server)
    client.transport.extra["peername"] = ("10.0.0.7", 5)
    path = "/v2/systemsharedmemory/unregister"
    assert [client.ask(request("POST", path, b"", bearer(name))).status for name in ("nobody", "some", "all")] == [401, 403, 200]


def test_a_file_that_is_wrong_stops_the_start(tmp_path: Path) -> None:
    kernel: Any = FakeKernel()
    kernel.clock = kernel.loop.time
    with pytest.raises(ServingError, match=r"--auth-keys: .*nowhere.toml can't be read"):
        KeyGate(kernel, tmp_path / "nowhere.toml")


def test_without_a_gate_nothing_is_asked() -> None:
    client = Client()
    assert type(client.server.router).__name__ == "Router" and type(client.connection).__name__ == "Connection"
    assert client.ask(infer("multi", BODY, bearer("nobody"))).status == 200
    assert not hasattr(next(iter(client.server.heads.values())), "door")


def test_by_asgi(tmp_path: Path) -> None:
    """KernelApp asks the same gate; what is counted is over when the answer is out."""

    async def main() -> None:
        asked = [("nobody", 401), ("some", 403), *[("one", 200)] * 3, *[("slow", 200)] * 2, ("slow", 429)]
        async with Kernel(tmp_path / "models", plugins=[TestBackend({})]) as kernel:
            kernel.gate = KeyGate(kernel, write_keys(tmp_path / "keys.toml"))
            app = KernelApp(kernel)
            for key, status in asked:
                sent: list[Any] = []
                messages = [{"type": "http.request", "body": b"", "more_body": False}]

                async def receive(messages: list[Any] = messages) -> Any:
                    return messages.pop() if messages else await asyncio.Event().wait()

                async def send(message: Any, sent: list[Any] = sent) -> None:
                    sent.append(message)

                headers = [(b"x-api-key", b"key-" + key.encode())]
                scope = {"type": "http", "method": "GET", "path": "/v2/models/m", "headers": headers}
                await app(scope, receive, send)
                assert sent[0]["status"] == status, key
            assert kernel.gate._usages["one"].running == 0

    write_repository(tmp_path / "models", {"m": BASE})
    run(main())
