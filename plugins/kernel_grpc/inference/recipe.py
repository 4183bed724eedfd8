"""What is remembered of a request: what its head, all but the data, the id and the parameters, means to one model.

Recipes belong to their model and go with it. They hold nothing of the request itself: each request owns the memory of its inputs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import ref

from kernel import Form, InferenceRequest, InferenceResponse, Tensor, strings_of, unpacked
from kernel_grpc.inference.encode import Replies
from kernel_grpc.inference.large import COPIED, Large, check_region, is_askew, is_work
from kernel_grpc.inference.parameters import Parameters
from kernel_grpc.inference.reader import Reader, Region, array_of

if TYPE_CHECKING:
    from kernel import Kernel, Model

__all__ = ["Layout", "Raws", "Recipe", "Remembered", "nobody"]

Raws = Sequence[Any]


class Remembered:
    """What this front end remembers about one loaded model; lives in `model.attachments` and goes with it."""

    __slots__ = ("recipes", "replies")

    def __init__(self, model: Model) -> None:
        self.recipes: dict[bytes, Recipe] = {}
        self.replies = Replies(model)


class Recipe:
    """What the head of a message, all but its data, id and parameters, means to one model.

    `classes`, `sinks`: as in Reader. `works`: there are such. `fixed`: the steps in short, where all data is raw and has a fixed
    size. `form`: what the model's check said of the request. `values`: how many strings there may be in classes of an output.
    `answer`: makes the continuation of a unary call's request (infer.py).
    """

    __slots__ = (
        "__weakref__",
        "answer",
        "classes",
        "decoupled",
        "fixed",
        "form",
        "generation",
        "model",
        "name",
        "replies",
        "requested",
        "sinks",
        "steps",
        "values",
        "version",
        "works",
    )

    answer: Callable[..., Callable[[InferenceResponse | None, bool], None]]

    def __init__(self, reader: Reader, request: InferenceRequest, replies: Replies) -> None:
        """Keep what was read and what the model's check said of it."""
        model = reader.model
        self.model = model
        self.generation = reader.kernel.generation  # when the names of the request were last known to mean this model
        self.decoupled = model.decoupled
        self.name = request.model_name
        self.version = request.model_version
        self.replies = replies
        self.requested = reader.requested
        self.form = Form(request)
        self.steps = tuple(reader.steps)
        self.classes = reader.classes
        self.values = reader.kernel.memory.values
        self.sinks: Mapping[str, Region] = reader.sinks
        self.works = bool(reader.classes or reader.sinks)
        raw = all(step.size and step.dtype is not None and step.region is None for step in self.steps)
        self.fixed = [step[:4] for step in self.steps] if raw else []

    def is_current(self, kernel: Kernel) -> bool:
        """Whether the names of the request still mean this model."""
        if self.generation != kernel.generation:
            if not self.model.is_meant_by(self.name, self.version):
                return False
            self.generation = kernel.generation
        return True

    def inputs(self, kernel: Kernel, raws: Raws, id: str) -> dict[str, Tensor] | None:
        """Make the inputs of their data. None where that isn't of the right size. Raises ServingError."""
        inputs = {}
        at = 0
        for name, datatype, dtype, shape, size, region in self.steps:
            if region is not None:
                span = kernel.shared_memory.span(*region)
                if dtype is not None and span.byte_size != size:
                    return None
                check_region(name, span, shape, strings=dtype is None)
                raw = span.read()
            elif at < len(raws):
                raw = raws[at]
                at += 1
            else:
                return None
            if dtype is None:
                if is_work(shape, len(raw)):
                    raise Large
                items = unpacked(name, self.model.name, id, raw, 0, len(raw), prod(shape))
                array = strings_of(items, name, self.model, shape, id)
            elif len(raw) != size:
                return None
            elif size > COPIED and is_askew(raw, dtype):  # asked of each input: the size alone says no to most
                raise Large
            else:
                array = array_of(shape, dtype, raw)
            inputs[name] = Tensor(name, datatype, array)
        return inputs

    def request(
        self, inputs: dict[str, Tensor], id: str, parameters: Parameters, custom: dict[str, Any] | None
    ) -> InferenceRequest:
        """Make a request that the model would accept; who answers it is still to be said."""
        return InferenceRequest(
            self.name,
            inputs,
            nobody,
            self.version,
            id,
            self.requested,
            custom,
            parameters.priority,
            parameters.timeout_us,
            None,
            parameters.correlation_id,
            parameters.flags,
            None,  # parent
            None,  # trace
            self.form,
        )


class Layout:
    """How messages of one size divide, if they are for this recipe: `heads` are as they were, between them is id or data.

    `has_id`: the first of what is between them is the id. None of them has parameters.
    """

    __slots__ = ("has_id", "heads", "recipe", "unpack")

    def __init__(self, recipe: Recipe, message: bytes, names: int, middle: int, head: int, raws: Raws) -> None:
        """Learn it of a message. The offsets are those of `split`; `recipe` has fixed steps, as many as there are raws."""
        self.recipe = ref(recipe)
        self.has_id = names != middle
        between = []
        if self.has_id:
            between.append((names + 2, middle))  # behind the tag and the length
        at = head
        for raw in raws:
            at += 1
            while message[at] & 128:
                at += 1
            between.append((at + 1, at + 1 + len(raw)))
            at += 1 + len(raw)
        starts = [0, *(end for _, end in between)]
        self.heads = tuple(message[start:end] for start, (end, _) in zip(starts, between))
        self.unpack = struct.Struct(
            "".join(f"{len(head)}s{end - start}s" for head, (start, end) in zip(self.heads, between))
        ).unpack


def nobody(response: InferenceResponse | None, final: bool) -> None:
    """The continuation of a request for which it is still to be said."""
    raise AssertionError("nobody was said to answer to")
