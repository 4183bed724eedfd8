"""For how long an execution of a model may last, as its config says."""

from __future__ import annotations

from collections.abc import Mapping

from kernel.config.seconds import read_seconds
from kernel.errors import Code, ServingError

__all__ = ["KEY", "execution_limit_of"]

KEY = "execution_timeout"
WANTED = "wanted a number of seconds, 0 for no limit"


def execution_limit_of(parameters: Mapping[str, str], default: float) -> float:
    """Return for how many seconds an execution of a model may last, 0.0 for any number. Raises ServingError."""
    text = parameters.get(KEY)
    try:
        return default if text is None else read_seconds(text)
    except ValueError:
        raise ServingError(Code.INVALID_ARG, f"parameter '{KEY}' is '{text}', {WANTED}") from None
