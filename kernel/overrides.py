"""Models that come with a load request: a temporary model folder made of the request's files, and of nothing else.

Decides what a name or a path may be, so that no request leads out of a folder (contract: lifecycle, section 4.8); what the
files say is not its business.
"""

from __future__ import annotations

import posixpath
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernel.errors import Code, ServingError
from kernel.repository import ModelFolder

__all__ = ["OverrideFolder", "check_model_name"]


def check_model_name(name: str) -> None:
    """Refuse a name that could lead out of a repository. Raises ServingError(INVALID_ARG)."""
    if not name or "/" in name or "\\" in name or ".." in name or "\0" in name or name == ".":
        shown = name.replace("\0", "\\0")
        raise ServingError(
            Code.INVALID_ARG, f"invalid model name '{shown}', model name must not contain path traversal characters"
        )


class OverrideFolder:
    """A temporary model folder. Who made it calls `remove` when nothing uses it any more.

    `files`: path within the model folder (a `file:` in front is dropped) -> content. Raises ServingError(INVALID_ARG)
    for a path that leads out of the folder.
    """

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        check_model_name(name)
        targets = {_inside(given): data for given, data in files.items()}
        self._root = Path(tempfile.mkdtemp(prefix="kernel-model-"))
        self.path = self._root / name
        try:
            self.path.mkdir()
            for inner, data in targets.items():
                target = self.path / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            self.folder = ModelFolder.look(self.path)
        except (OSError, ValueError) as error:
            self.remove()
            raise ServingError(
                Code.INVALID_ARG, f"failed to write the files given for model '{name}': {error}"
            ) from None

    def remove(self) -> None:
        """Delete the folder; again is no error."""
        shutil.rmtree(self._root, ignore_errors=True)


def _inside(given: str) -> str:
    path = given.removeprefix("file:")
    normal = posixpath.normpath(path.replace("\\", "/"))
    if path == "" or normal in (".", "..") or normal.startswith(("/", "../")) or "\0" in path:
        shown, normal = given.replace("\0", "\\0"), normal.replace("\0", "\\0")
        raise ServingError(
            Code.INVALID_ARG,
            f"Invalid file parameter '{shown}' with normalized path '{normal}' must stay within model directory.",
        )
    return normal
