"""What is loaded: load, swap, drain, unload, index, and the way from a name to the model that serves it.

The law: a version that serves goes on serving until its successor is READY; a failed load changes nothing for the clients.
How a model is read and made is loading.py's business; all tables are changed on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernel.config import Message, ModelConfig, check_ensembles, is_decoupled, with_changes
from kernel.dependents import by_dependency, ensembles_of
from kernel.errors import Code, ServingError
from kernel.interfaces import Backend
from kernel.loading import Loader, LoadPlan, NoVersion, VersionFailed
from kernel.model import Model, ModelState
from kernel.repository import Fingerprint, OverrideFolder, check_model_name
from kernel.statistics import ModelStatistics
from kernel.versions import version_number

if TYPE_CHECKING:
    from kernel.server import Kernel

__all__ = ["ModelIndex", "Registry"]

log = logging.getLogger("kernel")

FINALIZE_SECONDS = 5.0  # what the models' `finalize` may take at least when all are stopped

LOADING, READY, UNLOADING, UNAVAILABLE = (
    ModelState.LOADING,
    ModelState.READY,
    ModelState.UNLOADING,
    ModelState.UNAVAILABLE,
)


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """One line of the repository index. `version` and `state` are empty for a model that was never loaded."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Version:
    state: ModelState
    reason: str = ""
    model: Model | None = None


