"""Large messages: what is in them is counted on the wire, before objects are made of it, and their data is read on a thread.

The parser makes an object of every two bytes where it is told to, and holds the interpreter while it does. So of a message whose
head is large only the skeleton is parsed: the message without its raw data and without the elements of typed contents. These are
read here, in portions that are short or don't hold the interpreter. Means the same as parsing it all; runs on any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from kernel import DATATYPES, MemoryBudget, ServingError, Span, check_rank, copy_bytes, empty_array
from kernel_grpc.inference.contents import typed_contents
from kernel_grpc.inference.parameters import invalid
from kernel_grpc.inference.wire import BYTES, number_at, varint
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.rpc.unary import parsed
from kernel_grpc.schemas import grpc_service_pb2 as pb

__all__ = [
    "COPIED",
    "ON_LOOP",
    "STRINGS_ON_LOOP",
    "Large",
    "Prepared",
    "check_region",
    "fields",
    "is_askew",
    "is_work",
    "most_fields",
    "prepared",
    "too_many",
]

#: The longest message, without its raw data, that is parsed on the loop.
ON_LOOP = 64 * 1024

#: The most strings that are taken apart on the loop, and their bytes.
STRINGS_ON_LOOP = 4096
TEXT_ON_LOOP = 1024 * 1024

#: Fields that are none of those that are counted, such as names that are given again.
OTHERS = 1024

#: The most bytes of shared memory, or of raw data, that are copied on the loop.
COPIED = MemoryBudget.COPIED

#: How much of packed integers is read at a time.
PORTION = 64 * 1024

#: The bytes of an unpacked element, or of a chunk that is joined to others.
SMALL = 4096

MALFORMED = "Unable to parse request as inference.ModelInferRequest: "

#: Field of InferTensorContents -> its name, the wire type of one element, and the dtype of what is read.
CONTENTS: dict[int, tuple[str, int, np.dtype[Any]]] = {
    1: ("bool_contents", 0, np.dtype(np.bool_)),
    2: ("int_contents", 0, np.dtype(np.int32)),
    3: ("int64_contents", 0, np.dtype(np.int64)),
    4: ("uint_contents", 0, np.dtype(np.uint32)),
    5: ("uint64_contents", 0, np.dtype(np.uint64)),
    6: ("fp32_contents", 5, np.dtype(np.float32)),
    7: ("fp64_contents", 1, np.dtype(np.float64)),
}
STRINGS = 8

#: The wire types of what stands around the fields of a group.
GROUP, END_GROUP = 3, 4

#: The flags that limit what a request may have.
TENSORS = "--grpc-max-tensors"
PARAMETERS = "--grpc-max-parameters"
VALUES = "--max-request-values"


class Large(Exception):
    """A message is more work than is done on the loop: it has to be `prepared` on a thread.

    `region`: the name of an input, where in shared memory its data lies, and how many strings that should be, None where it is
    none; None where it is the message itself. Whoever has a `Prepared` already has its `add` read the region.
    """

    def __init__(self, region: tuple[str, Span, int | None] | None = None) -> None:
        self.region = region


def most_fields(limits: Limits) -> int:
    """Return how many fields a message can have: more can only be refused."""
    return 3 * limits.tensors + limits.parameters + OTHERS


class Prepared:
    """A message that has been read on a thread.

    `record`: parsed, without raw data and elements. `raws`: the raw data, an array of strings for BYTES. `contents`: index of an
    input -> its elements as `typed_contents` gives them; name of an input -> its data in shared memory. An error stands in the
    instead of what could not be read.
    """

    __slots__ = ("contents", "raws", "record")

    def __init__(self, record: Any, raws: list[Any], contents: dict[int | str, Any]) -> None:
        self.record = record
        self.raws = raws
        self.contents = contents

    def add(self, region: tuple[str, Span, int | None]) -> Prepared:
        """Read the data of one more input from shared memory, and return this. As in `Large`."""
        name, span, most = region
        try:
            data = span.read()
            self.contents[name] = data if most is None else strings(memoryview(data), most)
        except ServingError as error:
            self.contents[name] = error
        return self


def is_work(shape: tuple[int, ...], size: int) -> bool:
    """Whether strings of that shape, in so many bytes, are more than is taken apart on the loop."""
    return size > ON_LOOP and (size > TEXT_ON_LOOP or prod(shape) > STRINGS_ON_LOOP)


def prepared(message: Any, limits: Limits, values: int, region: tuple[str, Span, int | None] | None = None) -> Prepared:
    """Read a message. `values`: how many strings its tensors may have. `region`: as Large has it. Raises
    ServingError(INVALID_ARG).
    """
    skeleton = Skeleton(memoryview(message), limits, values)
    try:
        skeleton.read()
    except IndexError:
        raise invalid(f"{MALFORMED}it is cut off, or no message") from None
    record = parsed(pb.ModelInferRequest, b"".join(skeleton.pieces))
    contents: dict[int | str, Any] = {}
    for index, found in skeleton.contents.items():
        item = record.inputs[index]
        datatype = item.datatype if item.datatype in DATATYPES else "<invalid>"
        elements = found.elements()
        try:
            contents[index] = _objects(typed_contents(elements, item.name, datatype, record.model_name))
        except ServingError as error:
            contents[index] = error
    ready = Prepared(record, _unpacked(record, skeleton.raws, values), contents)
    return ready if region is None else ready.add(region)


def check_region(name: str, span: Span, shape: tuple[int, ...], *, strings: bool) -> None:
    """Raise Large where reading an input's data from shared memory is more than is done on the loop."""
    if span.byte_size > COPIED or (strings and is_work(shape, span.byte_size)):
        raise Large((name, span, prod(shape) if strings else None))


