"""What `kernel serve` sets for its whole process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import weakref
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from virtual import run

from kernel.cli import serve
from kernel.server import tuning


def test_allocator_keeps_what_large_requests_have_used(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda option, value: options.append((option, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    tuning._keep_memory()
    # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_ARENA_MAX
    assert options == [(-3, 32 * 1024 * 1024), (-1, 128 * 1024 * 1024), (-8, 1)]


@pytest.mark.parametrize("problem", [AttributeError("no mallopt"), OSError("no library")])
def test_c_library_without_it(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def library(name: object) -> object:
        if isinstance(problem, AttributeError):
            return SimpleNamespace()
        raise problem

    monkeypatch.setattr(ctypes, "CDLL", library)
    tuning._keep_memory()


@pytest.mark.parametrize(("said", "wanted"), [(None, False), ("1", True)])
def test_the_loop_does_not_wait_for_huge_pages(monkeypatch: pytest.MonkeyPatch, said: str | None, wanted: bool) -> None:
    multiarray = import_module("numpy._core.multiarray" if find_spec("numpy._core") else "numpy.core.multiarray")
    monkeypatch.delenv("NUMPY_MADVISE_HUGEPAGE", raising=False)
    if said is not None:
        monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", said)
    before = multiarray._set_madvise_hugepage(True)
    try:
        tuning._use_small_pages()
    finally:
        assert multiarray._set_madvise_hugepage(before) is wanted


def test_no_collection_looks_at_more_than_25_000_objects_as_long_as_ten_millions_have_not_come() -> None:
    """Calls that wait are alive: tens of thousands made a collection of 140 000 objects, which held the loop for 40 ms."""
    looked_at: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations = range(info["generation"] + 1)
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in generations))

    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(*tuning.GC_THRESHOLDS)
    gc.callbacks.append(look)
    try:
        alive = [[k] for k in range(200_000)]
    finally:
        gc.callbacks.remove(look)
        gc.set_threshold(*thresholds)
    assert len(alive) == 200_000 and len(looked_at) >= 30 and max(looked_at) <= 26_000


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 20), (65_536, 1 << 20)),
        ((1024, UNLIMITED), (65_536, UNLIMITED)),
        ((1 << 20, 1 << 20), None),
        ((UNLIMITED, UNLIMITED), None),
        ((4096, 4096), None),
    ],
)
def test_as_many_files_may_be_open_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], wanted: tuple[int, int] | None
) -> None:
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, to: asked.append((which, to)))
    serve._allow_files()
    assert asked == ([] if wanted is None else [(resource.RLIMIT_NOFILE, wanted)])


def test_a_system_that_allows_no_more_files_is_served_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, limits: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, UNLIMITED))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    serve._allow_files()


class Weights:
    """Refers to itself, as the objects of many libraries do."""

    def __init__(self) -> None:
        self.me = self


def test_what_unloaded_models_leave_behind_is_cleared_away_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=trimmed.append))

    async def main() -> None:
        soon = serve._tidier(asyncio.get_running_loop())
        weights = Weights()
        gone = weakref.ref(weights)
        gc.freeze()  # as after the start: the collector never looks at it again
        del weights
        soon()
        soon()
        await asyncio.sleep(serve.TIDY_SECONDS / 2)
        assert trimmed == []
        await asyncio.sleep(serve.TIDY_SECONDS)
        assert trimmed == [0] and gone() is None
        soon()
        await asyncio.sleep(2 * serve.TIDY_SECONDS)
        assert trimmed == [0, 0]

    try:
        run(main())
    finally:
        gc.unfreeze()
