"""How parameters of a config that are a number of seconds are read."""

from __future__ import annotations

from math import isfinite

__all__ = ["read_seconds"]


def read_seconds(text: str) -> float:
    """Read a number of seconds, at least 0. Raises ValueError."""
    seconds = float(text)
    if not (seconds >= 0 and isfinite(seconds)):
        raise ValueError(f"'{text}', wanted a number of seconds, at least 0")
    return seconds
