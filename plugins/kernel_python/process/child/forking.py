"""What runs in a fork server: forks children on request, and tells the server how they have ended.

One thread, no model code: all that a child may need of ours has been imported, and lies in memory that the children share with
us as long as nobody writes to it. The server's end of `control` is process/fork_server.py; each message is one packet.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import random
import select
import signal
import socket
import sys
from typing import Any

__all__ = ["Given", "next_child"]

LONGEST = 1 << 16
#: The descriptors of one child: socket, memory in, memory out, tickets.
Given = tuple[int, int, int, int]


def next_child(control: socket.socket) -> Given:
    """Fork a child for each request, until there is no more server. Returns in each child, once it is a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the server, which decides what becomes of us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # what `nohup` has ignored is to stay so
        signal.signal(signal.SIGHUP, _nothing)
    wake, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    gc.collect()
    gc.freeze()  # a collection in a child would write into these objects, and so copy the memory that it shares with us
    _say(control, ("ready", 0, 0))
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                _tell_of_ends(control)
                continue
            data, descriptors, _, _ = socket.recv_fds(control, LONGEST, 8, socket.MSG_CMSG_CLOEXEC)
            if not data:
                os._exit(0)
            number, folder = marshal.loads(data)
            try:
                child = os.fork()
            except OSError as error:
                child = -1
                _say(control, ("failed", number, str(error)))
            if child == 0:
                signal.set_wakeup_fd(-1)
                os.close(wake)
                os.close(waking)
                control.close()
                return _own(descriptors, folder)
            if child > 0:
                # The id can't have become another process's: we alone reap the child, and have not done it yet.
                handle = os.pidfd_open(child)
                _say(control, ("begun", number, child), handle)
                os.close(handle)
            for one in descriptors:
                os.close(one)


def _own(descriptors: list[int], folder: str) -> Given:
    """Make this fork a process of its own: standard streams, folder, signals, random numbers."""
    end, inbound, outbound, tickets, stderr, *stdout = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(stderr, 2)
    os.close(stderr)
    for one in stdout:
        os.dup2(one, 1)
        os.close(one)
    with contextlib.suppress(OSError):  # the folder has been removed: stay in ours
        os.chdir(folder)
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # or all children would draw the same numbers
    return end, inbound, outbound, tickets


def _tell_of_ends(control: socket.socket) -> None:
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        _say(control, ("ended", child, os.waitstatus_to_exitcode(status)))


def _say(control: socket.socket, message: tuple[Any, ...], *descriptors: int) -> None:
    try:
        socket.send_fds(control, [marshal.dumps(message)], descriptors)
    except OSError:
        os._exit(0)  # there is no server any more


def _nothing(*_: object) -> None:
    """What SIGCHLD and SIGHUP do; that one has come is written to the wake-up descriptor."""
