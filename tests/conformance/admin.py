"""What is no inference, on whichever wire: health, metadata, statistics, the repository, regions, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .grpc_admin import GrpcAdmin
from .http_admin import HttpAdmin
from .http_wire import HttpWire

__all__ = ["admin_of"]


def admin_of(wire: Any, headers: Mapping[str, str] | None = None) -> Any:
    """Return the operations on that wire; `headers` go with each."""
    return HttpAdmin(wire, headers) if isinstance(wire, HttpWire) else GrpcAdmin(wire, headers)
