"""A client over HTTP: requests in all forms that the wire has, pipelined, and the answers in their order."""

from __future__ import annotations

import gzip
import json
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from simulation.pipe import Pipe

from kernel_http.connection.protocol import Connection

if TYPE_CHECKING:
    from simulation.world import Ticket, World

__all__ = ["HttpClient"]

FORMS = ("binary", "binary", "binary", "json", "chunked", "gzip", "expect", "raw")
NONSENSE = (b"\x16\x03\x01", b"GET / HTTP/9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n")


class HttpClient:
    """One connection. `owed`: what the client waits for, oldest first; None for a request that is no inference."""

    def __init__(self, world: World, lag: int) -> None:
        self.world = world
        self.owed: deque[Ticket | None] = deque()
        self.over = False
        self._data = bytearray()
        self.pipe = Pipe(world, Connection(world.http), self, lag)

    # -- requests --------------------------------------------------------------------------------------------------------

    def ask(self, ticket: Ticket, fields: dict[str, Any]) -> None:
        """Send an inference. `fields`: parameters of the request."""
        rng, values = self.world.rng, self.world.array_of(ticket)
        form = rng.choice(FORMS)
        record: dict[str, Any] = {"name": "X", "datatype": "FP32", "shape": list(values.shape)}
        asked: dict[str, Any] = {"id": ticket.id, "inputs": [record], "parameters": fields}
        if form == "json":
            record["data"] = values.ravel().tolist()
            tail = b""
        else:
            tail = values.tobytes()
            record["parameters"] = {"binary_data_size": len(tail)}
            if rng.random() < 0.8:
                fields["binary_data_output"] = True
        head = json.dumps(asked).encode()
        self._post(f"/v2/models/{ticket.plan.name}/infer", head, tail, form)
        self.owed.append(ticket)

    def _post(self, path: str, head: bytes, tail: bytes, form: str) -> None:
        rng = self.world.rng
        lines = [f"POST {path} HTTP/1.1", "Host: test", f"Inference-Header-Content-Length: {len(head)}"]
        body = head + tail
        if form == "gzip":
            body = gzip.compress(body, 1)
            lines.append("Content-Encoding: gzip")
        if rng.random() < 0.05:
            lines.append("Accept-Encoding: gzip")
        if form == "expect":
            lines.append("Expect: 100-continue")
        if form == "chunked":
            lines.append("Transfer-Encoding: chunked")
            size = rng.choice((1, 50, 4000)) if len(body) < 4000 else 4000
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        else:
            lines.append(f"Content-Length: {len(body)}")
        self.pipe.send("\r\n".join([*lines, "", ""]).encode() + body)

    def look(self) -> None:
        """Ask for something that is no inference."""
        path = self.world.rng.choice(("/v2/health/live", "/v2/models/m0", "/v2/models/stats", "/nowhere", "/v2/models/m0/ready"))
        self.pipe.send(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        self.owed.append(None)

    def misbehave(self) -> None:
        """Send what is no HTTP; the connection ends behind the answers to what went before."""
        self.pipe.send(self.world.rng.choice(NONSENSE))
        self.over = True

    def cancel(self, ticket: Ticket) -> None:
        """HTTP knows no other way than to go."""
        self.leave(reset=True)

    def leave(self, *, reset: bool) -> None:
        self.over = True
        if reset:
            self._give_up()
            self.pipe.reset()
        else:
            self.pipe.end()

    def _give_up(self) -> None:
        for ticket in self.owed:
            if ticket is not None:
                ticket.lost = True
        self.owed.clear()

    # -- answers ---------------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        self.over = True
        if self.owed and not self.pipe.lost:
            self.pipe.reset()
        self._give_up()

    def received(self, data: bytes) -> None:
        self._data += data
        while (taken := self._take()) is not None:
            status, headers, body = taken
            if status == 100:
                continue
            if not self.owed:
                self.world.expect(self.over, f"an answer that nobody has asked for: {status} {body[:200]!r}")
                continue
            ticket = self.owed.popleft()
            if ticket is not None:
                self._answer(ticket, status, headers, body)

    def _take(self) -> tuple[int, dict[str, str], bytes] | None:
        """Take one response that has come as a whole."""
        stop = self._data.find(b"\r\n\r\n")
        if stop < 0:
            return None
        line, *lines = bytes(self._data[:stop]).decode("latin-1").split("\r\n")
        headers = dict(text.split(": ", 1) for text in lines)
        status = int(line.split(" ")[1])
        size = 0 if status == 100 else int(headers.get("Content-Length", -1))
        self.world.expect(size >= 0, f"an answer without a length: {line} {headers}")
        if len(self._data) < stop + 4 + size:
            return None
        body = bytes(self._data[stop + 4 : stop + 4 + size])
        del self._data[: stop + 4 + size]
        if headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return status, headers, body

    def _answer(self, ticket: Ticket, status: int, headers: dict[str, str], body: bytes) -> None:
        world, plan = self.world, ticket.plan
        ticket.end()
        if status != 200:
            try:
                words = json.loads(body)["error"]
            except (ValueError, KeyError):
                words = body.decode("latin-1")
            ticket.fail(words)
            return
        split = int(headers.get("Inference-Header-Content-Length", len(body)))
        said = json.loads(body[:split])
        world.expect(said.get("id") == ticket.id, f"an answer has another request's id: {said}", plan)
        world.expect(said["model_name"] == plan.name, "an answer of another model", plan)
        for output in said["outputs"]:
            if output["name"] == "Y":
                values = output["data"] if "data" in output else np.frombuffer(body[split:], np.float32)
                ticket.look_at(values)
        world.expect(ticket.got == 1 or not said["outputs"], "an answer without its output", plan)
