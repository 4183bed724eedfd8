"""A model's files on their way to another node: what they are, whether they lie there already, and where those that came are put.

The same files are known by a hash of their names, sizes and times, so a folder that the nodes share is used as it is. What has to
be carried is written to a folder named by a hash of what is in it, once on a node, and goes when others come and nobody
uses it. No Ray in here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

__all__ = ["content", "keep", "listing", "stamp_of"]

#: Path within the model's folder -> (size, time in ns, mode).
Listing = Mapping[str, tuple[int, int, int]]

#: What comes and goes without the model having changed, and belongs to the machine.
_LEFT_OUT = frozenset(("__pycache__",))


def listing(folder: Path, version: int | None) -> dict[str, tuple[int, int, int]]:
    """Return the files of a model but for those of other versions; None: all files of a folder. Raises OSError."""
    found: dict[str, tuple[int, int, int]] = {}
    for root, folders, files in os.walk(folder, followlinks=True):
        where = Path(root)
        top = where == folder
        folders[:] = sorted(one for one in folders if one not in _LEFT_OUT and not (top and _other(one, version)))
        for name in sorted(files):
            status = (where / name).stat()
            if stat.S_ISREG(status.st_mode):
                key = (where / name).relative_to(folder).as_posix()
                found[key] = status.st_size, status.st_mtime_ns, stat.S_IMODE(status.st_mode)
    return found


def _other(name: str, version: int | None) -> bool:
    return version is not None and name.isascii() and name.isdigit() and int(name) != version


def stamp_of(files: Listing) -> str:
    """Return a hash by which the same files are known: of their names, sizes and times."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def content(folder: Path, files: Listing) -> dict[str, bytes]:
    """Return what is in the files. Raises OSError."""
    return {name: (folder / name).read_bytes() for name in files}


def keep(name: str, version: int | None, files: Listing, contents: Mapping[str, bytes]) -> Path:
    """Write files that came to a folder of this node, unless they are there; return that, called `name`. Raises OSError."""
    base = Path(tempfile.gettempdir()) / f"kernel_ray-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"'{base}' is no folder of this user's alone")
    digest = hashlib.sha256(json.dumps([name, sorted((one, mode) for one, (_, _, mode) in files.items())]).encode())
    for one in sorted(contents):
        digest.update(hashlib.sha256(contents[one]).digest())
    place = base / digest.hexdigest()[:32]
    _use(place)
    if not place.exists():
        made = base / f"{place.name}-{uuid.uuid4().hex}"
        try:
            _write(made / name, version, files, contents)
            made.rename(place)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not place.exists():  # else another actor was quicker
                raise
    _sweep(base)
    return place / name


def _use(place: Path) -> None:
    """Have a folder stay as long as this process lives."""
    descriptor = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # never closed; waits for who takes the folder away


def _sweep(base: Path) -> None:
    """Take away what no process uses any more."""
    for lock in base.glob("*.lock"):
        with lock.open("rb") as file, contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)


def _write(folder: Path, version: int | None, files: Listing, contents: Mapping[str, bytes]) -> None:
    (folder / ("" if version is None else str(version))).mkdir(parents=True)  # of a version there may be no file
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        _, time, mode = files[name]
        path.chmod(mode | stat.S_IRUSR | stat.S_IWUSR)
        os.utime(path, ns=(time, time))
