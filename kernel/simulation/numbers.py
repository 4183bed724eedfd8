"""How durations and numbers are read that a command line or a file gives. Errors say what came and what was wanted."""

from __future__ import annotations

import math
import re

from kernel.errors import Code, ServingError

__all__ = ["duration", "number", "wrong"]

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_DURATION = re.compile(r"([0-9.eE+-]+?)(s|ms|us|µs)")


def wrong(message: str) -> ServingError:
    """Return what is raised for an argument that can't be."""
    return ServingError(Code.INVALID_ARG, message)


def number(text: str, what: str) -> float:
    """Read a finite number of at least 0. `what`: what it is, for the error."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise wrong(f"{what} is '{text}', wanted is a number of at least 0")
    return value


def duration(text: str, what: str) -> float:
    """Read a duration such as 2ms; seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise wrong(f"{what} is '{text}', wanted is a number with its unit: s, ms or us, such as 2ms")
    return number(match[1], what) * _UNITS[match[2]]
