"""The backend behind placement `ray`: has actors started that serve a model of any backend, and makes what sends requests there.

Light: Ray, and what reaches other servers, are imported with the first model that wants them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernel import InstanceContext, Kernel, ModelConfig, PlacementChoice
from kernel_ray.settings import read_settings

if TYPE_CHECKING:
    from kernel_ray.loads import Loads
    from kernel_ray.model import RayModel

__all__ = ["RayBackend"]


class RayBackend:
    """The Backend of one kernel."""

    name = "ray"
    creates_on_loop = False  # an actor takes its time to come up
    uses_gpus = False  # those of other nodes

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._made: Loads | None = None
        self._lock = threading.Lock()  # models load on several threads

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse parameters that make no sense; asks no cluster."""
        if not config.is_elsewhere:
            words = f"model '{config.name}' has backend 'ray', which is a placement"
            wanted = "write the backend that executes it, and parameters { key: \"placement\" value { string_value: \"ray\" } }"
            raise config.error(words, wanted, at=("backend",))
        read_settings(config)

    def choose_placement(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> PlacementChoice:
        """Return what the config says."""
        return PlacementChoice("ray", "its config says so", asked=True)

    def may_complete(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> bool:
        """Return whether the config leaves something for the actor's kernel to fill in."""
        return not (config.inputs and config.outputs)

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Have the first actor load the model, and take over what it has filled in. Raises ServingError."""
        return self._loads.complete_config(config, model_folder, int(version_folder.name))

    def create(self, context: InstanceContext) -> RayModel:
        """Make what sends requests to actors, of which one serves by then. Raises ServingError."""
        return self._loads.create(context)

    def close(self) -> None:
        """The kernel has stopped."""
        if self._made is not None:
            self._made.close()

    @property
    def _loads(self) -> Loads:
        with self._lock:
            if self._made is None:
                from kernel_ray.loads import Loads

                self._made = Loads(self._kernel)
            return self._made
