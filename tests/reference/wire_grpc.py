"""One gRPC call: what a case sends and what may be compared of the answer, in the same lines of text as over HTTP.

Sends serialised messages, so that ones which no client would make can be sent; reads what comes back with the messages of the
unmodified client library. Knows nothing of models or servers. A field that those messages don't know shows as a line of its own.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from tritonclient.grpc import service_pb2 as pb

from .wire import KEY, Answer

__all__ = ["SERVICE", "Call", "After", "CancelAfter", "call", "response_of"]

SERVICE = "inference.GRPCInferenceService"
LIMIT_S = 30.0

#: Ends of headers that tell of the connection and not of the call.
OWN_METADATA = ("content-type", "user-agent", "date", "server", "accept-encoding", "grpc-accept-encoding")

HEALTH = "grpc.health.v1.Health"


@dataclass(frozen=True)
class After:
    """A step of a stream: send nothing more until so many messages have come."""

    messages: int


@dataclass(frozen=True)
class CancelAfter:
    """The last step of a stream: cancel it once so many messages have come."""

    messages: int


Step = Message | bytes | After | CancelAfter


@dataclass(frozen=True)
class Call:
    """One call. `rpc`: its name in Triton's service, or a whole path.

    `steps`: what is sent, in order; a call with one message and no `stream` is unary. `stream`: whether the answer is one.
    `timeout_s`: a deadline. `cancel_s`: the client cancels after so long. `compression`: of what is sent. `wait_s`, `settle`,
    `mask` and `unordered` are as in a Case.
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
    sort: bool = False

    @property
    def path(self) -> str:
        return self.rpc if self.rpc.startswith("/") else f"/{SERVICE}/{self.rpc}"


def response_of(rpc: str) -> type[Message] | None:
    """Return the class of an RPC's responses, None where the client library has none: then bytes are shown."""
    name = rpc.rpartition("/")[2]
    for candidate in (f"{name}Response",):
        if rpc.startswith("/"):
            return None
        return getattr(pb, candidate, None)
    return None


def call(port: int, case: Call, key: str = KEY) -> Answer:
    """Make `case` at the server on `port` of this machine and return its answer. Raises OSError when nothing comes in time.

    `key`: the name of the server's own shared memory object.
    """
    messages: list[str] = []
    limit = LIMIT_S if case.timeout_s is None else case.timeout_s
    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(LIMIT_S)
        sent = Sent(case, key)
        options: dict[str, Any] = {"metadata": case.metadata, "timeout": limit, "compression": case.compression}
        if case.stream or case.rpc == "ModelStreamInfer":
            replies = channel.stream_stream(case.path)(iter(sent), **options)
            sent.cancel = replies.cancel
            number = 0
            try:
                for data in replies:
                    messages += [f"[{number}]{line}" for line in shown(case, data, key)] or [f"[{number}] empty"]
                    number += 1
                    sent.received(number)
            except grpc.RpcError:
                pass
            outcome: Any = replies
        else:
            future = channel.unary_unary(case.path).future(next(iter(sent)), **options)
            if case.cancel_s is not None:
                time.sleep(case.cancel_s)
                future.cancel()
            try:
                messages += shown(case, future.result(), key)
            except (grpc.RpcError, grpc.FutureCancelledError):
                pass
            outcome = future
        code = outcome.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and case.timeout_s is None:
            raise TimeoutError(f"no answer within {LIMIT_S:.0f} s")
        headers = []
        for kind, given in (("initial", outcome.initial_metadata()), ("trailing", outcome.trailing_metadata())):
            headers += [f"{kind} {name}: {value!r}" for name, value in given or () if name not in OWN_METADATA]
        if code is not grpc.StatusCode.OK:
            messages.append(f"error = {json.dumps((outcome.details() or '').replace(key[1:], KEY[1:]), ensure_ascii=False)}")
        return Answer(code.value[0], code.name, "gRPC", tuple(headers), tuple(masked(messages, case.mask)))


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
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[bytes]:
        for step in self.steps:
            if isinstance(step, (After, CancelAfter)):
                with self._changed:
                    if not self._changed.wait_for(lambda: self._count >= step.messages, LIMIT_S):
                        return
                if isinstance(step, CancelAfter):
                    self.cancel()
            else:
                yield self.message(step)

    def message(self, step: Message | bytes) -> bytes:
        """Return a message as it goes out; the shared memory's key has its length in front, so it is changed in the record."""
        if isinstance(step, bytes):
            return step
        if (name := getattr(step, "key", None)) and isinstance(name, str):
            step = type(step).FromString(step.SerializeToString())
            step.key = name.replace(KEY[1:], self.key[1:])
        return step.SerializeToString(deterministic=True)

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
    lines = [line.replace(key[1:], KEY[1:]) for line in walk("", kind.FromString(data))]
    return lines if case.stream or case.rpc == "ModelStreamInfer" or lines else ["empty"]


def walk(path: str, message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        at = f"{path}.{field.name}" if path else field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for name in sorted(value):
                yield from told(f"{at}[{name}]", field.message_type.fields_by_name["value"], value[name])
        elif field.is_repeated:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for index, item in enumerate(value):
                    yield from told(f"{at}[{label(index, item)}]", field, item)
            elif field.type == FieldDescriptor.TYPE_BYTES:
                for index, item in enumerate(value):
                    yield f"{at}[{index}] = {item.hex(' ', 4)}"
            else:
                yield f"{at} = {json.dumps(list(value), ensure_ascii=False)}"
        else:
            yield from told(at, field, value)
    unknown = UnknownFieldSet(message)
    if len(unknown):
        yield f"{path} unknown fields = {[each.field_number for each in unknown]}"


def label(index: int, item: Any) -> str:
    """Tell what an index or statistics lists by name, so that one more doesn't change the others' lines."""
    if isinstance(item, (pb.RepositoryIndexResponse.ModelIndex, pb.ModelStatistics)):
        return f"{item.name}:{item.version}" if item.version else item.name
    return str(index)


def told(at: str, field: FieldDescriptor, value: Any) -> Iterator[str]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        lines = list(walk(at, value))
        yield from lines or [f"{at} = {{}}"]
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield f"{at} = {value.hex(' ', 4)}"
    elif field.type == FieldDescriptor.TYPE_ENUM:
        yield f"{at} = {field.enum_type.values_by_number[value].name}"
    else:
        yield f"{at} = {json.dumps(value, ensure_ascii=False)}"
