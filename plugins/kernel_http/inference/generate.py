"""The generate extension: a flat JSON object becomes a request, each response a flat JSON object with sorted keys.

`generate` wants exactly one response; `generate_stream` sends each as an event as soon as it is there. See
docs/contract/http_protocol.md, 6. Not on the hot path: nothing is remembered from one request to the next.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from kernel import Code, InferenceRequest, InferenceResponse, ServingError, Tensor, is_much_text
from kernel_http.connection import replies
from kernel_http.connection.bodies import too_large
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head
from kernel_http.connection.streams import StreamExchange
from kernel_http.inference.body import custom_value
from kernel_http.inference.encode import VALUES_ON_LOOP
from kernel_http.inference.reader import Reader
from kernel_http.inference.tracing import arrived
from kernel_http.json.arrays import json_of
from kernel_http.json.errors import NON_OBJECT, first_wins, read_again
from kernel_http.json.large import LARGE, Cut, LongArray, decode_large
from kernel_http.json.members import text_of

if TYPE_CHECKING:
    from kernel import Kernel, Respond

__all__ = ["Generate"]

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder().decode

#: The member that is an object whose members count as if they stood beside it.
NESTED = "parameters"

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)


class Generate:
    """The handler of one of the two routes."""

    def __init__(self, kernel: Kernel, max_input_size: int, *, stream: bool) -> None:
        self.kernel = kernel
        self.max_input_size = max_input_size
        self.stream = stream

    def __call__(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        exchange: OneExchange | EventExchange
        exchange = EventExchange(connection, head) if self.stream else OneExchange(connection, head)
        connection.exchanges.append(exchange)
        if self.stream and head.http10:
            connection.close_after()  # the end of the connection is the end of the stream
        try:
            reader = self._reader(head, len(json) + len(tail))
        except ServingError as error:
            exchange.answer(replies.error_of(error, json=True))
            return
        if len(json) + len(tail) > LARGE:
            reading = connection.aside(lambda: reader.read(json, tail))
            reading.add_done_callback(lambda done: self._begin(exchange, reader, done.result))
        else:
            connection.spend((len(json) + len(tail)) >> 7)
            self._begin(exchange, reader, lambda: reader.read(json, tail))

    def _begin(self, exchange: OneExchange | EventExchange, reader: FlatReader, read: Callable[[], None]) -> None:
        """Have the request read, and hand it to the model."""
        connection = exchange.connection
        if connection is None:
            return  # the client has gone meanwhile
        try:
            read()
            request = self._request(reader, exchange.respond)
        except ServingError as error:
            error.__traceback__ = None  # it leads to this frame, and so to the future that has it: the body would stay
            exchange.answer(replies.error_of(error, json=True))
            return
        except Exception as error:  # a mistake of ours must not cost the connection's other requests their answers
            log.exception("a request to model '%s' can't be read", reader.head.model)
            exchange.answer(replies.error(500, f"the request can't be read: {type(error).__name__}: {error}", json=True))
            return
        exchange.request = request
        if request.model.tracing is not None:
            arrived(connection, reader.head, request)
        request.model.enqueue(request)

    def _reader(self, head: Head, size: int) -> FlatReader:
        """Return what reads a body of `size` bytes. Raises ServingError."""
        model = self.kernel.model(head.model, head.version)
        if head.encoding not in ("", "identity"):
            raise ServingError(Code.INVALID_ARG, "Unsupported content-encoding, only 'identity' is supported.")
        if size > self.max_input_size:
            raise ServingError(Code.INVALID_ARG, too_large(head, size, self.max_input_size))
        return FlatReader(self.kernel, model, head, self.max_input_size)

    def _request(self, reader: FlatReader, respond: Respond) -> InferenceRequest:
        """Return the request, checked by its model. Raises ServingError."""
        request = InferenceRequest(
            reader.head.model,
            reader.inputs,
            respond,
            model_version=reader.head.version,
            id=reader.id,
            parameters=reader.parameters.custom or None,
        )
        reader.model.check(request)
        if reader.deferred is not None:
            raise reader.deferred
        return request


# --- the request -----------------------------------------------------------------------------------------------------


class Members(dict[str, Any]):
    """A JSON object that still knows what members it was given, doubled ones too."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(first_wins(pairs))
        self.pairs = pairs


class FlatReader(Reader):
    """Reads a flat object: members that are called like an input are tensors, the others parameters."""

    def read(self, json: Any, tail: Any) -> None:
        record = self._decoded(bytes(json) + bytes(tail) if len(tail) else json)
        if type(record) not in (dict, Members):
            raise ServingError(Code.INVALID_ARG, NON_OBJECT)
        if "id" in record:
            self.id = text_of({"id": record["id"]}, "id")
        if NESTED in self.model.input_specs:
            raise ServingError(
                Code.INVALID_ARG,
                f"model '{self.model.name}' has an input called '{NESTED}', which is a keyword of generate; use infer",
            )
        for key, value in _members(record):
            if key == NESTED:
                self._read_nested(value)
            else:
                self._read_member(key, value)

    def _decoded(self, data: Any) -> Any:
        """Decode; where an input may be given twice, in a slower way that tells."""
        if len(data) > LARGE:
            cut = Cut(self.model.input_specs, _put_back, only_numbers=True)
            return decode_large(data, self.kernel.memory.values, self._may_be_doubled, Members, cut=cut)
        try:
            value = _decode(data)
        except (ValueError, RecursionError):
            value = read_again(data)
        if self._may_be_doubled(value, data):
            value = json.loads(data, object_pairs_hook=Members)
        return value

    def _may_be_doubled(self, value: Any, data: Any) -> bool:
        names = [b'"%b"' % name.encode() for name in self.model.input_specs]
        return any(data.count(name) > 1 for name in names)

    def _read_nested(self, value: Any) -> None:
        if type(value) not in (dict, Members):
            raise ServingError(
                Code.INVALID_ARG, f"Expected JSON object for keyword: '{NESTED}': attempt to access JSON non-object as object"
            )
        try:
            for key, member in _members(value):
                self._read_member(key, member)
        except ServingError as error:
            raise ServingError(error.code, f"Converting keyword: '{NESTED}': {error.message}") from None

    def _read_member(self, key: str, value: Any) -> None:
        if key not in self.model.input_specs:
            self.parameters.custom[key] = custom_value(key, value)
            return
        if key in self.inputs:
            raise ServingError(Code.INVALID_ARG, f"{self._prefix}input '{key}' already exists in request")
        spec = self.model.input_specs[key]
        data = value if type(value) in (list, LongArray) else [value]
        dims = [-1, *spec.dims] if self.model.config.max_batch_size > 0 else list(spec.dims)
        shape = shape_of(key, dims, data.count() if type(data) is LongArray else len(data))
        self.inputs[key] = Tensor(key, spec.datatype, self._from_json(key, spec.datatype, shape, data))


