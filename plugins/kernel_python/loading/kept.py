"""What one step of a load has found and later ones need: a model is examined once a load, its file imported once an instance.

Where a config is completed, it is done where the model is to run, which is the load's first question. The modules that were
imported to complete it are kept for the first instance that is made with that very config: what registers itself at import
(metrics, flags) would do so twice otherwise. Other instances import their own, as in the reference. Context variables that the
import has set (numpy and decimal have some) go with the modules, to whatever thread the instance has. What nobody takes, since
the load has failed meanwhile, goes with the next load of that folder, or with the kernel. Any thread.
"""

from __future__ import annotations

import contextvars
import types
from pathlib import Path

from kernel import ModelConfig, PlacementChoice
from kernel_python.calling import Instance

__all__ = ["Kept"]


class Kept:
    """What is kept between two steps of a load, by version folder."""

    def __init__(self) -> None:
        self._choices: dict[Path, PlacementChoice] = {}
        self._modules: dict[Path, tuple[ModelConfig, Instance, types.ModuleType, contextvars.Context]] = {}

    def keep_choice(self, version_folder: Path, choice: PlacementChoice) -> None:
        """Keep where the version is to run."""
        self._choices[version_folder] = choice

    def take_choice(self, version_folder: Path) -> PlacementChoice | None:
        """Return where the version is to run, once; None where nothing is kept."""
        return self._choices.pop(version_folder, None)

    def keep_modules(
        self,
        version_folder: Path,
        config: ModelConfig,
        instance: Instance,
        module: types.ModuleType,
        context: contextvars.Context,
    ) -> None:
        """Keep the modules of `instance`, whose main one is `module`, imported in `context`, for an instance of `config`."""
        self._modules[version_folder] = config, instance, module, context

    def take_modules(self, version_folder: Path, config: ModelConfig) -> tuple[Instance, types.ModuleType] | None:
        """Return what is kept for an instance of `config`, once; None where there is nothing. On the instance's thread."""
        kept = self._modules.get(version_folder)
        if kept is None or kept[0] is not config or self._modules.pop(version_folder, None) is None:
            return None
        _, instance, module, context = kept
        for variable, value in context.items():
            variable.set(value)
        return instance, module

    def drop(self, version_folder: Path) -> None:
        """Forget what is kept of a folder."""
        self._choices.pop(version_folder, None)
        kept = self._modules.pop(version_folder, None)
        if kept is not None and kept[1].modules is not None:
            kept[1].modules.remove()

    def close(self) -> None:
        """Forget everything."""
        for folder in {*self._choices, *self._modules}:
            self.drop(folder)
