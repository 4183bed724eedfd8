"""What a request's tensors are made of, whatever wire they came on: strings, sizes, and the words where these don't fit.

Front ends read the wire; the model checks names, datatypes and shapes afterwards. So a fault found here waits, as an error
together with a stand-in for the array, until the model has had its say: that is the reference's order.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel.errors import Code, ServingError
from kernel.tensor import DATATYPES, unpack_bytes

if TYPE_CHECKING:
    from kernel.models import Model

__all__ = ["MAX_RANK", "check_rank", "check_strings", "cut_off", "is_much_text", "size_mismatch", "stand_in", "strings_of",
           "unpacked"]  # fmt: skip

#: The most dimensions that a tensor can have: numpy's.
MAX_RANK = 64

#: The most strings of an output that are put together on the loop, and their bytes.
STRINGS_ON_LOOP = 16 * 1024
TEXT_ON_LOOP = 256 * 1024


def check_rank(name: str, model: str, id: str, rank: int) -> None:
    """Refuse an input of more dimensions than there can be, before anybody multiplies them: the product of many is a long number.

    Raises ServingError(INVALID_ARG).
    """
    if rank > MAX_RANK:
        raise ServingError(
            Code.INVALID_ARG,
            f"{_prefix(id)}input '{name}' for model '{model}' has {rank} dimensions, no tensor has more than {MAX_RANK}",
        )


def check_strings(name: str, shape: tuple[int, ...], limit: int) -> int:
    """Return how many strings an input of that shape has. Raises ServingError(INVALID_ARG) for more than `limit` strings."""
    count = prod(shape)
    if count > limit:
        raise ServingError(
            Code.INVALID_ARG, f"input '{name}' has {count} strings, more than the {limit} that --max-request-values allows"
        )
    return count


def unpacked(name: str, model: str, id: str, tail: Any, offset: int, size: int, most: int | None = None) -> list[bytes]:
    """Return the elements of the BYTES input `name` of `model`, which lies in `tail[offset:offset + size]`, all in bytes.

    `id`: the request's. `most`: how many elements are wanted; of more only one more is returned. Raises ServingError(INVALID_ARG)
    where it ends in the middle of an element.
    """
    try:
        return unpack_bytes(memoryview(tail)[offset : offset + size], most)
    except ValueError as error:
        raise cut_off(error, name, model, id) from None


def cut_off(error: ValueError, name: str, model: str, id: str) -> ServingError:
    """Return the error for strings that end in the middle of an element: what `unpack_bytes` says, in the reference's words."""
    if error.args[0] == "length":
        return ServingError(
            Code.INVALID_ARG,
            f"{_prefix(id)}incomplete string length indicator for inference input '{name}' "
            f"for model '{model}', expecting 4 bytes but only {error.args[1]} bytes available. "
            "Please make sure the string length indicator is in one buffer.",
        )
    return ServingError(
        Code.INVALID_ARG,
        f"incomplete string data for inference input '{name}', expecting string of length {error.args[1]} "
        f"but only {error.args[2]} bytes available",
    )


def strings_of(items: Any, name: str, model: Model, shape: tuple[int, ...], id: str) -> Any:
    """Return the object array of a BYTES input whose elements these are, a list or an array of objects, of the full `shape`.

    Raises ServingError(INVALID_ARG) where their number is another.
    """
    count = prod(shape)
    if len(items) != count:
        subject = f"for inference input '{name}' for model '{model.name}'"
        if len(items) < count:
            text = f"{_prefix(id)}expected {count} string elements {subject}, got {len(items)}"
        else:
            text = f"{_prefix(id)}unexpected number of string elements {count + 1} {subject}, expecting {count}"
        raise ServingError(Code.INVALID_ARG, text)
    if isinstance(items, np.ndarray):
        return items.reshape(shape)
    array = np.empty(count, np.object_)
    array[:] = items
    return array.reshape(shape)


def size_mismatch(name: str, model: str, id: str, expected: int, got: int) -> ServingError:
    """Return the error for an input that has `got` bytes, where its shape and datatype want `expected`."""
    return ServingError(
        Code.INVALID_ARG,
        f"{_prefix(id)}input byte size mismatch for input '{name}' for model '{model}'. Expected {expected}, got {got}",
    )


def is_much_text(strings: Any) -> bool:
    """Whether to put an output's strings together, an array of objects, is more than is done on the loop."""
    if strings.size > STRINGS_ON_LOOP:
        return True
    try:
        return sum(map(len, strings.ravel().tolist())) > TEXT_ON_LOOP
    except TypeError:  # some are no strings, and become some
        return False


def stand_in(datatype: str, shape: tuple[int, ...], error: ServingError) -> Any:
    """Return an array of that shape that takes no memory, so that the model can check a request that is refused anyway.

    Raises `error` at once for a shape that no array can have.
    """
    try:
        return np.broadcast_to(np.zeros((), DATATYPES[datatype]), shape)
    except ValueError:
        raise error from None


def _prefix(id: str) -> str:
    return f"[request id: {id or '<id_unknown>'}] "
