"""The response cache's rules: what makes two requests the same, how an answer is kept, which answers go when there is no room.

Pure: no clock, no threads, nothing of schedulers. A kept answer is made of immutable bytes, and what is given out is made anew,
so nobody can alter what others will get. Where requests meet the cache is cache_stage.py's business.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel.errors import Code, ServingError
from kernel.tensor import DATATYPES, Array, Tensor, pack_bytes, unpack_bytes

__all__ = ["LocalCache", "RequestKeys", "StoredResponse", "StoredTensor", "load_key"]

KEY_BYTES = 20

#: What keeping an answer takes besides its data: a key and its entry in the table, and for each output the bytes object's head,
#: the record and the shape. Measured, rounded up: many small answers must not take more memory than they were given.
ENTRY_BYTES = 320
OUTPUT_BYTES = 320


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """How full a response cache is, at one moment."""

    size: int  # bytes that there are
    used: int  # bytes of them that answers take, each as `StoredResponse.size` says
    entries: int  # answers that are kept
    evictions: int  # answers that had to go for others, since the cache was made


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One output as it is kept: `name`, `datatype`, full `shape`, and `data`.

    `data`: its wire form (row by row, little-endian; BYTES with their length words).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, tensor: Tensor) -> StoredTensor:
        """Return a copy of a tensor in the form in which it is kept."""
        array = tensor.array
        data = pack_bytes(array) if tensor.datatype == "BYTES" else array.tobytes()
        return cls(tensor.name, tensor.datatype, array.shape, data)

    def tensor(self) -> Tensor:
        """Return the output in memory of its own, which whoever gets it may write to."""
        array: Array
        if self.datatype == "BYTES":
            items = unpack_bytes(self.data)
            array = np.empty(len(items), dtype=np.object_)
            array[:] = items
        else:
            array = np.frombuffer(bytearray(self.data), dtype=DATATYPES[self.datatype])
        return Tensor(self.name, self.datatype, array.reshape(self.shape))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The `outputs` of one successful answer, in its order. Its id and parameters belong to the request and are not kept."""

    outputs: tuple[StoredTensor, ...]

    @classmethod
    def of(cls, outputs: Sequence[Tensor]) -> StoredResponse:
        """Return a copy of the outputs of an answer."""
        return cls(tuple([StoredTensor.of(tensor) for tensor in outputs]))

    @property
    def size(self) -> int:
        """What keeping it takes, in bytes."""
        return ENTRY_BYTES + sum(OUTPUT_BYTES + len(output.name) + len(output.data) for output in self.outputs)

    def tensors(self, wanted: Collection[str], known: Collection[str]) -> list[Tensor]:
        """Return the outputs that are wanted, in memory of their own. What the config does not know is never left out."""
        return [output.tensor() for output in self.outputs if output.name in wanted or output.name not in known]


def least_size(outputs: Sequence[Tensor]) -> int:
    """Return what keeping `outputs` takes at least, without copying them."""
    size = ENTRY_BYTES
    for tensor in outputs:
        array = tensor.array
        size += OUTPUT_BYTES + len(tensor.name) + (4 * array.size if tensor.datatype == "BYTES" else array.nbytes)
    return size


def load_key(secret: bytes, name: str, version: int, load: int) -> Any:
    """Return the beginning of the keys of one loaded model version; a changed model, loaded again, has another `load`.

    `secret`: keeps clients from making inputs that share a key, and kernels that share a cache from sharing answers.
    """
    start = hashlib.blake2b(key=secret, digest_size=KEY_BYTES)
    start.update(repr((name, version, load)).encode())
    return start


class RequestKeys:
    """The keys of one loaded model version's requests. `start`: see `load_key`."""

    __slots__ = ("_start",)

    def __init__(self, start: Any) -> None:
        self._start = start

    def of(self, inputs: Mapping[str, Tensor]) -> Any:
        """Return the running hash of a request: names, datatypes, shapes and bytes of its inputs in the order of their names.

        Not of its id, parameters, priority or sequence, which do not count. (Contract: scheduling, section 8.)
        """
        key = self._start.copy()
        for name in sorted(inputs):
            tensor = inputs[name]
            array = tensor.array
            data: Any
            if tensor.datatype == "BYTES":
                data = pack_bytes(array)
            else:
                data = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            key.update(repr((name, tensor.datatype, array.shape, len(data) if type(data) is bytes else data.nbytes)).encode())
            key.update(data)
        return key

    @staticmethod
    def all(key: Any) -> bytes:
        """Return the key of the answer with all outputs."""
        digest: bytes = key.digest()
        return digest

    @staticmethod
    def some(key: Any, wanted: Collection[str]) -> bytes:
        """Return the key of an answer that was asked for some of the outputs only, and may have no others."""
        own = key.copy()
        own.update(repr(sorted(wanted)).encode())
        digest: bytes = own.digest()
        return digest


class LocalCache:
    """A Cache: keeps answers in this process's memory, at most `size` bytes of them; who was not asked for longest goes first.

    Raises ServingError(INVALID_ARG) for a size that is not greater than 0.
    """

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ServingError(Code.INVALID_ARG, _refusal(f"'size' is {size}, wanted a number of bytes greater than 0"))
        self.size = size
        self._used = 0
        self._evictions = 0
        self._responses: OrderedDict[bytes, StoredResponse] = OrderedDict()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> LocalCache:
        """Make the cache that `--cache-config local,…` asks for. Raises ServingError(INVALID_ARG) for other settings."""
        text = settings.get("size")
        if text is None:
            raise ServingError(
                Code.INVALID_ARG, _refusal(f"config didn't contain a valid 'size' field; it has {sorted(settings)}")
            )
        if not re.fullmatch("[0-9]{1,18}", text):
            raise ServingError(Code.INVALID_ARG, _refusal(f"'size' is '{text}', wanted a number of bytes greater than 0"))
        if unknown := sorted(settings.keys() - {"size"}):
            raise ServingError(Code.INVALID_ARG, _refusal(f"there is no setting '{unknown[0]}', only 'size'"))
        return cls(int(text))

    @property
    def largest(self) -> int:
        """Bytes of the largest answer that it takes."""
        return self.size

    def lookup(self, key: bytes) -> StoredResponse | None:
        """Return what was inserted with `key`, None where it is not there any more."""
        response = self._responses.get(key)
        if response is not None:
            self._responses.move_to_end(key)
        return response

    def insert(self, key: bytes, response: StoredResponse) -> None:
        """Keep `response`; others go where there is no room for it."""
        size = response.size
        if size > self.size:
            return
        responses = self._responses
        old = responses.pop(key, None)
        if old is not None:
            self._used -= old.size
        while self._used + size > self.size:
            _, oldest = responses.popitem(last=False)
            self._used -= oldest.size
            self._evictions += 1
        responses[key] = response
        self._used += size

    def usage(self) -> CacheUsage:
        """How full it is."""
        return CacheUsage(self.size, self._used, len(self._responses), self._evictions)


def _refusal(why: str) -> str:
    return f"Failed to initialize LocalCache: {why}"
