"""What a config's parameters say about a remote model. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernel import Key, ModelConfig

__all__ = ["Address", "Settings", "read_settings"]

_ADDRESS = re.compile(r"(grpcs?)://(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/,]+):(\d{1,5})").fullmatch
_NAME = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9.:_-]{0,251}[A-Za-z0-9])?").fullmatch
_SECONDS = re.compile(r"\d{1,4}(\.\d{1,6})?").fullmatch

#: The most connections to one endpoint, and what is taken where the config names none.
MOST_CONNECTIONS = 64
CONNECTIONS = 4

PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint is. `secure`: TLS."""

    host: str  # an IPv6 address without brackets
    port: int
    secure: bool = False

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"grpcs://{self.authority}" if self.secure else self.authority


@dataclass(frozen=True, slots=True)
class Settings:
    """`model`, `version`: as the far end calls it. `idempotent`: it may be executed twice.

    `connections`: the most to one endpoint. `patience`: seconds that a PING may go unanswered before a connection is given up.
    `server_name`: to which certificates have to belong, "" for the address's host.
    """

    endpoints: tuple[Address, ...]
    model: str
    version: str = ""
    idempotent: bool = False
    connections: int = CONNECTIONS
    patience: float = PATIENCE
    server_name: str = ""


def read_settings(config: ModelConfig) -> Settings:
    """Read the parameters. Raises ConfigError for what makes no sense."""
    given = {key: value.string_value for key, value in config.message.parameters.items()}

    def value(key: str, default: Any, read: Callable[[str], Any], wanted: str) -> Any:
        text = given.get(key)
        if text is None:
            return default
        found = read(text)
        if found is None:
            raise _bad(config, key, text, wanted)
        return found

    if not given.get("endpoints", "").strip(" ,"):
        raise config.error(
            f"model '{config.name}' has no endpoints",
            "wanted a parameter 'endpoints', such as a:8001,b:8001",
            at=("parameters",),
        )
    addresses = []
    for one in given["endpoints"].split(","):
        if one.strip():
            address = _address(one.strip())
            if address is None:
                wanted = "host:port, grpc://host:port or grpcs://host:port, several with commas between them"
                raise _bad(config, "endpoints", one.strip(), wanted)
            addresses.append(address)
    return Settings(
        tuple(dict.fromkeys(addresses)),
        given.get("remote_model") or config.name,
        value("remote_version", "", _version, "a version's number"),
        value("idempotent", False, {"true": True, "false": False}.get, "true or false"),
        value("connections", CONNECTIONS, _connections, f"a number from 1 to {MOST_CONNECTIONS}"),
        value("keepalive_timeout", PATIENCE, _seconds, "seconds, at least 1"),
        value("tls_server_name", "", _host, "the name of a host"),
    )


def _address(text: str) -> Address | None:
    match = _ADDRESS(text if "://" in text else f"grpc://{text}")
    if match is None or not 0 < int(match[3]) < 65536:
        return None
    return Address(match[2].strip("[]"), int(match[3]), match[1] == "grpcs")


def _version(text: str) -> str | None:
    return text if not text or (text.isdigit() and text.isascii()) else None


def _connections(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:4]) <= MOST_CONNECTIONS else None


def _seconds(text: str) -> float | None:
    return float(text) if _SECONDS(text) and float(text) >= 1.0 else None


def _host(text: str) -> str | None:
    return text if _NAME(text) else None


def _bad(config: ModelConfig, key: str, value: str, wanted: str) -> Exception:
    at = ("parameters", Key(key), "value", "string_value")
    return config.error(f"parameter '{key}' of model '{config.name}' is '{value}'", f"wanted {wanted}", at=at)
