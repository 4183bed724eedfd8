"""For how long an execution of a model may last, as its config says."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from kernel.errors import Code, ServingError

__all__ = ["KEY", "limit_of"]

KEY = "execution_timeout"


def limit_of(parameters: Mapping[str, str], default: float) -> float:
    """Return for how many seconds an execution of a model may last, 0.0 for any number. Raises ServingError."""
    text = parameters.get(KEY)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (seconds >= 0 and isfinite(seconds)):
        raise ServingError(Code.INVALID_ARG, f"parameter '{KEY}' is '{text}', wanted a number of seconds, 0 for no limit")
    return seconds
