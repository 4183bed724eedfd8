"""Shared memory that clients register: POSIX objects under /dev/shm by name, and parts of them to read from and write to.

Bounds are checked against the region and against the object as it is now. Reads and writes go through the file, not through a
mapping: a client that shrinks its object gets an error, where a mapping would end the process with SIGBUS. CUDA regions are
known by name only to be refused. (Contract: http_protocol, section 8.)
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel.errors import Code, ServingError

__all__ = ["CudaSharedMemory", "Region", "SharedMemory", "Span"]

#: Where the C library keeps the objects of shm_open.
FOLDER = "/dev/shm"

#: Not through a link to elsewhere, not into a child process, and not for ever where the name is a pipe's.
FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

#: How many regions may be registered, in how many objects, each of which has a descriptor; and how long a region's name may be.
MOST_REGIONS, MOST_OBJECTS, LONGEST_NAME = 4096, 512, 1024

#: What no client may register, by how its key begins: what the reference's backends share with their processes, and semaphores.
RESERVED = ("triton_", "sem.")

#: Copies of regions up to this many bytes are not counted, as messages are not.
SMALL = 64 * 1024

#: Whatever has a buffer: bytes, a memoryview, an array.
Buffer = Any


@dataclass(frozen=True, slots=True)
class Region:
    """A region registered as `name`: `byte_size` bytes of the object that is called `key`, from its byte `offset` on."""

    name: str
    key: str
    offset: int
    byte_size: int


class _Copies:
    """How many bytes of regions were copied for requests, and are still in use: at most `limit`, so that a sparse object, which
    costs its client nothing, can't take the machine's memory. Any thread.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._returned: deque[int] = deque()  # what is in use no more, and was not subtracted yet
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Count a copy of `size` bytes that is about to be made. Raises ServingError(UNAVAILABLE) where it is too much."""
        with self._lock:
            while self._returned:
                self._used -= self._returned.popleft()
            if self._used + size > self._limit:
                raise ServingError(
                    Code.UNAVAILABLE,
                    f"{self._used} bytes of shared memory are copied for requests, and {size} more are above the {self._limit} "
                    "that --memory-limit-receive allows; try again later",
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """A copy is in use no more. Takes no lock: a collection of garbage may come in the middle of anything."""
        self._returned.append(size)


class _Object:
    """An open POSIX object; closed when nobody refers to it any more."""

    __slots__ = ("fd", "key", "writable")

    def __init__(self, key: str) -> None:
        self.fd = -1
        self.key = key
        self.writable = True
        name = key.lstrip("/")
        try:
            if not name or "/" in name:
                raise ValueError("not the name of an object")
            try:
                self.fd = os.open(f"{FOLDER}/{name}", FLAGS | os.O_RDWR)
            except PermissionError:  # it may still be read, for inputs
                self.fd, self.writable = os.open(f"{FOLDER}/{name}", FLAGS | os.O_RDONLY), False
            if not stat.S_ISREG(os.fstat(self.fd).st_mode):
                raise ValueError("not an object")
        except (OSError, ValueError) as error:
            raise ServingError(Code.INTERNAL, f"Unable to open shared memory region: '{key}'") from error

    def is_same(self, other: _Object) -> bool:
        """Whether it is the same object: another may have been made under the name since, or may be written to by now."""
        return self.writable is other.writable and os.path.sameopenfile(self.fd, other.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class Span:
    """A part of a region, checked: `byte_size` bytes. Made by `SharedMemory.span`. Whoever holds it may read and write, also
    after the region was unregistered.
    """

    __slots__ = ("_copies", "_object", "_region", "_start", "byte_size")

    def __init__(self, region: str, object: _Object, start: int, byte_size: int, copies: _Copies) -> None:
        self.byte_size = byte_size
        self._copies = copies
        self._region = region
        self._object = object
        self._start = start

    def read(self, kind: type[np.ndarray[Any, Any]] = np.ndarray) -> Buffer:
        """Return a copy of the bytes, a uint8 array of this `kind` that is the caller's own.

        Raises ServingError(INVALID_ARG) where the client has shrunk the object meanwhile, UNAVAILABLE where copies hold too much
        already, INTERNAL where there is no memory for one.
        """
        copies = self._copies if self.byte_size > SMALL else None
        if copies is not None:
            copies.take(self.byte_size)
        try:
            array: Buffer = kind(self.byte_size, np.uint8)
        except MemoryError:
            if copies is not None:
                copies.give_back(self.byte_size)
            text = f"there is no memory for {self.byte_size} bytes of the shared memory region '{self._region}'"
            raise ServingError(Code.INTERNAL, text) from None
        if copies is not None:
            weakref.finalize(array, copies.give_back, self.byte_size).atexit = False
        buffer = memoryview(array).cast("B")
        done = 0
        while done < self.byte_size:
            count = os.preadv(self._object.fd, [buffer[done:]], self._start + done)
            if not count:
                raise self._shrunk()
            done += count
        return array

    def write(self, data: Buffer) -> None:
        """Write `data`, which must not be larger than the span, to its beginning.

        Raises ServingError where the client has shrunk the object meanwhile, or there is no memory for it.
        """
        buffer = memoryview(data).cast("B")
        assert len(buffer) <= self.byte_size
        if not self._object.writable:
            words = f"shared memory region '{self._region}' can't be written: the server may only read '{self._object.key}'"
            raise ServingError(Code.INTERNAL, words)
        if self._start + len(buffer) > self._object.size():
            raise self._shrunk()
        done = 0
        try:
            while done < len(buffer):
                done += os.pwrite(self._object.fd, buffer[done:], self._start + done)
        except OSError as error:  # a sparse object, and no memory is left
            raise ServingError(
                Code.INTERNAL, f"shared memory region '{self._region}' can't be written: {error.strerror}"
            ) from error

    def write_output(self, output: str, data: Buffer) -> None:
        """As `write`, for the data of an output; raises ServingError(INTERNAL), too, where it is larger than the span."""
        if len(data) > self.byte_size:
            raise ServingError(
                Code.INTERNAL,
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) should be "
                f"at least {len(data)} bytes to hold the results",
            )
        self.write(data)

    def _shrunk(self) -> ServingError:
        return ServingError(
            Code.INVALID_ARG,
            f"Invalid offset + byte size for shared memory region: '{self._region}' (the object '{self._object.key}' has only "
            f"{self._object.size()} bytes now, {self.byte_size} are wanted from {self._start} on)",
        )


class SharedMemory:
    """The system shared memory regions of one kernel (`Kernel.shared_memory`). `allowed`: whether clients may register and
    unregister. `limit`: how many bytes of regions may be copied for requests that are not over yet.
    """

    def __init__(self, allowed: bool = True, limit: int = sys.maxsize) -> None:
        self.allowed = allowed
        self._copies = _Copies(limit)
        self._regions: dict[str, tuple[Region, _Object]] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Make `byte_size` bytes from `offset` on of the POSIX object `key` known as `name`.

        Raises ServingError: UNSUPPORTED where clients may not, ALREADY_EXISTS, INTERNAL where there is no such object,
        INVALID_ARG for a key that is not for clients, UNAVAILABLE where there are too many, INVALID_ARG or INTERNAL where it has
        not so many bytes. What the server may only read serves for inputs.
        """
        _check_allowed(self.allowed)
        for prefix in RESERVED:
            if key.lstrip("/").startswith(prefix):
                words = f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix"
                raise ServingError(Code.INVALID_ARG, f"{words} '{prefix}'")
        if name in self._regions:
            raise ServingError(Code.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
        object = self._opened(name, key)
        if offset + byte_size > object.size():
            # As observed: the words and the code depend on whether some region already lies in that object.
            if any(region.key == key for region, _ in self._regions.values()):
                raise ServingError(Code.INTERNAL, f"Invalid shared memory region: '{key}'")
            raise ServingError(Code.INVALID_ARG, f"failed to register shared memory region '{name}': invalid args")
        if byte_size <= 0 or offset < 0:
            raise ServingError(
                Code.INVALID_ARG,
                f"failed to register shared memory region '{name}': {byte_size} bytes from {offset} on are no region",
            )
        self._regions[name] = (Region(name, key, offset, byte_size), object)

    def _opened(self, name: str, key: str) -> _Object:
        """Return the object of a region that is new, the one that is open already where there is one. Raises ServingError."""
        if len(name) > LONGEST_NAME:
            words = f"the name of a shared memory region has {len(name)} characters, where {LONGEST_NAME} are the most"
            raise ServingError(Code.INVALID_ARG, words)
        if len(self._regions) >= MOST_REGIONS:
            words = f"{MOST_REGIONS} shared memory regions are registered, which is the most; unregister some"
            raise ServingError(Code.UNAVAILABLE, words)
        fresh = _Object(key)
        objects = {id(one): one for _, one in self._regions.values()}
        for one in objects.values():
            if one.key == key and one.is_same(fresh):
                return one
        if len(objects) >= MOST_OBJECTS:
            words = f"regions of {MOST_OBJECTS} shared memory objects are registered, which is the most; unregister some"
            raise ServingError(Code.UNAVAILABLE, words)
        return fresh

    def unregister(self, name: str = "") -> None:
        """Forget the region, or all of them; one that isn't known is no mistake."""
        _check_allowed(self.allowed)
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[Region]:
        """Return the region, or all of them by name. Raises ServingError(NOT_FOUND)."""
        if not name:
            return [region for _, (region, _) in sorted(self._regions.items())]
        if name not in self._regions:
            raise ServingError(Code.NOT_FOUND, f"Unable to find system shared memory region: '{name}'")
        return [self._regions[name][0]]

    def span(self, region: str, offset: int, byte_size: int) -> Span:
        """Return `byte_size` bytes of a region, from its byte `offset` on, for a request's input or output.

        Raises ServingError: NOT_FOUND for a region that is not known, INVALID_ARG for what lies outside of it.
        """
        known = self._regions.get(region)
        if known is None:
            raise ServingError(Code.NOT_FOUND, f"Unable to find shared memory region: '{region}'")
        record, object = known
        if not 0 <= offset < record.byte_size:
            raise ServingError(Code.INVALID_ARG, f"Invalid offset for shared memory region: '{region}'")
        if byte_size <= 0 or offset + byte_size > record.byte_size:
            raise ServingError(Code.INVALID_ARG, f"Invalid offset + byte size for shared memory region: '{region}'")
        return Span(region, object, record.offset + offset, byte_size, self._copies)


class CudaSharedMemory:
    """The CUDA shared memory regions (`Kernel.cuda_shared_memory`): there are none, since no GPU is used. Refuses in the
    reference's words. `allowed`: whether clients may register and unregister.
    """

    def __init__(self, allowed: bool = True) -> None:
        self.allowed = allowed

    def register(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Raise ServingError: no handle can be opened here."""
        _check_allowed(self.allowed)
        raise ServingError(Code.INVALID_ARG, "failed to register shared memory region: invalid args")

    def unregister(self, name: str = "") -> None:
        """Do nothing: no region is known, and unknown ones are no mistake."""
        _check_allowed(self.allowed)

    def status(self, name: str = "") -> list[Region]:
        """Return no region. Raises ServingError(NOT_FOUND) where one is named."""
        if name:
            raise ServingError(Code.NOT_FOUND, f"Unable to find cuda shared memory region: '{name}'")
        return []


def _check_allowed(allowed: bool) -> None:
    if not allowed:
        raise ServingError(
            Code.UNSUPPORTED,
            "clients may not register or unregister shared memory; start the server with --allow-client-shm=true to let them",
        )
