"""After how many failures a model is given a rest, as its config says."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CIRCUIT_BREAKER", "BreakerRule"]

CIRCUIT_BREAKER = "circuit_breaker"
SECONDS = 10.0  # for which nobody is let in, where the config does not say


@dataclass(frozen=True, slots=True)
class BreakerRule:
    """`failures` in a row, for `seconds`."""

    failures: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> BreakerRule:
        """Read `5`, or `5/30` with seconds. Raises ValueError."""
        match = re.fullmatch(r"0*([1-9][0-9]{0,8})(?:/([0-9]{1,9}(?:\.[0-9]{1,9})?))?", text)
        if match is None:
            raise ValueError(f"'{text}' is not '<failures>' or '<failures>/<seconds>'")
        return cls(int(match[1]), SECONDS if match[2] is None else float(match[2]))
