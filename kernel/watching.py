"""For development: models are reloaded as soon as their files are saved, and somebody is told what came of it.

The law: only models that are wanted are looked at, whatever the control mode, and new ones where all are served (mode `none`); a
model is loaded once its files have stayed the same for one look, so that half a save is nothing; what serves goes on until its
successor is READY, also when its files have gone. The look itself happens on a load thread, and takes at most a tenth of the
time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel.errors import ServingError
from kernel.places import SourcePlace
from kernel.plans import Sighting
from kernel.polling import Follower, changed_files

if TYPE_CHECKING:
    from kernel.registry import Registry

__all__ = ["WATCH_SECONDS", "Reload", "Watcher", "log_reload"]

log = logging.getLogger("kernel")

WATCH_SECONDS = 0.2
SHARE = 0.1  # of the time that looking may take


@dataclass(frozen=True, slots=True)
class Reload:
    """What came of a change. `versions`: those that serve now, old or new. `problem` and `place`: why it failed, where."""

    name: str
    changed: tuple[str, ...]  # files, as paths in the model's folder; none where the model has failed at the start
    versions: tuple[int, ...]
    problem: str = ""
    place: SourcePlace | None = None
    seconds: float = 0.0


class Watcher(Follower):
    """Looks every `seconds` at the models that are wanted (`all_models`: and at new ones); calls `report` after each reload."""

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
        self._all_models = all_models
        self._report = report
        self._seconds = seconds
        self._unsettled: dict[str, Sighting] = {}

    async def run(self) -> None:
        """Look until cancelled. What has failed already is reported first."""
        for name, entry in self.registry.catalog.entries.items():
            if entry.error is not None:
                self._told(Reload(name, (), self._versions(name), entry.error.message, entry.error.place))
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
        found: dict[str, Sighting] = await loader.in_thread(self._sight, names, frozenset(entries))
        self.pause = max(self._seconds, (time.perf_counter() - began) / SHARE)
        settled = {}
        for name, sighting in found.items():
            entry = entries.get(name)
            if len(sighting.paths) != 1:
                continue
            changed = changed_files(sighting, entry.seen if entry is not None else None)
            if not changed:
                self._unsettled.pop(name, None)
            elif self._unsettled.get(name) != sighting:
                self._unsettled[name] = sighting
            else:
                del self._unsettled[name]
                changed = self.own.without(name, changed, sighting)
                if changed:
                    settled[name] = changed
        if settled:
            self.under_way |= settled.keys()
        for group in self.registry.groups(settled.keys()):
            self.begin(self._reload({name: settled[name] for name in settled if name in group}))

    def _sight(self, names: Collection[str], known: Collection[str]) -> dict[str, Sighting]:
        """Look at the models in `names`, and at those that nobody knows yet. On a load thread."""
        loader = self.registry.loader
        new: set[str] = set()
        if self._all_models:
            try:
                new = loader.names() - set(known)
            except ServingError:  # a repository that can't be read now has nothing new
                pass
        return loader.sight([*names, *new])

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
            error = failures.get(name)
            problem = "" if error is None else getattr(error, "why", error.message)
            self._told(Reload(name, files, self._versions(name), problem, getattr(error, "place", None), seconds))

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
    what = ", ".join(reload.changed) or "at the start"
    if not reload.problem:
        log.info("model '%s' is reloaded (%s): %s serves, after %.2f s", reload.name, what, serving, reload.seconds)
        return
    where = f"{reload.place}: " if reload.place is not None else ""
    source = reload.place.source if reload.place is not None else ""
    indented = "\n".join(f"    {line}" for line in source.splitlines())
    log.error(
        "model '%s' is not loaded (%s), %s serves: %s%s",
        reload.name,
        what,
        serving,
        where,
        reload.problem.strip(),
        extra={"table": indented} if indented else None,
    )
