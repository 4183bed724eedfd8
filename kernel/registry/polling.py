"""Control mode `poll`: the disk is looked at now and then, and what is loaded follows it.

The law: what is new or has changed is loaded, what has gone or is ambiguous is withdrawn, and a look that fails changes nothing.
What failed is tried again at once when its files change, else ever more rarely, and told once. The look itself happens on a load
thread. (Contract: lifecycle, section 6.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel.errors import Code, ServingError
from kernel.repository import Sighting, behind, not_unique

if TYPE_CHECKING:
    from kernel.registry.entries import Entry
    from kernel.registry.registry import Registry

__all__ = ["Follower", "OwnFiles", "Poller", "changed_files"]

log = logging.getLogger("kernel")

RETRY_LIMIT = 64  # polls between two attempts at a model that goes on failing, at most
CLOCK_SLACK_NS = 20_000_000  # by how much the times of files may lag behind the clock


def changed_files(now: Sighting, before: Sighting | None) -> tuple[str, ...]:
    """Return the files of a model that are not as they were; all of them where it lies elsewhere. Paths in its folder."""
    if before is None or before.paths != now.paths:
        return tuple(sorted(now.fingerprint.files())) or ("",)
    return now.fingerprint.changes(before.fingerprint)


class OwnFiles:
    """Files that models write into their own folders when they are loaded, which would have them reloaded without end.

    A file is one of those when twice in a row nothing else had changed, and it was written while the model was loaded. Code
    and configs never are.
    """

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}
        self._suspects: dict[str, set[str]] = {}
        self._loaded: dict[str, tuple[int, int]] = {}  # when, on the clock of the files

    def without(self, name: str, changed: tuple[str, ...], now: Sighting) -> tuple[str, ...]:
        """Return the changed files, less those that the model writes itself."""
        known = self._known.get(name, set())
        changed = tuple(file for file in changed if file not in known)
        if not changed:
            return ()
        began, ended = self._loaded.get(name, (0, 0))
        stamps = now.fingerprint.files()
        written = {
            file
            for file in changed
            if began - CLOCK_SLACK_NS <= stamps.get(file, (0, 0))[0] <= ended and not file.endswith((".py", ".pbtxt"))
        }
        if len(written) < len(changed):
            self._suspects.pop(name, None)
            return changed
        if written != self._suspects.get(name):
            self._suspects[name] = written
            return changed
        self._known.setdefault(name, set()).update(written)
        log.warning(
            "model '%s' writes %s into its own folder whenever it is loaded; that is no reason to reload it any more",
            name,
            " and ".join(f"'{file}'" for file in sorted(written)),
        )
        return ()

    def loaded(self, name: str, began_ns: int) -> None:
        """A load that began at `began_ns` is over."""
        self._loaded[name] = began_ns, time.time_ns()


@dataclass(slots=True)
class _Failure:
    """What became of a model's last attempts. `wait`: polls until the next one, unless its files change."""

    message: str
    times: int = 0
    wait: int = 0


