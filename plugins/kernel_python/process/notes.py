"""What a child has begun, what it has finished and not sent yet, and that it is alive, in shared memory, for the server to read.

A child sends the ends of several short executions together. Until it does they are noted here; the server reads the notes
when the child has died. Also runs in children.
"""

from __future__ import annotations

import mmap
import struct

from kernel_python.process.pool import BLOCKS, FIRST

__all__ = ["Notes"]

_COUNT = struct.Struct("<I")  # of the bytes noted
_BEGUN = struct.Struct("<Q")
_BEGUN_AT = 8
_BEATS_AT = 16
_DATA_AT = 24


class Notes:
    """A number, and a growing number of bytes, in the room for them of the memory that the child writes to."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._room = memoryview(memory)[BLOCKS:FIRST]
        self._count = 0

    def begin(self, number: int) -> None:
        """Note that the execution of that number, and so all before it, have been begun."""
        _BEGUN.pack_into(self._room, _BEGUN_AT, number)

    @property
    def begun(self) -> int:
        """The number of the execution that was begun last."""
        (number,) = _BEGUN.unpack_from(self._room, _BEGUN_AT)
        return int(number)

    def beat(self) -> None:
        """Note that this process is alive."""
        _BEGUN.pack_into(self._room, _BEATS_AT, self.beats + 1)

    @property
    def beats(self) -> int:
        """How often the process has noted that it is alive."""
        (number,) = _BEGUN.unpack_from(self._room, _BEATS_AT)
        return int(number)

    def add(self, data: bytes) -> bool:
        """Note some more; False when there is no room."""
        at = _DATA_AT + self._count
        end = at + len(data)
        if end > len(self._room):
            return False
        self._room[at:end] = data
        self._count += len(data)
        _COUNT.pack_into(self._room, 0, self._count)  # last: whatever moment the process ends in, what is counted is complete
        return True

    def clear(self) -> None:
        if self._count:
            self._count = 0
            _COUNT.pack_into(self._room, 0, 0)

    def read(self) -> bytes:
        """Return what was noted since the last `clear`, by whoever did."""
        (count,) = _COUNT.unpack_from(self._room)
        return bytes(self._room[_DATA_AT : _DATA_AT + count])
