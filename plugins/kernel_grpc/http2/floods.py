"""How much of what costs a server work and brings it nothing one connection may send: two buckets of tokens.

Frames that bring nothing are paid for from one, streams that are reset from the other: floods (CVE-2019-9512 to 9518), rapid
resets (CVE-2023-44487) and resets that a client provokes (CVE-2025-8671) end the connection with ENHANCE_YOUR_CALM. A client in
good faith never notices. No clock: `now` is told.
"""

from __future__ import annotations

from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode
from kernel_grpc.http2.outgoing import Outgoing

__all__ = ["RESET_BURST", "USELESS_BURST", "Budget", "Floods"]

#: Frames that bring nothing: so many at once, and so many a second in the long run. What a client is sent pays them back, one
#: by one: a client that measures the line with a PING for every answer is no flood.
USELESS_BURST = 1000
USELESS_RATE = 100.0

#: Streams that are reset, by the client or for its mistakes.
RESET_BURST = 1000
RESET_RATE = 100.0


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


class Floods:
    """The budgets of one connection. `now`: the time of what is being received."""

    def __init__(self, outgoing: Outgoing, now: float) -> None:
        self.now = now
        self._outgoing = outgoing
        self._useless = Budget(USELESS_BURST, USELESS_RATE, now)
        self._resets = Budget(RESET_BURST, RESET_RATE, now)
        self._paid = 0  # the value of `outgoing.sent` up to which both were paid back

    def useless(self, what: str, cost: int = 1) -> None:
        """Count a frame that brings nothing. Raises ConnectionFailure when there were too many."""
        self._pay_back()
        if not self._useless.spend(self.now, cost):
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, f"too many frames that ask for nothing, the last {what}")

    def count_reset(self) -> None:
        """Count a stream that is reset. Raises ConnectionFailure when there were too many."""
        self._pay_back()
        if not self._resets.spend(self.now):
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def _pay_back(self) -> None:
        sent = self._outgoing.sent
        if sent != self._paid:
            self._useless.refund(sent - self._paid)
            self._resets.refund(sent - self._paid)
            self._paid = sent
