"""What has changed in a model's folder: the times and sizes of its files, apart from those that never matter.

Reads names, sizes and times, never contents. Byte code, dot files and what editors leave behind come and go without the model
having changed. What is made of a change is the business of rollout.py and of who watches.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Fingerprint", "Stamps", "fingerprint_of", "is_ignored", "sorted_stamps"]

#: Files that come and go without the model having changed: byte code, and what editors leave behind.
_IGNORED = ("__pycache__", "*.pyc", "*.pyo", ".*", "*~", "*.swp", "*.swo", "#*#", "*.bak", "*.orig", "4913")
_ignored = re.compile("|".join(fnmatch.translate(pattern) for pattern in _IGNORED)).match

#: Path within the model folder, or a version's -> (mtime_ns, size).
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

    def files(self) -> dict[str, tuple[int, int]]:
        """Return all stamps by path within the model folder; a version folder, empty or not, is there as `<version>/`."""
        found = {**self.config, **self.other}
        for version, stamps in self.versions.items():
            found[f"{version}/"] = (0, 0)
            found.update((f"{version}/{name}", stamp) for name, stamp in stamps.items())
        return found

    def changes(self, before: Fingerprint) -> tuple[str, ...]:
        """Return the paths within the model folder that are new, gone or not as they were, sorted."""
        old, new = before.files(), self.files()
        return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))


def fingerprint_of(folder: Path, versions: Sequence[int]) -> Fingerprint:
    """Return the state of the files in a model folder now. Files that vanish meanwhile count as not there."""
    return sorted_stamps(_stamps(folder), versions)


def sorted_stamps(stamps: Iterable[tuple[str, tuple[int, int]]], versions: Sequence[int]) -> Fingerprint:
    """Return the fingerprint that (path within the model folder, stamp) of all its files make."""
    config: dict[str, tuple[int, int]] = {}
    other: dict[str, tuple[int, int]] = {}
    of_version: dict[str, dict[str, tuple[int, int]]] = {str(version): {} for version in versions}
    for name, stamp in stamps:
        top, _, rest = name.partition("/")
        if rest and top in of_version:
            of_version[top][rest] = stamp
        elif name == "config.pbtxt" or (top == "configs" and name.endswith(".pbtxt")):
            config[name] = stamp
        else:
            other[name] = stamp
    return Fingerprint(config, {int(version): stamps for version, stamps in of_version.items()}, other)


def is_ignored(path: str) -> bool:
    """Whether a file never matters, as a path within a model folder says."""
    return any(_ignored(part) for part in path.split("/"))


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