@dataclass(slots=True)
class _Entry:
    """What is known of one model name."""

    versions: dict[int, _Version] = field(default_factory=dict)
    config: ModelConfig | None = None  # of the last successful load
    fingerprint: Fingerprint | None = None  # of the files behind it
    implicit: bool = False  # loaded only since an ensemble needs it
    problem: str = ""  # why its files could not even be read, where no version is known
    wanted: bool = False  # somebody asked for it, and nobody asked for its unload
    override: OverrideFolder | None = None  # files that came with the load request
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Registry:
    """The models of one kernel by name and version."""

    def __init__(
        self,
        kernel: Kernel,
        repositories: Sequence[str],
        *,
        backends: Mapping[str, Backend],
        explicit: bool,
        load_models: Sequence[str],
        exit_on_error: bool,
        auto_complete: bool,
        config_name: str,
        parallel: int,
    ) -> None:
        self._kernel = kernel
        self._loader = Loader(
            kernel, repositories, backends=backends, auto_complete=auto_complete, config_name=config_name
        )
        self._explicit = explicit
        self._load_models = load_models
        self._exit_on_error = exit_on_error
        self._parallel = parallel
        self._entries: dict[str, _Entry] = {}
        #: (name, version as text or "" for the newest) -> READY model. What every request is looked up in.
        self._serving: dict[tuple[str, str], Model] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._retiring: set[Model] = set()  # models that serve no name any more and still have requests to finish
        self._stopping = False

    # -- look up -------------------------------------------------------------------------------------------------------

    def lookup(self, name: str, version: str) -> Model:
        """Return the READY model; raises ServingError in the words of http_protocol, section 2.5."""
        model = self._serving.get((name, version))
        if model is not None:
            return model
        number = version_number(version)
        model = self._serving.get((name, "" if number is None else str(number)))  # "-1", "007"
        if model is not None:
            return model
        raise self._why_not(name, number)

    def _why_not(self, name: str, number: int | None) -> ServingError:
        entry = self._entries.get(name)
        unknown = f"Request for unknown model: '{name}'"
        if entry is None or not entry.versions:
            return ServingError(Code.NOT_FOUND, f"{unknown} is not found")
        if number is None:
            return ServingError(Code.NOT_FOUND, f"{unknown} has no available versions")
        if number not in entry.versions:
            return ServingError(Code.NOT_FOUND, f"{unknown} version {number} is not found")
        return ServingError(Code.UNAVAILABLE, f"{unknown} version {number} is not at ready state")

    def is_ready(self, name: str, version: str) -> bool:
        number = version_number(version)
        return (name, "" if number is None else str(number)) in self._serving

    def ready_models(self) -> list[Model]:
        models = [model for (_, version), model in self._serving.items() if version]
        return sorted(models, key=lambda model: (model.name, model.version))

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

    def index(self, ready: bool) -> list[ModelIndex]:
        names = set(self._entries)
        if self._explicit and not ready:
            names.update(self._loader.names_found())
        lines = []
        for name in sorted(names):
            entry = self._entries.get(name)
            if entry is None or not entry.versions:
                if entry is not None and entry.problem and not ready:
                    lines.append(ModelIndex(name, "", UNAVAILABLE.value, entry.problem))
                elif not ready and self._explicit:
                    lines.append(ModelIndex(name))
                continue
            for number, version in sorted(entry.versions.items()):
                if version.state is READY or not ready:
                    lines.append(ModelIndex(name, str(number), version.state.value, version.reason))
        return lines

    def all_well(self) -> bool:
        """Whether every known version is READY or was unloaded on request, and every model has one (lifecycle, section 7)."""
        for entry in self._entries.values():
            if entry.wanted and (entry.problem and not any(one.state is READY for one in entry.versions.values())):
                return False
            for version in entry.versions.values():
                if version.state is not READY and not (version.state is UNAVAILABLE and version.reason == "unloaded"):
                    return False
        return True

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is to be loaded at start-up, ensembles after what they consist of."""
        found = self._loader.names()
        names = found
        if self._explicit:
            names = set(self._load_models)
            if "*" in names:
                if len(names) > 1:
                    raise ServingError(
                        Code.INVALID_ARG,
                        "Wildcard model name '*' must be the ONLY startup model if specified at all.",
                    )
                names = found
        failures = await self._load_all(sorted(names))
        for name, error in failures.items():
            log.error("model '%s' failed to load: %s", name, error.message)
        if failures and self._exit_on_error:
            reasons = "".join(f"\n  {name}: {error.message.strip()}" for name, error in failures.items())
            raise ServingError(Code.INTERNAL, f"failed to load all models{reasons}")

    async def _load_all(self, names: Sequence[str]) -> dict[str, ServingError]:
        """Load several models, some at a time; return why which ones failed."""
        failures: dict[str, ServingError] = {}
        plans: dict[str, LoadPlan] = {}
        ensembles: dict[str, ModelConfig] = {}
        limit = asyncio.Semaphore(self._parallel)

        async def plan(name: str) -> None:
            self._entry(name).wanted = True
            try:
                async with limit:
                    plans[name] = await self._plan(name, None, None)
            except ServingError as error:
                failures[name] = error

        async def load(name: str) -> None:
            try:
                async with limit, self._entry(name).lock:
                    await self._carry_out(plans[name], ensembles)
            except ServingError as error:
                failures[name] = error

        await asyncio.gather(*(plan(name) for name in names))
        ensembles.update((name, plan.config) for name, plan in plans.items() if plan.config.is_ensemble)
        await asyncio.gather(*(load(name) for name in list(plans) if name not in ensembles))
        for name in by_dependency(ensembles):
            try:
                await self._load_composing(ensembles[name], skip=plans.keys() | failures.keys(), planned=ensembles)
            except ServingError as error:
                failures[name] = error
                continue
            await load(name)
        return failures

    async def stop(self, timeout: float) -> None:
        """Refuse what is new, finish what was accepted, with all that it still calls, then finalize everything."""
        self._stopping = True
        deadline = self._kernel.clock() + timeout
        for model in self.ready_models():
            model.stop()
        try:
            async with asyncio.timeout(timeout):
                # A request in flight may still call any model: nobody goes before all are idle.
                while busy := [model for model in self._alive() if not model.scheduler.is_idle]:
                    await busy[0].scheduler.drained()
        except TimeoutError:
            log.warning("%d models still had requests in flight when the time to finish them was over", len(busy))
        closing = [asyncio.ensure_future(model.close(0.0)) for model in self._alive()]
        if closing:
            patience = max(FINALIZE_SECONDS, deadline - self._kernel.clock())
            _, hanging = await asyncio.wait(closing, timeout=patience)
            if hanging:
                log.warning("finalize of %d models took longer than %.0f s and was left at that", len(hanging), patience)
                for task in hanging:
                    task.cancel()
        self._serving.clear()
        self._kernel.generation += 1
        for entry in self._entries.values():
            for version in entry.versions.values():
                if version.state is READY:
                    version.state, version.reason, version.model = UNAVAILABLE, "unloaded", None
            if entry.override is not None:
                entry.override.remove()
        if self._background:
            await asyncio.wait(self._background, timeout=max(0.1, deadline - self._kernel.clock()))

    def _alive(self) -> set[Model]:
        """Return the models that have, or may still get, requests."""
        return {*self._serving.values(), *self._retiring}

    def _let_go(self, model: Model, then: Callable[[], None] = lambda: None) -> None:
        """Let a model that serves no name any more finish what it has, then finalize it."""
        self._retiring.add(model)

        async def close() -> None:
            try:
                await model.close()
            finally:
                self._retiring.discard(model)
            then()

        model.stop()
        self._later(close())

    # -- load ----------------------------------------------------------------------------------------------------------

    async def load(self, name: str, *, config: str | None, files: Mapping[str, bytes] | None) -> None:
        self._check_mode()
        if self._stopping:
            raise ServingError(Code.UNAVAILABLE, "Server exiting")
        check_model_name(name)
        before = dict(self._serving)
        await self._load(name, config, files, {})
        entry = self._entries[name]
        entry.wanted, entry.implicit = True, False
        # Not within the loads: an ensemble loads what it consists of, and would wait for the lock of this very entry.
        steps = entry.config.ensemble if entry.config is not None else None
        for changed in (name, *(step.model_name for step in steps or ())):
            if self._serving.get((changed, "")) is not before.get((changed, "")):
                await self._revalidate_dependents(changed)

    async def _load(
        self, name: str, config: str | None, files: Mapping[str, bytes] | None, planned: dict[str, ModelConfig]
    ) -> None:
        """Plan and carry out one load; raises ServingError with the reference's words in front.

        `planned`: the ensembles that this load has come across so far; they need not be loaded yet to be checked together.
        """
        plan = await self._plan(name, config, files)
        if plan.config.is_ensemble:
            planned[name] = plan.config
            await self._load_composing(plan.config, skip=(), planned=planned)
        async with self._entry(name).lock:
            if not plan.config.is_ensemble and config is None and self._entries[name].fingerprint is not None:
                plan = await self._plan(name, None, None)  # what another load has done meanwhile may be newer
            await self._carry_out(plan, planned)

    async def _load_composing(self, config: ModelConfig, skip: Any, planned: dict[str, ModelConfig]) -> None:
        """Load what an ensemble consists of, where it is not loaded, or has changed since."""
        for step in config.ensemble or ():
            name = step.model_name
            # One that is planned already is a circle, or was met on another way: the check of the ensembles tells.
            if name in planned or name in skip or not self._explicit or self._loader.find(name) is None:
                continue
            entry = self._entry(name)
            fresh = (name, "") not in self._serving
            try:
                await self._load(name, None, None, planned)
            except ServingError as error:
                log.warning("model '%s', which an ensemble needs, failed to load: %s", name, error.message)
                continue
            if fresh and not entry.wanted:
                entry.implicit = True

    async def _plan(self, name: str, config: str | None, files: Mapping[str, bytes] | None) -> LoadPlan:
        """Read what is to be loaded; a mistake changes nothing for what serves, and can be read in the index."""
        entry = self._entry(name)
        try:
            plan: LoadPlan = await self._loader.in_thread(self._loader.read, name, config, files)
        except NoVersion as error:
            entry.problem = f"{error.code.value}: {error.__cause__}"
            raise
        except VersionFailed as error:
            version = entry.versions.setdefault(error.version, _Version(UNAVAILABLE))
            if version.state is not READY:
                version.state, version.reason = UNAVAILABLE, error.why
            raise
        except ServingError as error:
            words = f"failed to load '{name}', failed to poll from model repository"
            if error.code is Code.NOT_FOUND:
                if not entry.wanted and not entry.versions:
                    self._entries.pop(name, None)
                raise ServingError(Code.NOT_FOUND, f"{words}: {error.message}") from error
            entry.problem = f"{Code.INVALID_ARG.value}: {error.message}"
            for version in entry.versions.values():
                if version.state is UNAVAILABLE:
                    version.reason = entry.problem
            raise ServingError(Code.INTERNAL, f"{words}: {error.message}") from error
        entry.problem = ""
        return plan

    async def _carry_out(self, plan: LoadPlan, planned: Mapping[str, ModelConfig]) -> None:
        """Make the planned versions READY and let those go that are not selected any more. The entry's lock is held."""
        name = plan.config.name
        entry = self._entry(name)
        if (
            plan.override is None
            and plan.config.source.kind != "override"
            and entry.override is None
            and entry.fingerprint == plan.fingerprint
            and entry.config is not None
            and entry.config.source.kind != "override"
            and set(plan.versions) == {number for number, version in entry.versions.items() if version.state is READY}
        ):
            return  # nothing has changed
        try:
            if plan.config.is_ensemble:
                plan.config = self._checked_ensemble(plan, planned)
            problems = await self._make_and_serve(plan, entry)
        except BaseException:
            if plan.override is not None:
                plan.override.remove()
            raise
        if plan.override is not None and len(problems) == len(plan.versions):
            plan.override.remove()  # nothing serves out of it
        elif plan.override is not entry.override:
            if entry.override is not None:
                entry.override.remove()
            entry.override = plan.override
        if problems:
            details = "".join(f"version {number} is at UNAVAILABLE state: {reason};\n" for number, reason in problems)
            raise ServingError(Code.INVALID_ARG, f"load failed for model '{name}': {details}")
        for number, version in list(entry.versions.items()):
            if number not in plan.versions and version.state is READY:
                self._retire(entry, name, number)
        self._refresh(name)
        entry.config, entry.fingerprint = plan.config, plan.fingerprint

    async def _make_and_serve(self, plan: LoadPlan, entry: _Entry) -> list[tuple[int, str]]:
        """Make the planned versions and let each serve that comes up; return which do not, and why."""
        for number in plan.versions:
            version = entry.versions.setdefault(number, _Version(LOADING))
            if version.state is not READY:
                version.state, version.reason = LOADING, ""
        making = [asyncio.ensure_future(self._loader.make(plan, number)) for number in plan.versions]
        try:
            await asyncio.wait(making)  # which does not cancel them when it is cancelled
        except asyncio.CancelledError:
            # Nobody waits for the load any more, but model code can't be interrupted: what still comes up is finalized.
            for number, task in zip(plan.versions, making):
                task.add_done_callback(self._discard)
                version = entry.versions[number]
                if version.state is LOADING:
                    version.state, version.reason = UNAVAILABLE, "Cancelled: the load was given up"
            raise
        problems: list[tuple[int, str]] = []
        for number, task in zip(plan.versions, making):
            result: Model | ServingError | BaseException = task.exception() or task.result()
            if isinstance(result, Model) and self._stopping:
                self._later(result.close())
                result = ServingError(Code.UNAVAILABLE, "Server exiting")
            if isinstance(result, Model):
                self._serve(entry, number, result)
                continue
            error = result if isinstance(result, ServingError) else ServingError(Code.INTERNAL, repr(result))
            problems.append((number, f"{error.code.value}: {error.message}"))
            version = entry.versions[number]
            if version.state is not READY:
                version.state, version.reason = UNAVAILABLE, problems[-1][1]
        self._refresh(plan.config.name)
        return problems

    def _discard(self, task: asyncio.Future[Model | ServingError]) -> None:
        """Finalize a model that came up too late."""
        if not task.cancelled() and task.exception() is None and isinstance(model := task.result(), Model):
            self._later(model.close())

    def _serve(self, entry: _Entry, number: int, model: Model) -> None:
        """Put a started model in its place; what stood there finishes what it has and goes."""
        version = entry.versions[number]
        old = version.model
        model.state = READY
        version.state, version.reason, version.model = READY, "", model
        self._serving[model.name, str(number)] = model
        self._kernel.generation += 1
        if old is not None:
            self._let_go(old)

    def _refresh(self, name: str) -> None:
        """Set which version stands for the name alone: the highest that is READY."""
        self._kernel.generation += 1
        entry = self._entries[name]
        ready = [number for number, version in entry.versions.items() if version.state is READY]
        if ready:
            self._serving[name, ""] = self._serving[name, str(max(ready))]
        else:
            self._serving.pop((name, ""), None)

    # -- ensembles -----------------------------------------------------------------------------------------------------

    def _checked_ensemble(self, plan: LoadPlan, planned: Mapping[str, ModelConfig]) -> ModelConfig:
        """Return the ensemble's config with what follows from its models, or raise what is wrong with them (stage C)."""
        config = plan.config
        configs: dict[str, ModelConfig] = dict(planned)
        loaded: dict[str, set[int]] = {}
        for model in self.ready_models():
            loaded.setdefault(model.name, set()).add(model.version)
            configs[model.name] = model.config
        configs[config.name] = config
        loaded[config.name] = set(plan.versions)
        errors = check_ensembles(configs, loaded).get(config.name)
        if errors:
            reasons = "; ".join(str(error) for error in errors)
            entry = self._entry(config.name)
            for number in plan.versions:
                version = entry.versions.setdefault(number, _Version(UNAVAILABLE))
                if version.state is not READY:
                    version.state, version.reason = UNAVAILABLE, f"{Code.INVALID_ARG.value}: {reasons}"
            raise ServingError(Code.INVALID_ARG, f"load failed for model '{config.name}': {reasons}\n")
        decoupled = is_decoupled(config, configs)

        def compute(message: Message) -> None:
            message.model_transaction_policy.decoupled = decoupled

        return with_changes(config, compute)

    async def _revalidate_dependents(self, name: str) -> None:
        """A model has come or changed: its ensembles are checked against it, and those that had gone with it come back."""
        for other in ensembles_of(name, self._configs()):
            entry = self._entries[other]
            if not entry.wanted and (other, "") not in self._serving:
                continue
            entry.fingerprint = None  # its own files are the same, what they mean may not be
            try:
                await self._load(other, None, None, {})
            except ServingError as error:
                log.warning("ensemble '%s' is unavailable: %s", other, error.message)
                self._unload_now(other, error.message)

    # -- unload --------------------------------------------------------------------------------------------------------

    def unload(self, name: str, *, dependents: bool) -> None:
        self._check_mode()
        entry = self._entries.get(name)
        if entry is None or not any(version.state is READY for version in entry.versions.values()):
            log.warning("unload of model '%s', which is not loaded", name)
            return
        entry.wanted = False
        config = entry.config
        self._unload_now(name)
        for other in ensembles_of(name, self._configs()):
            self._unload_now(other)
        if dependents and config is not None:
            for step in config.ensemble or ():
                needed = [one for one in ensembles_of(step.model_name, self._configs()) if (one, "") in self._serving]
                composing = self._entries.get(step.model_name)
                if composing is not None and composing.implicit and not needed:
                    self.unload(step.model_name, dependents=True)

    def _unload_now(self, name: str, reason: str = "unloaded") -> None:
        entry = self._entries[name]
        for number, version in entry.versions.items():
            if version.state is READY:
                self._retire(entry, name, number, reason)
        entry.fingerprint = None
        self._refresh(name)

    def _retire(self, entry: _Entry, name: str, number: int, reason: str = "unloaded") -> None:
        version = entry.versions[number]
        model = version.model
        assert model is not None
        self._serving.pop((name, str(number)), None)
        self._kernel.generation += 1
        version.state, version.model = UNLOADING, None

        def gone() -> None:
            if version.state is UNLOADING:
                version.state, version.reason = UNAVAILABLE, reason

        self._let_go(model, gone)

    # -- small helpers -------------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry()
        return entry

    def _configs(self) -> dict[str, ModelConfig]:
        """Return the configs of the models that have been loaded, also of those that are not there now."""
        return {name: entry.config for name, entry in self._entries.items() if entry.config is not None}

    def _check_mode(self) -> None:
        if not self._explicit:
            raise ServingError(
                Code.UNAVAILABLE, "explicit model load / unload is not allowed if polling is enabled"
            )

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
