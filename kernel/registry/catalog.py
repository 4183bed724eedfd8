"""Who serves which name, what is known of every model, and who is on the way out: the tables behind the registry.

The law: a version that serves goes on until another replaces it or it is retired, and whoever is replaced or retired
finishes what it has accepted. Entries are written here and nowhere else. Everything on the loop, nothing waits; what is done with
models, and when, is the registry's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from kernel.config import ModelConfig
from kernel.errors import Code, ServingError, clipped
from kernel.models import Model, Runtime
from kernel.observability import ModelStatistics
from kernel.registry.entries import (
    DUPLICATE,
    LOADING,
    READY,
    UNAVAILABLE,
    UNLOADED,
    UNLOADING,
    Entry,
    Failure,
    ModelIndex,
    Version,
)
from kernel.repository import (
    FetchedFiles,
    Listing,
    LoadFailed,
    LoadPlan,
    NotRead,
    Origin,
    Sighting,
    bare_name,
    version_number,
)

__all__ = ["Catalog", "not_ready"]

log = logging.getLogger("kernel")

#: How many files of a model are removed on the loop; more are on a thread, as each takes some 10 µs.
REMOVED_ON_LOOP = 100

class Catalog:
    """The models of one kernel by name and version."""

    def __init__(self, kernel: Runtime, *, namespacing: bool = False) -> None:
        self._kernel = kernel
        self._namespacing = namespacing
        self.entries: dict[str, Entry] = {}
        self.broken = False  # there is no repository, so there never will be a model
        #: What to raise for a model that does not serve, given what is said of it.
        self.away: Callable[[str, ServingError], ServingError] = lambda name, error: error
        #: (name, version as text or "" for the newest) -> READY model. What every request is looked up in.
        self.serving: dict[tuple[str, str], Model] = {}
        self._leaving: set[Model] = set()  # models that serve no name any more and still have requests to finish
        self._folders: dict[Model, FetchedFiles] = {}  # that came with a request or were fetched, by who lives on them
        self.background: set[asyncio.Task[None]] = set()

    def entry(self, name: str) -> Entry:
        """Return what is known of a model; from now on there is something."""
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Entry()
        return entry

    # -- look up -------------------------------------------------------------------------------------------------------

    def lookup(self, name: str, version: str) -> Model:
        """Return the READY model; raises ServingError in the words of http_protocol, section 2.5."""
        model = self.serving.get((name, version))
        if model is not None:
            return model
        number = version_number(version)
        model = self.serving.get((name, "" if number is None else str(number)))  # "-1", "007"
        if model is not None:
            return model
        raise self.away(name, self._why_not(name, number))

    def _why_not(self, name: str, number: int | None) -> ServingError:
        if self.broken:
            return not_ready()
        if self._namespacing and (count := len(self.meant_by(name))) > 1:
            words = f"There are {count} identifiers of model '{name}' in global map"
            told = f"model namespace must be provided to resolve ambiguity. They are {' and '.join(self.meant_by(name))}"
            return ServingError(Code.INVALID_ARG, f"{words}, {told}")
        entry = self.entries.get(name)
        unknown = f"Request for unknown model: '{clipped(name)}'"
        if entry is None or not entry.versions:
            return ServingError(Code.NOT_FOUND, f"{unknown} is not found")
        if number is None:
            return ServingError(Code.NOT_FOUND, f"{unknown} has no available versions")
        if number not in entry.versions:
            return ServingError(Code.NOT_FOUND, f"{unknown} version {number} is not found")
        return ServingError(Code.UNAVAILABLE, f"{unknown} version {number} is not at ready state")

    def meant_by(self, name: str) -> list[str]:
        """Return the known models that a name stands for: several where namespaces share it, else itself."""
        if not self._namespacing or name in self.entries:
            return [name]
        return sorted(one for one in self.entries if bare_name(one) == name) or [name]

    def is_ready(self, name: str, version: str) -> bool:
        number = version_number(version)
        model = self.serving.get((name, "" if number is None else str(number)))
        return model is not None and model.healthy

    def ready_models(self) -> list[Model]:
        """Return the READY model versions, by name and version."""
        models = [model for (_, version), model in self.serving.items() if version]
        return sorted(models, key=lambda model: (model.name, model.version))

    def alive(self) -> set[Model]:
        """Return the models that have, or may still get, requests."""
        return {*self.serving.values(), *self._leaving}

    def copies(self, name: str) -> dict[int, Model]:
        """Return what serves under a name, by version. Differs whenever another copy has come."""
        entry = self.entries.get(name)
        versions = entry.versions.items() if entry is not None else ()
        return {number: version.model for number, version in versions if version.model is not None}

    def configs(self) -> dict[str, ModelConfig]:
        """Return the configs of the models that have been loaded, also of those that are not there now."""
        return {name: entry.plan.config for name, entry in self.entries.items() if entry.plan is not None}

    def statistics(self, name: str, version: str) -> list[ModelStatistics]:
        models = self.ready_models()
        if name:
            models = [model for model in models if model.name == name]
            if not models:
                raise ServingError(Code.INVALID_ARG, f"requested model '{name}' is not available")
            number = version_number(version)
            if number is not None:
                models = [model for model in models if model.version == number]
                if not models:
                    raise ServingError(
                        Code.INVALID_ARG, f"requested model version is not available for model '{name}'"
                    )
        return [model.statistics() for model in models]

    def index(self, ready: bool, listing: Listing) -> list[ModelIndex]:
        """Return the lines of the index: what lies in the repositories, whatever else is loaded (http_protocol, section 11)."""
        lines = []
        shown = bare_name if self._namespacing else str
        for name in sorted({*listing.names, *(self.entries if listing.incomplete else ())}):
            entry = self.entries.get(name)
            if name in listing.duplicates and not (entry is not None and entry.serves):
                if not ready:
                    lines.append(ModelIndex(shown(name), "", UNAVAILABLE.value, DUPLICATE))
            elif entry is None or not entry.versions:
                if not ready and entry is not None and entry.problem:
                    lines.append(ModelIndex(shown(name), "", UNAVAILABLE.value, entry.problem))
                elif not ready:
                    lines.append(ModelIndex(shown(name)))
            else:
                for number, version in sorted(entry.versions.items()):
                    if version.state is READY or not ready:
                        lines.append(ModelIndex(shown(name), str(number), version.state.value, version.reason))
        return lines

    def states(self, name: str) -> list[ModelIndex]:
        """Return the lines of one model, as `index` has them, whether or not it lies in a repository."""
        shown = bare_name(name) if self._namespacing else name
        entry = self.entries.get(name)
        if entry is None or not entry.versions:
            reason = entry.problem if entry is not None else None
            return [ModelIndex(shown, "", UNAVAILABLE.value if reason else "", reason or "")]
        versions = sorted(entry.versions.items()) if len(entry.versions) > 1 else entry.versions.items()
        return [ModelIndex(shown, str(number), one.state.value, one.reason) for number, one in versions]

    def all_well(self, fleeting: Callable[[str], bool] = lambda name: False) -> bool:
        """Whether every known version is READY or was unloaded on request, and every model has one (lifecycle, section 7).

        Models that are `fleeting` come and go as they are asked for: of those only what serves counts, and has to be healthy.
        """
        for name, entry in self.entries.items():
            if fleeting(name):
                serving = (version.model for version in entry.versions.values() if version.state is READY)
                if any(model is not None and not model.healthy for model in serving):
                    return False
                continue
            if entry.wanted and entry.problem and entry.blocks and not entry.serves:
                return False
            for version in entry.versions.values():
                if version.state is not READY and not (version.state is UNAVAILABLE and version.reason == UNLOADED):
                    return False
                if version.model is not None and not version.model.healthy:
                    return False
        return True

    # -- what operations have found ------------------------------------------------------------------------------------

    def ask(self, name: str) -> None:
        """Note that somebody has asked for a model. Nothing where nothing is known of it."""
        entry = self.entries.get(name)
        if entry is not None:
            entry.wanted, entry.implicit = True, False

    def need(self, name: str) -> None:
        """Note that an ensemble needs a model, whether or not somebody has asked for it."""
        entry = self.entry(name)
        if not entry.wanted:
            entry.wanted = entry.implicit = True

    def read(self, name: str, config: str | None, sighting: Sighting | None) -> None:
        """Note that a model's files were read. `config`: the override that came along; `sighting`: None where files did, too."""
        entry = self.entry(name)
        entry.seen, entry.config = sighting, config
        entry.problem, entry.blocks = "", False

    def misread(self, name: str, error: LoadFailed | NotRead, sighting: Sighting | None) -> None:
        """Note that a model's files have mistakes; what serves goes on. `sighting`: None where nobody could look."""
        entry = self.entry(name)
        if sighting is not None:
            entry.seen = sighting
        if isinstance(error, LoadFailed) and error.problems:
            for one in error.problems:
                self.fail(name, one.version, one.reason)
            return
        entry.problem = error.problem
        entry.blocks = entry.blocks or isinstance(error, LoadFailed)
        self._explain(entry, error.problem)

    def unknown(self, name: str) -> None:
        """Forget a model that is in no repository, unless it has been loaded once."""
        entry = self.entries.get(name)
        if entry is not None and not entry.versions:
            del self.entries[name]

    def planned(self, plan: LoadPlan) -> None:
        """Note what a model was made from, or would have been had nothing failed."""
        self.entry(plan.config.name).plan = plan

    def concluded(self, name: str, failure: Failure | None) -> None:
        """Note the end of a load. `failure`: None where it has succeeded."""
        self.entry(name).error = failure

    def gone(self, name: str, sighting: Sighting, problem: str) -> None:
        """Note that a model is not in the repositories any more, or lies in several of them, as `problem` says."""
        entry = self.entry(name)
        entry.seen, entry.problem = sighting, problem

    def unwant(self, name: str) -> None:
        """Note that a model was unloaded on request; what was wrong with it is forgotten."""
        entry = self.entries[name]
        entry.wanted, entry.problem, entry.config, entry.error = False, "", None, None
        self._explain(entry, UNLOADED)

    def _explain(self, entry: Entry, reason: str) -> None:
        """Set the reason of all versions that are UNAVAILABLE."""
        for version in entry.versions.values():
            if version.state is UNAVAILABLE:
                version.become(UNAVAILABLE, reason)

    # -- come and go ---------------------------------------------------------------------------------------------------

    def begin(self, name: str, number: int) -> None:
        """Note that a version is being made. One that is READY stays so."""
        version = self._version(name, number)
        if version.state is not READY:
            version.become(LOADING)

    def fail(self, name: str, number: int, reason: str) -> None:
        """Note that a version could not be made. One that is READY stays so."""
        version = self._version(name, number)
        if version.state is not READY:
            version.become(UNAVAILABLE, reason)

    def give_up(self, name: str, number: int, reason: str) -> None:
        """Note that the making of a version was given up. One that is READY or was retired meanwhile stays so."""
        version = self._version(name, number)
        if version.state is LOADING:
            version.become(UNAVAILABLE, reason)

    def keep_only(self, name: str, numbers: Collection[int]) -> None:
        """Retire the other versions, which are not selected any more. `refresh` has to follow."""
        for number, version in self.entry(name).versions.items():
            if number in numbers:
                continue
            if version.state is READY:
                self.retire(name, number)
            elif version.state is UNAVAILABLE:
                version.become(UNAVAILABLE, UNLOADED)  # it may have failed before; nobody wants it any more

    def _version(self, name: str, number: int) -> Version:
        versions = self.entry(name).versions
        if number not in versions:
            versions[number] = Version(name, number)
        return versions[number]

    def serve(self, number: int, model: Model, origin: Origin, files: FetchedFiles | None) -> None:
        """Have a started model serve; what served before it finishes what it has and goes."""
        version = self.entry(model.name).versions[number]
        old = version.model
        model.serve()
        version.become(READY)
        version.model, version.origin = model, origin
        self.serving[model.name, str(number)] = model
        if files is not None:
            self._folders[model] = files
        self._kernel.changed()
        if old is not None:
            self._let_go(old)

    def turn_away(self, number: int, model: Model, files: FetchedFiles | None) -> None:
        """Finalize a model that came up and is not to serve, since the load that brought it has failed for another version."""
        version = self.entry(model.name).versions[number]
        if files is not None:
            self._folders[model] = files
        if version.state is LOADING:
            self._leave(version, model, UNLOADED)
        else:  # what served goes on; or the server is stopping
            self._let_go(model)

    def refresh(self, name: str) -> None:
        """Set which version stands for the name alone: the highest that is READY."""
        self._kernel.changed()
        ready = self.copies(name)
        if ready:
            self.serving[name, ""] = ready[max(ready)]
        else:
            self.serving.pop((name, ""), None)

    def retire(self, name: str, number: int, reason: str = UNLOADED) -> None:
        """Take a READY version out of service; it finishes what it has. `refresh` has to follow."""
        version = self.entries[name].versions[number]
        model = version.model
        assert model is not None
        self.serving.pop((name, str(number)), None)
        self._kernel.changed()
        self._leave(version, model, reason)

    def _leave(self, version: Version, model: Model, reason: str) -> None:
        """Show a version as UNLOADING until its model is gone."""
        version.become(UNLOADING)
        version.model = version.origin = None
        version.leaving += 1

        def gone() -> None:
            version.leaving -= 1
            if version.state is UNLOADING and not version.leaving:
                version.become(UNAVAILABLE, reason)

        self._let_go(model, gone)

    def retire_all(self, name: str, reason: str = UNLOADED) -> None:
        """Take all READY versions of a model out of service."""
        for number in self.copies(name):
            self.retire(name, number, reason)
        self.refresh(name)

    def _let_go(self, model: Model, then: Callable[[], None] = lambda: None) -> None:
        """Let a model that serves no name any more finish what it has, then finalize it."""
        self._leaving.add(model)

        async def close() -> None:
            try:
                await model.close()
            finally:
                self._leaving.discard(model)
                self.forget(model)
            then()

        model.stop()
        self.later(close())

    def failures(self) -> dict[str, Failure]:
        """Return why models failed at their last load, by name."""
        return {name: entry.error for name, entry in sorted(self.entries.items()) if entry.error is not None}

    def forget(self, model: Model) -> None:
        """Remove the files that only this model lived on."""
        files = self._folders.pop(model, None)
        if files is not None:
            self.drop(files)

    def drop(self, files: FetchedFiles) -> None:
        """Remove files that came with a request or were fetched, unless somebody lives on them."""
        if files in self._folders.values():
            return
        if files.count > REMOVED_ON_LOOP:
            kernel = self._kernel
            self.later(_awaited(kernel.loop.run_in_executor(kernel.pools.load, files.remove)))
        else:
            files.remove()

    def clear(self) -> None:
        """Forget all models, which are finalized by now, and remove the files that were there for them alone."""
        self.serving.clear()
        self._kernel.changed()
        for entry in self.entries.values():
            for version in entry.versions.values():
                if version.state is READY:
                    version.become(UNLOADING)
                    version.become(UNAVAILABLE, UNLOADED)
                    version.model = version.origin = None
        for files in self._folders.values():
            files.remove()
        self._folders.clear()

    def later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have `work` done; `background` has it as long as it takes."""
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        return task


def not_ready() -> ServingError:
    """Return what the reference says when it has started without its repositories."""
    return ServingError(Code.UNAVAILABLE, "Server not ready")


async def _awaited(work: asyncio.Future[None]) -> None:
    await work
