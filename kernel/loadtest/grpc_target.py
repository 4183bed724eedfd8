"""KServe v2 over gRPC, as a load needs it. A plugin has the connection, and the messages of the protocol.

A decoupled model is asked by a stream for each request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial

import numpy as np
from google.protobuf.message import DecodeError

from kernel.config import Message
from kernel.errors import Code, ServingError
from kernel.loadtest.described import Described, described
from kernel.loadtest.target import Ask, CallChannel, Done, Parameter, TargetOptions
from kernel.tensor import Tensor, pack_bytes

__all__ = ["GrpcTarget"]

SERVICE = "/inference.GRPCInferenceService/"
SHOWN = 200  # characters of why

NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
NOT_FOUND, UNIMPLEMENTED, UNAVAILABLE = 5, 12, 14


class GrpcTarget:
    """A model of a server that speaks gRPC."""

    model: Described

    def __init__(self, address: str, channel: CallChannel, options: TargetOptions) -> None:
        self.address = address
        self.responses = 0
        self._channel = channel
        self._options = options
        self._messages = channel.messages
        self._names = self._messages.ModelInferRequest()

    async def look(self, model: str, ask: Ask) -> None:
        """Ask what the model is. Raises ServingError."""
        messages, which = self._messages, {"name": model, "version": self._options.version}
        question = messages.ModelMetadataRequest(**which).SerializeToString()
        status, words, answer = await self._ask("ModelMetadata", question)
        if status:
            code = Code.NOT_FOUND if status == NOT_FOUND else Code.UNAVAILABLE
            raise ServingError(code, words if status == UNAVAILABLE else f"{self.address} has no model '{model}': {words}")
        known, _, config = await self._ask("ModelConfig", messages.ModelConfigRequest(**which).SerializeToString())
        try:
            told = messages.ModelMetadataResponse.FromString(answer)
            found = messages.ModelConfigResponse.FromString(config)
            message = None if known else Message.FromString(found.config.SerializeToString())
        except DecodeError as error:
            words = f"{self.address} describes model '{model}' otherwise than KServe v2 does: {error}"
            raise ServingError(Code.UNAVAILABLE, words) from None
        version = self._options.version or (told.versions[-1] if told.versions else "?")
        inputs = [(one.name, one.datatype, list(one.shape)) for one in told.inputs]
        self.model = described(model, version, inputs, message)
        self._names = messages.ModelInferRequest(model_name=model, model_version=self._options.version)

    async def _ask(self, method: str, question: bytes) -> tuple[int, str, bytes]:
        """Make a call with one message; return status, words and the answer."""
        ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        answers: list[bytes] = []

        def end(status: int, words: str) -> None:
            if not ended.done():
                ended.set_result((status, words))

        self._channel.call(f"{SERVICE}{method}", question, self._options.timeout, answers.append, end)
        status, words = await ended
        if not status and not answers:
            return UNAVAILABLE, f"{self.address} has answered {method} with nothing", b""
        return status, words if status == UNAVAILABLE else _why(status, words), b"".join(answers[:1])

    # -- what a load does ----------------------------------------------------------------------------------------------

    def encode(self, inputs: Mapping[str, Tensor], parameters: Mapping[str, Parameter]) -> bytes:
        message = self._messages.ModelInferRequest()
        message.CopyFrom(self._names)
        for name, value in parameters.items():
            if isinstance(value, bool):
                message.parameters[name].bool_param = value
            elif isinstance(value, int):
                message.parameters[name].int64_param = value
            else:
                message.parameters[name].string_param = value
        for name, tensor in inputs.items():
            message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
            array = tensor.array
            data = pack_bytes(array) if tensor.datatype == "BYTES" else np.ascontiguousarray(array).tobytes()
            message.raw_input_contents.append(data)
        encoded: bytes = message.SerializeToString()
        return encoded

    def error_of(self, answer: bytes) -> str:
        """Return what a response of a stream says of an error, "" for none."""
        try:
            return str(self._messages.ModelStreamInferResponse.FromString(answer).error_message)
        except DecodeError:
            return "a message that is none of the protocol"

    def send(self, message: bytes, done: Done) -> None:
        if self.model.decoupled:
            _Streamed(self, done).begin(self._channel, message, self._options.timeout)
        else:
            timeout = self._options.timeout
            self._channel.call(f"{SERVICE}ModelInfer", message, timeout, self._count, partial(_ended, done))

    def _count(self, answer: bytes) -> None:
        self.responses += 1

    async def close(self) -> None:
        self._channel.close()


def _ended(done: Done, status: int, words: str) -> None:
    done(_why(status, words) if status else "", 0.0)


class _Streamed:
    """One request that may have several responses."""

    def __init__(self, target: GrpcTarget, done: Done) -> None:
        self._target = target
        self._done = done
        self._first = 0.0
        self._error = ""

    def begin(self, channel: CallChannel, message: bytes, timeout: float) -> None:
        channel.call(f"{SERVICE}ModelStreamInfer", message, timeout, self._came, self._ended)

    def _came(self, answer: bytes) -> None:
        self._first = self._first or time.perf_counter()
        self._target.responses += 1
        if answer[:1] == b"\n" and not self._error:  # the field of the error comes first
            self._error = self._target.error_of(answer)

    def _ended(self, status: int, words: str) -> None:
        self._done(_why(status, words) if status else self._error[:SHOWN], self._first)


def _why(status: int, words: str) -> str:
    name = NAMES[status] if status < len(NAMES) else f"status {status}"
    return f"{name}: {' '.join(words.split())[:SHOWN]}" if words else name
