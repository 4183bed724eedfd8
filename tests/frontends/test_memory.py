"""Memory of large arrays: given back to the system in pieces, by a thread."""

from __future__ import annotations

import gc
import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernel import MappedMemory, empty_array
from kernel.frontends import memory
from kernel.frontends.memory import PIECE


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The targets of threads that would have been started, and what they are about."""
    found: list[Any] = []

    def thread(target: Any, args: tuple[Any], **_: Any) -> Any:
        found.append((target, args[0]))
        return SimpleNamespace(start=bool)

    monkeypatch.setattr(memory.threading, "Thread", thread)
    return found


def test_it_is_given_back_in_pieces_once_nobody_has_it(began: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At once it would hold the interpreter."""
    array = empty_array(5 * PIECE // 8, np.dtype(np.int64))
    part = array[::PIECE].reshape(-1, 1)
    del array
    gc.collect()
    assert not began and not part.any()
    del part
    ((target, mapping),) = began
    sizes: list[int] = []
    resize = mmap.mmap.resize

    def resized(self: Any, size: int) -> None:
        if self is mapping:  # others may be given back just now
            sizes.append(size)
        resize(self, size)

    monkeypatch.setattr(MappedMemory, "resize", resized)
    target(mapping)
    assert sizes == [k * PIECE for k in (4, 3, 2, 1)] and mapping.closed


def test_small_memory_is_given_back_at_once(began: list[Any]) -> None:
    MappedMemory(PIECE)
    assert not began


@pytest.mark.parametrize(("count", "available"), [(PIECE // 4, True), (PIECE // 4 + 1, False)])
def test_others_are_numpys_own(count: int, available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, and where the system has no such memory."""
    monkeypatch.setattr(MappedMemory, "AVAILABLE", available)
    array = empty_array(count, np.dtype(np.float32))
    assert (array.shape, array.dtype, array.flags.owndata) == ((count,), np.float32, True)


def test_more_than_there_is() -> None:
    with pytest.raises(MemoryError):
        empty_array(2**58, np.dtype(np.uint8))
