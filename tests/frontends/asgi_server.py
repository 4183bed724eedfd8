"""An ASGI server's part in tests: scopes and messages from the bytes of an HTTP/1.1 request, and the answer's messages.

It is strict: what the specification does not allow fails the test.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from frontends.fakes import FakeKernel, unchunked

from kernel_http.asgi import KernelApp

__all__ = ["Exchange", "app_of", "ask", "turns"]

GONE = {"type": "http.disconnect"}


def app_of(kernel: FakeKernel | None = None, **options: Any) -> tuple[KernelApp, FakeKernel]:
    """Return an application on the running loop, and its kernel."""
    kernel = kernel or FakeKernel()
    kernel.loop = asyncio.get_running_loop()  # type: ignore[assignment]
    return KernelApp(kernel, **options), kernel  # type: ignore[arg-type]


class Exchange:
    """One request to an application and the messages that come back; `await start()` begins, `await end()` waits for the end.

    `request`: as on the wire, with a body that has a length or is chunked. `root`: the prefix that the application is mounted at.
    `size`: of the pieces that the body comes in. `more`: the last of them is missing. `silent`: what is sent after the client's
    end is thrown away, instead of being refused. `scope`: further members of the scope.
    """

    def __init__(
        self,
        app: KernelApp,
        request: bytes,
        *,
        root: str = "",
        size: int = 0,
        more: bool = False,
        silent: bool = False,
        **scope: Any,
    ) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        method, target, version = line.split(b" ")
        path, _, query = target.partition(b"?")
        pairs = [tuple(line.split(b": ", 1)) for line in lines]
        headers = [(name.lower(), value) for name, value in pairs]
        if (b"transfer-encoding", b"chunked") in headers:
            body, _ = unchunked(body)
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": version.decode().removeprefix("HTTP/"),
            "method": method.decode().upper(),
            "scheme": "http",
            "path": root + unquote(path.decode()),
            "raw_path": root.encode() + path,
            "query_string": query,
            "root_path": root,
            "headers": headers,
            **scope,
        }
        pieces = [body[at : at + size] for at in range(0, len(body), size)] if size else [body]
        #: What `receive` gives: messages, or what is to be called for one.
        self.incoming: list[dict[str, Any] | Callable[[], Awaitable[dict[str, Any]]]] = [
            {"type": "http.request", "body": piece, "more_body": True} for piece in pieces or [b""]
        ]
        if not more:
            self.incoming[-1]["more_body"] = False  # type: ignore[index]
        self.sent: list[dict[str, Any]] = []
        self.may_send = asyncio.Event()  # cleared: the client takes nothing
        self.may_send.set()
        self.is_gone = asyncio.Event()
        self.received = 0
        self.silent = silent
        self.app = app
        self.task: asyncio.Task[None] | None = None

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        if self.incoming:
            message = self.incoming.pop(0)
            return await message() if callable(message) else message
        await self.is_gone.wait()
        return GONE

    async def send(self, message: Any) -> None:
        assert not self.complete, "a message after the last"
        await self.may_send.wait()
        if self.is_gone.is_set():
            if self.silent:
                return
            raise OSError("the client has gone")
        if not self.sent:
            assert message["type"] == "http.response.start" and type(message["status"]) is int
            for name, value in message["headers"]:
                assert type(name) is bytes and name == name.lower() and type(value) is bytes
        else:
            assert message["type"] == "http.response.body" and type(message["body"]) is bytes
        self.sent.append(message)

    async def start(self) -> Exchange:
        """Let the application begin; return when it waits for something."""
        self.task = asyncio.get_running_loop().create_task(self.app(self.scope, self.receive, self.send))
        await turns()
        return self

    async def end(self) -> Exchange:
        """Wait for the application; raises what it raises. Nothing of it may be left."""
        if self.task is None:
            await self.start()
        assert self.task is not None
        await self.task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return self

    def lose(self) -> None:
        """The client goes."""
        self.is_gone.set()
        self.may_send.set()

    # --- the answer

    @property
    def complete(self) -> bool:
        return len(self.sent) > 1 and not self.sent[-1]["more_body"]

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def pieces(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]

    @property
    def body(self) -> bytes:
        body = b"".join(self.pieces)
        length = self.headers.get("content-length")
        assert not self.complete or length is None or int(length) == len(body)
        return body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.complete and list(self.json) == ["error"]
        return self.json["error"]


async def ask(app: KernelApp, request: bytes, **options: Any) -> Exchange:
    """Send one request and return its complete exchange."""
    exchange = await Exchange(app, request, **options).end()
    assert exchange.complete
    return exchange


async def turns(count: int = 10) -> None:
    """Let the loop turn, without letting time pass."""
    for _ in range(count):
        await asyncio.sleep(0)