def is_askew(data: Any, dtype: np.dtype[Any]) -> bool:
    """Whether raw data is more than is copied on the loop, and has to be: its elements are not aligned."""
    return len(data) > COPIED and not np.frombuffer(data, dtype, count=1).flags.aligned


def _unpacked(record: Any, raws: list[Any], values: int) -> list[Any]:
    """Return the raw data with the strings taken apart, and the elements aligned, that are more work than is done on the loop."""
    used, left = 0, values
    for item in record.inputs:
        if item.HasField("contents") or "shared_memory_region" in item.parameters:
            continue
        if used == len(raws):
            break
        shape = tuple(item.shape)
        if item.datatype == "BYTES" and len(shape) <= 64 and min(shape, default=0) >= 0 and is_work(shape, len(raws[used])):
            if prod(shape) > values:
                break  # refused by its shape
            raws[used] = found = strings(raws[used], prod(shape))
            left -= len(found) if isinstance(found, np.ndarray) else 0
            if left < 0:
                raise too_many("strings", values, VALUES)
        elif item.datatype != "BYTES" and item.datatype in DATATYPES and is_askew(raws[used], DATATYPES[item.datatype]):
            raws[used] = np.frombuffer(raws[used], np.uint8).copy()
        used += 1
    return raws


def strings(data: Any, most: int) -> Any:
    """Return the elements of BYTES, an array of objects, or the error as `unpack_bytes` raises it. Up to one more than `most`."""
    items: list[bytes] = []
    at, end = 0, len(data)
    while at < end and len(items) <= most:
        if end - at < 4:
            return ValueError("length", end - at)
        size = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if end - at < size:
            return ValueError("data", size, end - at)
        items.append(copy_bytes(data, at, at + size))
        at += size
    return _objects(items)


def _objects(items: Any) -> Any:
    """Return a list as an array of objects; what is an array stays as it is."""
    if not isinstance(items, list):
        return items
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array


