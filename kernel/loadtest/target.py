"""Who is sent requests: a model at an address. What all wires have in common, and what counts as an address."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from kernel.errors import Code, ServingError
from kernel.loadtest.described import Described
from kernel.tensor import Tensor

__all__ = ["Ask", "CallChannel", "Done", "LoadTarget", "Parameter", "TargetOptions", "channels", "is_address", "split"]

#: The group of entry points that say how servers are reached otherwise than by HTTP: scheme -> a CallChannel's class.
CHANNELS = "kernel.channels"

#: Is told why a request has failed, "" where it has not, and when its first response came, 0.0 where it has only one.
Done = Callable[[str, float], None]

Parameter = bool | int | str

#: Asks a server: `ask(url, path, headers)` returns status, reason and content of the answer. Raises ServingError without one.
Ask = Callable[[str, str, Mapping[str, str]], tuple[int, str, Any]]

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):\d{1,5}/?")


@dataclass(frozen=True)
class TargetOptions:
    """How a server is asked. `timeout`: seconds after which an answer no longer counts. `binary`: HTTP's binary tensors."""

    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    binary: bool = True
    connections: int = 1000


class LoadTarget(Protocol):
    """A model at an address; on the loop. `responses`: how many have come, of requests that have several."""

    address: str
    model: Described
    responses: int

    def encode(self, inputs: Mapping[str, Tensor], parameters: Mapping[str, Parameter]) -> bytes:
        """Return a request as `send` takes it."""

    def send(self, message: bytes, done: Done) -> None:
        """Send a request; `done` is called once, later."""

    async def close(self) -> None:
        """Close all connections."""


class CallChannel(Protocol):
    """Makes gRPC calls. Made of an address and header fields; on the loop.

    `messages`: has the messages of the protocol, such as `ModelInferRequest`, as protobuf's Python makes them.
    """

    messages: Any

    def call(
        self, path: str, message: bytes, timeout: float, came: Callable[[bytes], None], ended: Callable[[int, str], None]
    ) -> None:
        """Make a call that ends within `timeout` seconds: `came` for each message, then once `ended` with status and words."""

    def close(self) -> None:
        """End all that goes on."""


def is_address(text: str) -> bool:
    """Whether a server is meant, not a repository: a URL whose scheme is one of ours, or host:port."""
    scheme, found, _ = text.partition("://")
    if found:
        return scheme in ("http", "https") or scheme in channels()
    return _HOST_AND_PORT.fullmatch(text) is not None


def split(address: str, port: int) -> tuple[str, int, str]:
    """Return host, port and path of a URL. Raises ServingError."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or port
    except ValueError:  # such as a port that is no number
        host = ""
    if not host:
        raise ServingError(Code.INVALID_ARG, f"'{address}' is no address, wanted is one such as http://localhost:8000")
    return host, port, parts.path.rstrip("/")


def channels() -> dict[str, importlib.metadata.EntryPoint]:
    """Return what plugins say of how servers are reached, by scheme."""
    return {one.name: one for one in importlib.metadata.entry_points(group=CHANNELS)}
