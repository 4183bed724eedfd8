"""Where models lie: a folder of model folders, their version folders, and which of them a policy selects.

Looks at names, sizes and times only and keeps nothing in mind: each call reads the disk anew. What the files say is the
business of `kernel/config/` and the backends; what is loaded, of the registry.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernel.config import ConfigError, ModelConfig
from kernel.errors import Code, ServingError
from kernel.repository.fingerprint import Fingerprint, fingerprint_of, is_ignored, sorted_stamps

__all__ = [
    "LONGEST_NAME",
    "OTHER_FOLDERS",
    "FetchedFiles",
    "FileRepository",
    "FilesChanged",
    "ModelFolder",
    "Repositories",
    "Repository",
    "bare_name",
    "is_hidden",
    "is_stray",
    "may_be_model",
    "missing_versions",
    "not_unique",
    "select_versions",
    "shown",
]

#: Folders beside the version folders that hold other things.
OTHER_FOLDERS = frozenset({"warmup", "initial_state", "configs"})

#: Folders that systems and archives leave beside models.
_STRAYS = frozenset({"lost+found", "__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information"})

_MAX_VERSION = 2**63 - 1

#: How many bytes file systems take for the name of a file.
LONGEST_NAME = 255

#: A location that is no folder. A Path has one slash fewer.
_REMOTE = re.compile(r"([a-z][a-z0-9]+):/")

_LOCATION = re.compile(r"^([a-z][a-z0-9]+):/(?!/)")

#: What stands between a namespace and a name, as in the reference's own identifiers.
_OF = "::"


class FetchedFiles(Protocol):
    """The files of one model in a folder that is there for their users alone. Who had them fetched calls `remove` in the end."""

    @property
    def folder(self) -> ModelFolder:
        """The folder. Files of versions are stand-ins without content until `bring`."""

    @property
    def count(self) -> int:
        """How many there are: with them grows how long `remove` takes, some 10 µs for each."""

    def bring(self, versions: Collection[int]) -> None:
        """Have the files of these versions there, and of no others. May block. Raises ServingError."""

    def remove(self) -> None:
        """Nothing uses the files any more; again is no error."""


class FilesChanged(ServingError):
    """Files were changed while they were fetched: what is there has to be looked at anew."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model folder, as it was when looked at. `versions` are sorted; `warnings` name the folders that are none.

    `name`: of the model. `problem`: why it is there and can't be looked into. Of one that lies elsewhere, as `path` says then,
    `stamps` has the state of each file by its path in the folder, and `fetcher` gets the files as they were then.
    """

    name: str
    path: Path
    versions: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    problem: str = ""
    stamps: Mapping[str, tuple[int, int]] | None = None
    fetcher: Callable[[ModelFolder], FetchedFiles] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def look(cls, path: Path) -> ModelFolder:
        """Read the version folders of the model folder at `path`. Raises OSError."""
        with os.scandir(path) as entries:
            return cls.of(path, [entry.name for entry in entries if entry.is_dir()])

    @classmethod
    def of(cls, path: Path, folders: Iterable[str]) -> ModelFolder:
        """Return the model folder that has these folders in it."""
        versions, warnings = [], []
        for name in sorted(folders):
            if name in OTHER_FOLDERS or name == "__pycache__" or name.startswith("."):
                continue
            if not (name.isascii() and name.isdigit()) or int(name[:20]) > _MAX_VERSION:
                warnings.append(f"ignore version directory '{name}' which fails to convert to integral number")
            elif name.startswith("0"):
                warnings.append(f"ignore version directory '{name}' which contains leading zeros in its directory name")
            else:
                versions.append(int(name))
        return cls(path.name, path, tuple(sorted(versions)), tuple(warnings))

    def fingerprint(self) -> Fingerprint:
        """Return the state of the files: now, or as they were listed where they lie elsewhere."""
        if self.stamps is not None:
            return sorted_stamps([one for one in self.stamps.items() if not is_ignored(one[0])], self.versions)
        return fingerprint_of(self.path, self.versions)

    def fetch(self) -> FetchedFiles | None:
        """Have the files here, as they were when looked at; None for those that are. May block. Raises ServingError."""
        return None if self.fetcher is None else self.fetcher(self)


class Repository(Protocol):
    """Lists models. May block, but for `known`: it is asked on threads of loads.

    `given`: as it is shown. `path`: the models' paths are this and their names.
    """

    given: Path | str
    path: Path

    def scan(self) -> dict[str, ModelFolder]:
        """Return the models by name. Raises ServingError(INTERNAL) when the repository itself is not there."""

    def known(self) -> dict[str, ModelFolder]:
        """As `scan`, but on the loop: what was found last where to look takes long."""

    def find(self, name: str) -> ModelFolder | None:
        """Return one model, or None where there is none of that name; one with a `problem` where nobody can say."""

    def strays(self) -> list[str]:
        """Return the folders that are no models, though they are where models are: what systems and archives leave behind."""

    def mistaken(self) -> str:
        """Return what to say where a model's folder, or the one above the repository, was named instead; else nothing."""

    def close(self) -> None:
        """Nothing is asked for any more, and no file is used that was fetched. Any thread."""


