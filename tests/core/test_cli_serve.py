"""What `kernel serve` sets for its whole process."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from kernel.cli import serve


def test_allocator_keeps_what_large_requests_have_used(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda option, value: options.append((option, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    serve._keep_memory()
    assert options == [(-3, 32 * 1024 * 1024), (-1, 128 * 1024 * 1024)]  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


@pytest.mark.parametrize("problem", [AttributeError("no mallopt"), OSError("no library")])
def test_c_library_without_it(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def library(name: object) -> object:
        if isinstance(problem, AttributeError):
            return SimpleNamespace()
        raise problem

    monkeypatch.setattr(ctypes, "CDLL", library)
    serve._keep_memory()
