"""For how long an execution of a model may last, as its config says."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from kernel.errors import Code, ServingError

__all__ = ["KEY", "execution_limit_of", "parse"]

KEY = "execution_timeout"
WANTED = "wanted a number of seconds, 0 for no limit"


def parse(text: str) -> float:
    """Read a number of seconds, 0 for no limit. Raises ValueError."""
    seconds = float(text)
    if not (seconds >= 0 and isfinite(seconds)):
        raise ValueError(f"'{text}', {WANTED}")
    return seconds


def execution_limit_of(parameters: Mapping[str, str], default: float) -> float:
    """Return for how many seconds an execution of a model may last, 0.0 for any number. Raises ServingError."""
    text = parameters.get(KEY)
    try:
        return default if text is None else parse(text)
    except ValueError:
        raise ServingError(Code.INVALID_ARG, f"parameter '{KEY}' is '{text}', {WANTED}") from None