class FileRepository(Repository):
    """A model repository in the file system: each folder in it that is not hidden is a model."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.given = Path(path)  # as it is shown
        self.path = Path(os.path.abspath(path))  # a model may change the working directory

    def __repr__(self) -> str:
        return f"FileRepository({str(self.given)!r})"

    def scan(self) -> dict[str, ModelFolder]:
        try:
            with os.scandir(self.path) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name))
        except OSError as error:
            raise _no_repository(self.given, error) from None
        found = {}
        for name in names:
            folder = self.find(name)
            if folder is not None and not _is_stray(folder):
                found[name] = folder
        return found

    def known(self) -> dict[str, ModelFolder]:
        return self.scan()

    def strays(self) -> list[str]:
        folders = [folder for name in sorted(_STRAYS) if (folder := self.find(name)) is not None]
        names = [folder.name for folder in folders if _is_stray(folder)]
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:  # else whoever reads it next fails with the reason
            names += sorted(ascii(entry.name) for entry in entries if not _is_text(entry.name) and entry.is_dir())
        return names

    def mistaken(self) -> str:
        if (self.path / "config.pbtxt").is_file():
            return f"'{self.given}' holds a config.pbtxt, so it is a model itself; its repository is '{self.path.parent}'"
        try:
            folders = [path for path in sorted(self.path.iterdir()) if path.is_dir() and not is_hidden(path.name)]
            if any((path / "config.pbtxt").is_file() or self._has_version(path) for path in folders):
                return ""
            below = next((path for path in folders if any(path.glob("*/config.pbtxt"))), None)
        except OSError:
            return ""  # whoever reads it next fails with the reason
        return "" if below is None else f"'{self.given}' holds no model, but '{below}' does, so that may be the repository"

    @staticmethod
    def _has_version(folder: Path) -> bool:
        return any(path.name.isdecimal() and path.is_dir() for path in folder.iterdir())

    def find(self, name: str) -> ModelFolder | None:
        if not may_be_model(name):
            return None
        path = self.path / name
        try:
            return ModelFolder.look(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # a folder that can't be read is none that is gone: the model fails with the reason
            return ModelFolder(name, path, (), problem=f"failed to read model directory {path}: {error.strerror}")

    def close(self) -> None:
        pass


class Repositories:
    """Several repositories as one. The names in it are those of the folders.

    `namespacing`: where several repositories have a folder of one name, each is a model, called `<repository>::<name>`; who says
    just the name means all of them.
    """

    def __init__(self, repositories: Sequence[Repository], *, namespacing: bool = False) -> None:
        self.all = tuple(repositories)
        self.namespacing = namespacing

    def scan(self) -> dict[str, list[ModelFolder]]:
        """Return the folders by model, several where a name is not unique. Raises ServingError where a repository is missing."""
        return self._named([(repository, repository.scan()) for repository in self.all])

    def readable(self) -> tuple[dict[str, list[ModelFolder]], list[ServingError]]:
        """Return what is known to be in those repositories that can be read, and why others can't. On the loop."""
        found, errors = [], []
        for repository in self.all:
            try:
                found.append((repository, repository.known()))
            except ServingError as error:
                errors.append(error)
        return self._named(found), errors

    def _named(self, found: Sequence[tuple[Repository, dict[str, ModelFolder]]]) -> dict[str, list[ModelFolder]]:
        by_name: dict[str, list[tuple[Repository, ModelFolder]]] = {}
        for repository, folders in found:
            for name, folder in folders.items():
                by_name.setdefault(name, []).append((repository, folder))
        named: dict[str, list[ModelFolder]] = {}
        for name, several in by_name.items():
            if self.namespacing and len(several) > 1:
                named.update({f"{repository.given}{_OF}{name}": [folder] for repository, folder in several})
            else:
                named[name] = [folder for _, folder in several]
        return named

    def find(self, name: str) -> list[ModelFolder]:
        """Return the folders of one model."""
        namespace, of, bare = name.rpartition(_OF) if self.namespacing else ("", "", name)
        among = [one for one in self.all if str(one.given) == namespace] if of else self.all
        return [folder for repository in among if (folder := repository.find(bare)) is not None]

    def meant_by(self, name: str) -> list[str]:
        """Return the models that a name stands for; itself where it is one, or none."""
        if self.namespacing and _OF not in name:
            holding = [repository for repository in self.all if repository.find(name) is not None]
            if len(holding) > 1:
                return [f"{repository.given}{_OF}{name}" for repository in holding]
        return [name]

    def namespace_of(self, path: Path) -> str:
        """Return the namespace that the model at `path` lives in: its repository, as it was given."""
        return next((str(one.given) for one in self.all if one.path == path.parent), "")

    def step(self, name: str, namespace: str) -> str:
        """Return the model that an ensemble in `namespace` means by a name: the one beside it, if there are several."""
        own = f"{namespace}{_OF}{name}"
        return own if own in self.meant_by(name) else name


