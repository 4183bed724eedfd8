"""A model's file is imported once in the life of an instance: what `auto_complete_config` was called of serves on.

The modules that were imported to complete a config are kept for the first instance that is made with that very config. Other
instances import their own, as in the reference. Context variables that the import has set (numpy and decimal have some)
go with them, to whatever thread the instance has. What nobody takes, since the load has failed meanwhile, goes with the next load
of that folder, or with the kernel. Any thread.
"""

from __future__ import annotations

import contextvars
import types
from pathlib import Path

from kernel import ModelConfig
from kernel_python.calling import Instance

__all__ = ["Imported"]


class Imported:
    """Modules between two steps of a load, by version folder."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[ModelConfig, Instance, types.ModuleType, contextvars.Context]] = {}

    def keep(
        self,
        version_folder: Path,
        config: ModelConfig,
        owner: Instance,
        module: types.ModuleType,
        context: contextvars.Context,
    ) -> None:
        """Keep the modules of `owner`, whose main one is `module`, imported in `context`, for an instance of `config`."""
        self.drop(version_folder)
        self._kept[version_folder] = config, owner, module, context

    def take(self, version_folder: Path, config: ModelConfig) -> tuple[Instance, types.ModuleType] | None:
        """Return what is kept for an instance of `config`, once; None where there is nothing. On the instance's thread."""
        kept = self._kept.get(version_folder)
        if kept is None or kept[0] is not config or self._kept.pop(version_folder, None) is None:
            return None
        _, owner, module, context = kept
        for variable, value in context.items():
            variable.set(value)
        return owner, module

    def drop(self, version_folder: Path) -> None:
        """Forget what is kept of a folder."""
        kept = self._kept.pop(version_folder, None)
        if kept is not None and kept[1].modules is not None:
            kept[1].modules.remove()

    def close(self) -> None:
        """Forget everything."""
        for folder in list(self._kept):
            self.drop(folder)
