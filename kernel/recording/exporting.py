"""Recorded requests as perf_analyzer reads them: `--input-data FILE`. The tensors of one request at a time are in memory.

Of a model with batches each row is an entry of its own there, without the first dimension; sequences are lists of their own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from kernel.recording.form import Placed, RecordedRequest, Told
from kernel.recording.reading import Recording
from kernel.tensor import Tensor

__all__ = ["export_input_data"]

#: Datatypes that JSON has no numbers for, or that perf_analyzer reads as bytes alone.
_AS_BYTES = frozenset({"FP16", "BF16"})

_Line = tuple[int, RecordedRequest[Placed]]


def export_input_data(recording: Recording, lines: Sequence[_Line], out: TextIO) -> tuple[int, int]:
    """Write what was asked by these lines, and where each was answered once, the answers as `validation_data`.

    Return how many entries were written, and how many requests were left out: those with strings that are no UTF-8, which that
    form can't have. Raises ServingError for a recording that makes no sense.
    """
    streams: dict[int | str, list[_Line]] = {}
    for number, line in lines:
        streams.setdefault(line.correlation_id, []).append((number, line))
    writing = _Writing(recording, out)
    out.write('{"data": [')
    if set(streams) <= {0, ""}:
        writing.entries(lines)
        if all(len(line.answers) == 1 for _, line in lines):
            out.write('],\n"validation_data": [')
            writing.answers(lines)
    else:
        for count, stream in enumerate(streams.values()):
            out.write(",\n[" if count else "\n[")
            writing.entries(stream)
            out.write("]")
    out.write("]}\n")
    return writing.written, writing.left_out


class _Writing:
    def __init__(self, recording: Recording, out: TextIO) -> None:
        self._recording = recording
        self._out = out
        self.written = 0
        self.left_out = 0

    def entries(self, lines: Iterable[_Line]) -> None:
        first = True
        for told in self._told(lines):
            entries = _entries(told, told.inputs)
            if not _can_be(told):
                self.left_out += 1
                continue
            for entry in entries:
                self._out.write(("\n" if first else ",\n") + json.dumps(entry))
                self.written += 1
                first = False

    def answers(self, lines: Iterable[_Line]) -> None:
        first = True
        for told in self._told(lines):
            for entry in _entries(told, told.answers[0]) if _can_be(told) else ():
                self._out.write(("\n" if first else ",\n") + json.dumps(entry))
                first = False

    def _told(self, lines: Iterable[_Line]) -> Iterator[Told]:
        for number, line in lines:
            yield self._recording.with_tensors(number, line)


def _can_be(told: Told) -> bool:
    return all(_content(tensor) is not None for tensor in (*told.inputs, *(told.answers[0] if told.answers else ())))


def _entries(told: Told, tensors: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
    """Yield an entry of these tensors, or one for each of their rows."""
    if not told.batched:
        yield {one.name: _entry(one) for one in tensors}
        return
    for row in range(min((one.shape[0] for one in tensors if one.shape), default=0)):
        yield {one.name: _entry(Tensor(one.name, one.datatype, one.array[row])) for one in tensors if one.shape}


def _entry(tensor: Tensor) -> dict[str, Any]:
    content = _content(tensor)
    if isinstance(content, str):
        return {"content": {"b64": content}, "shape": list(tensor.shape)}
    return {"content": content, "shape": list(tensor.shape)}


def _content(tensor: Tensor) -> list[Any] | str | None:
    """Return the elements one after another, or as base64 of their bytes; None: neither can be."""
    array = np.asarray(tensor.array)
    if tensor.datatype == "BYTES":
        try:
            return [item.decode() for item in array.reshape(-1).tolist()]
        except UnicodeDecodeError:
            return None
    if tensor.datatype in _AS_BYTES or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return base64.b64encode(array.tobytes()).decode()
    return array.reshape(-1).tolist()
