"""The memory of large arrays that front ends make: given back to the system piece by piece, on a thread.

The law: whoever lets go of an array waits for no more than a piece. At once, a gigabyte holds the interpreter for 0.15 s.
"""

from __future__ import annotations

import mmap
import sys
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PIECE", "MappedMemory", "empty_array"]

#: How much is given back to the system at once, about two milliseconds' work.
PIECE = 16 * 1024 * 1024

#: A mapping of this process alone, which can grow. 0 where the system has none.
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


class MappedMemory(mmap.mmap):
    """So many bytes of memory from the system, filled with zeros, which `resize` moves instead of copying them. Raises OSError.

    A large one that nobody needs any more is given back on a thread. Its pages are small ones: to make room for a huge page the
    system may take as long as giving it all back. `AVAILABLE`: whether this system has such memory.
    """

    AVAILABLE = bool(_PRIVATE)

    def __new__(cls, size: int) -> MappedMemory:
        return super().__new__(cls, -1, size, flags=_PRIVATE)

    def __del__(self) -> None:
        if not self.closed and len(self) > PIECE and not sys.is_finalizing():  # closed: there was none to be had
            threading.Thread(target=free, args=(self,), name="kernel-free", daemon=True).start()


def free(mapping: mmap.mmap) -> None:
    """Give a mapping back to the system."""
    while (left := len(mapping) - PIECE) > 0:
        mapping.resize(left)
        time.sleep(0)  # whoever waits for the interpreter gets it
    mapping.close()


def empty_array(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of `count` elements, as `np.empty` does; a large one lies in MappedMemory. Raises MemoryError."""
    if not MappedMemory.AVAILABLE or count * dtype.itemsize <= PIECE:
        return np.empty(count, dtype)
    try:
        return np.ndarray(count, dtype, MappedMemory(count * dtype.itemsize))
    except OSError as error:
        raise MemoryError(str(error)) from None
