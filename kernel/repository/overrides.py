"""Models that come with a load request: a temporary model folder made of the request's files, and of nothing else.

Decides what a name or a path may be, so that no request leads out of a folder (contract: lifecycle, section 4.8); what the
files say is not its business. A folder is locked as long as its process lives; what one that was killed has left is removed
later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import posixpath
import shutil
import stat
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from kernel.errors import Code, ServingError, clipped
from kernel.repository.repository import ModelFolder

__all__ = ["OverrideFolder", "check_model_name", "remove_left_behind"]

_PREFIX = "kernel-model-"
_LOCK = "lock"

#: How deep the files of a request may lie: what walks through folders, or removes them, calls itself for each.
DEEPEST = 32


def check_model_name(name: str) -> None:
    """Refuse a name that could lead out of a repository; `...` and `model..1` don't. Raises ServingError(INVALID_ARG)."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        words = f"invalid model name '{clipped(name)}', model name must not contain path traversal characters"
        raise ServingError(Code.INVALID_ARG, words)


class OverrideFolder:
    """A temporary model folder. Who made it calls `remove` when nothing uses it any more.

    `files`: path within the model folder (a `file:` in front is dropped) -> content. Raises ServingError(INVALID_ARG)
    for a path that leads out of the folder.
    """

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        check_model_name(name)
        targets = {_inside(given): data for given, data in files.items()}
        self.count = len(targets)
        self._root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = -1
        self.path = self._root / "model" / name
        try:
            self._lock = _locked(self._root)
            self.path.parent.mkdir()
            self.path.mkdir()
            for inner, data in targets.items():
                target = self.path / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            self.folder = ModelFolder.look(self.path)
        except BaseException as error:  # whatever it is, nothing stays
            self.remove()
            if isinstance(error, (OSError, ValueError)):
                words = f"failed to write the files given for model '{clipped(name)}': {error}"
                raise ServingError(Code.INVALID_ARG, words) from None
            raise

    def bring(self, versions: Collection[int]) -> None:
        """All files are there."""

    def remove(self) -> None:
        """Delete the folder; again is no error."""
        shutil.rmtree(self._root, ignore_errors=True)
        if self._lock != -1:
            os.close(self._lock)
            self._lock = -1


def remove_left_behind() -> None:
    """Remove the folders of processes that have ended without doing it. What can't be looked at is left alone."""
    for root in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = root.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)
            finally:
                os.close(lock)


def _locked(root: Path) -> int:
    """Lock a folder, and return what holds the lock. Nobody sees the file before it is locked."""
    early = root / f"{_LOCK}.new"
    lock = os.open(early, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    early.rename(root / _LOCK)
    return lock


def _inside(given: str) -> str:
    """Return a path within the model folder; slashes in front mean that folder, as in the reference."""
    path = given.removeprefix("file:").lstrip("/")
    normal = posixpath.normpath(path)
    words = f"Invalid file parameter '{clipped(given)}' with normalized path '{clipped(normal)}' must"
    if path == "" or path.endswith("/") or normal in (".", "..") or normal.startswith("../") or "\0" in path:
        raise ServingError(Code.INVALID_ARG, f"{words} stay within model directory.")
    if normal.count("/") >= DEEPEST:
        raise ServingError(Code.INVALID_ARG, f"{words} not be more than {DEEPEST} folders deep.")
    return normal
