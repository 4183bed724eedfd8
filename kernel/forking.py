"""What a child process that model code forks must not have of the server's: its sockets, its signals, its loop, its threads.

Who owns such a thing gives it to `guard`; its `forked()` is called in every child, before the child's own code runs.
Descriptors are not closed but made to lead nowhere (`put_away`), so that whatever the child's copies of our objects do to them
later does no harm: their numbers can't come to mean another file. Nothing is asked while the server serves. Knows no models.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import Any, Protocol

__all__ = ["FORKED", "end", "guard", "put_away", "put_away_loop", "put_away_sockets"]

#: Why a child can't do what only the server can.
FORKED = (
    "this process was forked by the code of a model: it is not the server and can't call models or answer requests; "
    "do that where `execute` runs"
)

#: As they are: what models find under these names may be refused to them.
_set_signal, _set_wakeup_fd = signal.signal, signal.set_wakeup_fd

#: What ends a server; in its children it means what it means in any process.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Guarded(Protocol):
    """What has something that no child may have. Has to be weakly referable."""

    def forked(self) -> None:
        """Called in a child, on its only thread: cut the child off. Must not block; what it raises is passed over."""


_guarded: weakref.WeakSet[Guarded] = weakref.WeakSet()
_registered = False
_masks: dict[int, Any] = {}  # by thread that forks: the signals that it had blocked before


def guard(thing: Guarded) -> None:
    """Have `thing.forked()` called in each child that this process forks while `thing` lives."""
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_go, after_in_child=_in_child)
    _guarded.add(thing)


def _hold_signals() -> None:
    """Before a fork: what is sent to the child before `_in_child` has cut it off has to wait, or it would reach the server."""
    _masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let_signals_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(get_ident()))


def _in_child() -> None:
    guarded = list(_guarded)
    if guarded:
        _restore_signals()
        for thing in guarded:
            with contextlib.suppress(Exception):
                thing.forked()
    _let_signals_go()


def _restore_signals() -> None:
    """Have signals do what they do in a fresh process.

    A loop hears of them by bytes in a socket, which the child shares with the server: what terminates the child would stop that.
    """
    with contextlib.suppress(ValueError):  # not the main interpreter
        _set_wakeup_fd(-1)
        for number in SIGNALS:
            if callable(signal.getsignal(number)):
                _set_signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def put_away(*descriptors: int) -> None:
    """Have these descriptors of the child lead nowhere. They stay open; negative ones are left out."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        for descriptor in descriptors:
            if descriptor >= 0 and descriptor != nowhere:
                os.dup2(nowhere, descriptor, inheritable=False)
    finally:
        os.close(nowhere)


def put_away_sockets(names: Sequence[object]) -> None:
    """Put away every socket with one of these local names: what listens there, and what was accepted there.

    Of a TCP address the port decides: what is accepted at `0.0.0.0` has the address that its client has named.
    """
    wanted = {_place(name) for name in names}
    found = []
    for entry in os.listdir("/dev/fd"):
        descriptor = int(entry)
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            one = socket.socket(fileno=descriptor)
            try:
                name = one.getsockname()
            finally:
                one.detach()
            if name and _place(name) in wanted:
                found.append(descriptor)
    put_away(*found)


def _place(name: object) -> object:
    return name[1] if isinstance(name, tuple) else name


def put_away_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cut an event loop off from what it shares with the server's; if the child comes back to it, the child ends."""
    own: Any = loop
    with contextlib.suppress(Exception):
        own.call_soon(end)
    if hasattr(own, "_get_backend_id"):  # uvloop
        put_away(own._get_backend_id())
    elif hasattr(own, "_selector") and hasattr(own._selector, "fileno"):
        put_away(*(one.fileno() for one in (own._selector, own._ssock, own._csock)))


def end(*_: object) -> None:
    """End a child that has come back from a model's code into the server's, where it has no business."""
    os._exit(1)
