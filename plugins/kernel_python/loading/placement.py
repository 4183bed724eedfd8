"""Where a model runs: as its config says, else by evidence (evidence.py). Knows the config and the files, runs nothing.

In the server a model shares its process with all others, which costs microseconds a call and is right only for code that is
known to get along with them; a process of its own is what the reference gives every instance.
"""

from __future__ import annotations

from pathlib import Path

from kernel import ModelConfig, PlacementChoice
from kernel_python.loading.evidence import examine
from kernel_python.settings import Settings

__all__ = ["asked_placement", "choose_placement"]


def asked_placement(config: ModelConfig) -> str | None:
    """Return the placement that the config asks for, None where it leaves it to us."""
    asked = config.parameters.get("placement", "auto").lower()
    return None if asked == "auto" else asked


def choose_placement(
    config: ModelConfig, file: Path, version_folder: Path, model_folder: Path, settings: Settings, seen: str | None
) -> PlacementChoice:
    """Return where the model in `file` runs, and why. `seen`: what it did when it ran in the server, that speaks against that."""
    asked = asked_placement(config)
    if asked is not None:
        return PlacementChoice(asked, "its config says so", asked=True)
    if "EXECUTION_ENV_PATH" in config.parameters:
        return PlacementChoice("process", "it has an environment of its own (EXECUTION_ENV_PATH)")
    if settings.default_placement == "process":
        return PlacementChoice("process", "backend-config python,default-placement=process")
    evidence = examine(file, version_folder, model_folder, settings.shared_modules)
    where = "loop" if evidence.asynchronous else "thread"
    if settings.default_placement == "server":
        return PlacementChoice(where, "backend-config python,default-placement=server")
    if seen is not None:
        return PlacementChoice("process", seen)
    return PlacementChoice(where if evidence.shareable else "process", evidence.reason)
