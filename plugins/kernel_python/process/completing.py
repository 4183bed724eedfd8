"""`auto_complete_config` of a model that runs in processes: in a process, too, which lives for nothing else.

The model is not imported in the server: it may need another Python, or take the process down that imports it. Nor does this
process become the first instance's, so the file is imported once more there. The reference has it so, and models are written for
that: what `auto_complete_config` leaves behind (variables of modules, memory of a GPU, threads) no instance meets.
"""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

from kernel import Batch, Code, Kernel, ModelConfig, ServingError
from kernel_python.process.executor import setup_of
from kernel_python.process.life import Life
from kernel_python.process.pulse import LOOKS
from kernel_python.process.spawn import Launcher

__all__ = ["complete_in_process"]


def complete_in_process(
    kernel: Kernel,
    config: ModelConfig,
    version_folder: Path,
    model_folder: Path,
    file: Path,
    launcher: Launcher,
    patience: float,
    hang: float = 0.0,
) -> dict[str, Any] | None:
    """Return what the model's `auto_complete_config` makes of its config, in a process; None where it has none.

    On a load thread. Raises ServingError.
    """
    setup = setup_of(config, version_folder, model_folder, file, launcher) | {
        "instance": config.name,
        "phase": "auto_complete",
        "config": json.dumps(config.as_dict()),
        "patience": patience,
        "beat": hang / LOOKS,
    }
    completion = _Completion()
    kernel.call_soon(completion.begin, kernel, config.name, setup, launcher)
    filled: dict[str, Any] | None = completion.future.result()
    return filled


class _Completion:
    """Owns the one life in which a config is completed."""

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[dict[str, Any] | None] = concurrent.futures.Future()
        self._filled: dict[str, Any] | None = None
        self._has_filled = False

    def begin(self, kernel: Kernel, name: str, setup: dict[str, Any], launcher: Launcher) -> None:
        try:
            Life(kernel, name, setup, launcher, self)
        except OSError as error:
            self.future.set_exception(
                ServingError(Code.INTERNAL, f"the process that completes the config of '{name}' can't be started: {error}")
            )

    def ready(self, life: Life, is_async: bool) -> None:
        raise AssertionError("nothing was to be executed")

    def completed(self, life: Life, config: str | None) -> None:
        self._filled, self._has_filled = None if config is None else json.loads(config), True
        life.kill()

    def ending(self, life: Life) -> None:
        """It is given no executions."""

    def ended(self, life: Life, not_begun: list[Batch]) -> None:
        if self._has_filled:
            self.future.set_result(self._filled)
        else:
            assert life.why is not None
            self.future.set_exception(life.why)
