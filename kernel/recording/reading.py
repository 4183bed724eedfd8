"""Reads a recording, whoever has written it: what is in it is believed of nobody.

The law: nothing is taken out of the zip onto the disk, no name in it is a path, nothing is unpickled, and what is unpacked has a
limit. A file without an end, as its server has crashed or still runs, is read as far as it goes.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from kernel.errors import Code, ServingError, clipped
from kernel.recording.form import (
    END,
    FORM,
    HEAD,
    LINES,
    RUNS,
    TIMES,
    VERSIONS,
    End,
    Head,
    Placed,
    RecordedRequest,
    RecordedRun,
    Told,
)
from kernel.tensor import DATATYPES, Array, Tensor, unpack_bytes

__all__ = ["Recording", "is_recording", "read_recording"]

#: How much one file of the zip may have unpacked, the lines of one folder or the times of its runs, and all of both; bytes. What
#: writes a recording keeps far below the first two.
MOST_OF_MEMBER = 1024 * 1024 * 1024
MOST_OF_LINES = 256 * 1024 * 1024
MOST_OF_ALL_LINES = 4 * 1024 * 1024 * 1024

#: How many dimensions a tensor may have: numpy's most.
MOST_DIMENSIONS = 64

_MEMBER = re.compile(r"([0-9]{6,9})/(requests\.jsonl|runs\.jsonl|times\.npy|[A-Z0-9]{2,8}\.npy)")

#: What stands in front of each member: signature, version, flags, method, time, date, CRC, both sizes, lengths of name and extra.
_LOCAL = struct.Struct("<4s5HIIIHH")
_SIGNATURE = b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8
_HAS_DESCRIPTOR = 0x08

_decode_line = msgspec.json.Decoder(RecordedRequest[Placed])
_decode_run = msgspec.json.Decoder(RecordedRun)

#: Not as RecordedRequest[Placed], which takes four times as long to make one.
_made: Any = RecordedRequest


@dataclass(frozen=True)
class _Member:
    """Where something lies in the file: its header at `at`, `packed` bytes behind that, `size` when unpacked."""

    at: int
    method: int
    packed: int
    size: int
    crc: int


def is_recording(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a recording does."""
    try:
        with open(path, "rb") as file:
            start = file.read(_LOCAL.size + len(HEAD))
    except OSError:
        return False
    return start.startswith(_SIGNATURE) and start.endswith(HEAD.encode())


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording. Raises ServingError (INVALID_ARG) that says what came."""
    try:
        file = open(path, "rb")
    except OSError as error:
        raise _wrong(f"{os.fspath(path)} can't be read: {error.strerror or error}") from None
    try:
        return Recording(file, os.fspath(path))
    except BaseException:
        file.close()
        raise


class Recording:
    """A recording that is being read; close it by `close` or by leaving a `with`.

    `path`; `head`: what it is; `end`: how it ended, None where it was cut off. Everything raises ServingError (INVALID_ARG) with
    the place of what makes no sense.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self.path = path
        self._members = self._listed()
        if HEAD not in self._members:
            raise _wrong(f"{path} is no recording: it is a zip without {HEAD}")
        self.head: Head = self._record(HEAD, Head)
        if self.head.form != FORM or self.head.version not in VERSIONS:
            shown = f"'{clipped(self.head.form)}' of version {self.head.version}"
            raise _wrong(f"{path} is of the form {shown}, wanted is '{FORM}' of version {' or '.join(map(str, VERSIONS))}")
        self.end: End | None = self._record(END, End) if END in self._members else None
        self._arrays: tuple[int, dict[str, Array]] = 0, {}
        self._lines: list[tuple[int, RecordedRequest[Placed]]] | None = None

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def warnings(self) -> list[str]:
        """Return what is not in the recording, in words."""
        if self.end is None:
            return [f"{self.path} has no end: its server has crashed, or still runs; what it had not written is missing"]
        if self.end.lost:
            return [f"{self.end.lost} requests whose turn had come are not in {self.path} ({clipped(self.end.why)})"]
        return []

    def requests(self) -> Iterator[Told]:
        """Yield the requests in the order of their arrival, with their tensors."""
        for number, line in self.lines():
            yield self.with_tensors(number, line)

    def lines(self) -> list[tuple[int, RecordedRequest[Placed]]]:
        """Return the requests in the order of their arrival, each with the number of its folder."""
        if self._lines is None:
            self._lines = sorted(self._read_lines(), key=lambda each: each[1].arrived)
        return self._lines

    def arrivals(self, model: str = "") -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return when clients' requests came, in seconds since the first one, and their rows, 1 at least.

        `model`: of that alone. Calls of models are left out: their callers make them.
        """
        others: set[str] = set()
        moments, rows = array("d"), array("q")
        for _, line in self._read_lines():  # one by one: there may be many, and this is all that is kept of them
            if line.caller is not None:
                continue
            if model not in ("", line.model):
                others.add(line.model)
                continue
            moments.append(line.arrived)
            rows.append(min(max(1, line.rows), 2**31))
        if not moments:
            there = ", ".join(f"'{clipped(name)}'" for name in sorted(others)[:10])
            words = f"has no request of model '{clipped(model)}', but of {there}" if there else "has no requests"
            raise _wrong(f"{self.path} {words}")
        offsets = np.array(moments)
        order = np.argsort(offsets, kind="stable")
        return offsets[order] - offsets[order[0]], np.array(rows)[order]

    def with_tensors(self, number: int, line: RecordedRequest[Placed]) -> Told:
        """Return a request with its tensors. `number`: of its folder."""
        taken: dict[str, int] = {}  # each has a place of its own: else a small file would become tensors without end
        for one in (*line.inputs, *(one for answer in line.answers for one in answer)):
            taken[one.datatype] = taken.get(one.datatype, 0) + one.size
            if one.datatype in DATATYPES and taken[one.datatype] > self._array(number, one.datatype).size:
                words = f"has tensors with more elements than {one.datatype}.npy, up to '{clipped(one.name)}'"
                raise _wrong(f"{self.path}: a line of folder {number:06d} {words}")
        if not (line.inputs or line.answers):
            found: Any = line
        else:
            inputs: Any = [self._tensor(number, one) for one in line.inputs]
            answers: Any = [[self._tensor(number, one) for one in answer] for answer in line.answers]
            found = msgspec.structs.replace(line, inputs=inputs, answers=answers)
        told: Told = found
        return told

    # -- lines and tensors ---------------------------------------------------------------------------------------------

    def _read_lines(self) -> Iterator[tuple[int, RecordedRequest[Placed]]]:
        total = 0
        for name, member in self._members.items():
            folder, _, kind = name.partition("/")
            if kind not in (LINES, RUNS, TIMES):
                continue
            total += member.size  # of times as well: one line of a run may say of as many requests as there are times
            if total > MOST_OF_ALL_LINES:
                words = f"its lines and times have more than {MOST_OF_ALL_LINES} bytes unpacked, which are not read"
                raise _wrong(f"{self.path}: {words}")
            if kind == TIMES:
                continue
            number = int(folder)
            if kind == RUNS:
                for run in self._read_runs(name, number):
                    yield number, run
                continue
            for count, found in self._decoded(name, _decode_line):
                if not math.isfinite(found.arrived):
                    raise _wrong(f"{self.path}: {name}, line {count}: it arrived at {found.arrived}")
                yield number, found

    def _decoded(self, name: str, decoder: Any) -> Iterator[tuple[int, Any]]:
        """Yield what the lines of a member say, each with its number."""
        for count, line in enumerate(self._content(name, MOST_OF_LINES).splitlines(), 1):
            try:
                found = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise _wrong(f"{self.path}: {name}, line {count}: {error}") from None
            yield count, found

    def _read_runs(self, name: str, number: int) -> Iterator[RecordedRequest[Placed]]:
        """Yield the requests of the runs of a folder. Each has times of its own: a line says of no more than that."""
        place = f"{number:06d}/{TIMES}"
        if place not in self._members:
            raise _wrong(f"{self.path} has no {place}, which its runs tell of")
        times, at = self._npy(place, self._content(place, MOST_OF_LINES), "FP64"), 0
        for line, run in self._decoded(name, _decode_run):
            where, size = f"{self.path}: {name}, line {line}", 4 * run.count
            if not 0 < size <= times.size - at:
                raise _wrong(f"{where} has {run.count} requests, {TIMES} has times for {(times.size - at) // 4}")
            columns = times[at : at + size].reshape(4, run.count)
            at += size
            if not np.isfinite(columns).all():
                raise _wrong(f"{where}: one of its times in {TIMES} is no number")
            moments = columns.round(9).tolist()
            told = [_all(value, run.count) for value in (run.id, run.rows, run.instance, run.left)]
            called = [None] * run.count if run.caller is None else run.caller
            if any(len(one) != run.count for one in (*told, called)):
                raise _wrong(f"{where} has {run.count} requests, and says something of another number")
            yield from map(_made, repeat(run.model), repeat(run.version), *moments, *told, called)

    def _tensor(self, number: int, placed: Placed) -> Tensor:
        where = f"{self.path}: tensor '{clipped(placed.name)}' in folder {number:06d}"
        datatype, shape = placed.datatype, placed.shape
        if datatype not in DATATYPES:
            raise _wrong(f"{where} is of datatype '{clipped(datatype)}', there are {', '.join(DATATYPES)}")
        if len(shape) > MOST_DIMENSIONS or any(not 0 <= one < 2**63 for one in shape):
            raise _wrong(f"{where} has the shape {clipped(str(shape))}, which no tensor has")
        every = self._array(number, datatype)
        if not (0 <= placed.at <= every.size and 0 <= placed.size <= every.size - placed.at):
            raise _wrong(f"{where} lies at {placed.at} to {placed.at + placed.size}, {datatype}.npy has {every.size} elements")
        part, count = every[placed.at : placed.at + placed.size], math.prod(shape)
        if datatype == "BYTES":
            try:
                items = unpack_bytes(part.tobytes(), count)
            except ValueError:
                items = None
            if items is None or len(items) != count:
                raise _wrong(f"{where} has the shape {shape}, its data are of another number of strings")
            part = np.empty(count, dtype=np.object_)
            part[:] = items
        elif placed.size != count:
            raise _wrong(f"{where} has the shape {shape}, and {placed.size} elements")
        try:
            return Tensor(placed.name, datatype, part.reshape(shape).copy())
        except ValueError:  # without elements, and else as large as no machine's memory
            raise _wrong(f"{where} has the shape {clipped(str(shape))}, which no tensor has") from None

    def _array(self, number: int, datatype: str) -> Array:
        """Return the elements of one datatype in a folder. Those of one folder are kept, for the next line."""
        if self._arrays[0] != number:
            self._arrays = number, {}
        there = self._arrays[1]
        if datatype not in there:
            name = f"{number:06d}/{datatype}.npy"
            if name not in self._members:
                raise _wrong(f"{self.path} has no {name}, which its lines tell of")
            there[datatype] = self._npy(name, self._content(name, MOST_OF_MEMBER), datatype)
        return there[datatype]

    def _npy(self, name: str, content: bytes, datatype: str) -> Array:
        wanted = np.dtype(np.uint8) if datatype == "BYTES" else DATATYPES[datatype]
        file = io.BytesIO(content)
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("it is not of version 1.0 of that form")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        except (ValueError, SyntaxError, OverflowError, RecursionError, MemoryError) as error:
            raise _wrong(f"{self.path}: {name} is no .npy: {clipped(str(error))}") from None
        if dtype != wanted or len(shape) != 1:
            raise _wrong(f"{self.path}: {name} is of dtype {dtype} and shape {shape}, wanted is {wanted} with one dimension")
        rest = memoryview(content)[file.tell() :]
        if shape[0] * wanted.itemsize != len(rest):
            raise _wrong(f"{self.path}: {name} says that it has {shape[0]} elements, and has {len(rest)} bytes of {wanted}")
        return np.frombuffer(rest, wanted)

    def _record(self, name: str, kind: Any) -> Any:
        try:
            return msgspec.json.decode(self._content(name, 1024 * 1024), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _wrong(f"{self.path}: {name}: {error}") from None

    # -- the zip -------------------------------------------------------------------------------------------------------

    def _listed(self) -> dict[str, _Member]:
        """Return what is in the zip: by its directory, or where it has none, by what it begins with."""
        try:
            with zipfile.ZipFile(self._file) as there:
                infos = there.infolist()
        except (zipfile.BadZipFile, ValueError, OverflowError, struct.error, UnicodeDecodeError, NotImplementedError):
            return self._found()
        except OSError as error:
            raise _wrong(f"{self.path} can't be read: {error.strerror or error}") from None
        found: dict[str, _Member] = {}
        for info in infos:
            if info.filename in (HEAD, END) or _MEMBER.fullmatch(info.filename):
                if info.filename in found:
                    raise _wrong(f"{self.path} has {info.filename} twice")
                member = _Member(info.header_offset, info.compress_type, info.compress_size, info.file_size, info.CRC)
                found[info.filename] = member
        return found

    def _found(self) -> dict[str, _Member]:
        """Return what is in a zip without a directory, up to what was cut off."""
        found: dict[str, _Member] = {}
        end = self._file.seek(0, os.SEEK_END)
        at = 0
        while (header := self._header(at)) is not None:
            _, _, flags, method, _, _, crc, packed, size, of_name, of_extra = header
            name = self._file.read(of_name)
            begin = at + _LOCAL.size + of_name + of_extra
            if flags & _HAS_DESCRIPTOR or begin + packed > end or len(name) < of_name:
                break
            text = name.decode("ascii", "replace")
            if text in (HEAD, END) or _MEMBER.fullmatch(text):
                if not packed and size:  # its header was written, and nothing else
                    break
                found[text] = _Member(at, method, packed, size, crc)
            at = begin + packed
        if HEAD not in found:
            raise _wrong(f"{self.path} is no recording: it does not begin as a zip with {HEAD}")
        # The lines of a folder come last: those of the last one are there, or it does not count.
        whole = {name.partition("/")[0] for name in found if name.endswith(f"/{LINES}")}
        return {name: member for name, member in found.items() if "/" not in name or name.partition("/")[0] in whole}

    def _header(self, at: int) -> tuple[Any, ...] | None:
        if at < 0:
            return None
        self._file.seek(at)
        header = self._file.read(_LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(_SIGNATURE):
            return None
        return _LOCAL.unpack(header)

    def _content(self, name: str, most: int) -> bytes:
        """Return a member of the zip, unpacked."""
        member = self._members[name]
        if member.size > most or member.packed > most:
            raise _wrong(f"{self.path}: {name} has {member.size} bytes unpacked, more than {most}")
        header = self._header(member.at)
        if header is None:
            raise _wrong(f"{self.path}: {name} is not where the zip says")
        self._file.seek(member.at + _LOCAL.size + header[-2] + header[-1])
        data = self._file.read(member.packed)
        if member.method == _DEFLATED:
            try:
                # Of one that has more in it than it says no more is unpacked than that.
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size + 1)
            except zlib.error as error:
                raise _wrong(f"{self.path}: {name} can't be unpacked: {error}") from None
        elif member.method != _STORED:
            raise _wrong(f"{self.path}: {name} is packed by method {member.method}, wanted is {_STORED} or {_DEFLATED}")
        if len(data) != member.size or zlib.crc32(data) != member.crc:
            raise _wrong(f"{self.path}: {name} is damaged: its size or its checksum is another than the zip says")
        return data


def _all(value: Any, count: int) -> Any:
    """Return what each of so many has."""
    return value if isinstance(value, list) else [value] * count


def _wrong(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)
