"""What a fork of the server's process goes through before any other code of the child runs."""

from __future__ import annotations

import os
import signal

import pytest

from kernel.forking import SIGNALS, guard


class Thing:
    """Tells through a pipe which signals have to wait while it is cut off."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def forked(self) -> None:
        os.write(self.writing, bytes(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads, which is what models do
def test_signals_wait_until_the_child_is_cut_off() -> None:
    """One that came before would act as in the server, by handlers and descriptors that the child still has of it."""
    thing = Thing()
    guard(thing)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    child = os.fork()
    if child == 0:
        os.write(thing.writing, b"|" + bytes(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
        os._exit(0)
    os.waitpid(child, 0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    during, _, after = os.read(thing.reading, 100).partition(b"|")
    os.close(thing.reading)
    os.close(thing.writing)
    assert set(SIGNALS) <= set(during)
    assert set(after) == {int(number) for number in before}
