"""KServe v2 over HTTP as an ASGI 3 application, to be mounted in an app or served alone.

    models = KernelApp("repository/")
    app = FastAPI(lifespan=models.lifespan)  # or Starlette(...)
    app.mount("/models", models)             # POST /models/v2/models/add_sub/infer

Routes, handlers, limits and words are the HTTP front end's. Left to the ASGI server: framing, keep-alive, TLS, time-outs of
slow clients. Forwarded header names are in lower case, since ASGI has no others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from kernel import Kernel, parse_restrictions
from kernel_http.asgi.connection import CLIENT_GONE, AsgiConnection, transmit
from kernel_http.asgi.request import Disconnected, Heads, Receive, Refusal, Scope, Send, read_message
from kernel_http.connection import replies
from kernel_http.connection.heads import Forwarding
from kernel_http.connection.server import Server
from kernel_http.frontend import MAX_INPUT_SIZE, make_server

__all__ = ["KernelApp"]

log = logging.getLogger(__name__)

NOT_STARTED = (
    "this server's kernel has not been started: give the app `lifespan=KernelApp(...).lifespan`, or use `async with kernel` in "
    "the app's own lifespan"
)
OTHER_LOOP = "this server's kernel runs on another event loop than the app; start it in the app's lifespan"


class KernelApp:
    """The HTTP API of a kernel as an ASGI application.

    `kernel`: a Kernel, or the path of a model repository to make one from; `repositories` and `options` are further arguments of
    that Kernel. One that was started before, in the app's own lifespan for example, is left to whoever did; otherwise
    `lifespan` starts and stops it. Served alone, the application answers the server's lifespan messages itself.

    `server_name`, `max_input_size`, `header_forward_pattern`, `restricted_api`: as the flags `--id`, `--http-max-input-size`,
    `--http-header-forward-pattern` and (one value or several) `--http-restricted-api`. Raises ValueError for values that the
    flags don't take.
    """

    def __init__(
        self,
        kernel: Kernel | str | os.PathLike[str],
        *repositories: str | os.PathLike[str],
        server_name: str = "triton",
        max_input_size: int = MAX_INPUT_SIZE,
        header_forward_pattern: str = "",
        restricted_api: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        texts = [restricted_api] if isinstance(restricted_api, str) else restricted_api
        self._restrictions = parse_restrictions(texts, "restricted_api")
        self._pattern = header_forward_pattern
        self._forwarding = forwarding(header_forward_pattern)
        self._server_name = server_name
        self._max_input_size = max_input_size
        self._make: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        if isinstance(kernel, str | os.PathLike):
            self._make = ((kernel, *repositories), options)
            kernel = Kernel(kernel, *repositories, **options)
        elif repositories or options:
            given = ", ".join([*map(repr, repositories), *options])
            raise TypeError(f"KernelApp was given a Kernel that is made already, and for making one: {given}")
        self.kernel = kernel
        self._server: Server | None = None
        self._heads: Heads | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or follow the server's start and stop."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._follow(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": "there are no websockets here"})
        else:
            raise ValueError(f"ASGI scope of type '{scope['type']}': there are 'http', 'websocket' and 'lifespan'")

    # --- start and stop

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Start the kernel, and stop it at the end: a lifespan for Starlette and FastAPI, or a part of one.

        A kernel that runs already is left alone. Where KernelApp was given paths, the app may be started again, as tests do.
        """
        if self.kernel.live:
            yield
            return
        if self._make is not None and getattr(self.kernel, "loop", None) is not None:
            paths, options = self._make
            self.kernel = Kernel(*paths, **options)
        await self.kernel.start()
        try:
            yield
        finally:
            await self.kernel.stop()

    async def _follow(self, receive: Receive, send: Send) -> None:
        step = "startup"
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                step = "shutdown"
                await receive()
        except Exception as error:
            log.debug("%s failed", step, exc_info=True)
            await send({"type": f"lifespan.{step}.failed", "message": str(error)})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    # --- requests

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        kernel = self.kernel
        server, heads = self._server, self._heads
        if server is None or heads is None or server.kernel is not kernel:
            if getattr(kernel, "loop", None) is None:
                await transmit(send, replies.error(503, NOT_STARTED, json=False), begun=False, last=True)
                return
            server, heads = self._serve_with(kernel)
        if kernel.loop is not asyncio.get_running_loop():
            await transmit(send, replies.error(500, OTHER_LOOP, json=False), begun=False, last=True)
            return
        try:
            head = heads.of(scope)
            json, tail, held = await read_message(head, server, receive)
        except Refusal as refusal:
            await transmit(send, refusal.payload, begun=False, last=True)
            return
        except Disconnected:
            with suppress(OSError):
                await transmit(send, CLIENT_GONE, begun=False, last=True)
            return
        connection = AsgiConnection(server, held)
        server.router.handler(head)(connection, head, json, tail)
        del json, tail  # the request's memory goes with the request
        await connection.run(receive, send)

    def _serve_with(self, kernel: Kernel) -> tuple[Server, Heads]:
        """Put together what serves requests, now that the kernel has a loop."""
        self._server = make_server(
            kernel,
            server_name=self._server_name,
            max_input_size=self._max_input_size,
            forward_pattern=self._pattern,
            restrictions=self._restrictions,
        )
        self._heads = Heads(self._server, self._forwarding)
        return self._server, self._heads


def forwarding(pattern: str) -> Forwarding | None:
    """Return what chooses the headers that become request parameters."""
    try:
        return Forwarding(pattern) if pattern else None
    except re.error as error:
        raise ValueError(f"header_forward_pattern '{pattern}' is not a regular expression: {error}") from None
