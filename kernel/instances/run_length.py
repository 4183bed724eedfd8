"""How many executions an instance off the loop is handed at once, from how long they take. Any thread, one at a time.

The law: a run takes about a millisecond (`RUN_SECONDS`): shorter ones pay for more hops, longer ones hold up what waits behind
them.
"""

from __future__ import annotations

__all__ = ["READY_SECONDS", "RUN_LIMIT", "RUN_SECONDS", "RunLength"]

RUN_SECONDS = 0.001  # what one run should take
RUN_LIMIT = 256  # executions in one run at most
READY_SECONDS = 2 * RUN_SECONDS  # while a batch of a model takes less than this, a second one is laid ready behind it on a thread
STEP = 1.2  # the factor by which the time of an execution may change before the length of runs does
LEAST = 1e-6  # what an execution takes at least


class RunLength:
    """`seconds`: what an execution takes, as far as is known; `now`: how many make a run."""

    __slots__ = ("_from", "_to", "now", "seconds")

    def __init__(self) -> None:
        self.forget()

    def forget(self, seconds: float = RUN_SECONDS) -> None:
        """Begin anew with runs of one execution, and the guess that each takes so long."""
        self.seconds = seconds
        self.now = 1
        self._from = self._to = 0.0  # seconds: while executions take between these, `now` is left as it is

    def learn(self, took: float) -> bool:
        """Note how many seconds an execution took; return whether the length of runs may have changed."""
        # The fastest of the recent executions counts, and is let rise by a twentieth each time: what a busy interpreter adds to
        # one execution must not shorten the runs.
        seconds = self.seconds * 1.05
        if took < seconds:
            seconds = took
        self.seconds = seconds
        if self._from < seconds < self._to:
            return False
        self.now = min(RUN_LIMIT, max(1, int(RUN_SECONDS / max(seconds, LEAST))))
        self._from, self._to = seconds / STEP, seconds * STEP
        return True

    def on_thread(self, *, batches: bool) -> int:
        """Return how many executions an instance on a thread may be handed. `batches`: they are of several requests each."""
        # Without a batch that lies ready the thread would wait for the loop between any two of them.
        return max(2 if batches and self.seconds < READY_SECONDS else 1, self.now)
