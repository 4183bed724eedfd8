"""How often arrays were copied on their way between models; counted where it happens, and held by tests."""

from __future__ import annotations

__all__ = ["COPIES", "Copies"]


class Copies:
    """How often arrays were copied.

    `small`: those of up to SMALL bytes, anywhere. The rest: larger ones, by the handover. `received`: a
    received array whose memory others can see, at `as_numpy()`. `output`, `sent`: a response returned from `execute`, or sent
    by a sender. `called`: an input of a BLS call. `passed`: large arrays handed over without a copy.
    """

    __slots__ = ("called", "output", "passed", "received", "sent", "small")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.small = self.received = self.output = self.sent = self.called = self.passed = 0

    @property
    def large(self) -> int:
        return self.received + self.output + self.sent + self.called


COPIES = Copies()