class Skeleton:
    """Takes the data out of a message. `pieces`: what is left, to be parsed; `contents`: by the index of their input."""

    def __init__(self, data: memoryview, limits: Limits, values: int) -> None:
        self.pieces: list[Any] = []
        self.raws: list[Any] = []
        self.contents: dict[int, Contents] = {}
        self._data = data
        self._limits = limits
        self._values = values
        self._inputs = self._outputs = self._parameters = self._others = self._elements = 0
        self._names = {1: "", 3: ""}  # model_name and id

    def read(self) -> None:
        """Raises IndexError where the message is malformed, ServingError where there is too much in it."""
        data, pieces = self._data, self.pieces
        most = self._limits.tensors
        for number, wire, begin, start, stop in fields(data, 0, len(data)):
            if wire == BYTES:
                if number == 7:
                    if len(self.raws) == most:
                        raise too_many("pieces of raw data", most)
                    self.raws.append(data[start:stop])
                    continue
                if number == 5:
                    if self._inputs == most:
                        raise too_many("inputs", most)
                    inner = self._input(start, stop)
                    pieces += (b"\x2a", varint(len(inner)), inner)
                    self._inputs += 1
                    continue
                if number == 6:
                    if self._outputs == most:
                        raise too_many("outputs", most)
                    self._outputs += 1
                    for inner_number, *_ in fields(data, start, stop):
                        self._count(inner_number == 2)
                elif number == 4:
                    self._count(True)
                else:
                    if number in self._names:
                        self._names[number] = bytes(data[start:stop][:256]).decode("utf-8", "replace")
                    self._count(False)
            else:
                self._count(False)
            pieces.append(data[begin:stop])

    def _count(self, parameter: bool) -> None:
        if parameter:
            self._parameters += 1
            if self._parameters > self._limits.parameters:
                raise too_many("parameters", self._limits.parameters, PARAMETERS)
        else:
            self._others += 1
            if self._others > OTHERS + 4 * self._limits.tensors:  # each tensor has a name, a datatype and a shape
                raise invalid(f"the request has more than {self._others - 1} other fields")

    def _input(self, start: int, stop: int) -> bytes:
        """Return an InferInputTensor without the elements of its contents, which are kept."""
        data = self._data
        pieces: list[Any] = []
        dimensions, name = 0, ""
        for number, wire, begin, at, end in fields(data, start, stop):
            if number == 5 and wire == BYTES:
                contents = self.contents.get(self._inputs)
                if contents is None:
                    contents = self.contents[self._inputs] = Contents()
                    pieces.append(b"\x2a\x00")
                self._elements += contents.take(data, at, end, self._values - self._elements)
                if self._elements > self._values:
                    raise too_many("strings", self._values, VALUES)
                continue
            self._count(number == 4)
            if number == 1 and wire == BYTES:
                name = bytes(data[at:end][:256]).decode("utf-8", "replace")
            elif number == 3:
                numbers = np.frombuffer(data[at:end], np.uint8) if end > at else np.empty(0, np.uint8)
                dimensions += int(np.count_nonzero(numbers < 128))
                check_rank(name, self._names[1], self._names[3], dimensions)
            pieces.append(data[begin:end])
        return b"".join(pieces)


class Contents:
    """The elements of one InferTensorContents, still as they are on the wire."""

    __slots__ = ("_chunks", "_strings")

    def __init__(self) -> None:
        self._chunks: dict[int, list[Any]] = {}
        self._strings: list[bytes] = []

    def take(self, data: memoryview, start: int, stop: int, most: int) -> int:
        """Take what a field `contents` holds; of several all elements count. Return how many fields that were."""
        count = 0
        for number, wire, _, at, end in fields(data, start, stop):
            count += 1
            if count > most:
                break
            if number == STRINGS and wire == BYTES:
                self._strings.append(copy_bytes(data, at, end))
            elif number in CONTENTS and wire in (BYTES, CONTENTS[number][1]):
                _, kind, dtype = CONTENTS[number]
                if end > at and (data[end - 1] >= 128 if kind == 0 else (end - at) % dtype.itemsize):
                    raise IndexError  # elements do not go on in the next piece
                chunks = self._chunks.setdefault(number, [])
                if end - at > SMALL:
                    chunks.append(data[at:end])
                elif chunks and isinstance(chunks[-1], bytearray):
                    chunks[-1] += data[at:end]
                else:
                    chunks.append(bytearray(data[at:end]))
        return count

    def elements(self) -> Elements:
        """Return them read. Raises ServingError(INVALID_ARG)."""
        found = Elements()
        found.bytes_contents = self._strings
        for number, chunks in self._chunks.items():
            name, wire, dtype = CONTENTS[number]
            parts = [_integers(chunk, dtype) if wire == 0 else _floats(chunk, dtype) for chunk in chunks]
            setattr(found, name, parts[0] if len(parts) == 1 else _joined(parts, dtype))
        return found


class Elements:
    """What an InferTensorContents holds, as far as it is asked for: arrays, and a list of bytes."""

    def __init__(self) -> None:
        self.bytes_contents: Sequence[bytes] = ()
        for name, _, dtype in CONTENTS.values():
            setattr(self, name, np.empty(0, dtype))


