"""Repositories as commands look at them: open for a block, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kernel.options import StorageOptions
from kernel.plugins import Plugins
from kernel.repository import Repository

__all__ = ["opened"]


@contextmanager
def opened(locations: Sequence[str], options: StorageOptions) -> Iterator[list[Repository]]:
    """Have the repositories at these locations; what was fetched of them is there until the end of the block."""
    plugins = Plugins()
    there: list[Repository] = []
    try:
        for location in locations:
            there.append(plugins.repository(location, options))
        yield there
    finally:
        for repository in there:
            repository.close()
