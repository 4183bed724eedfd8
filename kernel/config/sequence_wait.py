"""For how long a sequence may wait for a slot, as its model's config says."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["KEY", "parse", "sequence_wait_of"]

KEY = "sequence_wait"


def parse(text: str) -> float:
    """Read a number of seconds, 0 for any time. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text):
        raise ValueError(f"'{text}' is not a number of seconds, 0 for any time")
    return float(text)


def sequence_wait_of(parameters: Mapping[str, str]) -> float:
    """Return for how many seconds a sequence may wait for a slot, 0.0 for any time."""
    return parse(parameters.get(KEY, "0"))
