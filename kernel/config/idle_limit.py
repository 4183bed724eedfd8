"""For how long a model that is loaded on demand stays without requests, as its config says."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

__all__ = ["KEY", "idle_limit_of", "parse"]

KEY = "idle_timeout"


def parse(text: str) -> float:
    """Read a number of seconds, 0 for any time. Raises ValueError."""
    seconds = float(text)
    if not (seconds >= 0 and isfinite(seconds)):
        raise ValueError(f"'{text}', wanted a number of seconds, 0 for any time")
    return seconds


def idle_limit_of(parameters: Mapping[str, str], default: float) -> float:
    """Return for how many seconds a model may stay without requests, 0.0 for any time. The config was checked."""
    text = parameters.get(KEY)
    return default if text is None else parse(text)
