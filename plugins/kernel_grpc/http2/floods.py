"""How much of what costs a server work and brings it nothing one connection may send: three buckets of tokens, and a turn's work.

Frames that bring nothing are paid for from one, streams that are reset from another, credit from the third: floods (CVE-2019-9512
to 9518), rapid resets (CVE-2023-44487) and resets that a client provokes (CVE-2025-8671) end the connection with
ENHANCE_YOUR_CALM. A client in good faith never notices. What is allowed is still work: so much of it is done for one connection
in one turn of the loop, the rest waits for another. No clock: `now` is told.
"""

from __future__ import annotations

from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode
from kernel_grpc.http2.outgoing import Outgoing

__all__ = ["CREDIT_BURST", "RESET_BURST", "TURN", "USELESS_BURST", "Budget", "Floods"]

#: Frames that bring nothing: so many at once, and so many a second in the long run. What a client is sent pays them back, one
#: by one: a client that measures the line with a PING for every answer is no flood.
USELESS_BURST = 1000
USELESS_RATE = 100.0

#: Streams that are reset, by the client or for its mistakes.
RESET_BURST = 1000
RESET_RATE = 100.0

#: WINDOW_UPDATE frames. Some clients send two for each frame of data that they get, of which there are eight to a stream's turn,
#: and four times as many where they count by the kilobyte; that is what a client may send for each thing that it was sent.
CREDIT_BURST = 10_000
CREDIT_RATE = 1000.0
CREDIT_PER_SENT = 64

#: What may be done for one connection before others have their turn: a frame that steers costs 1, a header block that has not
#: come before as much as it has fields. A millisecond's work or two. Frames of any kind are counted besides
#: (`reader.A_TURNS_FRAMES`).
TURN = 512


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
    """The budgets of one connection. `now`: the time of what is being received. `turn`: the work left in this turn."""

    def __init__(self, outgoing: Outgoing, now: float) -> None:
        self.now = now
        self._outgoing = outgoing
        self._useless = Budget(USELESS_BURST, USELESS_RATE, now)
        self._resets = Budget(RESET_BURST, RESET_RATE, now)
        self._credit = Budget(CREDIT_BURST, CREDIT_RATE, now)
        self.turn = TURN
        self._paid = 0  # of what `outgoing` has sent, how much has been paid back

    @property
    def spent(self) -> int:
        """How much of this turn's work is done."""
        return TURN - self.turn

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

    def count_credit(self) -> None:
        """Count a WINDOW_UPDATE. Raises ConnectionFailure when there were too many for what the client was sent."""
        self._pay_back()
        if not self._credit.spend(self.now):
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many WINDOW_UPDATE frames for what was sent")

    def _pay_back(self) -> None:
        """What a client was sent pays for what it sends, but for answers that say its request was wrong: they cost it nothing."""
        outgoing = self._outgoing
        gain = outgoing.sent - outgoing.worthless - self._paid
        if gain > 0:
            self._useless.refund(gain)
            self._resets.refund(gain)
            self._credit.refund(gain * CREDIT_PER_SENT)
            self._paid += gain
