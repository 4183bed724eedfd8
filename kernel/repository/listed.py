"""Models out of a list of files, such as an object store gives: which models there are, and that each file can lie in its folder.

Paths, sizes and tags in, model folders out; nothing is read. A path that could lead out of its folder, or that no file system
takes, makes its own model one with a problem, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kernel.errors import clipped
from kernel.repository.repository import (
    LONGEST_NAME,
    OTHER_FOLDERS,
    FetchedFiles,
    ModelFolder,
    is_hidden,
    is_stray,
    shown,
)

__all__ = ["models_of"]

#: Nearly all paths there are: short ones, which nothing can be wrong with. There may be very many.
_plain = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/){0,8}[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}").fullmatch

#: What file systems take besides, and what walks through folders: bytes of a path, folders in each other.
LONGEST_PATH = 2048
DEEPEST = 32


def models_of(
    root: Path, files: Mapping[str, tuple[int, int]], fetch: Callable[[ModelFolder], FetchedFiles]
) -> dict[str, ModelFolder]:
    """Return the models by name of a repository at `root` that has these files.

    `files`: path within the repository, with "/" between its parts -> (a number that stands for the content, size in bytes); an
    empty one may stand for a folder. `fetch`: gets the files of a model that this returns.
    """
    by_model: dict[str, dict[str, tuple[int, int]]] = {}
    for path, stamp in files.items():
        name, inside, rest = path.partition("/")
        if inside and not is_hidden(name):
            by_model.setdefault(name, {})[rest] = stamp
    folders = {name: _model(root / name, name, stamps, fetch) for name, stamps in sorted(by_model.items())}
    return {name: one for name, one in folders.items() if "config.pbtxt" in by_model[name] or not is_stray(name, one.versions)}


def _model(
    path: Path, name: str, stamps: dict[str, tuple[int, int]], fetch: Callable[[ModelFolder], FetchedFiles]
) -> ModelFolder:
    folders = _folders(stamps)
    # A store has no folders; what makes some for people keeps an empty object in their place.
    folders |= {inner for inner, (_, size) in stamps.items() if size == 0 and (inner.isdecimal() or inner in OTHER_FOLDERS)}
    problem = next((words for inner in sorted(stamps) if not _plain(inner) and (words := _wrong(name, inner))), "")
    problem = _wrong(name, "1") or problem
    for inner in sorted(stamps.keys() & folders):
        if stamps[inner][1]:
            problem = problem or f"'{clipped(f'{name}/{inner}')}' is a file, and a folder with others in it"
        else:
            del stamps[inner]
    if problem:
        return ModelFolder(name, path, (), problem=f"failed to read model directory {shown(path)}: {problem}", stamps=stamps)
    found = ModelFolder.of(path, {inner for inner in folders if "/" not in inner})
    return ModelFolder(name, path, found.versions, found.warnings, stamps=stamps, fetcher=fetch)


def _folders(paths: Iterable[str]) -> set[str]:
    """Return the folders that files lie in."""
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _wrong(name: str, inner: str) -> str:
    """Return why there can be no such file, or nothing."""
    parts = [name, *inner.split("/")]
    it = f"the path '{clipped(f'{name}/{inner}')}'"
    if any(part in ("", ".", "..") for part in parts):
        return f"{it} could lead out of the folder: a part of it is empty, '.' or '..'"
    if any(character < " " or character == "\x7f" for character in name + inner):
        return f"{it} has control characters"
    if any(len(part.encode()) > LONGEST_NAME for part in parts):
        return f"{it} has a part of more than {LONGEST_NAME} bytes"
    if len(inner.encode()) > LONGEST_PATH or len(parts) > DEEPEST:
        return f"{it} is longer than {LONGEST_PATH} bytes, or more than {DEEPEST} folders deep"
    return ""
