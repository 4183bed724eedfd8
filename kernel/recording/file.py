"""The file of a recording as it is written: whole segments, each of which can be read whatever becomes of what follows.

The law: memory and the file are bounded; what was written stays readable, also where the process dies or the disk is full. Knows
no loop and no thread; one of them at a time uses it.
"""

from __future__ import annotations

import io
import os
import time
import zipfile
from typing import Any, BinaryIO

import msgspec
import numpy as np

from kernel.recording.form import (
    END,
    HEAD,
    LINES,
    RUNS,
    TIMES,
    End,
    Head,
    Placed,
    RecordedRequest,
    RecordedRun,
    Told,
)
from kernel.tensor import DATATYPES, Array, Tensor, pack_bytes

__all__ = ["RecordingFile", "created"]

#: How much is gathered before it is written; bytes.
SEGMENT = 4 * 1024 * 1024

#: How many files the zip may have: each takes some 600 bytes of memory until the zip is closed.
MOST_MEMBERS = 200_000

#: What a file in the zip costs besides its content, at most, and what is kept free for the end; bytes.
OF_MEMBER = 512
OF_END = 4096

_plainly = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(RecordedRequest[Placed]).decode


def created(path: str) -> tuple[BinaryIO, str]:
    """Create a file that was not there, and return it with its path: `path`, or that with a number behind. Raises OSError."""
    for number in range(1, 10_000):
        name = path if number == 1 else f"{path}.{number}"
        try:
            return open(name, "x+b"), name
        except FileExistsError:
            continue
    raise FileExistsError(f"{path}.2 to {path}.9999 are there, too")


class RecordingFile:
    """A recording that is being written. `requests`: how many are in it. `full`: nothing more goes in; `left_out`: how
    many had no room.
    """

    def __init__(self, file: BinaryIO, head: Head, limit: int) -> None:
        """`limit`: bytes that the file may have. Raises OSError."""
        self.requests = 0
        self.left_out = 0
        self.full = False
        self._file = file
        self._limit = limit
        self._segment = min(SEGMENT, limit // 8)
        self._with_tensors = head.tensors
        self._zip = zipfile.ZipFile(file, "w")
        self._number = 0
        self._lines: list[bytes] = []
        self._runs: list[RecordedRun] = []
        self._times: list[bytes] = []
        self._count = 0
        self._tensors: dict[str, list[Array]] = {}
        self._ends: dict[str, int] = {}
        self._size = 0
        self._write(HEAD, _encode(head))
        file.flush()

    def add(self, request: Told, size: int, *, changed: bool = False) -> None:
        """Gather a request whose tensors have `size` bytes, and write what is gathered where that is enough. Raises OSError.

        `changed`: by others. Raises TypeError or ValueError for one that nobody could read again then, which is not gathered.
        """
        line = _encode(self._placed(request) if self._with_tensors else request)
        if changed:
            _decode_line(line)
        self._lines += (line, b"\n")
        self._more(1, size + len(line))

    def add_run(self, run: RecordedRun, times: bytes) -> None:
        """As `add`, of requests without tensors that came together."""
        self._runs.append(run)
        self._times.append(times)
        texts = sum(map(len, run.id)) if isinstance(run.id, list) else 0
        self._more(run.count, len(times) + texts)

    def _more(self, count: int, size: int) -> None:
        self._count += count
        self._size += size
        if self._size >= self._segment:
            self.flush()

    def flush(self) -> None:
        """Write what is gathered. Raises OSError; what was written before is still there then."""
        if not self._count:
            return
        count, lines = self._count, b"".join(self._lines)
        members = {f"{datatype}.npy": _npy(datatype, parts) for datatype, parts in self._tensors.items()}
        if self._runs:
            members[TIMES] = _npy("FP64", [np.frombuffer(b"".join(self._times))])
            members[RUNS] = b"".join([_encode(run) + b"\n" for run in self._runs])
        self._lines, self._count, self._tensors, self._ends, self._size = [], 0, {}, {}, 0
        self._runs, self._times = [], []
        there = self._file.tell() + (len(self._zip.filelist) + len(members) + 1) * OF_MEMBER
        if there + len(lines) + sum(map(len, members.values())) + OF_END > self._limit or len(self._zip.filelist) > MOST_MEMBERS:
            self.full = True
            self.left_out += count
            return
        self._number += 1
        good = self._file.tell()
        try:
            for name, content in members.items():
                how = zipfile.ZIP_DEFLATED if name == RUNS else zipfile.ZIP_STORED
                self._write(f"{self._number:06d}/{name}", content, how)
            # Last, so that no line is there whose tensors are not.
            self._write(f"{self._number:06d}/{LINES}", lines, zipfile.ZIP_DEFLATED)
            self._file.flush()
        except OSError:
            self._give_up(good)
            raise
        self.requests += count

    def close(self, lost: int, why: str) -> None:
        """Write what is gathered, and the end. Raises OSError; without the end the file is read as one that was cut off."""
        try:
            self.flush()
            self._write(END, _encode(End(self.requests, lost + self.left_out, why)))
            self._zip.close()
        finally:
            self._file.close()

    def _give_up(self, good: int) -> None:
        """Leave the file as it was before the segment that could not be written."""
        self._zip.fp = None  # it has nothing more to write, not even when it is collected
        raw = io.FileIO(os.dup(self._file.fileno()), "r+b")
        try:
            self._file.close()  # may try once more to write what is left in its buffer
        except OSError:
            pass
        with raw:
            raw.truncate(good)

    def _write(self, name: str, content: bytes, how: int = zipfile.ZIP_STORED) -> None:
        info = zipfile.ZipInfo(name, time.localtime()[:6])
        info.compress_type = how
        self._zip.writestr(info, content, compresslevel=1)

    def _placed(self, told: Told) -> RecordedRequest[Placed]:
        inputs: Any = [self._place(tensor) for tensor in told.inputs]
        answers: Any = [[self._place(tensor) for tensor in tensors] for tensors in told.answers]
        placed: Any = msgspec.structs.replace(told, inputs=inputs, answers=answers)
        found: RecordedRequest[Placed] = placed
        return found

    def _place(self, tensor: Tensor) -> Placed:
        datatype, array = tensor.datatype, tensor.array
        flat = np.frombuffer(pack_bytes(array), np.uint8) if datatype == "BYTES" else array.reshape(-1)
        at = self._ends.get(datatype, 0)
        self._ends[datatype] = at + flat.size
        self._tensors.setdefault(datatype, []).append(flat)
        return Placed(tensor.name, datatype, list(array.shape), at, flat.size)


def _encode(told: object) -> bytes:
    """Return JSON. What UTF-8 can't carry of a text that came from a model or an app is escaped: no request ends a recording."""
    try:
        return _plainly(told)
    except UnicodeEncodeError:
        return _plainly(_escaped(msgspec.to_builtins(told)))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(name): _escaped(one) for name, one in value.items()}
    return [_escaped(one) for one in value] if isinstance(value, (list, tuple)) else value


def _npy(datatype: str, parts: list[Array]) -> bytes:
    dtype = np.dtype(np.uint8) if datatype == "BYTES" else DATATYPES[datatype]
    content = io.BytesIO()
    np.lib.format.write_array(content, np.concatenate(parts).astype(dtype, copy=False), allow_pickle=False)
    return content.getvalue()
