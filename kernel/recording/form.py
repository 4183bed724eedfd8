"""What a recording says of a request, and how that lies in its file. Pure: no file is opened here.

A recording is a zip: `recording.json` says what it is, each numbered folder holds requests, one a line of `requests.jsonl`, and
beside it the elements of their tensors, one .npy for each datatype. Requests without tensors that came together are one line of
`runs.jsonl`, with their times in `times.npy`: so to record one costs next to nothing. `end.json` says how it ended.
docs/record.md has all of it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from kernel.tensor import Tensor

__all__ = [
    "END",
    "FORM",
    "HEAD",
    "LINES",
    "RUNS",
    "TIMES",
    "VERSION",
    "VERSIONS",
    "End",
    "Head",
    "Placed",
    "RecordedError",
    "RecordedRequest",
    "RecordedRun",
    "Told",
]

FORM = "kernel-recording"
VERSION = 2
VERSIONS = (1, 2)  # that are read; 1 has no runs

#: Members of the zip: the first, the last, and that of each folder which says what is in it.
HEAD, END, LINES, RUNS, TIMES = "recording.json", "end.json", "requests.jsonl", "runs.jsonl", "times.npy"


class Head(msgspec.Struct):
    """What the recording is. `server`: the version of who has written it; `started`: seconds since the epoch."""

    form: str
    version: int
    server: str = ""
    started: float = 0.0
    rate: float = 1.0
    tensors: bool = False
    redaction: str = ""


class End(msgspec.Struct):
    """How it ended. `lost`: requests that are not in it though their turn had come; `why`: it was ended."""

    requests: int
    lost: int = 0
    why: str = ""


class Placed(msgspec.Struct):
    """A tensor of a line: `size` elements from `at` on in `<datatype>.npy` beside it; of BYTES bytes, in their wire form."""

    name: str
    datatype: str
    shape: list[int]
    at: int
    size: int


class RecordedError(msgspec.Struct):
    """What a request was answered with that failed. `code`: the name of a Code; `message`: words."""

    code: str
    message: str


T = TypeVar("T")


class RecordedRequest(msgspec.Struct, Generic[T], omit_defaults=True, gc=False):
    """One request, as it is written and as a redactor may change it. Its tensors are Tensors, in the lines of the file Placed.

    `model`, `version`: who was asked; `id`: the client's, "" for none; `instance`: the name of that which executed it.
    `arrived`: seconds since the epoch. In seconds: `waited` until its execution began, `executed`, how long that lasted, and
    `seconds` until it had its answer. `rows`: 0 where the response cache had the answer. `left`: why its batch went, or
    what it waited for. `caller`: who has called it, the name of that instance and when the first request of its execution came,
    in seconds since the epoch; None for a client. `error`: None for a success.

    Where tensors are recorded: `inputs`; `answers`, the outputs of each response; `outputs`: those that it has asked for, None
    for all; `parameters`, `priority`, `timeout_us`, `correlation_id`, `flags` as an InferenceRequest has them; `batched`:
    whether the first dimension of its tensors counts rows.
    """

    model: str
    version: int
    arrived: float
    waited: float
    executed: float
    seconds: float
    id: str = ""
    rows: int = 1
    instance: str = ""
    left: str = ""
    caller: tuple[str, float] | None = None
    error: RecordedError | None = None
    inputs: list[T] = []
    answers: list[list[T]] = []
    outputs: list[str] | None = None
    parameters: dict[str, Any] = {}
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0
    batched: bool = False


class RecordedRun(msgspec.Struct, omit_defaults=True):
    """So many requests of one model that succeeded, with the fields of a RecordedRequest: what is the same for all stands there
    once, what is not as a list. Their times are in `times.npy`, behind those of the runs before: `arrived` of each, then
    `waited`, `executed`, `seconds`.
    """

    count: int
    model: str
    version: int
    id: str | list[str] = ""
    rows: int | list[int] = 1
    instance: str | list[str] = ""
    left: str | list[str] = ""
    caller: list[tuple[str, float] | None] | None = None


#: As it is told, and as a redactor may change it.
Told = RecordedRequest[Tensor]
