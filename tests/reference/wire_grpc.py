"""One gRPC call: what a case sends and what may be compared of the answer, in the same lines of text as over HTTP.

Sends serialised messages, so that ones which no client would make can be sent; reads what comes back with the messages of the
unmodified client library. Knows nothing of models or servers.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from .told_grpc import walk
from .wire import KEY, Answer

__all__ = ["After", "Call", "CancelAfter", "Pause", "Step", "call", "channel"]

SERVICE = "inference.GRPCInferenceService"
LIMIT_S = 30.0

#: Headers that tell of the connection and not of the call.
OWN_METADATA = ("content-type", "user-agent", "date", "server", "accept-encoding", "grpc-accept-encoding")

#: The client's library says these itself when it goes away, in words of its own.
OWN_STATUS = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True)
class After:
    """A step of a stream: send nothing more until so many messages have come."""

    messages: int


@dataclass(frozen=True)
class CancelAfter:
    """The last step of a stream: cancel it once so many messages have come, and some seconds have gone by."""

    messages: int
    wait_s: float


@dataclass(frozen=True)
class Pause:
    """A step of a stream: send nothing more for so many seconds."""

    seconds: float


Step = Message | bytes | After | CancelAfter | Pause


@dataclass(frozen=True)
class Call:
    """One call. `rpc`: its name in Triton's service, or a whole path.

    `steps`: what is sent, in order; a call with one message and no `stream` is unary. `stream`: whether the answer is one.
    `timeout_s`: a deadline. `cancel_s`: the client cancels after so long. `compression`: of what is sent. `wait_s`, `settle` and
    `mask` are as in a Case.
    """

    name: str
    rpc: str
    steps: tuple[Step, ...]
    stream: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    cancel_s: float | None = None
    compression: grpc.Compression | None = None
    wait_s: float = 0.0
    settle: bool = False
    mask: tuple[str, ...] = ()

    @property
    def streams(self) -> bool:
        return self.stream or self.rpc == "ModelStreamInfer"

    @property
    def goes_away(self) -> bool:
        """Whether the client doesn't wait for the end."""
        early = self.timeout_s is not None or self.cancel_s is not None
        return early or any(isinstance(step, CancelAfter) for step in self.steps)

    @property
    def path(self) -> str:
        return self.rpc if self.rpc.startswith("/") else f"/{SERVICE}/{self.rpc}"


def response_of(rpc: str) -> type[Message] | None:
    """Return the class of an RPC's responses, None where the client library has none: then bytes are shown."""
    return None if rpc.startswith("/") else getattr(pb, f"{rpc}Response", None)


def channel(port: int) -> grpc.Channel:
    """Return a channel to the server on `port` of this machine, on a connection of its own. The caller closes it."""
    return grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS)


def call(channel: grpc.Channel, case: Call, key: str = KEY) -> Answer:
    """Make `case` on a channel and return its answer. Raises OSError when nothing comes in time.

    `key`: the name of the server's own shared memory object.
    """
    sent = Sent(case, key)
    limit = LIMIT_S if case.timeout_s is None else case.timeout_s
    options: dict[str, Any] = {"metadata": case.metadata, "timeout": limit, "compression": case.compression}
    lines: list[str] = []
    if case.streams:
        outcome: Any = channel.stream_stream(case.path)(iter(sent), **options)
        sent.cancel = outcome.cancel
        number = 0
        with suppress(grpc.RpcError):
            for data in outcome:
                lines += [f"[{number}]{'' if line.startswith('[') else '.'}{line}" for line in shown(case, data, key)]
                number += 1
                sent.received(number)
        sent.stop()
    else:
        outcome = channel.unary_unary(case.path).future(next(iter(sent)), **options)
        if case.cancel_s is not None:
            time.sleep(case.cancel_s)
            outcome.cancel()
        with suppress(grpc.RpcError, grpc.FutureCancelledError):
            lines += shown(case, outcome.result(), key)
    code = outcome.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and case.timeout_s is None:
        raise TimeoutError(f"no answer within {LIMIT_S:.0f} s")
    headers = []
    for kind, given in (("initial", outcome.initial_metadata()), ("trailing", outcome.trailing_metadata())):
        headers += [f"{kind} {name}: {value!r}" for name, value in given or () if name not in OWN_METADATA]
    if code is not grpc.StatusCode.OK and not (code in OWN_STATUS and case.goes_away):
        details = (outcome.details() or "").replace(key[1:], KEY[1:])
        lines.append(f"error = {json.dumps(details, ensure_ascii=False)}")
    return Answer(code.value[0], code.name, "gRPC", tuple(headers), tuple(masked(lines, case.mask)))


OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_metadata_size", 64 * 1024),
]


class Sent:
    """The messages of a call, one by one, each once its time has come."""

    def __init__(self, case: Call, key: str) -> None:
        self.steps = case.steps
        self.key = key
        self.cancel: Any = None
        self._count = 0
        self._stopped = False
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[bytes]:
        for step in self.steps:
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            elif isinstance(step, (After, CancelAfter)):
                if not self._has(step.messages):
                    return
                if isinstance(step, CancelAfter):
                    time.sleep(step.wait_s)
                    self.cancel()
            else:
                yield self.message(step)

    def _has(self, messages: int) -> bool:
        """Whether so many messages have come; waits for them."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= messages or self._stopped, LIMIT_S)
            return self._count >= messages

    def message(self, step: Message | bytes) -> bytes:
        """Return a message as it goes out; the shared memory's key has its length in front, so it is changed in the record."""
        if isinstance(step, bytes):
            return step
        if (name := getattr(step, "key", None)) and isinstance(name, str):
            step = type(step).FromString(step.SerializeToString())
            step.key = name.replace(KEY[1:], self.key[1:])
        return step.SerializeToString(deterministic=True)

    def stop(self) -> None:
        """Nobody takes any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def received(self, count: int) -> None:
        with self._changed:
            self._count = count
            self._changed.notify_all()


def masked(lines: Sequence[str], patterns: Sequence[str]) -> Iterator[str]:
    for line in lines:
        for pattern in patterns:
            line = re.sub(rf"^({pattern}) = .*$", r"\1 = <masked>", line)
        yield line


def shown(case: Call, data: bytes, key: str) -> list[str]:
    """Tell a message in lines, in the order of its fields; members of a map by their keys."""
    kind = response_of(case.rpc)
    if kind is None:
        return [f"message = {data.hex(' ', 4)}"]
    return [line.replace(key[1:], KEY[1:]) for line in walk("", kind.FromString(data))] or ["empty"]
