"""Types of the fixtures, for tests that annotate their arguments: `def test_it(load_model: LoadModel) -> None`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kernel.testing.fakes import Fake
from kernel.testing.models import AsyncModel, AsyncRepository, LoadedModel, LoadedRepository

__all__ = ["FakeModel", "LoadModel", "LoadModelAsync", "LoadRepository", "LoadRepositoryAsync"]


class LoadModel(Protocol):
    """The fixture `load_model` in a plain test."""

    def __call__(
        self, folder: str | Path, *, version: int | str = "", strict_outputs: bool | None = None
    ) -> LoadedModel:
        """Load one model folder; see `Kit.load_model`."""


class LoadModelAsync(Protocol):
    """The fixture `load_model` in an async test."""

    async def __call__(
        self, folder: str | Path, *, version: int | str = "", strict_outputs: bool | None = None
    ) -> AsyncModel:
        """Load one model folder; see `Kit.load_model`."""


class LoadRepository(Protocol):
    """The fixture `load_repository` in a plain test."""

    def __call__(
        self, folder: str | Path, *, models: Sequence[str] | None = None, strict_outputs: bool | None = None
    ) -> LoadedRepository:
        """Load a repository; see `Kit.load_repository`."""


class LoadRepositoryAsync(Protocol):
    """The fixture `load_repository` in an async test."""

    async def __call__(
        self, folder: str | Path, *, models: Sequence[str] | None = None, strict_outputs: bool | None = None
    ) -> AsyncRepository:
        """Load a repository; see `Kit.load_repository`."""


class FakeModel(Protocol):
    """The fixture `fake_model`."""

    def __call__(
        self, name: str, answer: Any, *, config: str | Path | Mapping[str, Any] | None = None
    ) -> Fake:
        """Let a function stand in for a model; see `Kit.fake_model`."""
