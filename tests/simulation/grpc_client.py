"""A client over gRPC: HTTP/2 frames out and in, calls and streams, with windows that are as small and late as a seed says."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import hpack
import numpy as np
from frontends.wires import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    ping,
    rst_stream,
    settings,
    window_update,
)
from simulation.pipe import Pipe

from kernel_grpc.rpc.protocol import Peer
from kernel_grpc.schemas import grpc_service_pb2 as pb

if TYPE_CHECKING:
    from simulation.world import Ticket, World

__all__ = ["GrpcClient"]

PATH = "/inference.GRPCInferenceService/"
FINAL, EMPTY = "triton_final_response", "triton_enable_empty_final_response"


class _Call:
    """One call of a client. `owed`: the requests on it that have no final answer, oldest first."""

    def __init__(self, id: int, stream: bool, window: int) -> None:
        self.id = id
        self.stream = stream
        self.owed: deque[Ticket] = deque()
        self.body = bytearray()
        self.head: dict[str, str] = {}
        self.waiting = bytearray()  # what the server's windows have no room for
        self.ends = False  # behind that, nothing more is sent
        self.done = self.sent_end = False
        self.window = window  # what the server takes
        self.messages = 0


class GrpcClient:
    """One connection."""

    def __init__(self, world: World, lag: int) -> None:
        self.world = world
        self.rng = world.rng
        self.over = False
        self.calls: dict[int, _Call] = {}
        self.open: list[_Call] = []  # streams that take more
        self.decoder = hpack.Decoder(2**20)
        self.decoder.max_allowed_table_size = 2**16
        self._next = 1
        self._data = bytearray()
        self.window = 65535  # of the connection, as the server has said
        self.initial = 65535
        self.mine = self.rng.choice((700, 5000, 65535, 2**20))  # what a stream of the server may send
        self.late = lag > 0 and self.rng.random() < 0.3  # windows are opened later
        self.pipe = Pipe(world, Peer(world.grpc), self, lag)
        self.pipe.send(PREFACE + settings((4, self.mine)))

    # -- requests --------------------------------------------------------------------------------------------------------

    def ask(self, ticket: Ticket, fields: dict[str, Any]) -> None:
        """Send an inference, as a call or on a stream."""
        values, plan = self.world.array_of(ticket), ticket.plan
        request = pb.ModelInferRequest(model_name=plan.name, id=ticket.id)
        request.inputs.add(name="X", datatype="FP32", shape=values.shape)
        if self.rng.random() < 0.8:
            request.raw_input_contents.append(values.tobytes())
        else:
            request.inputs[0].contents.fp32_contents.extend(values.ravel().tolist())
        for name, value in fields.items():
            kind = "bool_param" if isinstance(value, bool) else "int64_param"
            setattr(request.parameters[name], kind, value)
        if plan.decoupled or self.rng.random() < 0.3:
            if plan.decoupled or self.rng.random() < 0.5:
                request.parameters[EMPTY].bool_param = True
            call = self._stream()
            call.owed.append(ticket)
            ticket.place = call
            self._message(call, request.SerializeToString())
            if self.rng.random() < 0.1:
                self._half_close(call)
            return
        metadata = []
        if ticket.timeout:
            metadata.append(("grpc-timeout", f"{max(1, int(ticket.timeout * 1e6))}u"))
        call = self._begin("ModelInfer", metadata)
        call.owed.append(ticket)
        ticket.place = call
        self._message(call, request.SerializeToString())
        self._half_close(call)

    def _stream(self) -> _Call:
        if not self.open or self.rng.random() < 0.1:
            call = self._begin("ModelStreamInfer", [])
            self.open.append(call)
        return self.rng.choice(self.open)

    def _begin(self, method: str, metadata: list[tuple[str, str]]) -> _Call:
        call = self.calls[self._next] = _Call(self._next, method == "ModelStreamInfer", self.initial)
        self._next += 2
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", PATH + method), (":authority", "test"),
            ("content-type", "application/grpc"), ("te", "trailers"), *metadata,
        ]  # fmt: skip
        self.pipe.send(frame(HEADERS, END_HEADERS, call.id, block(fields)))
        return call

    def _message(self, call: _Call, payload: bytes) -> None:
        call.waiting += struct.pack(">BI", 0, len(payload)) + payload
        self._send(call)

    def _half_close(self, call: _Call) -> None:
        call.ends = True
        if call in self.open:
            self.open.remove(call)
        self._send(call)

    def _send(self, call: _Call) -> None:
        """Send as much of a call's data as the server has room for."""
        if call.done or call.sent_end:
            return
        while call.waiting and self.window > 0 and call.window > 0:
            size = min(len(call.waiting), self.window, call.window, 16384)
            piece = bytes(call.waiting[:size])
            del call.waiting[:size]
            self.window -= size
            call.window -= size
            call.sent_end = call.ends and not call.waiting
            self.pipe.send(frame(DATA, END_STREAM if call.sent_end else 0, call.id, piece))
        if call.ends and not call.waiting and not call.sent_end:
            call.sent_end = True
            self.pipe.send(frame(DATA, END_STREAM, call.id))

    def look(self) -> None:
        """Make a call that is no inference, or a PING."""
        if self.rng.random() < 0.3:
            self.pipe.send(ping())
            return
        call = self._begin(self.rng.choice(("ServerLive", "ModelStatistics", "Nothing")), [])
        self._message(call, b"")
        self._half_close(call)

    def misbehave(self) -> None:
        """Send what is no HTTP/2: the connection ends."""
        self.pipe.send(self.rng.choice((frame(DATA, 0, 0, b"x"), frame(HEADERS, END_HEADERS, 2, b"\xff"), b"\xff" * 20)))
        self._leave()

    def cancel(self, ticket: Ticket) -> None:
        call = ticket.place
        if call.done:
            return
        call.done = True
        if call in self.open:
            self.open.remove(call)
        for one in call.owed:
            one.lost = True
        call.owed.clear()
        self.pipe.send(rst_stream(call.id))

    def leave(self, *, reset: bool) -> None:
        if reset:
            self._leave()
            self.pipe.reset()
        else:
            self.over = True
            for call in list(self.open):
                self._half_close(call)
            self.pipe.end()
            self._leave()  # an end of the client's side is the end of the connection

    def _leave(self) -> None:
        """Wait for nothing any more."""
        self.over = True
        self.open.clear()
        for call in self.calls.values():
            call.done = True
            for ticket in call.owed:
                ticket.lost = True
            call.owed.clear()

    # -- answers ---------------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        if not self.pipe.lost:
            self.pipe.end()
        self._leave()

    def received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 9:
            size = int.from_bytes(self._data[:3], "big")
            if len(self._data) < 9 + size:
                return
            kind, flags = self._data[3], self._data[4]
            id, payload = int.from_bytes(self._data[5:9], "big"), bytes(self._data[9 : 9 + size])
            del self._data[: 9 + size]
            self._frame(kind, flags, id, payload)

    def _frame(self, kind: int, flags: int, id: int, payload: bytes) -> None:
        call = self.calls.get(id)
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    for one in self.calls.values():
                        one.window += value - self.initial
                    self.initial = value
            self.pipe.send(settings(ack=True))
            for one in list(self.calls.values()):
                self._send(one)
        elif kind == PING and not flags & ACK:
            self.pipe.send(ping(payload, ack=True))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if id == 0:
                self.window += more
                for one in list(self.calls.values()):
                    self._send(one)
            elif call is not None:
                call.window += more
                self._send(call)
        elif kind == GOAWAY:
            last, code = struct.unpack_from(">II", payload)
            asleep = code == 4 and self.pipe.has_slept  # so that it has not answered SETTINGS
            self.world.expect(self.over or code == 0 or asleep, f"GOAWAY {code} {payload[8:]!r}")
            self.over = True
            for one in list(self.calls.values()):
                if one.id > last:
                    self._lost(one)
        elif kind == RST_STREAM and call is not None:
            code = int.from_bytes(payload, "big")
            self.world.expect(call.done, f"a call is reset with {code}", call.owed[0].plan if call.owed else None)
            self._lost(call)
        elif kind == HEADERS:
            fields = dict(self.decoder.decode(payload))
            if call is not None and not call.done:
                call.head.update(fields)
                if flags & END_STREAM:
                    self._over(call)
        elif kind == DATA:
            self._grant(id, len(payload))
            if call is not None and not call.done:
                call.body += payload
                self._messages(call)

    def _grant(self, id: int, size: int) -> None:
        """Let the server send on what was taken, now or later."""
        if not size:
            return
        updates = window_update(0, size) + (window_update(id, size) if not self.calls[id].done else b"")
        if self.late:
            self.world.loop.call_later(self.rng.choice((0.001, 0.05, 1.0)), self.pipe.send, updates)
        else:
            self.pipe.send(updates)

    def _lost(self, call: _Call) -> None:
        call.done = True
        if call in self.open:
            self.open.remove(call)
        for ticket in call.owed:
            ticket.lost = True
        call.owed.clear()

    def _messages(self, call: _Call) -> None:
        body = call.body
        while len(body) >= 5 and len(body) >= 5 + (size := int.from_bytes(body[1:5], "big")):
            payload = bytes(body[5 : 5 + size])
            del body[: 5 + size]
            call.messages += 1
            if call.stream:
                self._streamed(call, pb.ModelStreamInferResponse.FromString(payload))
            elif call.owed:
                self._look_at(call.owed[0], pb.ModelInferResponse.FromString(payload))

    def _streamed(self, call: _Call, message: Any) -> None:
        response = message.infer_response
        ticket = next((one for one in call.owed if one.id == response.id), None)
        if ticket is None:
            self.world.broken(f"a message for no request on the stream: {message}")
            return
        plan = ticket.plan
        if not plan.decoupled:
            first = next(one for one in call.owed if not one.plan.decoupled)
            self.world.expect(first is ticket, "answers on a stream are not in order", plan)
        final = response.parameters[FINAL].bool_param if FINAL in response.parameters else not plan.decoupled
        if message.error_message:
            call.owed.remove(ticket)
            ticket.end()
            ticket.fail(message.error_message)
            return
        if response.outputs:
            self._look_at(ticket, response)
        if final:
            call.owed.remove(ticket)
            ticket.end()

    def _look_at(self, ticket: Ticket, response: Any) -> None:
        world, plan = self.world, ticket.plan
        world.expect(response.id == ticket.id, "an answer has another request's id", plan)
        world.expect(response.model_name == plan.name, "an answer of another model", plan)
        for place, output in enumerate(response.outputs):
            if output.name == "Y":
                ticket.look_at(np.frombuffer(response.raw_output_contents[place], np.float32))

    def _over(self, call: _Call) -> None:
        """The server has ended a call."""
        world = self.world
        call.done = True
        if call in self.open:
            self.open.remove(call)
        status, words = call.head.get("grpc-status"), unquote(call.head.get("grpc-message", ""))
        if status == "0":
            if call.stream:
                world.expect(not call.owed, f"a stream has ended before its answers: {[one.id for one in call.owed]}")
            elif call.owed:
                ticket = call.owed[0]
                world.expect(call.messages == 1, f"{call.messages} messages in an answer", ticket.plan)
                ticket.end()
            call.owed.clear()
            return
        if call.owed:
            for ticket in call.owed:
                ticket.end()
                ticket.fail(words)
            call.owed.clear()