def _put_back(record: Any, restore: Callable[[Any], Any]) -> None:
    """Give the members of a request, and those that count as such, their arrays."""
    for holder in (record, record.get(NESTED)) if isinstance(record, dict) else ():
        if isinstance(holder, dict):
            for key, value in holder.items():
                holder[key] = restore(value)
        if type(holder) is Members:
            holder.pairs = [(key, restore(value)) for key, value in holder.pairs]


def _members(record: Any) -> Iterable[tuple[str, Any]]:
    return record.pairs if type(record) is Members else record.items()


def shape_of(name: str, dims: list[int], count: int) -> tuple[int, ...]:
    """Return the shape of `count` elements: the innermost variable dimension takes what the fixed ones leave."""
    shape = [1 if dim == -1 else dim for dim in dims]
    fixed = 1
    for dim in shape:
        fixed *= dim
    variable = [axis for axis, dim in enumerate(dims) if dim == -1]
    if variable and fixed and count % fixed == 0:
        shape[variable[-1]] = count // fixed
    elif count != fixed:
        raise ServingError(
            Code.INVALID_ARG, f"The schema can not convert input '{name}' to tensor with proper shape"
        )
    return tuple(shape)


# --- the responses ---------------------------------------------------------------------------------------------------


def rendered(response: InferenceResponse) -> tuple[int, bytes]:
    """Return a response's status and its JSON object."""
    error = response.error
    if error is None:
        try:
            return 200, flat(response)
        except ServingError as problem:
            error = problem
        except Exception as problem:
            log.exception("the response of model '%s' can't be encoded", response.model_name)
            text = f"the response can't be encoded: {type(problem).__name__}: {problem}"
            error = ServingError(Code.INTERNAL, text)
    return replies.status_of(error.code), replies.error_body(error.message)


def is_large(response: InferenceResponse) -> bool:
    """Whether to make a response's outputs into text is more than is done on the loop."""
    return any(
        is_much_text(tensor.array) if tensor.datatype == "BYTES" else tensor.array.size > VALUES_ON_LOOP
        for tensor in response.outputs
    )


def flat(response: InferenceResponse) -> bytes:
    """Return the JSON of a response: its tensors, its parameters and its names, by key. Scalars stand alone."""
    members = {"model_name": replies.encode(response.model_name), "model_version": replies.encode(response.model_version)}
    if response.id:
        members["id"] = replies.encode(response.id)
    for key, value in (response.parameters or {}).items():
        members[key] = replies.encode(value)
    for tensor in response.outputs:
        data = json_of(tensor.name, tensor.datatype, tensor.array)
        members[tensor.name] = data[1:-1] if tensor.array.size == 1 else data
    pairs = sorted((name.encode(), value) for name, value in members.items())
    return b"{%b}" % b",".join(b"%b:%b" % (replies.encode(name.decode()), value) for name, value in pairs)


class OneExchange(Exchange):
    """The exchange of `generate`: exactly one response, or an error."""

    __slots__ = ("_first",)

    def __init__(self, connection: ClientConnection, head: Head) -> None:
        super().__init__(connection, head)
        self._first: InferenceResponse | None = None

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        """Receive a response of the model."""
        connection = self.connection
        if connection is None or self.payload is not None:
            return
        if response is not None:
            if self._first is not None:
                request = None if final else self.request
                self.answer(self._payload(400, replies.error_body(NOT_ONE)))
                if request is not None:  # the client has its answer: what else the model says goes nowhere
                    connection.cancel(request)
                return
            self._first = response
        if final:
            first = self._first
            if first is None:
                self.answer(self._payload(400, replies.error_body(NOT_ONE)))
            elif is_large(first):
                making = connection.aside(partial(self._made, first))
                making.add_done_callback(lambda done: self.answer(done.result()) if not done.cancelled() else None)
            else:
                self.answer(self._made(first))

    def _made(self, response: InferenceResponse) -> bytes:
        return self._payload(*rendered(response))

    def _payload(self, status: int, body: bytes) -> bytes:
        """Return the whole answer."""
        if self.head.http10:
            return replies.reply(status, body, json=True)
        return replies.chunked(status, b"application/json", body)


class EventExchange(StreamExchange):
    """The exchange of `generate_stream`: the status is the first response's, later errors are events."""

    __slots__ = ()

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        """Receive a response of the model."""
        if self.connection is None or self.payload is not None:
            return
        if response is not None:
            status, body = rendered(response)
            self.send(status, b"data: %b\n\n" % body)
        if final:
            self.end()
