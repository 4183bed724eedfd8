"""What was fetched, on this machine: a file for each content, of which models get links in folders of their own.

The law: a file in `objects/` is whole, for it comes there by a rename, and is what its name says, or is not used; who fetches one
holds its lock, so that it is fetched once however many servers want it; what goes is what was used least recently and is in no
model's folder, which the number of its links says. A server's own folder is locked as long as it lives; what one that was killed
has left is removed by the next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kernel import Code, ServingError
from kernel_storage.stores import Object

__all__ = ["Cache", "digest_of", "failed"]

log = logging.getLogger("kernel.storage")

LAYOUT = "v1"  # who changes what lies there takes another one
LOCK_SECONDS = 0.05  # between two looks at whether a lock is free

#: What file systems say that have no further links for a file.
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class Cache:
    """The cache in a folder, of which this is one user. `size`: bytes that may stay in it, 0 for half of the file system."""

    def __init__(self, folder: str, size: int) -> None:
        self.root = _folder(folder) / LAYOUT  # which all users share
        self._size = size
        self._own: Path | None = None  # this user's folder, and what holds its lock
        self._lock = -1
        self._counter = 0
        self._opening = threading.Lock()
        self._told = False  # that what is in use is more than may stay

    # -- folders ---------------------------------------------------------------------------------------------------------

    def new_folder(self) -> Path:
        """Return a new folder for files of one model. Raises ServingError."""
        with self._opening:
            own = self._own
            if own is None or not own.is_dir():  # somebody may have emptied the cache
                own = self._open()
            self._counter += 1
            folder = own / str(self._counter)
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise failed("make a folder of a stored model", error) from None
        return folder

    def _open(self) -> Path:
        self._make()
        servers = self.root / "servers"
        _sweep(servers)
        if self._lock != -1:
            os.close(self._lock)
        try:
            own = Path(tempfile.mkdtemp(prefix="", dir=servers))
            early = own / "lock.new"
            self._lock = os.open(early, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            early.rename(own / "lock")  # nobody sees it before it is locked
        except OSError as error:
            raise failed("make a folder for stored models", error) from None
        self._own = own
        return own

    def _make(self) -> None:
        """Make the folders that all users share, where they are not there. Raises ServingError."""
        try:
            for name in ("objects", "locks", "servers"):
                (self.root / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            status = self.root.stat()
        except OSError as error:
            raise failed("make the cache of stored models", error) from None
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            words = f"the cache of stored models {self.root} could be written by others, who could change what models do"
            raise ServingError(Code.INTERNAL, f"{words}; it has to be this user's alone (--storage-cache)")

    def close(self) -> None:
        """Remove this user's folder, with all that models had in it."""
        with self._opening:
            own, self._own = self._own, None
            if own is not None:
                shutil.rmtree(own, ignore_errors=True)
            if self._lock != -1:
                os.close(self._lock)
                self._lock = -1

    # -- contents ----------------------------------------------------------------------------------------------------------

    def path_of(self, digest: str) -> Path:
        return self.root / "objects" / digest[:2] / digest

    def has(self, one: Object, digest: str) -> bool:
        """Whether the content is there, as it was fetched; it counts as used now. What was changed since is removed."""
        path = self.path_of(digest)
        try:
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) != (one.size, one.modified):
                log.warning("%s is not as it was fetched, and is fetched again", path)
                path.unlink()
                return False
            os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        except OSError:
            return False
        return True

    def link(self, digest: str, target: Path) -> bool:
        """Have the content at `target`; return whether it was there. Raises ServingError."""
        path = self.path_of(digest)
        try:
            try:
                os.link(path, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                shutil.copyfile(path, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failed(f"make {target}", error) from None
        return True

    @contextlib.contextmanager
    def fetching(self, digest: str, given_up: threading.Event) -> Iterator[None]:
        """Wait until nobody else fetches the content, here or in another process. Raises ServingError where it is given up."""
        try:
            lock = os.open(self.root / "locks" / digest[:3], os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise failed("lock a file of the cache", error) from None
        try:
            while not _has_locked(lock):
                if given_up.wait(LOCK_SECONDS):
                    raise ServingError(Code.UNAVAILABLE, "the fetch was given up")
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def draft(self, one: Object, digest: str) -> Iterator[int]:
        """Open a file to write the content to; at the end of the block it is there, where nothing is raised in it."""
        folder = self.new_folder()
        path = folder / "part"
        target = self.path_of(digest)
        try:
            with open(path, "xb") as file:
                yield file.fileno()
                os.fsync(file.fileno())
            os.chmod(path, 0o444)
            os.utime(path, ns=(time.time_ns(), one.modified))
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.rename(target)
        except OSError as error:
            raise failed(f"write the object '{one.key}' into the cache", error) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # -- room --------------------------------------------------------------------------------------------------------------

    def make_room(self, wanted: int, whole: int, whose: str) -> None:
        """Remove what was used least recently until `wanted` more bytes fit. `whole`: bytes of the model, called `whose`.

        Raises ServingError where the model alone is more than may stay. What is in use stays, and may be more than that.
        """
        limit = self._size or shutil.disk_usage(self.root).total // 2
        if whole > limit:
            words = f"{whose} has {whole} bytes, and the cache of stored models may have {limit} (--storage-cache-size)"
            raise ServingError(Code.INTERNAL, words)
        try:
            lock = os.open(self.root / "locks" / "room", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._remove_oldest(limit - wanted)
            finally:
                os.close(lock)
        except OSError as error:
            raise failed("make room in the cache", error) from None

    def _remove_oldest(self, most: int) -> None:
        found = []
        for path in self.root.glob("objects/*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_atime_ns, status.st_size, status.st_nlink, path))
        there = sum(size for _, size, _, _ in found)
        for _, size, links, path in sorted(found):
            if there <= most:
                return
            if links == 1:
                path.unlink(missing_ok=True)
                there -= size
        if there > most and not self._told:
            self._told = True
            log.warning("models that are loaded have more bytes than the cache of stored models may have (--storage-cache-size)")


def digest_of(identity: str, one: Object) -> str:
    """Return the name of a content. `identity`: of the bucket; a tag tells contents of one key apart, and no others."""
    return hashlib.sha256("\0".join((identity, one.key, one.tag, str(one.size))).encode()).hexdigest()


def failed(what: str, error: OSError) -> ServingError:
    """Return the error of a file that can't be written here."""
    where = f" ({error.filename})" if error.filename else ""
    return ServingError(Code.INTERNAL, f"failed to {what}: {error.strerror}{where}; --storage-cache says where it is")


def _folder(given: str) -> Path:
    if given:
        return Path(os.path.abspath(given))
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        words = "there is no folder for the cache of stored models: neither $XDG_CACHE_HOME nor a home; --storage-cache names one"
        raise ServingError(Code.INTERNAL, words) from None
    return base / "kernel-serve" / "storage"


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_locked(lock: int) -> bool:
    """As above. Raises ServingError where the file system has no locks."""
    try:
        return _try_lock(lock)
    except OSError as error:
        raise failed("lock a file of the cache", error) from None


def _sweep(servers: Path) -> None:
    """Remove the folders of servers that have ended without doing it."""
    for folder in servers.iterdir():
        with contextlib.suppress(OSError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                if _try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
