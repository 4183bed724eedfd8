"""What a config's parameters say about placement `ray`, and what the backend was told at start. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel import Code, Key, ModelConfig, ServingError

__all__ = ["PREFIX", "ClusterSettings", "Settings", "read_cluster_settings", "read_settings"]

#: What the parameters for this placement begin with.
PREFIX = "ray_"

#: The most actors of one model.
MOST_ACTORS = 1024

_ACTORS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?").fullmatch
_NUMBER = re.compile(r"\d{1,6}(\.\d{1,4})?").fullmatch


@dataclass(frozen=True, slots=True)
class Settings:
    """`least`, `most`: how many actors. What one takes of its node: `cpus`, `gpus`, `memory` in bytes, `resources` by name.

    `node`: the id or the address of the one that is wanted, "" for any. `runtime_env`: Ray's. `ship`: have the model's files
    carried to the node also where they lie there. `start_timeout`: seconds until an actor serves. `idempotent`: a request may be
    executed twice. `patience`: seconds that a PING may go unanswered.
    """

    least: int = 1
    most: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    node: str = ""
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    ship: bool = False
    start_timeout: float = 120.0
    idempotent: bool = False
    patience: float = 10.0

    @property
    def shown(self) -> str:
        """What one actor asks for, as messages say it."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory, **self.resources}
        found = [f"{name} {amount:g}" for name, amount in asked.items() if amount]
        return ", ".join(found + ([f"node {self.node}"] if self.node else [])) or "nothing"


def read_settings(config: ModelConfig) -> Settings:
    """Read the parameters. Raises ConfigError for what makes no sense."""
    given = {key: value.string_value for key, value in config.message.parameters.items()}
    unknown = [key for key in given if key.startswith(PREFIX) and key not in NAMES]
    if unknown:
        raise _bad(config, unknown[0], f"no parameter of placement 'ray'; there are {', '.join(sorted(NAMES))}", is_value=False)
    found: dict[str, Any] = {}
    for key, (name, read, wanted) in READ.items():
        if key in given:
            try:
                found[name] = read(given[key])
            except ValueError as error:
                raise _bad(config, key, f"wanted {wanted}{f' ({error})' if str(error) else ''}") from None
    least, most = found.pop("actors", (1, 1))
    return Settings(least, most, **found)


def _actors(text: str) -> tuple[int, int]:
    match = _ACTORS(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if not 1 <= least <= most <= MOST_ACTORS:
        raise ValueError
    return least, most


def _number(text: str) -> float:
    if not _NUMBER(text):
        raise ValueError
    return float(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    seconds = _number(text)
    if seconds < 1.0:
        raise ValueError
    return seconds


def _word(*choices: str) -> Callable[[str], bool]:
    """Return what reads one of two words: whether it is the first."""

    def read(text: str) -> bool:
        if text not in choices:
            raise ValueError
        return text == choices[0]

    return read


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError
    return found


def _resources(text: str) -> dict[str, float]:
    found = _object(text)
    if not all(isinstance(amount, (int, float)) and not isinstance(amount, bool) and amount >= 0 for amount in found.values()):
        raise ValueError
    return {name: float(amount) for name, amount in found.items()}


#: Parameter -> the setting, what reads it, and what was wanted where that raises ValueError.
READ: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "ray_actors": ("actors", _actors, f"a number from 1 to {MOST_ACTORS}, or the least and the most, such as 1-4"),
    "ray_num_cpus": ("cpus", _number, "a number of cores, such as 2 or 0.5"),
    "ray_num_gpus": ("gpus", _number, "a number of GPUs, such as 1 or 0.5"),
    "ray_memory": ("memory", _count, "a number of bytes"),
    "ray_resources": ("resources", _resources, 'a JSON object of numbers, such as {"accelerator": 1}'),
    "ray_node": ("node", str, "the id or the address of a node"),
    "ray_runtime_env": ("runtime_env", _object, 'a JSON object as Ray\'s runtime_env, such as {"env_vars": {"A": "1"}}'),
    "ray_files": ("ship", _word("ship", "auto"), "'auto' or 'ship'"),
    "ray_start_timeout": ("start_timeout", _seconds, "seconds, at least 1"),
    "idempotent": ("idempotent", _word("true", "false"), "true or false"),
    "keepalive_timeout": ("patience", _seconds, "seconds, at least 1"),
}
NAMES = frozenset(READ)


def _bad(config: ModelConfig, key: str, wanted: str, is_value: bool = True) -> Exception:
    at = ("parameters", Key(key), "value", "string_value") if is_value else ("parameters", Key(key))
    came = f" is '{config.message.parameters[key].string_value}'" if is_value else ""
    return config.error(f"parameter '{key}' of model '{config.name}'{came}", wanted, at=at)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """`address`: of the cluster, as Ray takes it. `log_to_driver`: what actors print is shown here."""

    address: str = "auto"
    log_to_driver: bool = True


def read_cluster_settings(given: Mapping[str, str]) -> ClusterSettings:
    """Read what the backend was told at start (`--backend-config=ray,…`). Raises ServingError."""
    log = given.get("log-to-driver", "true")
    if log not in ("true", "false"):
        raise ServingError(Code.INVALID_ARG, f"setting 'log-to-driver' of backend 'ray' is '{log}', wanted true or false")
    return ClusterSettings(given.get("address", "auto"), log == "true")
