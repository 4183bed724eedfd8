"""The repository of a kit: folders from anywhere, each under its own name, and fakes that go before them.

A folder is served from where it lies, so that tracebacks, breakpoints and coverage show the author's own files. What lies beside
it is found when an ensemble needs it, but is not loaded by itself.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from kernel.repository import FileRepository, ModelFolder

__all__ = ["Folders", "find_folder"]


class Folders(FileRepository):
    """`add` puts a model folder in; `fakes` is where the folders of fakes are written."""

    def __init__(self, fakes: Path) -> None:
        super().__init__(fakes)
        self._folders: dict[str, Path] = {}
        self._beside: list[FileRepository] = []

    def __repr__(self) -> str:
        return f"Folders({[str(path) for path in self._folders.values()]})"

    def add(self, folder: Path) -> None:
        """Serve `folder`. Raises ValueError where another folder of that name is served already."""
        known = self._folders.get(folder.name)
        if known is not None and known != folder:
            raise ValueError(f"two models are called '{folder.name}': {known} and {folder}")
        self._folders[folder.name] = folder
        if all(one.path != folder.parent for one in self._beside):
            self._beside.append(FileRepository(folder.parent))

    def scan(self) -> dict[str, ModelFolder]:
        found = {name: folder for name in self._folders if (folder := self.find(name)) is not None}
        return found | super().scan()

    def find(self, name: str) -> ModelFolder | None:
        fake = super().find(name)
        if fake is not None:
            return fake
        folder = self._folders.get(name)
        if folder is not None:
            return FileRepository(folder.parent).find(name)
        return next((found for one in self._beside if (found := one.find(name)) is not None), None)


def find_folder(given: str | Path, roots: Sequence[Path]) -> Path:
    """Return the folder at a path that is absolute or relative to one of the roots. Raises FileNotFoundError that helps."""
    path = Path(given)
    candidates = [path] if path.is_absolute() else [root / path for root in dict.fromkeys(roots)]
    for candidate in candidates:
        if candidate.is_dir():
            return Path(os.path.abspath(candidate))
    parents = [candidate.parent for candidate in candidates]
    beside = sorted({one.name for parent in parents if parent.is_dir() for one in parent.iterdir() if one.is_dir()})
    near = difflib.get_close_matches(path.name, beside, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    looked = ", ".join(str(parent) for parent in parents)
    raise FileNotFoundError(f"no folder '{path}' (looked in {looked}){hint}")
