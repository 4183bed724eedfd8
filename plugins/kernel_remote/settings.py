"""What a config's parameters say about a remote model. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernel import Key, ModelConfig

__all__ = ["Settings", "read_settings"]

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/,]+):(\d{1,5})").fullmatch


@dataclass(frozen=True, slots=True)
class Settings:
    """`endpoints`: `host:port` each. `model`, `version`: as the far end calls it. `idempotent`: it may be executed twice."""

    endpoints: tuple[str, ...]
    model: str
    version: str
    idempotent: bool


def read_settings(config: ModelConfig) -> Settings:
    """Read the parameters. Raises ConfigError for what makes no sense."""
    given = {key: value.string_value for key, value in config.message.parameters.items()}
    endpoints = tuple(
        dict.fromkeys(
            one.strip().removeprefix("grpc://") for one in given.get("endpoints", "").split(",") if one.strip()
        )
    )
    if not endpoints:
        raise config.error(
            f"model '{config.name}' has no endpoints",
            "wanted a parameter 'endpoints', such as a:8001,b:8001",
            at=("parameters",),
        )
    for one in endpoints:
        match = _ADDRESS(one)
        if match is None or not 0 < int(match[1]) < 65536:
            raise _bad(config, "endpoints", one, "host:port, several with commas between them")
    idempotent = given.get("idempotent", "false").lower()
    if idempotent not in ("true", "false"):
        raise _bad(config, "idempotent", idempotent, "true or false")
    return Settings(
        endpoints, given.get("remote_model") or config.name, given.get("remote_version", ""), idempotent == "true"
    )


def _bad(config: ModelConfig, key: str, value: str, wanted: str) -> Exception:
    at = ("parameters", Key(key), "value", "string_value")
    return config.error(f"parameter '{key}' of model '{config.name}' is '{value}'", f"wanted {wanted}", at=at)
