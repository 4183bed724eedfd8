"""The backend `remote`: models that other servers of the v2 protocol execute, reached over gRPC.

Light: what it takes to reach them is imported with the first model that wants it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernel import InstanceContext, Kernel, ModelConfig

if TYPE_CHECKING:
    from kernel_remote.executor import RemoteModel
    from kernel_remote.loads import Loads

__all__ = ["RemoteBackend"]


class RemoteBackend:
    """The Backend of one kernel."""

    name = "remote"
    creates_on_loop = False  # a load waits for the far end
    uses_gpus = False

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._made: Loads | None = None
        self._lock = threading.Lock()  # models load on several threads

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse parameters that make no sense, and what is the far end's to do; asks nobody."""
        self._loads.validate(config, model_folder)

    def may_complete(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> bool:
        """Return whether the far end would be asked for its config."""
        return not (config.inputs and config.outputs)

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Fill in what the far end's config says, where ours has no inputs or no outputs. Raises ServingError."""
        return config if config.inputs and config.outputs else self._loads.complete_config(config, model_folder)

    def create(self, context: InstanceContext) -> RemoteModel:
        """Make an instance, where some endpoint says that its model is ready. Raises ServingError."""
        return self._loads.create(context)

    def close(self) -> None:
        """The kernel has stopped."""
        if self._made is not None:
            self._made.close()

    @property
    def _loads(self) -> Loads:
        with self._lock:
            if self._made is None:
                from kernel_remote.loads import Loads

                self._made = Loads(self._kernel)
            return self._made
