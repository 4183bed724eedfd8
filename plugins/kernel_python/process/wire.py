"""What a server and its child say to each other, and how it is written down.

A message is a tuple whose first element is its kind; `marshal` writes it, which every Python has, in C (format 4, which all
of them read; the greeting proves it). In front of each message stands its length. Small tensors travel in the message, the
others through shared memory (pool.py). Also runs in children, on Python 3.9 with numpy alone.

What is no message by accident is an error. `marshal` is no wall against malice: a tuple that holds itself as a key ends whoever
reads it. A child runs as the server's user anyway (SECURITY.md).
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from kernel import DATATYPES, InferenceResponse, ServingError, Tensor, pack_bytes, unpack_bytes
from kernel_python.process.pool import INLINE, Loans, Pool

__all__ = [
    "Frames",
    "builtin_value",
    "builtin_values",
    "drop_tensors",
    "frame",
    "messages_in",
    "read_response",
    "read_tensors",
    "write_response",
    "write_tensors",
]

#: Proves in the greeting that both sides read `marshal` alike.
GREETING = (True, None, -1, 1 << 40, 1.5, "gr\u00fc\u00df", b"\x00\xff", ("a", ("a",)), ["x"], {"k": 1})

# What the server says:
SETUP = 1  # (greeting, what to be: a dictionary)
EXECUTE = 2  # (execution, claimed, requests): each (id, correlation, flags, timeout, parameters, outputs, trace, tensors)
ANSWER = 3  # (call, response, final)
CANCEL = 4  # (execution, index of the request)
REPLY = 5  # (question, error as (code, text) or None, value)
LEVEL = 6  # (level of the log)
FINALIZE = 7  # ()
PROBE = 8  # (question): the model's is_ready()
LOOK = 9  # (execution): does it do nothing but wait for calls?

# What the child says:
READY = 11  # (whether `execute` is async, bytes of shared memory that it has mapped, whether it has is_ready())
FAILED = 12  # (code, text[, the exception and its causes: faults.chain_of]): it can't be what SETUP says
DONE = 13  # (execution, started, input ended, output started, ended, outcome)
SEND = 14  # (execution, index, response or None, final)
CALL = 15  # see calls.py
HANG_UP = 16  # (call)
ASK = 17  # (question, what, arguments)
LOG = 18  # (level, logger, text, file, line, function, traceback, instance)
CLOSED = 20  # (): finalized
COMPLETED = 19  # (config as JSON, or None): what `auto_complete_config` made of it
COUNTED = 21  # (metric, how, value); see counting.py
CLOSED_FAMILY = 22  # (family of metrics)
BEGUN = 24  # (): SETUP was read, the model's code is next
AWAITS = 25  # (execution, calls without which it can't go on; none: it may)
PLACE = 26  # (execution, file:line): where one is that lasts too long
PROBED = 23  # (question, whether it is ready, or as text why that can't be told)

# What an execution comes to, in DONE: a list of responses, each of which may be AGAIN (the request is rescheduled), and else
AGAIN = True
OPEN, SKIPPED = None, False  # OPEN: senders answer; SKIPPED: nobody waited when it was to begin; or (code, text) of its failure

_LENGTH = struct.Struct("<I")
_pack = _LENGTH.pack
_unpack = _LENGTH.unpack_from
_ndarray = np.ndarray
_dumps = marshal.dumps
_loads = marshal.loads
FORMAT = 4
MOST = (1 << 31) - 1  # what marshal can write of a tensor; and the longest message, in bytes
FIRST_BYTES = b"\x28\xa8\x29\xa9"  # how marshal begins a tuple, large or small, with a reference or without
STEP = 1 << 20  # bytes: memory for a message is made as it comes, not as it says how much will


def frame(message: tuple[Any, ...]) -> bytes:
    """Return the message as it is sent. Raises ValueError for what can't be written down, or is longer than MOST."""
    data = _dumps(message, FORMAT)
    if len(data) > MOST:
        raise ValueError(f"a message of {len(data)} bytes is too long, at most {MOST} can be sent")
    return _pack(len(data)) + data


def messages_in(data: bytes) -> list[tuple[Any, ...]]:
    """Return the messages that `data` consists of."""
    messages = []
    at = 0
    while at < len(data):
        (length,) = _unpack(data, at)
        messages.append(_loads(data[at + 4 : at + 4 + length]))
        at += 4 + length
    return messages


