"""Shared memory between a server and one child, in one direction: one side puts tensors into it, the other borrows them.

The memory is a file without a name, mapped whole by both; it is as large as it may ever become and takes only the pages that
were written to. The first bytes are flags, one a block: the placing side sets one when it lends the block, the borrowing
side clears it once nobody looks at the block any more. No messages, no locks across processes, nothing left behind in any
kind of exit. Behind the flags is room for notes (notes.py). Also runs in children, on Python 3.9 with numpy alone.
"""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
import threading
from collections import deque
from typing import Any

import numpy as np

__all__ = ["BLOCKS", "FIRST", "INLINE", "Loans", "Pool", "create", "mapped"]

#: Arrays up to this many bytes travel in the message: that costs less than a block.
INLINE = 16384
BLOCKS = 1 << 16  # blocks at most: there is one byte for each that says whether it is lent
FIRST = BLOCKS + (1 << 18)  # where the first block lies
PAGE = 4096
LARGEST = 1 << 36  # bytes of address space, which cost nothing until they are written to
SMALLEST = 1 << 26
KEEP = 1 << 26  # what a pool keeps for the next tensors when nothing is lent
OFTEN = 64  # where no more blocks than this are lent, all are looked at for one that came back, whenever one is wanted

_uint8 = np.dtype(np.uint8)
_ndarray = np.ndarray


def create() -> int:
    """Return the descriptor of fresh shared memory, as large as this machine's memory: what is not used costs nothing."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kernel-python-process", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp(prefix="kernel-python-process-")
        os.unlink(path)
    os.ftruncate(descriptor, _size())
    return descriptor


def _size() -> int:
    size = min(LARGEST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:  # `ulimit -v`: then address space costs something, too
        size = min(size, limit // 16)
    return max(SMALLEST, size // PAGE * PAGE)


def mapped(descriptor: int) -> mmap.mmap:
    """Map the memory and close the descriptor. Where the address space does not suffice, only its beginning."""
    size = os.fstat(descriptor).st_size
    try:
        while True:
            try:
                memory = mmap.mmap(descriptor, size)
                break
            except OSError:
                if size <= SMALLEST:
                    raise
                size //= 2
    finally:
        os.close(descriptor)
    if hasattr(mmap, "MADV_DONTDUMP"):
        memory.madvise(mmap.MADV_DONTDUMP)  # other people's data, and much of it, does not belong into a core file
    return memory


def _give_pages_back(memory: mmap.mmap, offset: int, length: int) -> None:
    if hasattr(mmap, "MADV_REMOVE"):  # Linux
        memory.madvise(mmap.MADV_REMOVE, offset, length)


class Pool:
    """The side that puts. Any thread.

    Blocks have sizes in steps of a quarter of a power of two, and are never split: a block that comes back serves the next
    tensor of about its size, with pages that it has already. Where `put` finds no room, the tensor travels in the message.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._flags = memoryview(memory)[:BLOCKS]
        self._limit = len(memory)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._end = FIRST
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._free: dict[int, deque[int]] = {}  # size -> blocks; those without pages stand on the left
        self._lent: list[int] = []
        self._cold: set[int] = set()  # free blocks whose pages were given back
        self._look = OFTEN
        self._lent_bytes = self._warm_bytes = 0

    def put(self, array: Any) -> tuple[int, int, int] | None:
        """Copy an array or bytes into a block; return its (number, offset, length), None where there is no room."""
        data = type(array) is bytes
        length = len(array) if data else array.nbytes
        with self._lock:
            number = self._take(length)
        if number is None:
            return None
        offset = self._offsets[number]
        if data:
            self._memory[offset : offset + length] = array
        else:
            _ndarray(array.shape, array.dtype, self._memory, offset)[...] = array
        return number, offset, length

    def limit(self, size: int) -> None:
        """The other side has mapped no more than `size` bytes."""
        self._limit = min(self._limit, size)

    def withdraw(self, number: int) -> None:
        """Take back a block that the other side has not seen, and never will."""
        self._flags[number] = 0

    @property
    def swollen(self) -> bool:
        """Whether the pool holds more pages than it should in the long run; see `rest`."""
        return self._lent_bytes + self._warm_bytes > KEEP

    @property
    def free(self) -> int:
        """How many bytes are not lent: what the other side has returned counts."""
        with self._lock:
            self._sweep()
            return self._limit - FIRST - self._lent_bytes

    def rest(self) -> None:
        """Give back the pages that are not needed, as far as the other side has returned them."""
        with self._lock:
            self._sweep()
            if not self._lent and self._end > KEEP:
                _give_pages_back(self._memory, FIRST, self._end - FIRST)
                self._forget()

    def _take(self, length: int) -> int | None:
        size = _rounded(length)
        free = self._free.get(size)
        if not free and (len(self._lent) <= OFTEN or len(self._lent) >= self._look):
            self._sweep()
            free = self._free.get(size)
        if not free:
            number = self._carve(size)
            if number is None:
                self._sweep()
                free = self._free.get(size)
                if not free:
                    return None
        if free:
            number = free.pop()
            if number in self._cold:
                self._cold.discard(number)
            else:
                self._warm_bytes -= size
        assert number is not None
        self._flags[number] = 1
        self._lent.append(number)
        self._lent_bytes += size
        return number

    def _carve(self, size: int) -> int | None:
        number = len(self._offsets)
        if number == BLOCKS or self._end + size > self._limit:
            return None
        self._offsets.append(self._end)
        self._sizes.append(size)
        self._end += size
        return number

    def _sweep(self) -> None:
        """Find the blocks that have come back. What is beyond the need keeps its address, but not its pages."""
        flags, sizes = self._flags, self._sizes
        lent = [number for number in self._lent if flags[number]]
        if len(lent) < len(self._lent):
            back = [number for number in self._lent if not flags[number]]
            self._lent = lent
            self._lent_bytes -= sum(sizes[number] for number in back)
            keep = max(KEEP, self._lent_bytes)
            for number in back:
                size = sizes[number]
                free = self._free.get(size)
                if free is None:
                    free = self._free[size] = deque()
                if self._warm_bytes + size <= keep:
                    self._warm_bytes += size
                    free.append(number)
                else:
                    _give_pages_back(self._memory, self._offsets[number], size)
                    self._cold.add(number)
                    free.appendleft(number)
        self._look = max(OFTEN, 2 * len(lent))


def _rounded(length: int) -> int:
    """Return the size of the block for `length` bytes: at most a quarter more, in whole pages."""
    step = 1 << max((length - 1).bit_length() - 3, 12)
    return -(-length // step) * step


class Loan(np.ndarray):
    """A block, borrowed: the base of the arrays that lie in it. It goes back when the last of them goes."""

    _flags: Any = None
    _number = 0

    def __del__(self) -> None:
        if self._flags is not None:
            self._flags[self._number] = 0


class Loans:
    """The borrowing side."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.size = len(memory)
        self._memory = memory
        self._flags = memoryview(memory)[:BLOCKS]

    def array(self, block: tuple[int, int, int], dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return a writable array in a block. The block is lent until nobody refers to the array or a view of it."""
        number, offset, length = block
        loan = Loan(length, _uint8, self._memory, offset)
        loan._number = number
        loan._flags = self._flags
        return _ndarray(shape, dtype, loan)

    def data(self, block: tuple[int, int, int]) -> bytes:
        """Return a copy of what is in a block, and give the block back."""
        number, offset, length = block
        data = self._memory[offset : offset + length]
        self._flags[number] = 0
        return data

    def drop(self, block: tuple[int, int, int]) -> None:
        """Give a block back without reading it."""
        self._flags[block[0]] = 0