def _floats(chunk: Any, dtype: np.dtype[Any]) -> Any:
    if len(chunk) % dtype.itemsize:
        raise invalid(f"{MALFORMED}{len(chunk)} bytes of elements that have {dtype.itemsize}")
    array = np.frombuffer(chunk, dtype) if len(chunk) else np.empty(0, dtype)
    return array if array.flags.aligned and array.flags.writeable else array.copy()


def _joined(parts: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    return np.concatenate(parts, out=empty_array(sum(map(len, parts)), dtype))


def _integers(chunk: Any, dtype: np.dtype[Any]) -> Any:
    """Read packed integers of one to ten bytes, a portion at a time."""
    data = np.frombuffer(chunk, np.uint8) if len(chunk) else np.empty(0, np.uint8)
    if len(data) and data[-1] >= 128:
        raise invalid(f"{MALFORMED}the last of its integers is cut off")
    total = sum(int(np.count_nonzero(data[at : at + PORTION] < 128)) for at in range(0, len(data), PORTION))
    array, at, count = empty_array(total, dtype), 0, 0
    while at < len(data):
        portion = data[at : at + PORTION]
        ends = np.flatnonzero(portion < 128)
        if not len(ends):
            raise invalid(f"{MALFORMED}an integer of more than ten bytes")
        array[count : count + len(ends)] = _portion(portion, ends, dtype)
        count += len(ends)
        at += int(ends[-1]) + 1
    return array


def _portion(data: Any, ends: Any, dtype: np.dtype[Any]) -> Any:
    """Return the integers of which the last bytes stand at `ends`."""
    if len(ends) == len(data):
        return data != 0 if dtype == np.bool_ else data
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > 10:
        raise invalid(f"{MALFORMED}an integer of more than ten bytes")
    values = np.zeros(len(ends), np.uint64)
    for nth in range(longest):
        there = np.flatnonzero(lengths > nth)
        groups = (data[starts[there] + nth] & 127).astype(np.uint64)
        values[there] |= groups << np.uint64(7 * nth)
    return values != 0 if dtype == np.bool_ else values.astype(dtype)


def fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the fields of a message: number, wire type, where it begins, where its content begins and ends.

    Raises IndexError where it is malformed. Groups, which nobody uses, are fields whose content is not looked at.
    """
    while at < end:
        begin = at
        tag = data[at]
        at += 1
        if tag >= 128:
            tag, at = number_at(data, begin)
        wire = tag & 7
        start = at
        if wire == BYTES:
            size = data[at]
            at += 1
            if size >= 128:
                size, at = number_at(data, at - 1)
            start = at
            at += size
        elif wire == GROUP:
            at = _past_group(data, at, end, tag >> 3)
        else:
            at = _past_plain(data, at, wire)
        if at > end or tag < 8:
            raise IndexError
        yield tag >> 3, wire, begin, start, at


def _past_plain(data: memoryview, at: int, wire: int) -> int:
    """Return where the content of a field ends that has neither a length nor fields within. `wire`: its type."""
    if wire == 0:
        start = at
        while data[at] >= 128:
            at += 1
        at += 1
        if at - start > 10:
            raise IndexError
        return at
    if wire == 5:
        return at + 4
    if wire == 1:
        return at + 8
    raise IndexError


def _past_group(data: memoryview, at: int, end: int, number: int) -> int:
    """Return where a group ends. Groups within it are counted, not entered, so any depth costs the same."""
    open_groups = [number]
    while open_groups:
        tag, at = number_at(data, at)
        wire = tag & 7
        if wire == GROUP:
            open_groups.append(tag >> 3)
            if len(open_groups) > 100:  # no parser goes deeper
                raise IndexError
        elif wire == END_GROUP:
            if open_groups.pop() != tag >> 3:
                raise IndexError
        elif wire == BYTES:
            size, at = number_at(data, at)
            at += size
        else:
            at = _past_plain(data, at, wire)
        if at > end:
            raise IndexError
    return at


def too_many(what: str, most: int, flag: str = TENSORS) -> ServingError:
    return invalid(f"the request has more than {most} {what}, the most that {flag} allows")
