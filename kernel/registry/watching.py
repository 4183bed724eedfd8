"""For development: models are reloaded as soon as their files are saved, and somebody is told what came of it.

The law: only models that are wanted are looked at, whatever the control mode, and new ones where all are served (mode `none`); a
model is loaded once its files have stayed the same for one look, so that half a save is nothing; what serves goes on until its
successor is READY. A model whose folder has been gone for two looks is unloaded where all are served, and told of elsewhere;
where the whole repository can't be read, nothing has gone. The look itself happens on a load thread, and takes at most a tenth of
the time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel.errors import Code, ServingError
from kernel.registry.entries import Failure
from kernel.registry.polling import Follower, changed_files
from kernel.repository import FileRepository, Sighting, SourcePlace

if TYPE_CHECKING:
    from kernel.registry.registry import Registry

__all__ = ["WATCH_SECONDS", "Reload", "Watcher", "log_reload"]

log = logging.getLogger("kernel")

WATCH_SECONDS = 0.2
SHARE = 0.1  # of the time that looking may take

_NONE = Failure("", None)  # what is told of a load that has not failed


@dataclass(frozen=True, slots=True)
class Reload:
    """What came of a change. `versions`: those that serve now, old or new. `problem` and `place`: why it failed, where.

    `causes`: lines on what is behind that. `seconds`: how long the reload took. `gone`: its folder is not there any more.
    """

    name: str  # of the model
    changed: tuple[str, ...]  # files, as paths in the model's folder; none where the model has failed at the start
    versions: tuple[int, ...]
    problem: str = ""
    place: SourcePlace | None = None
    seconds: float = 0.0
    gone: bool = False
    causes: tuple[str, ...] = ()


class Watcher(Follower):
    """Looks every `seconds` at the models that are wanted (`all_models`: and at new ones); calls `report` after each reload.

    Raises ServingError where models lie elsewhere than in folders.
    """

    trouble = "a look at the files of the models failed"

    def __init__(
        self,
        registry: Registry,
        report: Callable[[Reload], None],
        seconds: float = WATCH_SECONDS,
        *,
        all_models: bool = False,
    ) -> None:
        super().__init__(registry, seconds)
        for repository in registry.loader.repositories.all:
            if not isinstance(repository, FileRepository):
                words = f"'{repository.given}' can't be watched: only folders are looked at that often; mode 'poll' follows it"
                raise ServingError(Code.INVALID_ARG, words)
        self._all_models = all_models
        self._report = report
        self._seconds = seconds
        self._unsettled: dict[str, Sighting] = {}
        self._gone: set[str] = set()  # told of

    async def run(self) -> None:
        """Look until cancelled. What has failed already is reported first."""
        for name, entry in self.registry.catalog.entries.items():
            if entry.error is not None:
                error = entry.error
                self._told(Reload(name, (), self._versions(name), error.message, error.place, causes=error.causes))
        await super().run()

    async def look(self) -> None:
        """Look once, and begin to reload what has changed before and has not changed since."""
        loader, entries = self.registry.loader, self.registry.catalog.entries
        names = [
            name
            for name, entry in entries.items()
            if (entry.wanted or entry.serves) and entry.seen is not None and name not in self.under_way
        ]
        began = time.perf_counter()
        known = frozenset(name for name, entry in entries.items() if entry.wanted or entry.seen is None or entry.seen.paths)
        found: dict[str, Sighting] = await loader.in_thread(self._sight, names, known)
        self.pause = max(self._seconds, (time.perf_counter() - began) / SHARE)
        settled = {name: changed for name, sighting in found.items() if (changed := self._settled(name, sighting))}
        self.under_way |= settled.keys()
        for group in self.registry.groups(settled.keys()):
            self.begin(self._reload({name: settled[name] for name in settled if name in group}))

    def _settled(self, name: str, sighting: Sighting) -> tuple[str, ...]:
        """Return the files of a model that have changed and are as they were at the last look; none while that goes on."""
        entry = self.registry.catalog.entries.get(name)
        if not sighting.paths and name not in self._gone:
            if self._unsettled.get(name) == sighting:
                self.begin(self._lost(name))
            self._unsettled[name] = sighting
        if len(sighting.paths) != 1:
            return ()
        self._gone.discard(name)
        changed = changed_files(sighting, entry.seen if entry is not None else None)
        if not changed:
            self._unsettled.pop(name, None)
        elif self._unsettled.get(name) != sighting:
            self._unsettled[name] = sighting
        else:
            del self._unsettled[name]
            return self.own.without(name, changed, sighting)
        return ()

    def _sight(self, names: Collection[str], known: Collection[str]) -> dict[str, Sighting]:
        """Look at the models in `names`, and at those that nobody knows yet. On a load thread."""
        loader = self.registry.loader
        try:
            there = loader.names()
        except ServingError:  # in a repository that can't be read now nothing is new, and nothing has gone
            return {name: sighting for name, sighting in loader.sight(names).items() if sighting.paths}
        return loader.sight([*names, *(there - set(known) if self._all_models else ())])

    async def _lost(self, name: str) -> None:
        """Unload a model whose folder has gone, where all models are served; tell of it."""
        self._gone.add(name)
        self._unsettled.pop(name, None)
        self.under_way.add(name)
        try:
            if self._all_models:
                await self.registry.withdraw(name)
        finally:
            self.under_way.discard(name)
        self._told(Reload(name, (), self._versions(name), gone=True))

    async def _reload(self, changed: dict[str, tuple[str, ...]]) -> None:
        began, began_ns = time.perf_counter(), time.time_ns()
        try:
            failures = await self.registry.update(changed.keys())
        except ServingError:  # the server is stopping
            return
        finally:
            self.under_way -= changed.keys()
        seconds = time.perf_counter() - began
        for name, files in changed.items():
            self.own.loaded(name, began_ns)
            failure = Failure.of(failures[name]) if name in failures else _NONE
            self._told(
                Reload(name, files, self._versions(name), failure.message, failure.place, seconds, causes=failure.causes)
            )

    def _versions(self, name: str) -> tuple[int, ...]:
        return tuple(sorted(self.registry.catalog.copies(name)))

    def _told(self, reload: Reload) -> None:
        try:
            self._report(reload)
        except Exception:
            log.exception("the report of the reload of model '%s' failed", reload.name)


def log_reload(reload: Reload) -> None:
    """Tell a reload in the log."""
    serving = f"version {', '.join(map(str, reload.versions))}" if reload.versions else "nothing"
    if reload.gone:
        log.warning("the folder of model '%s' is gone: %s serves", reload.name, serving)
        return
    what = ", ".join(reload.changed) or "at the start"
    if not reload.problem:
        log.info("model '%s' is reloaded (%s): %s serves, after %.2f s", reload.name, what, serving, reload.seconds)
        return
    where = f"{reload.place}: " if reload.place is not None else ""
    lines = [*(reload.place.source.splitlines() if reload.place is not None else ()), *reload.causes]
    indented = "\n".join(f"    {line}" for line in lines)
    log.error(
        "model '%s' is not loaded (%s), %s serves: %s%s",
        reload.name,
        what,
        serving,
        where,
        reload.problem.strip(),
        extra={"table": indented} if indented else None,
    )
