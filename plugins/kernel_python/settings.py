"""`--backend-config=python,<setting>=<value>`: which settings there are, which of them mean something here.

The reference's sizes of shared memory and of its thread pool are checked and have nothing to act on: memory is taken as it is
needed, and calls need no threads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from kernel import Code, ServingError

__all__ = ["Settings", "read_settings"]

log = logging.getLogger("kernel_python")

MEBIBYTE = 1 << 20
DEFAULT_PLACEMENTS = ("auto", "server", "process")
WITH_EFFECT = ("stub-timeout-seconds", "stub-hang-seconds", "default-placement", "shared-modules")
WITHOUT_EFFECT = ("shm-default-byte-size", "shm-growth-byte-size", "shm-region-prefix-name", "thread-pool-size")


@dataclass(frozen=True)
class Settings:
    """`stub_timeout`: seconds in which a process for a model has to have begun, before any code of the model's runs.

    `stub_hang`: seconds without a sign of life after which such a process is ended, and started anew; 0: never.
    `default_placement`: of models whose config names none: "auto" (by evidence), "server" (loop or thread) or "process".
    `shared_modules`: what is safe to share besides the modules that are known to be.
    """

    stub_timeout: float = 30.0
    stub_hang: float = 30.0
    default_placement: str = "auto"
    shared_modules: frozenset[str] = frozenset()


def read_settings(given: Mapping[str, str]) -> Settings:
    """Return what the settings come to. Raises ServingError(INVALID_ARG), in the reference's words where it has some."""
    numbers = {
        key: _number(key, value) for key, value in given.items() if key in (*WITHOUT_EFFECT, "stub-timeout-seconds")
    }
    if numbers.get("shm-default-byte-size", 4 * MEBIBYTE) < 4 * MEBIBYTE:
        raise ServingError(Code.INVALID_ARG, "shm-default-byte-size can't be smaller than 4 MiBs")
    for key in ("shm-growth-byte-size", "stub-timeout-seconds", "thread-pool-size"):
        if numbers.get(key, 1) <= 0:
            raise ServingError(Code.INVALID_ARG, f"{key} can't be smaller than or equal to zero.")
    placement = given.get("default-placement", Settings.default_placement).lower()
    if placement not in DEFAULT_PLACEMENTS:
        raise ServingError(
            Code.INVALID_ARG,
            f"backend-config python,default-placement is '{placement}', where one of {', '.join(DEFAULT_PLACEMENTS)} is wanted",
        )
    for key in given:
        if key in WITHOUT_EFFECT:
            log.info("backend-config python,%s has no effect: there is nothing here that it could act on", key)
        elif key not in WITH_EFFECT and key != "default-max-batch-size":
            log.warning(
                "backend-config python,%s is not known; there are %s", key, ", ".join((*WITH_EFFECT, *WITHOUT_EFFECT))
            )
    return Settings(
        float(numbers.get("stub-timeout-seconds", Settings.stub_timeout)),
        _seconds("stub-hang-seconds", given.get("stub-hang-seconds", str(Settings.stub_hang))),
        placement,
        _module_names(given.get("shared-modules", "")),
    )


def _module_names(text: str) -> frozenset[str]:
    """Return the names in a list with commas."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ServingError(
                Code.INVALID_ARG,
                f"backend-config python,shared-modules names '{name}', where names of modules, separated by commas, are wanted",
            )
    return names


def _seconds(key: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ServingError(
            Code.INVALID_ARG, f"backend-config python,{key} is '{value}', where seconds, or 0 for none, are wanted"
        )
    return seconds


def _number(key: str, value: str) -> int:
    if key == "shm-region-prefix-name":
        return 1
    try:
        return int(value)
    except ValueError:
        raise ServingError(
            Code.INVALID_ARG, f"backend-config python,{key} is '{value}', where a whole number is wanted"
        ) from None
