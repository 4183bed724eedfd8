"""From a model's name to a started model: finds its files, reads and checks them, has the backend make its instances.

Knows nothing of what serves; what becomes of a plan or of a model that came up is the registry's business. Files are looked at
and read on load threads.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel.config import ConfigError, ConfigErrors, Message, ModelConfig, read_config, require_complete, words_first
from kernel.errors import Code, ServingError
from kernel.interfaces import Backend, PlacementChoice
from kernel.models import Model, Runtime, Sample, give_up, initial_values, without_gpus
from kernel.registry.progress import LoadStep, Progress
from kernel.repository import (
    FetchedFiles,
    FilesChanged,
    Fingerprint,
    Listing,
    LoadFailed,
    LoadPlan,
    ModelFolder,
    NotRead,
    OverrideFolder,
    Problem,
    Repositories,
    Repository,
    Sighting,
    bare_name,
    cause_lines,
    missing_versions,
    not_unique,
    place_of,
    select_versions,
)
from kernel.supplied import returned

__all__ = ["Loader"]

log = logging.getLogger("kernel")

NO_CONFIG = "there is no config.pbtxt: inputs and outputs are what its auto_complete_config says, the rest is by default"


class Loader:
    """Looks at, reads and makes the models of one kernel's repositories."""

    def __init__(self, kernel: Runtime, repositories: Sequence[Repository], backends: Mapping[str, Backend]) -> None:
        self._kernel = kernel
        self._options = kernel.options
        self.repositories = Repositories(repositories, namespacing=kernel.options.namespacing)
        self._progress = Progress(lambda: kernel.loop, lambda: kernel.clock())
        self._backends = backends
        self.in_warmup: set[Model] = set()  # what has been started and is warmed up

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(*args)` on a load thread."""
        return await self._kernel.loop.run_in_executor(self._kernel.pools.load, function, *args)

    # -- look ----------------------------------------------------------------------------------------------------------

    def mistaken(self) -> list[str]:
        """Return what to say about repositories that hardly are some."""
        return [words for repository in self.repositories.all if (words := repository.mistaken())]

    def strays(self) -> list[str]:
        """Return what to say about folders that are no models, in repositories that can be read."""
        found = [(repository, strays) for repository in self.repositories.all if (strays := repository.strays())]
        return [f"ignored in '{repository.given}', as it is no model: {', '.join(strays)}" for repository, strays in found]

    def names(self) -> set[str]:
        """Return the names of all models in the repositories. Raises ServingError where one can't be read."""
        return set(self.repositories.scan())

    def listing(self) -> Listing:
        """Return what is known to be in those repositories that can be read; the log has the others. On the loop."""
        found, errors = self.repositories.readable()
        for error in errors:
            log.error("the repository index is incomplete: %s", error.message)
        return Listing(found.keys(), [name for name, folders in found.items() if len(folders) > 1], bool(errors))

    def scan(self) -> dict[str, Sighting]:
        """Return the state of all models in the repositories. Raises ServingError where a repository can't be read."""
        return {name: _sighting(folders) for name, folders in self.repositories.scan().items()}

    def sight(self, names: Collection[str]) -> dict[str, Sighting]:
        """Return the state of some models, also of those that are not there."""
        return {name: _sighting(self.repositories.find(name)) for name in names}

    def _unknown(self, name: str) -> ServingError:
        names = sorted(self.names())
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"; did you mean {' or '.join(repr(one) for one in near)}?" if near else f"; there are {names}"
        return ServingError(Code.NOT_FOUND, f"model not found in any model repository{hint}")

    # -- read ----------------------------------------------------------------------------------------------------------

    def read(
        self, name: str, config: str | None, files: Mapping[str, bytes] | None
    ) -> tuple[Sighting | None, LoadPlan | ServingError]:
        """Read a model's files; return in what state they were before that, None for those of a request, and the plan or why
        there is none.
        """
        if files:
            return None, self._read_files(name, config, files)
        try:
            return self._read_folder(name, config)
        except FilesChanged:  # by who uploads another version right now
            return self._read_folder(name, config, last=True)

    def _read_folder(
        self, name: str, config: str | None, last: bool = False
    ) -> tuple[Sighting | None, LoadPlan | ServingError]:
        """Read a model of a repository. Raises FilesChanged, the `last` time not."""
        try:
            folders = self.repositories.find(name)
            # Before anything is read: what is changed from here on will be seen to have changed.
            sighting = _sighting(folders)
            if not folders:
                return sighting, NotRead(name, self._unknown(name))
        except ServingError as error:
            return None, NotRead(name, error)
        if len(folders) > 1:
            return sighting, NotRead(name, not_unique(name, sighting.paths))
        try:
            return sighting, self._fetched(name, config, folders[0], sighting.fingerprint)
        except FilesChanged as error:
            if not last:
                raise
            return sighting, NotRead(name, error)
        except ServingError as error:
            return sighting, error

    def _fetched(self, name: str, config: str | None, folder: ModelFolder, fingerprint: Fingerprint) -> LoadPlan:
        """Plan what lies in a folder of a repository, wherever that is. Raises LoadFailed, NotRead and FilesChanged."""
        if folder.problem:
            raise NotRead(name, ServingError(Code.INTERNAL, folder.problem))
        try:
            files = folder.fetch()
        except FilesChanged:
            raise
        except ServingError as error:
            raise NotRead(name, error) from error
        if files is None:
            return self._planned(name, config, folder, folder.path, fingerprint, None)
        try:
            return self._planned(name, config, files.folder, folder.path, fingerprint, files)
        except BaseException as error:
            files.remove()
            if isinstance(error, (LoadFailed, NotRead)):
                error.relocate(files.folder.path, folder.path)
            raise

    def _read_files(self, name: str, config: str | None, files: Mapping[str, bytes]) -> LoadPlan | ServingError:
        if config is None:
            words = f"files were given for model '{name}' without a 'config'; with files the config is mandatory"
            return NotRead(name, ServingError(Code.INVALID_ARG, words))
        try:
            override = OverrideFolder(name, files)
        except ServingError as error:
            return NotRead(name, error)
        try:
            folder = override.folder
            return self._planned(name, config, folder, folder.path, folder.fingerprint(), override)
        except BaseException as error:
            override.remove()
            if isinstance(error, ServingError):
                return error
            raise

    def _planned(
        self,
        name: str,
        config: str | None,
        folder: ModelFolder,
        lies_at: Path,
        fingerprint: Fingerprint,
        files: FetchedFiles | None,
    ) -> LoadPlan:
        """Read and check the config and select the versions, whose files are here then. Raises LoadFailed, NotRead, FilesChanged.

        `lies_at`: where the model lies, whose files are in `folder`.
        """

        def rename(message: Message) -> None:
            """Call the model, and what an ensemble consists of, by names that are unique."""
            message.name = name
            namespace = self.repositories.namespace_of(lies_at)
            for step in message.ensemble_scheduling.step:
                step.model_namespace = namespace
                step.model_name = self.repositories.step(step.model_name, namespace)

        try:
            read = read_config(
                folder.path,
                override=config,
                auto_complete=self._options.auto_complete,
                config_name=self._options.config_name,
                backends=self._backends,
                gpus=self._kernel.gpus,
                cpu_backends=without_gpus(self._backends) if self._kernel.gpus else (),
                model_name=bare_name(name) if self.repositories.namespacing else name,
                partial=self._options.auto_complete,
                rename=rename if self.repositories.namespacing else None,
            )
        except ConfigErrors as errors:
            if errors.stage == "A" or not folder.versions:  # "A": it can't be read, so nothing is known of its versions
                raise NotRead(name, errors, folder.path) from errors
            raise LoadFailed(name, [Problem.of(max(folder.versions), errors, folder.path)]) from errors
        untold = (NO_CONFIG,) if read.source.kind == "none" and read.backend == "python" else ()
        warnings = (*untold, *folder.warnings, *read.warnings, *missing_versions(read, folder.versions))
        try:
            versions = select_versions(read, folder.versions)
        except ConfigError as error:
            raise LoadFailed(name, reason=f"{words_first(error)}\n", place=place_of(error, folder.path)) from error
        if files is not None:
            try:
                files.bring(versions)
            except FilesChanged:
                raise
            except ServingError as error:
                raise NotRead(name, error) from error
        return LoadPlan(folder, read, versions, fingerprint, lies_at, files, warnings)

    # -- make ----------------------------------------------------------------------------------------------------------

    async def make(self, plan: LoadPlan, number: int, limit: asyncio.Semaphore) -> Model | Problem:
        """Return the started model version, or why there is none. `limit`: how many may be made at a time.

        A warmup is outside of the limit: it may wait for other models that are still to be made.
        """
        with self._progress.loading(plan.config.name, number, plan.folder.path) as step:
            for left in range(self._options.load_retries, -1, -1):
                made = await self._made(plan, number, limit, step)
                if isinstance(made, Model):
                    self._progress.loaded(step)
                    break
                if left:
                    log.warning(
                        "model '%s' version %d failed to load and is tried again, %d times at most: %s",
                        plan.config.name, number, left, made.reason,
                    )  # fmt: skip
        return made

    async def _made(self, plan: LoadPlan, number: int, limit: asyncio.Semaphore, step: LoadStep) -> Model | Problem:
        folder = plan.folder.path
        try:
            async with limit:
                model, samples = await self._started(plan, number, step)
            step.phase = "is warmed up"
            await self._warmed_up(model, samples)
        except ServingError as error:
            return Problem.of(number, error, folder)
        except Exception as error:
            log.exception("model '%s' version %d failed to load", plan.config.name, number)
            words = f"{Code.INTERNAL.value}: {type(error).__name__}: {error}"
            return Problem(number, words, place_of(error, folder), cause_lines(error, folder), error)
        return model

    async def _started(self, plan: LoadPlan, number: int, step: LoadStep) -> tuple[Model, list[Sample]]:
        """Carry a plan out for one version, from top to bottom; return the model, and what it is to be warmed up with.

        All that is decided about a version is decided here, once: who serves it, where it runs, what its config says in the
        end, what its files have for it.
        """
        config, folder = plan.config, plan.folder.path
        backend = self.backend(config)
        choice = await self._placement_choice(backend, config, folder, number)
        if self._options.auto_complete:
            step.phase = "completes its config"
            config = await self.in_thread(backend.complete_config, config, folder, folder / str(number))
            returned(config, ModelConfig, f"complete_config of the backend of model '{plan.config.name}'", "a ModelConfig")
        require_complete(config)
        backend.validate(config, folder, (number,))
        model = Model(self._kernel, config, number, folder)
        model.placement_choice = choice
        samples = await model.read_samples(config)
        initial = await self.in_thread(initial_values, config, folder) if config.sequence_batching is not None else {}
        step.phase = "makes its instances"
        await model.start(backend, initial)
        return model, samples

    async def _placement_choice(
        self, backend: Backend, config: ModelConfig, folder: Path, number: int
    ) -> PlacementChoice | None:
        """Have the backend say where the instances are to run, if it decides that, and tell it."""
        choose = getattr(backend, "choose_placement", None)
        if choose is None:
            return None
        choice: PlacementChoice = await self.in_thread(choose, config, folder, folder / str(number))
        level = logging.DEBUG if choice.asked else logging.INFO
        log.log(level, "model '%s' version %d runs in placement %s", config.name, number, choice)
        return choice

    async def _warmed_up(self, model: Model, samples: Sequence[Sample]) -> None:
        """Have a model that was started execute its samples; where one fails, it is finalized and the error raised."""
        self.in_warmup.add(model)
        try:
            await model.run_warmup(samples)
        except BaseException:
            await model.close(0.0)
            raise
        finally:
            self.in_warmup.discard(model)

    def stop(self) -> None:
        """Nothing may begin to serve any more: what is warmed up is given up."""
        for model in self.in_warmup:
            give_up(model.scheduler, ServingError(Code.UNAVAILABLE, "Server exiting"))

    def close(self) -> None:
        """No model is left: close the backends, each once, whatever names it has."""
        for backend in {id(one): one for one in self._backends.values()}.values():
            close = getattr(backend, "close", None)
            if close is not None:
                close()
        for repository in self.repositories.all:
            repository.close()

    def backend(self, config: ModelConfig) -> Backend:
        """Return the backend that a config asks for. Raises ServingError where no plugin serves it."""
        name = config.served_by
        backend = self._backends.get(name)
        if backend is None:  # a config may pass without one, such as an ensemble's where no plugin serves ensembles
            raise ServingError(
                Code.INVALID_ARG, f"no installed plugin serves the backend '{name}'; there are {sorted(self._backends)}"
            )
        return backend


def _sighting(folders: Sequence[ModelFolder]) -> Sighting:
    fingerprint = folders[0].fingerprint() if len(folders) == 1 else Fingerprint()
    return Sighting(tuple(folder.path for folder in folders), fingerprint)
