"""From a model's name to a started model: finds its files, reads and checks them, has the backend make its instances.

Knows nothing of what serves; what becomes of a plan or of a model that came up is the registry's business. Files are read on
load threads.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel.config import ConfigError, ConfigErrors, ModelConfig, read_config, require_complete
from kernel.errors import Code, ServingError
from kernel.interfaces import Backend
from kernel.model import Model
from kernel.repository import (
    FileRepository,
    Fingerprint,
    ModelFolder,
    OverrideFolder,
    find_model,
    missing_versions,
    select_versions,
)

if TYPE_CHECKING:
    from kernel.server import Kernel

__all__ = ["LoadPlan", "Loader", "NoVersion", "VersionFailed"]

log = logging.getLogger("kernel")


@dataclass(slots=True)
class LoadPlan:
    """What a load is going to do, as read from the files."""

    folder: ModelFolder
    config: ModelConfig
    versions: tuple[int, ...]
    fingerprint: Fingerprint
    override: OverrideFolder | None


class NoVersion(ServingError):
    """The version policy selects nothing: there is no version that could fail."""


class VersionFailed(ServingError):
    """One version can't be loaded; in the reference's words."""

    def __init__(self, name: str, version: int, reason: str) -> None:
        super().__init__(
            Code.INVALID_ARG, f"load failed for model '{name}': version {version} is at UNAVAILABLE state: {reason};\n"
        )
        self.version = version
        self.why = reason


class Loader:
    """Reads and makes the models of one kernel's repositories."""

    def __init__(
        self,
        kernel: Kernel,
        repositories: Sequence[str],
        *,
        backends: Mapping[str, Backend],
        auto_complete: bool,
        config_name: str,
    ) -> None:
        self._kernel = kernel
        self._repositories = [FileRepository(path) for path in repositories]
        self._backends = backends
        self._auto_complete = auto_complete
        self._config_name = config_name

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(*args)` on a load thread."""
        return await self._kernel.loop.run_in_executor(self._kernel.load_pool, function, *args)

    # -- find ----------------------------------------------------------------------------------------------------------

    def names(self) -> set[str]:
        """Return the names of all models in the repositories. Raises ServingError where one can't be read."""
        return {name for repository in self._repositories for name in repository.scan()}

    def names_found(self) -> set[str]:
        """Return the names in those repositories that can be read; the log has the others."""
        names: set[str] = set()
        for repository in self._repositories:
            try:
                names.update(repository.scan())
            except ServingError:
                log.exception("the repository index is incomplete")
        return names

    def find(self, name: str) -> ModelFolder | None:
        """Return where the model lies; raises ServingError when it lies in two repositories."""
        return find_model(self._repositories, name)

    def _unknown(self, name: str) -> ServingError:
        names = sorted(self.names())
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"; did you mean {' or '.join(repr(one) for one in near)}?" if near else f"; there are {names}"
        return ServingError(Code.NOT_FOUND, f"no model '{name}' in the model repositories{hint}")

    # -- read ----------------------------------------------------------------------------------------------------------

    def read(self, name: str, config: str | None, files: Mapping[str, bytes] | None) -> LoadPlan:
        """Read a model's files. On a load thread."""
        override = None
        if files:
            if config is None:
                raise ServingError(
                    Code.INVALID_ARG,
                    f"files were given for model '{name}' without a 'config'; with files the config is mandatory",
                )
            override = OverrideFolder(name, files)
            folder: ModelFolder | None = override.folder
        else:
            folder = self.find(name)
        if folder is None:
            raise self._unknown(name)
        try:
            try:
                read = read_config(
                    folder.path,
                    override=config,
                    auto_complete=self._auto_complete,
                    config_name=self._config_name,
                    backends=self._backends,
                    model_name=name,
                    partial=self._auto_complete,
                )
            except ConfigErrors as errors:
                if errors.stage == "A" or not folder.versions:
                    raise
                raise VersionFailed(name, max(folder.versions), f"{errors.code.value}: {errors}") from errors
            for warning in (*folder.warnings, *read.warnings, *missing_versions(read, folder.versions)):
                log.warning("model '%s': %s", name, warning)
            if read.sequence_batching is not None:
                raise ServingError(Code.UNSUPPORTED, f"model '{name}' asks for sequence_batching, which is not served yet")
            if read.message.model_warmup:
                log.warning("model '%s': model_warmup is not run yet", name)
            try:
                versions = select_versions(read, folder.versions)
            except ConfigError as error:
                raise NoVersion(Code.INVALID_ARG, f"load failed for model '{name}': {error}\n") from error
            fingerprint = folder.fingerprint()
        except BaseException:
            if override is not None:
                override.remove()
            raise
        return LoadPlan(folder, read, versions, fingerprint, override)

    # -- make ----------------------------------------------------------------------------------------------------------

    async def make(self, plan: LoadPlan, number: int) -> Model | ServingError:
        """Return the started model version, or why there is none."""
        config = plan.config
        name = "ensemble" if config.is_ensemble else config.backend
        backend = self._backends.get(name)
        if backend is None:  # a config may pass without one, such as an ensemble's where no plugin serves ensembles
            return ServingError(
                Code.INVALID_ARG, f"no installed plugin serves the backend '{name}'; there are {sorted(self._backends)}"
            )
        try:
            if self._auto_complete:
                config = await self.in_thread(
                    backend.complete_config, config, plan.folder.path, plan.folder.path / str(number)
                )
            require_complete(config)
            backend.validate(config, plan.folder.path, (number,))
            model = Model(self._kernel, config, number, plan.folder.path)
            await model.start(backend)
        except ServingError as error:
            return error
        except Exception as error:
            log.exception("model '%s' version %d failed to load", config.name, number)
            return ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}")
        return model
