"""A child and its server: the child ends with the server, however that ends, and leaves to the server what signals mean."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

__all__ = ["die_with", "leave_signals_to_the_server"]

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the system kill us when the parent's process ends, where it can. (Elsewhere we see it when we next read.)"""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has ended before we said so
        os._exit(1)


def leave_signals_to_the_server() -> None:
    """Do nothing at SIGINT, SIGTERM and SIGHUP: terminals and service managers send them to all, the server says what follows.

    By a handler that does nothing, since an ignored signal would be ignored in the programs that a model starts, too. What a
    model forks can be terminated again; the terminal's SIGINT still does nothing there, as in the reference, or the drain would
    wait for workers that it has ended.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it, and means that for all programs that follow
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, _nothing)
    masks: dict[int, set[int]] = {}  # by thread: what it had blocked before it forked

    def hold() -> None:
        # A fork may be told to end before it has come to `forget`: that is to wait for it, and must not be lost.
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def forget() -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is _nothing:
                signal.signal(number, signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=forget)


def _nothing(*_: object) -> None:
    """What a signal does that is the server's."""