class Follower:
    """Looks at the disk every `pause` seconds, and begins what follows from that. `under_way`: models that it is at."""

    trouble = ""  # what the log says when a look fails

    def __init__(self, registry: Registry, pause: float) -> None:
        self.registry = registry
        self.pause = pause
        self.own = OwnFiles()
        self.under_way: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                await asyncio.sleep(self.pause)
                try:
                    await self.look()
                except Exception:
                    log.exception(self.trouble)
        finally:
            for task in self._tasks:
                task.cancel()

    async def look(self) -> None:
        """Look once."""
        raise NotImplementedError

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done meanwhile; it ends with the looking."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Poller(Follower):
    """Follows the repositories of a registry in control mode `poll`."""

    trouble = "a poll of the model repositories failed; what is loaded stays as it is"

    def __init__(self, registry: Registry, seconds: float) -> None:
        super().__init__(registry, seconds)
        self._failures: dict[str, _Failure] = {}
        self._problem = ""  # why the last look failed

    async def look(self) -> None:
        """Look once, and begin what follows from it; a model that is still being loaded since the last time is left alone."""
        loader = self.registry.loader
        try:
            found: dict[str, Sighting] = await loader.in_thread(loader.scan)
        except ServingError as error:
            if error.message != self._problem:
                self._problem = error.message
                log.error("failed to poll the model repositories, what is loaded stays as it is: %s", error.message)
            return
        self._problem = ""
        entries = self.registry.catalog.entries
        load = self._to_load(found, entries)
        withdraw = self._to_withdraw(found, entries)
        self.under_way |= {*load, *withdraw}
        for group in self.registry.groups({*load, *withdraw}):
            self.begin(
                self._follow(
                    [name for name in load if name in group],
                    {name: problem for name, problem in withdraw.items() if name in group},
                )
            )

    def _to_load(self, found: Mapping[str, Sighting], entries: Mapping[str, Entry]) -> list[str]:
        names = []
        for name, sighting in found.items():
            if name in self.under_way or len(sighting.paths) > 1:
                continue
            entry = entries.get(name)
            before = None if entry is None else entry.seen
            changed = self.own.without(name, changed_files(sighting, before), sighting)
            if changed:
                if before is None or not before.paths:
                    log.info("model '%s' is new", name)
                else:
                    log.info("model '%s' has changed: %s", name, _listed(changed))
                names.append(name)
            elif entry is not None and entry.failed and self._is_due(name):
                names.append(name)
        return names

    def _is_due(self, name: str) -> bool:
        failure = self._failures.get(name)
        if failure is None:  # no load of ours has failed, so it was that at the start
            return True
        failure.wait -= 1
        return failure.wait < 0

    def _to_withdraw(self, found: Mapping[str, Sighting], entries: Mapping[str, Entry]) -> dict[str, str]:
        """Return the models that have gone, and with a reason those that are ambiguous now."""
        withdraw = {}
        for name, sighting in found.items():
            if len(sighting.paths) > 1 and name not in self.under_way:
                entry = entries.get(name)
                if entry is None or entry.seen != sighting:
                    error = not_unique(name, sighting.paths)
                    log.error("%s", error.message)
                    withdraw[name] = f"{error.code.value}: {error.message}"
        for name, entry in entries.items():
            if name not in found and name not in self.under_way and (entry.seen is None or entry.seen.paths):
                log.info("model '%s' has gone from the model repositories", name)
                withdraw[name] = ""
        return withdraw

    async def _follow(self, load: list[str], withdraw: Mapping[str, str]) -> None:
        """Load first: an ensemble that is about to use another model does not go with the one that it used."""
        began = time.time_ns()
        try:
            if load:
                failures = await self.registry.update(load)
                for name in load:
                    self.own.loaded(name, began)
                    self._tell(name, failures.get(name))
            for name, problem in withdraw.items():
                await self.registry.withdraw(name, problem)
                self._failures.pop(name, None)
        except ServingError as error:  # the server is stopping
            if error.code is not Code.UNAVAILABLE:
                raise
        finally:
            self.under_way.difference_update(load, withdraw)

    def _tell(self, name: str, error: ServingError | None) -> None:
        versions = ", ".join(map(str, sorted(self.registry.catalog.copies(name))))
        if error is None:
            self._failures.pop(name, None)
            log.info("model '%s' is loaded: version %s", name, versions)
            return
        failure = self._failures.setdefault(name, _Failure(""))
        failure.times = failure.times + 1 if failure.message == error.message else 1
        failure.wait = min(RETRY_LIMIT, 2 ** (failure.times - 1)) - 1
        if failure.message != error.message:
            failure.message = error.message
            serving = f"version {versions} goes on serving" if versions else "nothing serves"
            log.error("model '%s' is not loaded, %s: %s", name, serving, error.message, extra=behind(error))


def _listed(files: tuple[str, ...]) -> str:
    shown = ", ".join(files[:5])
    return f"{shown} and {len(files) - 5} more" if len(files) > 5 else shown