def shown(path: Path) -> str:
    """Return the path of a model as people write it: a location has one slash fewer as a Path."""
    return _LOCATION.sub(r"\1://", str(path))


def bare_name(name: str) -> str:
    """Return the name that clients know a model by."""
    return name.rpartition(_OF)[2]


def _is_stray(folder: ModelFolder) -> bool:
    return is_stray(folder.name, folder.versions) and not (folder.path / "config.pbtxt").is_file()


def is_stray(name: str, versions: Collection[int]) -> bool:
    """Whether a folder without a config is what a system or an archive has left, and no model."""
    return name in _STRAYS and not versions


def may_be_model(name: str) -> bool:
    """Whether a folder of a repository can have this name, and be a model then."""
    if not 0 < len(name) <= LONGEST_NAME or is_hidden(name) or "/" in name or "\0" in name:
        return False
    try:
        return len(name.encode()) <= LONGEST_NAME  # what UTF-8 can't carry, no client could ask for
    except UnicodeEncodeError:
        return False


def _is_text(name: str) -> bool:
    """Whether a name is text: one that UTF-8 can carry."""
    return not any("\ud800" <= one <= "\udfff" for one in name)


def is_hidden(name: str) -> bool:
    """Whether a folder of a repository is no model for its name alone."""
    return name.startswith(".") or name == "__pycache__"


def _no_repository(path: Path, error: OSError) -> ServingError:
    words = f"failed to stat file {path}"
    remote = _REMOTE.match(str(path))
    if remote is not None and isinstance(error, FileNotFoundError):
        words += f": no installed plugin serves {remote[1]}://, s3, gs, as and az are known; "
        words += "copy the models into a folder, or mount it"
    reason = "it is not a folder" if isinstance(error, NotADirectoryError) else error.strerror
    return ServingError(Code.INTERNAL, f"{words}: {reason}" if not isinstance(error, FileNotFoundError) else words)


def not_unique(name: str, folders: Sequence[Path]) -> ServingError:
    """Return why a model is not read that lies in several repositories."""
    words = f"failed to poll model '{name}': not unique across all model repositories"
    return ServingError(Code.INTERNAL, f"{words} — it is in {' and in '.join(map(shown, folders))}")


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
