"""What a recording says of the requests of one model: when they came and what they were like, and what executions have cost.

A recording tells of requests. Those that one instance began at the same moment were one execution, whose rows are theirs.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.errors import clipped
from kernel.recording import RecordedRequest, Recording, read_recording
from kernel.simulation.numbers import wrong
from kernel.tensor import pack_bytes

__all__ = ["recorded_columns", "recorded_times"]

ALWAYS = (0.0, float("inf"))
MOST = 2**31  # of what a number may say
APART = 3e-6  # seconds between what two requests say of one moment, at most: they are written in microseconds


def recorded_columns(path: str, model: str) -> dict[str, NDArray[Any]]:
    """Return the requests that clients have made of a model, "" for all: columns by their names in Arrivals. Raises ServingError.

    Priorities, time-outs, sequences and which contents are the same are known where tensors were recorded.
    """
    with read_recording(path) as recording:
        offsets, rows = recording.arrivals(model)  # raises where there is none
        if not recording.head.tensors:
            return {"offsets": offsets, "rows": rows}
        columns = _Columns()
        for number, line in recording.lines():
            if line.caller is None and model in ("", line.model):
                columns.add(line, _content(recording, number, line))
        return {"offsets": offsets, "rows": rows, **columns.said()}


def _content(recording: Recording, number: int, line: RecordedRequest[Any]) -> bytes:
    """Return what is the same for requests with the same inputs."""
    if not line.inputs:
        return b""
    told = hashlib.blake2b(line.model.encode(), digest_size=16)
    for tensor in recording.with_tensors(number, line).inputs:
        told.update(repr((tensor.name, tensor.datatype, tensor.array.shape)).encode())
        told.update(pack_bytes(tensor.array) if tensor.datatype == "BYTES" else tensor.array.tobytes())
    return told.digest()


class _Columns:
    """What lines say besides when requests came, by column."""

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in ("priorities", "timeouts", "sequences", "flags", "contents")}
        self._known: dict[bytes, int] = {}
        self._ids: dict[int | str, int] = {0: 0, "": 0}
        self._sequences = 0

    def add(self, line: RecordedRequest[Any], content: bytes) -> None:
        """Add what one says. `content`: of its inputs, empty where they are not known."""
        if line.correlation_id not in self._ids:
            self._sequences += 1
            self._ids[line.correlation_id] = self._sequences
        said = {
            "priorities": min(max(0, line.priority), MOST),
            "timeouts": min(max(0, line.timeout_us), MOST),
            "sequences": self._ids[line.correlation_id],
            "flags": line.flags & 3,
            "contents": self._known.setdefault(content, len(self._known) + 1) if content else 0,
        }
        for name, value in said.items():
            self._columns[name].append(value)

    def said(self) -> dict[str, NDArray[np.int64]]:
        """Return the columns that say anything."""
        columns = {name: np.frombuffer(column, np.int64) for name, column in self._columns.items()}
        return {name: column for name, column in columns.items() if column.any()}


def recorded_times(path: str, model: str, between: tuple[float, float] = ALWAYS) -> dict[int, NDArray[np.float64]]:
    """Return how long executions of a model took: rows -> seconds of each. Raises ServingError.

    `between`: that began then, in seconds since the epoch.
    """
    with read_recording(path) as recording:
        if recording.head.rate < 1:
            words = "which were executed together is not known; wanted is one with --record-rate 1"
            raise wrong(f"--cost {path} was recorded at a rate of {recording.head.rate:g}: {words}")
        times: dict[int, list[float]] = {}
        for rows, began, seconds in _executions(recording, model):
            if between[0] <= began <= between[1]:
                times.setdefault(rows, []).append(seconds)
    if not times:
        raise wrong(f"--cost {path} has no execution of model '{clipped(model)}'")
    return {rows: np.array(seconds) for rows, seconds in times.items()}


def _executions(recording: Recording, model: str) -> Iterator[tuple[int, float, float]]:
    """Yield rows, start and seconds of each execution."""
    lines = [line for _, line in recording.lines() if line.model == model and line.instance and line.executed > 0]
    lines.sort(key=lambda line: (line.instance, line.arrived + line.waited))
    instance, began, seconds, rows = "", 0.0, 0.0, 0
    for line in lines:
        start = line.arrived + line.waited
        if rows and (line.instance, line.executed) == (instance, seconds) and start - began <= APART:
            rows += max(1, line.rows)
            continue
        if rows:
            yield rows, began, seconds
        instance, began, seconds, rows = line.instance, start, line.executed, max(1, line.rows)
    if rows:
        yield rows, began, seconds
