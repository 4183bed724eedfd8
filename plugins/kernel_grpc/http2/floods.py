"""How much of what costs a server work and brings it nothing one connection may send: a bucket of tokens.

Pure: `now` is an argument. A client in good faith never notices; one that floods meets ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

__all__ = ["Budget"]


class Budget:
    """Up to `burst` at once, and `rate` a second in the long run."""

    __slots__ = ("_burst", "_left", "_rate", "_since")

    def __init__(self, burst: int, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left: float = burst
        self._since = now

    def spend(self, now: float, cost: int = 1) -> bool:
        """Take `cost`; False where that is more than is left."""
        self._left = min(self._burst, self._left + (now - self._since) * self._rate) - cost
        self._since = now
        return self._left >= 0

    def refund(self, amount: float | None = None) -> None:
        """Give back `amount`, by default all that was spent."""
        self._left = self._burst if amount is None else min(self._burst, self._left + amount)
