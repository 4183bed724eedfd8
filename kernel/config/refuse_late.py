"""Whether a model refuses requests whose deadline its queue can't meet, as its config or the server says."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["KEY", "headroom_of", "parse"]

KEY = "refuse_late"


def parse(text: str) -> float | None:
    """Read `off`, `on`, or a headroom from 0 to below 1, such as `0.1`. Return the headroom, None for off. Raises ValueError."""
    if text in ("on", "off"):
        return 0.0 if text == "on" else None
    if not re.fullmatch(r"0(?:\.[0-9]{1,9})?", text):
        raise ValueError(f"'{text}' is not 'on', 'off', or a headroom from 0 to below 1, such as 0.1")
    return float(text)


def headroom_of(parameters: Mapping[str, str], default: float | None) -> float | None:
    """Return the share of its time that a request has to have left by the prediction; None: none is refused for it."""
    text = parameters.get(KEY)
    return default if text is None else parse(text)
