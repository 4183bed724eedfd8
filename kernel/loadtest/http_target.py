"""KServe v2 over HTTP/1.1, as a load needs it: a connection for each request in flight, kept for the next one.

An answer is read by httptools, and only one that says no is looked into. Requests are made before they are sent.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httptools
import numpy as np

from kernel.errors import Code, ServingError
from kernel.loadtest.described import Described, described, read_json_config
from kernel.loadtest.target import Ask, Done, Parameter, TargetOptions, split
from kernel.tensor import Tensor, pack_bytes

__all__ = ["HttpTarget"]

CONNECT_SECONDS = 5.0
LOOKED = 0.25  # seconds between two looks for answers that take too long
MOST_WORDS = 64 * 1024  # of an answer that says no, in bytes
SHOWN = 200  # characters of why


class HttpTarget:
    """A model of a server that speaks HTTP."""

    model: Described

    def __init__(self, address: str, options: TargetOptions) -> None:
        self.address = self._url = address
        self.responses = 0
        self._options = options
        self._loop = asyncio.get_running_loop()
        secure = address.startswith("https:")
        self._host, self._port, self._base = split(address, 443 if secure else 8000)
        self._context = ssl.create_default_context() if secure else None
        self._open: set[_HttpConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._idle: list[_HttpConnection] = []
        self._waiting: deque[tuple[bytes, Done]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._head = ""

    async def look(self, model: str, ask: Ask) -> None:
        """Ask what the model is. Raises ServingError."""
        version = f"/versions/{quote(self._options.version, safe='')}" if self._options.version else ""
        path = f"/v2/models/{quote(model, safe='')}{version}"
        status, reason, told = await asyncio.to_thread(ask, self._url, path, self._options.headers)
        if status != 200 or not isinstance(told, dict):
            words = told.get("error") if isinstance(told, dict) else None
            raise ServingError(Code.NOT_FOUND, f"{self.address} has no model '{model}': {status} {words or reason}")
        known, _, config = await asyncio.to_thread(ask, self._url, f"{path}/config", self._options.headers)
        try:
            versions = [str(one) for one in told.get("versions") or ["?"]]
            inputs = [(str(one["name"]), str(one["datatype"]), [int(size) for size in one["shape"]]) for one in told["inputs"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            words = f"{self.address} describes model '{model}' otherwise than KServe v2 does: {type(error).__name__}: {error}"
            raise ServingError(Code.UNAVAILABLE, words) from None
        found = read_json_config(config) if known == 200 else None
        self.model = described(model, self._options.version or versions[-1], inputs, found)
        self._head = f"POST {self._base}{path}/infer HTTP/1.1\r\n{self._fields()}"
        self._watch = self._loop.call_later(LOOKED, self._look)

    def _fields(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        given = "".join(f"{name}: {value}\r\n" for name, value in self._options.headers.items())
        return f"Host: {host}:{self._port}\r\n{given}"

    # -- what a load does ----------------------------------------------------------------------------------------------

    def encode(self, inputs: Mapping[str, Tensor], parameters: Mapping[str, Parameter]) -> bytes:
        given: dict[str, Any] = {"parameters": dict(parameters)} if parameters else {}
        described_inputs, raw = [], []
        for name, tensor in inputs.items():
            one: dict[str, Any] = {"name": name, "shape": list(tensor.shape), "datatype": tensor.datatype}
            # JSON has no half floats, and no bytes that are no text.
            if self._options.binary or tensor.datatype in ("FP16", "BF16"):
                data = pack_bytes(tensor.array) if tensor.datatype == "BYTES" else np.ascontiguousarray(tensor.array).tobytes()
                one["parameters"] = {"binary_data_size": len(data)}
                raw.append(data)
            else:
                one["data"] = [_plain(item) for item in tensor.array.ravel().tolist()]
            described_inputs.append(one)
        if self._options.binary:
            given.setdefault("parameters", {})["binary_data_output"] = True
        document = json.dumps({**given, "inputs": described_inputs}).encode()
        body = b"".join((document, *raw))
        if raw:
            kind = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(document)}\r\n"
        else:
            kind = "Content-Type: application/json\r\n"
        return f"{self._head}{kind}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send(self, message: bytes, done: Done) -> None:
        if self._idle:
            self._idle.pop().begin(message, done)
        else:
            self._waiting.append((message, done))
            self._more()

    def _more(self) -> None:
        """Make a further connection, if there may be one."""
        if len(self._open) + len(self._connecting) < self._options.connections:
            task = self._loop.create_task(self._connect())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for task in list(self._connecting):
            task.cancel()
        for connection in list(self._open):
            connection.abort("was closed")
        self._fail("was closed", len(self._waiting))

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        problem = ""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._loop.create_connection(lambda: _HttpConnection(self), self._host, self._port, ssl=self._context)
        except TimeoutError:
            problem = f"can't be connected to within {CONNECT_SECONDS:g} s"
        except OSError as error:
            problem = f"can't be connected to: {error.strerror or error}"
        except UnicodeError as error:  # no name of a host
            problem = f"can't be connected to: {error}"
        if problem:
            self._fail(problem, 1)

    def _fail(self, problem: str, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            _, done = self._waiting.popleft()
            done(problem, 0.0)

    def made(self, connection: _HttpConnection) -> None:
        self._open.add(connection)
        self.ready(connection)

    def ready(self, connection: _HttpConnection) -> None:
        """A connection may be used."""
        if self._waiting:
            message, done = self._waiting.popleft()
            connection.begin(message, done)
        else:
            self._idle.append(connection)

    def lost(self, connection: _HttpConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiting:
            self._more()

    def _look(self) -> None:
        self._watch = self._loop.call_later(LOOKED, self._look)
        late = time.perf_counter() - self._options.timeout
        for connection in [one for one in self._open if one.done is not None and one.since < late]:
            connection.abort(f"has not answered within {self._options.timeout:g} s")


class _HttpConnection(asyncio.Protocol):
    """A connection. `done`: whom to tell of the answer that is waited for, `since`: when it was asked for."""

    transport: asyncio.Transport
    done: Done | None = None
    since = 0.0

    def __init__(self, target: HttpTarget) -> None:
        self._target = target
        self._parser = httptools.HttpResponseParser(self)
        self._words = b""

    def begin(self, message: bytes, done: Done) -> None:
        """Send a request."""
        self.done, self.since = done, time.perf_counter()
        self.transport.write(message)

    def abort(self, why: str) -> None:
        """Close it, whatever goes on."""
        done, self.done = self.done, None
        self._target.lost(self)
        self.transport.abort()
        if done is not None:
            done(why, 0.0)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._target.made(self)

    def data_received(self, data: bytes) -> None:
        if self.done is None:
            self.abort("says what it was not asked for")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(f"answers otherwise than HTTP/1.1 does: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.abort("has closed the connection" + (f": {error}" if error else ""))

    # -- as httptools calls it

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200 and len(self._words) < MOST_WORDS:
            self._words += body

    def on_message_complete(self) -> None:
        if self.done is None:
            raise ValueError("it answers more than it was asked")  # to the parser, which is the end of the connection
        done, self.done = self.done, None
        status, words, self._words = self._parser.get_status_code(), self._words, b""
        if self._parser.should_keep_alive():
            self._target.ready(self)
        else:
            self._target.lost(self)
            self.transport.close()
        self._target.responses += 1
        if done is not None:
            done("" if status == 200 else _why(status, words), 0.0)


def _why(status: int, body: bytes) -> str:
    try:
        words = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        words = body.decode("utf-8", "replace").strip()
    return f"{status}: {' '.join(words.split())[:SHOWN]}" if words else str(status)


def _plain(item: Any) -> Any:
    """Return an element as JSON has it."""
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item
