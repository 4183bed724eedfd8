"""A repository in an object store: a list of objects says which models there are and what has changed; what is loaded is fetched.

The law: to look costs a list of the objects and fetches nothing; a model's files are those of one list, in a folder that is its
own; of versions only those are fetched that are to be loaded. On threads of loads, but for `known`.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from kernel import Code, ModelFolder, Repository, ServingError, StorageOptions, clipped, models_of
from kernel_storage.cache import Cache, digest_of, failed
from kernel_storage.fetching import Fetcher
from kernel_storage.location import Location
from kernel_storage.stores import BadKey, Object, Store, names_below, objects_below

__all__ = ["StoredRepository"]

log = logging.getLogger("kernel.storage")

KNOWN_SECONDS = 10.0  # what was found that long ago is looked at again once somebody asks
TRIES = 3  # how often contents are fetched that somebody else removes from the cache meanwhile


class StoredRepository(Repository):
    """The models at a location of a store."""

    def __init__(self, place: Location, store: Store, options: StorageOptions) -> None:
        self.given = place.given
        self.path = Path(place.given)
        self._place = place
        self._store = store
        self._most = options.max_objects
        self.cache = Cache(options.cache, options.cache_size)
        self._fetcher = Fetcher(store, self.cache)
        self._known: dict[str, ModelFolder] = {}
        self._top: frozenset[str] = frozenset()  # objects of the last look that lie in no folder
        self._looked = 0.0
        self._looking = threading.Lock()

    def __repr__(self) -> str:
        return f"StoredRepository({self.given!r})"

    # -- look ----------------------------------------------------------------------------------------------------------------

    def scan(self) -> dict[str, ModelFolder]:
        try:
            objects = self._list("")
        except BadKey:  # that of one model is no reason to lose the others
            names = names_below(self._store, self._place.prefix, self.given)
            found = {name: folder for name in names if (folder := self.find(name)) is not None}
        else:
            if not objects and self._place.prefix:
                raise ServingError(Code.INTERNAL, f"failed to stat file {self.given}: no object lies below it")
            self._top = frozenset(key for key in objects if "/" not in key)
            found = self._models(objects)
        self._known, self._looked = found, time.monotonic()
        return found

    def known(self) -> dict[str, ModelFolder]:
        if time.monotonic() - self._looked > KNOWN_SECONDS and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look_again, name="kernel-storage-look", daemon=True).start()
        return self._known

    def _look_again(self) -> None:
        try:
            self.scan()
        except ServingError as error:
            log.debug("%s", error.message)
            self._looked = time.monotonic()
        finally:
            self._looking.release()

    def find(self, name: str) -> ModelFolder | None:
        if not name or name in (".", "..") or "/" in name or not name.isprintable():
            return None
        try:
            return self._models(self._list(name)).get(name)
        except ServingError as error:  # nobody knows whether it is there
            return ModelFolder(name, self.path / name, (), problem=error.message, stamps={})

    def _list(self, name: str) -> dict[str, Object]:
        """Return the objects of one model, or "" for all, by their paths in the repository. Raises ServingError."""
        prefix = self._place.prefix
        below = f"{prefix}/{name}".strip("/")
        given = f"{self.given}/{clipped(name)}".rstrip("/")
        found = objects_below(self._store, below, self._most, given)
        return {one.key[len(prefix) :].lstrip("/"): one for one in found}

    def _models(self, objects: Mapping[str, Object]) -> dict[str, ModelFolder]:
        stamps = {path: (_number(one.tag), one.size) for path, one in objects.items() if path}
        return models_of(self.path, stamps, lambda folder: FetchedModel(self, folder, objects))

    def strays(self) -> list[str]:
        return []

    def mistaken(self) -> str:
        if "config.pbtxt" in self._top:
            parent = self.given.rpartition("/")[0]
            return f"'{self.given}' holds a config.pbtxt, so it is a model itself; its repository is '{parent}'"
        return ""

    # -- fetch ---------------------------------------------------------------------------------------------------------------

    def fetch(self, wanted: Mapping[Path, Object], whose: str, whole: int) -> None:
        """Have objects at these paths. `whose`: the model, and `whole` its bytes that are here then. Raises ServingError."""
        digests = {path: digest_of(self._place.identity, one) for path, one in wanted.items()}
        left = dict(wanted)
        began, fetched = time.monotonic(), 0
        for _ in range(TRIES):
            missing = {digests[path]: one for path, one in left.items() if not self.cache.has(one, digests[path])}
            if missing:
                self.cache.make_room(sum(one.size for one in missing.values()), whole, whose)
                fetched += self._fetcher.fetch(missing)
            left = {path: one for path, one in left.items() if not self.cache.link(digests[path], path)}
            if not left:
                break
        else:
            words = f"{whose} can't be fetched: others remove its files from the cache, which is too small for all its users"
            raise ServingError(Code.UNAVAILABLE, f"{words} (--storage-cache-size)")
        if fetched:
            log.info("%s: %d bytes were fetched in %.1f s", whose, fetched, time.monotonic() - began)

    def close(self) -> None:
        self._fetcher.close()
        self.cache.close()


class FetchedModel:
    """The files of one model as they were listed, in a folder of its own. Raises ServingError where they can't be had."""

    def __init__(self, repository: StoredRepository, listed: ModelFolder, objects: Mapping[str, Object]) -> None:
        self._repository = repository
        self._files = {path: objects[f"{listed.name}/{path}"] for path in listed.stamps or ()}
        self.count = len(self._files)
        self._versions = {str(version) for version in listed.versions}
        self._whose = f"model '{listed.name}' of '{repository.given}'"
        self._root = repository.cache.new_folder()
        path = self._root / listed.name
        self.folder = ModelFolder(listed.name, path, listed.versions, listed.warnings)
        try:
            path.mkdir()
            for folder in {Path(path, inner).parent for inner in self._files} | {path / one for one in self._versions}:
                folder.mkdir(parents=True, exist_ok=True)
            for inner in self._files:  # that a file is there may be asked before it is known which versions are loaded
                if self._version_of(inner):
                    Path(path, inner).touch()
            self._have("")
        except BaseException as error:
            self.remove()
            if isinstance(error, OSError):
                raise failed(f"make the files of {self._whose}", error) from None
            raise

    def _version_of(self, inner: str) -> str:
        top, inside, _ = inner.partition("/")
        return top if inside and top in self._versions else ""

    def _have(self, *versions: str) -> None:
        """Have the files of some versions, "" for what is beside them."""
        wanted = {inner: one for inner, one in self._files.items() if self._version_of(inner) in versions}
        whole = sum(one.size for inner, one in self._files.items() if self._version_of(inner) in ("", *versions))
        self._repository.fetch({self.folder.path / inner: one for inner, one in wanted.items()}, self._whose, whole)

    def bring(self, versions: Collection[int]) -> None:
        chosen = [str(version) for version in versions]
        try:
            for inner in self._files:
                if self._version_of(inner):
                    Path(self.folder.path, inner).unlink(missing_ok=True)
        except OSError as error:
            raise failed(f"make the files of {self._whose}", error) from None
        self._have(*chosen)

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


def _number(tag: str) -> int:
    """Return a number for a tag; below 0, where no time of a file is."""
    return -1 - int.from_bytes(hashlib.sha256(tag.encode()).digest()[:7])
