"""What is asked of servers with a response cache that loaded models/cached: one story, each case after those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cases import infer, stats, tensor
from .differences import Difference
from .wire import Case

__all__ = ["CACHED", "CACHE_DIFFERENCES", "CACHE_FLAGS"]

CACHE_FLAGS = ("--cache-config=local,size=1048576",)


def ask(name: str, values: Sequence[float], shape: Sequence[int] = (), outputs: Sequence[str] = (), **top: Any) -> Case:
    x = tensor("X", "FP32", [*shape] or [1, len(values)], [*values])
    return infer(name, "kept", [x], [{"name": output} for output in outputs] or None, **top)


def whole(name: str, model: str, value: float) -> Case:
    return infer(name, model, [tensor("X", "FP32", [1], [value])])


CACHED = [
    ask("kept: the first time", [1, 2]),
    ask("kept: again", [1, 2]),
    ask("kept: with an id and parameters", [1, 2], id="mine", parameters={"k": 1, "sequence_id": 7, "priority": 1}),
    ask("kept: both outputs by name", [1, 2], outputs=["Y", "MADE"]),
    ask("kept: one output of a full answer", [1, 2], outputs=["Y"]),
    ask("kept: other values", [1, 3]),
    ask("kept: zero", [0]),
    ask("kept: minus zero", [-0.0]),
    ask("kept: two rows", [4, 4], [2, 1]),
    ask("kept: the same bytes in one row", [4, 4], [1, 2]),
    ask("kept: only one output", [5], outputs=["Y"]),
    ask("kept: only one output again", [5], outputs=["Y"]),
    ask("kept: all of what was asked for in part", [5]),
    ask("kept: no outputs", [77]),
    ask("kept: no outputs again", [77]),
    ask("kept: an error", [-1]),
    ask("kept: an error again", [-1]),
    ask("kept: an exception", [-200]),
    ask("kept: an exception again", [-200]),
    ask("kept: refused by the check", [1, 2, 3, 4, 5], [5, 1]),
    stats("kept: statistics at first", "/v2/models/kept_whole/stats"),
    whole("kept: counted", "kept_whole", 1),
    stats("kept: statistics of a miss", "/v2/models/kept_whole/stats"),
    whole("kept: counted again", "kept_whole", 1),
    whole("kept: counted a third time", "kept_whole", 1),
    stats("kept: statistics of hits", "/v2/models/kept_whole/stats"),
    whole("kept: a step", "steps", 1),
    stats("kept: statistics of an ensemble whose step was found", "/v2/models/steps/stats"),
    stats("kept: statistics of the step that was found", "/v2/models/kept_whole/stats"),
    whole("kept: a whole ensemble", "whole", 2),
    whole("kept: a whole ensemble again", "whole", 2),
    stats("kept: statistics of an ensemble that was found", "/v2/models/whole/stats"),
    stats("kept: statistics of the step of one that was found", "/v2/models/kept_whole/stats"),
]


ERROR = "errors are never kept: the reference answers the second time as if the model had succeeded without outputs"
TEXT = ("Content-Type: text/plain",)

CACHE_DIFFERENCES = {
    "kept: one output of a full answer": Difference(
        "what is kept and was not asked for is not given",
        lines={
            'outputs[1].name = "MADE"': "",
            'outputs[1].datatype = "BYTES"': "",
            "outputs[1].shape = [1, 1]": "",
            'outputs[1].data = ["1"]': "",
        },
    ),
    "kept: the same bytes in one row": Difference(
        "the shape of an input is part of what it is: the reference answers in the other one's shape",
        lines={
            "outputs[0].shape = [2, 1]": "outputs[0].shape = [1, 2]",
            "outputs[1].shape = [2, 1]": "outputs[1].shape = [1, 1]",
            'outputs[1].data = ["1", "1"]': 'outputs[1].data = ["2"]',
        },
    ),
    "kept: all of what was asked for in part": Difference(
        "an answer that has only some of the outputs is no answer to who asks for all: the reference gives those",
        lines={
            "outputs[0].data = [5.0]": "outputs[0].data = [5.0]\n"
            'outputs[1].name = "MADE"\noutputs[1].datatype = "BYTES"\noutputs[1].shape = [1, 1]\noutputs[1].data = ["2"]'
        },
    ),
    "kept: an error again": Difference(ERROR, status=500, headers=TEXT, body=('error = "too small"',)),
    "kept: an exception again": Difference(
        ERROR, status=500, headers=TEXT, message=r"Failed to process the request\(s\) for model 'kept_0_0'.*far too small.*"
    ),
}
