"""For how long a model that is loaded on demand stays without requests, as its config says."""

from __future__ import annotations

from collections.abc import Mapping

from kernel.config.seconds import read_seconds

__all__ = ["KEY", "idle_limit_of"]

KEY = "idle_timeout"


def idle_limit_of(parameters: Mapping[str, str], default: float) -> float:
    """Return for how many seconds a model may stay without requests, 0.0 for any time. The config was checked."""
    text = parameters.get(KEY)
    return default if text is None else read_seconds(text)
