"""ModelInfer, and what ModelStreamInfer shares with it: a message becomes a request of the kernel, its response the answer.

A message that differs from one that passed the model's check only in its data, its id and its parameters needs no parser: what
comes before its data is known as a Recipe, which is looked for by the message's size first, then by its head. All three ways make
the same request of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from kernel import (
    Code,
    InferenceRequest,
    InferenceResponse,
    NotLoaded,
    RequestState,
    ServingError,
    Tensor,
    follow_trail,
)
from kernel_grpc.inference.encode import LargeAnswer, encode
from kernel_grpc.inference.large import ON_LOOP, PARAMETERS, Large, Prepared, most_fields, prepared, too_many
from kernel_grpc.inference.outputs import failed, finished_response, is_large, no_response, opened
from kernel_grpc.inference.parameters import NONE, Parameters, invalid, read_parameters
from kernel_grpc.inference.reader import Reader
from kernel_grpc.inference.recipe import Layout, Raws, Recipe, Remembered, nobody
from kernel_grpc.inference.shares import Share
from kernel_grpc.inference.trailing import have_told
from kernel_grpc.inference.turns import Turns
from kernel_grpc.inference.wire import ID, Buffer, split
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.rpc.status import Status
from kernel_grpc.rpc.unary import parsed
from kernel_grpc.schemas import grpc_service_pb2 as pb

if TYPE_CHECKING:
    from kernel import Kernel, Model
    from kernel_grpc.rpc.calls import Call

__all__ = ["Inference"]

#: Bounds of a model's recipes: how many, and how long the head of a message may be. And how many all models have together.
RECIPES = 256
HEAD_SIZE = 4096
ALL_RECIPES = 4096

#: So many tensors more than the model has are looked at one by one, for the words of what is wrong with the first of them.
SLACK = {"inputs": 64, "outputs": 2048}

_ndarray = np.ndarray

PENDING = RequestState.PENDING

Forwarded = Sequence[tuple[str, str]]


class Inference:
    """Reads messages for both RPCs, and is the handler of ModelInfer. `turns`: of its calls."""

    def __init__(self, kernel: Kernel, limits: Limits | None = None) -> None:
        self.kernel = kernel
        self.limits = limits or Limits()
        self._most = most_fields(self.limits)
        self.turns = Turns()
        # One thread: several at once would keep the loop waiting for the interpreter.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kernel-grpc-large")
        # Weak: a recipe belongs to its model, and goes with it.
        self._by_head: dict[bytes, ref[Recipe]] = {}
        self._by_size: dict[int, Layout] = {}

    def infer(self, call: Call, message: Any, ready: Prepared | None = None) -> None:
        """Handle a call of ModelInfer. `ready`: its message, where that was read on a thread."""
        try:
            if ready is None:
                request, recipe, _ = self.read(message, call.forwarded, False)
            else:
                request, recipe, _ = self.read_prepared(ready, call.forwarded, False)
            if call.meaning.trail:
                follow_trail(self.kernel, request, call.meaning.trail)
            request.respond = recipe.answer(call, recipe, self)
        except NotLoaded as away:
            away.wait(partial(self._infer_loaded, call, message, ready), lambda: not call.done, False)
            return
        except ServingError as error:
            call.fail(error)
            return
        except Large as large:
            self.prepare(message, partial(self._infer_prepared, call), large, ready)
            return
        request.deadline = call.deadline
        model, turns = recipe.model, self.turns
        if call.meaning.asked is not None:
            have_told(call, request, model, self.kernel)
        if model.tracing is not None:
            model.tracing.arrived(request, "GRPC", 0.0, call.traceparent)
        if turns.lines and turns.wait(call, model, request):
            return
        call.request = request
        model.enqueue(request)
        if request.state is PENDING:
            turns.began(call, model)

    def _infer_loaded(self, call: Call, message: Any, ready: Prepared | None, error: ServingError | None) -> None:
        """Go on with a call whose model was not there."""
        if call.done:
            return  # nobody waits any more
        if error is None:
            self.infer(call, message, ready)
        else:
            call.fail(error)

    def _infer_prepared(self, call: Call, done: asyncio.Future[Prepared]) -> None:
        """Go on with a call whose message was read on a thread."""
        if done.cancelled() or call.done:  # the loop is closing; or nobody waits any more
            return
        error = done.exception()
        try:
            if error is None:
                self.infer(call, b"", done.result())
            elif isinstance(error, ServingError):
                call.fail(error)
            else:
                call.crashed(error)
        except Exception as problem:
            call.crashed(problem)

    def prepare(
        self, message: Any, then: Callable[[asyncio.Future[Prepared]], None], large: Large, ready: Prepared | None
    ) -> None:
        """Have a large message read on a thread, or one more region where it is `ready` but for that; `then` gets what has been
        returned or raised, on the loop.
        """
        kernel = self.kernel
        if ready is not None and large.region is not None:
            work = partial(ready.add, large.region)
        else:
            work = partial(prepared, message, self.limits, kernel.memory.values, large.region)
        job = kernel.loop.run_in_executor(self._thread, work)
        job.add_done_callback(then)

    def read_prepared(
        self, ready: Prepared, forwarded: Forwarded, streaming: bool
    ) -> tuple[InferenceRequest, Recipe, Parameters]:
        """Do as `read` with a message that was read on a thread."""
        return self._first(ready.record, ready.raws, forwarded, streaming, None, ready.contents)

    def read(self, message: Any, forwarded: Forwarded, streaming: bool) -> tuple[InferenceRequest, Recipe, Parameters]:
        """Make a request that has passed the model's check; who answers it is still to be said. Raises ServingError.

        `message` belongs to the request from here on. `forwarded`: metadata that go to the model. `streaming`: whether
        decoupled models are welcome. Raises Large where it is to be prepared first.
        """
        kernel = self.kernel
        if type(message) is bytes:
            layout = self._by_size.get(len(message))
            # What `_read_split` would do, in fewer steps, where the data is raw and there are no parameters.
            if (
                layout is not None
                and (recipe := layout.recipe()) is not None
                and (streaming or not recipe.decoupled)
                and recipe.is_current(kernel)
            ):
                pieces = layout.unpack(message)
                if pieces[::2] == layout.heads:
                    try:
                        id, at = (pieces[1].decode(), 3) if layout.has_id else ("", 1)
                    except UnicodeDecodeError:  # refused by the parser, in its own words
                        return self._first(parsed(pb.ModelInferRequest, message), (), forwarded, streaming, None)
                    inputs: dict[str, Tensor] = {}
                    for (name, datatype, dtype, shape), raw in zip(recipe.fixed, pieces[at::2]):
                        inputs[name] = Tensor(name, datatype, _ndarray(shape, dtype, bytearray(raw)))
                    return recipe.request(inputs, id, NONE, dict(forwarded) if forwarded else None), recipe, NONE
            return self._read_split(message, forwarded, streaming)
        return self._read_split(memoryview(message), forwarded, streaming)

    def _read_split(
        self, data: Buffer, forwarded: Forwarded, streaming: bool
    ) -> tuple[InferenceRequest, Recipe, Parameters]:
        """Read a request whose size says nothing; by its head, where that is known."""
        kernel = self.kernel
        parts = split(data, self._most)
        if parts is None:
            if len(data) > ON_LOOP:
                raise Large
            record = parsed(pb.ModelInferRequest, data)
            return self._first(record, record.raw_input_contents, forwarded, streaming, None)
        names, middle, head, raws = parts
        key = None
        if head <= HEAD_SIZE:
            key = bytes(data[:head]) if names == middle else bytes(data[:names]) + bytes(data[middle:head])
            known = self._by_head.get(key)
            recipe = known() if known is not None else None
            if recipe is not None and (streaming or not recipe.decoupled) and recipe.is_current(kernel):
                id, parameters = ("", NONE) if names == middle else special(bytes(data[names:middle]))
                made = recipe.inputs(kernel, raws, id)
                if made is not None:
                    if type(data) is bytes and parameters is NONE and len(raws) == len(recipe.fixed) > 0:
                        self._learn_layout(recipe, data, *parts)
                    return recipe.request(made, id, parameters, custom_of(parameters, forwarded)), recipe, parameters
        if head > ON_LOOP:
            raise Large
        return self._first(parsed(pb.ModelInferRequest, data[:head]), raws, forwarded, streaming, key)

    def _first(
        self,
        record: Any,
        raws: Raws,
        forwarded: Forwarded,
        streaming: bool,
        key: bytes | None,
        ready: Mapping[int | str, Any] | None = None,
    ) -> tuple[InferenceRequest, Recipe, Parameters]:
        """Read a request whose head isn't known, have it checked, and perhaps remember it."""
        model = self.model(record.model_name, record.model_version)
        if model.decoupled and not streaming:
            raise ServingError(
                Code.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        self._check_counts(record, model)
        parameters = read_parameters(record.parameters)
        reader = Reader(self.kernel, model, record, raws, ready)
        reader.read()
        request = InferenceRequest(
            record.model_name,
            reader.inputs,
            nobody,
            record.model_version,
            record.id,
            reader.requested,
            custom_of(parameters, forwarded),
            parameters.priority,
            parameters.timeout_us,
            None,
            parameters.correlation_id,
            parameters.flags,
        )
        model.check(request)
        if reader.deferred is not None:
            raise reader.deferred
        remembered = model.attachments.get(Inference)
        if not isinstance(remembered, Remembered):
            remembered = model.attachments[Inference] = Remembered(model)
        recipe = Recipe(reader, request, remembered.replies)
        recipe.answer = ANSWERS[recipe.works, recipe.replies.limited]
        if key is not None and reader.repeatable:
            if len(remembered.recipes) >= RECIPES:
                remembered.recipes.clear()
            remembered.recipes[key] = recipe
            self._remember(key, recipe)
        return request, recipe, parameters

    def _check_counts(self, record: Any, model: Model) -> None:
        """Refuse what is far too much for the model before it is looked at one by one. Raises ServingError(INVALID_ARG)."""
        if len(record.parameters) > self.limits.parameters:
            raise too_many("parameters", self.limits.parameters, PARAMETERS)
        for what, got, specs in (("inputs", record.inputs, model.input_specs), ("outputs", record.outputs, model.output_specs)):
            if len(got) > len(specs) + SLACK[what]:
                raise invalid(f"expected {len(specs)} {what} but got {len(got)} {what} for model '{model.name}'")

    def model(self, name: str, version: str) -> Model:
        """Return the model of that name. Raises ServingError, also for -1, which the kernel takes for the newest version."""
        if version == "-1":
            raise invalid(f"invalid model version specified '{version}' , version should be an integral value > 0")
        return self.kernel.model(name, version)

    def _remember(self, key: bytes, recipe: Recipe) -> None:
        if len(self._by_head) >= ALL_RECIPES:
            self._by_head.clear()
        self._by_head[key] = ref(recipe)

    def _learn_layout(self, recipe: Recipe, message: bytes, names: int, middle: int, head: int, raws: Raws) -> None:
        """Remember how messages of this size divide, if there is nothing but an id in the middle, and none is known yet."""
        if names != middle and not (message[names] == ID and message[names + 1] == middle - names - 2):
            return
        known = self._by_size.get(len(message))
        other = known.recipe() if known is not None else None
        if other is not None and other.is_current(self.kernel):
            return  # two kinds of messages have this size; it would cost more to learn them by turns
        if len(self._by_size) >= ALL_RECIPES:
            self._by_size.clear()
        self._by_size[len(message)] = Layout(recipe, message, names, middle, head, raws)


def special(data: bytes) -> tuple[str, Parameters]:
    """Read id and parameters, which are between the names and the inputs of a message. Raises ServingError(INVALID_ARG)."""
    if data[0] == ID and data[1] == len(data) - 2:  # an id of less than 128 bytes, and nothing else
        try:
            return data[2:].decode(), NONE
        except UnicodeDecodeError:
            pass
    record = parsed(pb.ModelInferRequest, data)
    return record.id, read_parameters(record.parameters)


def custom_of(parameters: Parameters, forwarded: Forwarded) -> dict[str, Any] | None:
    """Return what goes to the model: other parameters, and headers, which win."""
    return {**(parameters.custom or {}), **dict(forwarded)} if forwarded else parameters.custom


class Answer:
    """The continuation of a unary call's request."""

    __slots__ = ("call", "replies")

    def __init__(self, call: Call, recipe: Recipe, inference: Inference) -> None:
        self.call = call
        self.replies = recipe.replies

    @property
    def client(self) -> str:
        return self.call.client

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        """Receive the request's answer from the kernel: the call's one completion."""
        if not final:
            return
        call = self.call
        call.request = None  # breaks the cycle request -> respond -> call -> request
        if response is None:
            call.fail(no_response(self.replies.model))
        elif response.error is not None:
            if call.deadline is not None and self.replies.model.kernel.clock() >= call.deadline:
                call.finish(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
            else:
                call.fail(response.error)
        else:
            try:
                payload = self.encoded(response)
            except LargeAnswer:
                self.encode_apart(response)
            except Exception as error:
                call.fail(failed(error, self.replies.model))
            else:
                call.reply(payload)

    def encode_apart(self, response: InferenceResponse) -> None:
        """Encode on a thread, and send then."""
        job = self.replies.model.kernel.loop.run_in_executor(None, partial(self.encoded, response, on_loop=False))
        job.add_done_callback(self._encoded)

    def _encoded(self, done: asyncio.Future[Any]) -> None:
        """Send what was encoded on a thread."""
        if done.cancelled():  # the loop is closing
            return
        error = done.exception()
        if error is None:
            self.call.reply(done.result())
        elif isinstance(error, Exception):
            self.call.fail(failed(error, self.replies.model))

    def encoded(self, response: InferenceResponse, *, on_loop: bool = True) -> Any:
        """Return the message. Raises ServingError; LargeAnswer on the loop."""
        return encode(response, self.replies, (), on_loop)


class WorkedAnswer(Answer):
    """The same where the outputs take more work: classes of them, or shared memory that they go to."""

    __slots__ = ("recipe", "sinks")

    def __init__(self, call: Call, recipe: Recipe, inference: Inference) -> None:
        """Raises ServingError where an output has nowhere to go."""
        super().__init__(call, recipe, inference)
        self.recipe = recipe
        self.sinks = opened(recipe, inference.kernel)

    def encoded(self, response: InferenceResponse, *, on_loop: bool = True) -> Any:
        if on_loop and is_large(response, self.recipe):  # looked at before anything is done, which is done once
            raise LargeAnswer
        return encode(response, self.replies, finished_response(response, self.recipe, self.sinks), False)


class _Limited:
    """Of answers that may be large, not all are made at once: the call is counted in its connection's share of the model."""

    __slots__ = ()

    def __init__(self, call: Call, recipe: Recipe, inference: Inference) -> None:
        super().__init__(call, recipe, inference)  # type: ignore[call-arg]
        self.share: Share = inference.turns.share(call, recipe)  # type: ignore[misc]  # the slot is its subclasses'

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        super().__call__(response, final)  # type: ignore[misc]
        if final:
            self.share.over()

    def encode_apart(self, response: InferenceResponse) -> None:
        self.share.in_flight += 1  # until it is encoded: it is in memory, and nothing of it waits for the client yet
        super().encode_apart(response)  # type: ignore[misc]

    def _encoded(self, done: asyncio.Future[Any]) -> None:
        super()._encoded(done)  # type: ignore[misc]
        self.share.over()


class LimitedAnswer(_Limited, Answer):
    """The continuation of a request of such a model."""

    __slots__ = ("share",)


class LimitedWorkedAnswer(_Limited, WorkedAnswer):
    """The same where the outputs take more work."""

    __slots__ = ("share",)


#: By whether a recipe `works`, and whether its model's answers are `limited`.
ANSWERS = {
    (False, False): Answer,
    (True, False): WorkedAnswer,
    (False, True): LimitedAnswer,
    (True, True): LimitedWorkedAnswer,
}