class Frames:
    """Cuts what arrives into messages: read into `space()`, say how much `came`, then take the messages.

    A length is believed as far as bytes have come for it; one that no message has, or behind which none begins, is refused, and
    so is one of more than `most` bytes.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = min(most, MOST)
        self._renew(1 << 18)
        self._end = 0

    def space(self) -> memoryview:
        """Return where to write what arrives; never empty."""
        return self._view[self._end :]

    def came(self, count: int) -> list[tuple[Any, ...]]:
        """Return the messages that are complete now. Raises ValueError, EOFError or TypeError for what is none."""
        view = self._view
        at, end = 0, self._end + count
        messages: list[tuple[Any, ...]] = []
        while end - at >= 4:
            (length,) = _unpack(view, at)
            if end - at - 4 < length:
                if length > MOST or (end - at > 4 and view[at + 4] not in FIRST_BYTES):
                    raise ValueError(f"no message begins with {bytes(view[at : min(end, at + 16)]).hex(' ')}")
                if length > self._most:
                    raise ValueError(f"a message of {length} bytes, where {self._most} are the most (--memory-limit-receive)")
                if 4 + length > len(view) - at:
                    self._move(at, end, 4 + length)
                    return messages
                break
            at += 4
            messages.append(_loads(view[at : at + length]))
            at += length
        if at == end:
            self._end = 0
            if len(view) > 1 << 20:
                self._renew(1 << 18)
        elif at:
            self._move(at, end, 0)
        else:
            self._end = end
        return messages

    def _move(self, at: int, end: int, wanted: int) -> None:
        """Bring the incomplete message to the front of a buffer that it fits into, or twice as much of it as has come."""
        rest = bytes(self._view[at:end])
        wanted = min(wanted, max(2 * len(rest), STEP))
        if wanted > len(self._view):
            self._renew(wanted)
        self._view[: len(rest)] = rest
        self._end = len(rest)

    def _renew(self, size: int) -> None:
        self._view = memoryview(bytearray(size))


def builtin_values(parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return parameters as values of built-in types: marshal writes no subclasses of `str` or `int`."""
    if not parameters:
        return None
    return {str(key): builtin_value(value) for key, value in parameters.items()}


def builtin_value(value: Any) -> Any:
    if type(value) in (bool, int, str, float) or value is None:
        return value
    return str(value) if isinstance(value, str) else float(value) if isinstance(value, float) else int(value)


# -- tensors -----------------------------------------------------------------------------------------------------------


def write_tensors(tensors: Iterable[Tensor], pool: Pool, blocks: list[int] | None = None) -> list[tuple[Any, ...]]:
    """Return tensors as they stand in a message. The numbers of the blocks they took are added to `blocks`."""
    written = []
    for tensor in tensors:
        array, datatype = tensor.array, tensor.datatype
        data: Any
        if datatype == "BYTES":
            data = pack_bytes(array)
            size = len(data)
        else:
            data = array
            size = array.nbytes
        if size > INLINE:
            block = pool.put(data)
            if block is not None:
                if blocks is not None:
                    blocks.append(block[0])
                written.append((tensor.name, datatype, array.shape, block))
                continue
            if size > MOST:
                raise ValueError(
                    f"tensor '{tensor.name}' of {size} bytes finds no room in the shared memory of its model instance, "
                    f"and is too large for a message ({MOST} bytes)"
                )
        written.append((tensor.name, datatype, array.shape, data if datatype == "BYTES" else data.tobytes()))
    return written


def read_tensors(written: Iterable[tuple[Any, ...]], loans: Loans) -> list[Tensor]:
    """Return the tensors of a message. Their arrays are writable, and nobody else's."""
    tensors = []
    for name, datatype, shape, data in written:
        if datatype == "BYTES":
            array: Any = _strings(data if type(data) is bytes else loans.data(data), shape)
        elif type(data) is bytes:
            array = _ndarray(shape, DATATYPES[datatype], bytearray(data))
        else:
            array = loans.array(data, DATATYPES[datatype], shape)
        tensors.append(Tensor(name, datatype, array))
    return tensors


def drop_tensors(written: Iterable[tuple[Any, ...]], loans: Loans) -> None:
    """Give back the blocks of tensors that are not going to be read."""
    for tensor in written:
        if type(tensor[3]) is tuple:
            loans.drop(tensor[3])


def _strings(data: bytes, shape: tuple[int, ...]) -> Any:
    items = unpack_bytes(data)
    array = np.empty(len(items), np.object_)
    array[:] = items
    return array.reshape(shape)


# -- responses: None, or (tensors, code or None, text, parameters) -------------------------------------------------------


def write_response(response: InferenceResponse | None, pool: Pool) -> tuple[Any, ...] | None:
    if response is None:
        return None
    error = response.error
    if error is not None:
        return (), error.code.name, error.message, None
    return write_tensors(response.outputs, pool), None, "", builtin_values(response.parameters)


def read_response(
    written: tuple[Any, ...] | None, loans: Loans, error_of: Callable[[str, str], ServingError]
) -> InferenceResponse | None:
    if written is None:
        return None
    tensors, code, text, parameters = written
    if code is not None:
        return InferenceResponse([], error_of(code, text))
    return InferenceResponse(read_tensors(tensors, loans), None, parameters)
