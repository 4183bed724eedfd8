"""When a child process is given up (kernel_python/process/pulse.py): a pure rule."""

from __future__ import annotations

import os

from kernel_python.process.pulse import LOOKS, Pulse, work_of


def test_beats_or_work_are_signs_of_life() -> None:
    """A long call into C that keeps the interpreter to itself beats no more, and works."""
    pulse = Pulse()
    for tick in range(1, 20):
        assert not pulse.has_stopped(tick, 7)
    for tick in range(20):
        assert not pulse.has_stopped(19, 8 + tick)


def test_neither_for_some_looks_is_the_end() -> None:
    pulse = Pulse()
    seen = [pulse.has_stopped(3, 5) for _ in range(LOOKS + 1)]
    assert seen == [False] * LOOKS + [True]
    assert not pulse.has_stopped(4, 5)


def test_where_work_is_not_known_beats_decide() -> None:
    pulse = Pulse()
    assert [pulse.has_stopped(1, None) for _ in range(LOOKS + 1)][-1]


def test_a_late_look_counts_as_one() -> None:
    """The server was suspended together with its children: how late it looks does not matter."""
    pulse = Pulse()
    pulse.has_stopped(1, 1)
    assert not pulse.has_stopped(1, 1)


def test_what_the_system_tells_of_a_process() -> None:
    found, work = work_of(os.getpid())
    if work is not None:  # there is a /proc
        assert (found, work > 0) == ("hangs", True)
    assert work_of(0) == ("", None)
