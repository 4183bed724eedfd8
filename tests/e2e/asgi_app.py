"""A Starlette app that mounts the kernel's HTTP API: `python asgi_app.py httptools|h11 asyncio|uvloop REPOSITORY`.

Prints its address and serves under uvicorn until it gets a signal. The API is there three times: plainly under /models, under a
prefix with a parameter, and behind middlewares that put themselves between the messages.
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from kernel_http.asgi import KernelApp


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


def main(http: str, loop: str, repository: str) -> None:
    models = KernelApp(repository)
    routes = [
        Route("/", hello),
        Mount("/models", models),
        Mount("/of/{tenant}", models),
        Mount("/wrapped", BaseHTTPMiddleware(GZipMiddleware(models), pass_on)),
    ]
    app = Starlette(routes=routes, lifespan=models.lifespan)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, http=http, loop=loop, access_log=False, log_level="warning")
    socket = config.bind_socket()
    print(f"127.0.0.1:{socket.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([socket])


if __name__ == "__main__":
    main(*sys.argv[1:])
