"""What the kit finds wrong with a model: requests without an answer, and what is left when the model has gone.

All are AssertionErrors: the test has failed, and nothing of the kernel catches them.
"""

from __future__ import annotations

__all__ = ["Deadlock", "Leak", "Unanswered"]


class Unanswered(AssertionError):
    """A request has no final answer, and the message says who holds it."""


class Deadlock(Unanswered):
    """Everything waits and nothing is due: without the kit the test would hang."""


class Leak(AssertionError):
    """Something of a model is still there after its unload: an instance, a thread, a task, a module."""


for _kind in (Unanswered, Deadlock, Leak):
    _kind.__module__ = "kernel.testing"  # as tests import them, and as pytest shows them
