"""Where models lie: a folder of model folders, their version folders, which of them a policy selects, and what has
changed.

Looks at names, sizes and times only and keeps nothing in mind: each call reads the disk anew. What the files say is the
business of `kernel/config.py` and the backends; what is loaded, of the registry.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel.config import ConfigError, ModelConfig
from kernel.errors import Code, ServingError

__all__ = [
    "FileRepository",
    "Fingerprint",
    "ModelFolder",
    "OverrideFolder",
    "check_model_name",
    "find_model",
    "missing_versions",
    "not_unique",
    "select_versions",
]

#: Folders beside the version folders that hold other things.
_OTHER_FOLDERS = frozenset({"warmup", "initial_state", "configs"})

#: Files that come and go without the model having changed: byte code, and what editors leave behind.
_IGNORED = ("__pycache__", "*.pyc", "*.pyo", ".*", "*~", "*.swp", "*.swo", "#*#", "*.bak", "*.orig", "4913")
_ignored = re.compile("|".join(fnmatch.translate(pattern) for pattern in _IGNORED)).match

_MAX_VERSION = 2**63 - 1

#: Path within the model folder -> (mtime_ns, size).
Stamps = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The state of a model's files; equal as long as nothing has changed.

    `config`: the config files. `versions`: the files of each version. `other`: all else, such as labels and helper
    modules.
    """

    config: Stamps = field(default_factory=dict)
    versions: Mapping[int, Stamps] = field(default_factory=dict)
    other: Stamps = field(default_factory=dict)

    def changed_versions(self, before: Fingerprint) -> tuple[int, ...]:
        """Return the versions whose own files differ, are new or are gone; all of them where a shared file differs."""
        every = sorted({*self.versions, *before.versions})
        if self.other != before.other:
            return tuple(every)
        return tuple(version for version in every if self.versions.get(version) != before.versions.get(version))

    def only_config_changed(self, before: Fingerprint) -> bool:
        return self.config != before.config and self.versions == before.versions and self.other == before.other


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model folder, as it was when looked at. `versions` are sorted; `warnings` name the folders that are none."""

    name: str
    path: Path
    versions: tuple[int, ...]
    warnings: tuple[str, ...] = ()

    @classmethod
    def look(cls, path: Path) -> ModelFolder:
        """Read the version folders of the model folder at `path`. Raises OSError."""
        versions, warnings = [], []
        with os.scandir(path) as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        for name in folders:
            if name in _OTHER_FOLDERS or name == "__pycache__":
                continue
            if not (name.isascii() and name.isdigit()) or int(name[:20]) > _MAX_VERSION:
                warnings.append(f"ignore version directory '{name}' which fails to convert to integral number")
            elif name.startswith("0"):
                warnings.append(f"ignore version directory '{name}' which contains leading zeros in its directory name")
            else:
                versions.append(int(name))
        return cls(path.name, path, tuple(sorted(versions)), tuple(warnings))

    def fingerprint(self) -> Fingerprint:
        """Return the state of the files now. Files that vanish meanwhile count as not there."""
        config: dict[str, tuple[int, int]] = {}
        other: dict[str, tuple[int, int]] = {}
        versions: dict[int, dict[str, tuple[int, int]]] = {version: {} for version in self.versions}
        of_version = {str(version): stamps for version, stamps in versions.items()}
        for name, stamp in _stamps(self.path):
            top, _, rest = name.partition("/")
            if rest and top in of_version:
                of_version[top][rest] = stamp
            elif name == "config.pbtxt" or (top == "configs" and name.endswith(".pbtxt")):
                config[name] = stamp
            else:
                other[name] = stamp
        return Fingerprint(config, versions, other)


def _stamps(root: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (path within root, stamp) of each file that counts. Follows links, each folder once."""
    pending = [""]
    seen: set[tuple[int, int]] = set()
    while pending:
        inner = pending.pop()
        try:
            entries = sorted(os.scandir(root / inner), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if _ignored(entry.name):
                continue
            try:
                status = entry.stat()
                is_folder = entry.is_dir()
            except OSError:
                continue
            name = f"{inner}{entry.name}"
            if not is_folder:
                yield name, (status.st_mtime_ns, status.st_size)
            elif (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                pending.append(f"{name}/")


class FileRepository:
    """A model repository in the file system: each folder in it that is not hidden is a model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.given = Path(path)  # as it is shown
        self.path = Path(os.path.abspath(path))  # a model may change the working directory

    def __repr__(self) -> str:
        return f"FileRepository({str(self.given)!r})"

    def scan(self) -> dict[str, ModelFolder]:
        """Return the models by name. Raises ServingError(INTERNAL) when the repository itself is not there."""
        try:
            with os.scandir(self.path) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir() and not _hidden(entry.name))
        except OSError as error:
            raise _no_repository(self.given, error) from None
        found = {}
        for name in names:
            folder = self.find(name)
            if folder is not None:
                found[name] = folder
        return found

    def find(self, name: str) -> ModelFolder | None:
        """Return the folder of one model, or None where there is none of that name."""
        if _hidden(name) or "/" in name or "\0" in name or not name:
            return None
        try:
            return ModelFolder.look(self.path / name)
        except OSError:
            return None


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _no_repository(path: Path, error: OSError) -> ServingError:
    words = f"failed to stat file {path}"
    reason = "it is not a folder" if isinstance(error, NotADirectoryError) else error.strerror
    return ServingError(Code.INTERNAL, f"{words}: {reason}" if not isinstance(error, FileNotFoundError) else words)


def find_model(repositories: Iterable[FileRepository], name: str) -> ModelFolder | None:
    """Return where the model lies, None where nowhere. Raises ServingError(INTERNAL) when it lies in several
    repositories.
    """
    found = [folder for repository in repositories if (folder := repository.find(name)) is not None]
    if len(found) > 1:
        raise not_unique(name, [folder.path for folder in found])
    return found[0] if found else None


def not_unique(name: str, places: Sequence[Path]) -> ServingError:
    words = f"failed to poll model '{name}': not unique across all model repositories"
    return ServingError(Code.INTERNAL, f"{words} — it is in {' and in '.join(str(place) for place in places)}")


def check_model_name(name: str) -> None:
    """Refuse a name that could lead out of a repository. Raises ServingError(INVALID_ARG)."""
    if not name or "/" in name or "\\" in name or ".." in name or "\0" in name or name == ".":
        shown = name.replace("\0", "\\0")
        raise ServingError(
            Code.INVALID_ARG, f"invalid model name '{shown}', model name must not contain path traversal characters"
        )


# -- version policy ----------------------------------------------------------------------------------------------------


def select_versions(config: ModelConfig, available: Iterable[int]) -> tuple[int, ...]:
    """Return the versions that the policy of `config` selects, ascending. Raises ConfigError of stage A where it
    selects none.
    """
    policy = config.version_policy
    present = tuple(sorted(set(available)))
    if policy.kind == "all":
        selected = present
    elif policy.kind == "specific":
        selected = tuple(version for version in present if version in policy.versions)
    else:
        selected = present[-policy.num_versions :] if policy.num_versions > 0 else ()
    if not selected:
        raise _no_version(config, present)
    return selected


def missing_versions(config: ModelConfig, available: Iterable[int]) -> tuple[str, ...]:
    """Return a warning for each version that the policy names and that isn't there."""
    if config.version_policy.kind != "specific":
        return ()
    present = set(available)
    words = "version {} is specified for model '{}', but the version directory is not present"
    return tuple(
        words.format(version, config.name) for version in config.version_policy.versions if version not in present
    )


def _no_version(config: ModelConfig, present: tuple[int, ...]) -> ConfigError:
    policy = config.version_policy
    if not present:
        detail = "the model folder has no version folder, wanted one such as '1'"
    elif policy.kind == "specific":
        detail = f"the policy names {_listed(policy.versions)}, there are {_listed(present)}"
    else:
        detail = f"'num_versions' of 'latest' is {policy.num_versions} or left out, wanted at least 1"
    words = f"at least one version must be available under the version policy of model '{config.name}'"
    return config.error(words, detail, at=("version_policy",), stage="A")


def _listed(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions)) or "none"


# -- models that come with a load request ------------------------------------------------------------------------------


class OverrideFolder:
    """A temporary model folder made of the files of a load request, and of nothing else. Who made it calls `remove`.

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
