"""Which requests are traced: every n-th, up to a count. Pure. One Sampler stands for one state of the trace settings.

When the settings change, another one takes over and counts afresh, as in the reference; traces that the old one has begun
are still its own.
"""

from __future__ import annotations

__all__ = ["Sampler"]


class Sampler:
    """`rate`: every so many-th request is traced; 0: only those that are forced. `left`: how many more, -1 without end.

    `times`, `tensors`: what is noted. `log_frequency`: how many traces make a file, 0: all in one. `open`: traces that have
    begun and not ended. `retired`: another one has taken over.
    """

    __slots__ = ("left", "log_frequency", "open", "rate", "retired", "seen", "tensors", "times")

    def __init__(self, rate: int, left: int, log_frequency: int, *, times: bool, tensors: bool) -> None:
        self.rate = rate
        self.left = left
        self.log_frequency = log_frequency
        self.times = times
        self.tensors = tensors
        self.seen = 0
        self.open = 0
        self.retired = False

    def take(self, forced: bool = False) -> bool:
        """Count a request; return whether it is traced. `forced`: it is, whatever the rate says."""
        if not self.rate or not self.left:
            return forced
        self.seen += 1
        if self.seen % self.rate:
            return forced
        if self.left > 0:
            self.left -= 1
        return True
