"""Starts children by forking a process that is ready for it: Python, numpy and our own modules are imported there, once.

A fork server runs no model code, has no threads and no connections, so its children are as clean as fresh processes, are there in
milliseconds, and share its memory. It starts with the first child, or is there beforehand (`begin_ahead`), and ends with `close`;
should it end by itself, its children end with it, and the next child gets another. What runs in it is child/forking.py.
Everything here is on the kernel's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kernel_python.process.spawn import Exited, Given, Interpreter, Process, boot

__all__ = ["AHEAD", "ForkServer", "begin_ahead", "can_fork"]

log = logging.getLogger("kernel_python")

#: `begin_ahead`, as it is named to who may call it.
AHEAD = "kernel_python.process.fork_server:begin_ahead"
#: How long the fork server may take to say what has become of a child that was killed; seconds.
ANSWER_SECONDS = 10.0
#: How long is waited for one that is to be there beforehand; seconds.
AHEAD_SECONDS = 30.0
#: Longest message of the fork server's to us, in bytes.
LONGEST = 4096


def can_fork() -> bool:
    """Whether this system has what a fork server needs: signals by descriptor of the process, messages with their bounds.

    Asked of the system itself: a Python that knows these calls may run where they are not there (before Linux 5.3), or refused.
    """
    if sys.platform != "linux" or not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return False
    try:
        handle = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(handle, 0)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


class _Forked(Process):
    """A child of the fork server. `handle`: a descriptor of the process; -1 as long as it is not known.

    `unheard()` is called when nothing is heard of it that the fork server has to tell.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stderr: int, exited: Exited, unheard: Callable[[], None]
    ) -> None:
        super().__init__(loop, stderr, exited)
        self.handle = -1
        self._unheard = unheard
        self._code: int | None = None
        self._why = ""  # where the fork server is the cause of the end, or of there being no process: what is told
        self._to_kill = False

    def poll(self) -> int | None:
        return self._code

    def kill(self) -> None:
        first, self._to_kill = not self._to_kill, True
        with contextlib.suppress(ProcessLookupError):
            if self.handle >= 0:
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            elif self.pid:
                os.kill(self.pid, signal.SIGKILL)
        if first:
            self._loop.call_later(ANSWER_SECONDS, self._expect)

    def _expect(self) -> None:
        """By now the fork server should have told of the end, unless the system has not come to it."""
        if self._code is not None:
            return
        poll = select.poll()
        if self.handle >= 0:
            poll.register(self.handle, select.POLLIN)
        if self.handle < 0 or poll.poll(0):
            self._unheard()

    def begun(self, pid: int, handle: int) -> None:
        """The process is there. `handle`: -1 where we may not have another descriptor."""
        self.pid, self.handle = pid, handle
        if self._to_kill:
            self.kill()

    def ended(self, code: int, why: str = "") -> None:
        """The process has ended. `why`: by no doing of its own."""
        self._code, self._why = code, why
        self.look()

    def _how(self, code: int) -> str:
        return self._why or super()._how(code)

    def _close(self) -> None:
        super()._close()
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


@dataclass(frozen=True)
class _Begun:
    """A fork server's process, our end of the socket to it, and the environment that its children inherit."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    environment: dict[str, str]

    @classmethod
    def begin(cls) -> _Begun:
        """Start one. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ)
        try:
            with theirs:
                process = boot(Interpreter.command, "many", (theirs.fileno(),), environment=environment)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return cls(process, ours, environment)

    def await_ready(self, seconds: float) -> None:
        """Wait until it has imported what it shares with its children, has ended, or the time is over."""
        if select.select([self.control], [], [], seconds)[0]:
            with contextlib.suppress(OSError):  # it has ended, which `_taken` sees
                self.control.recv(LONGEST)  # what it says first


_ahead: _Begun | None = None  # one that nobody has taken yet


def begin_ahead() -> None:
    """Start the fork server that this process will have, and wait until it can fork: what is about to take the place of a replica
    has the time for that, and who dies then has not.

    On the thread that will be the loop's. Raises OSError.
    """
    global _ahead
    if _ahead is None and can_fork():
        _ahead = _Begun.begin()
        _ahead.await_ready(AHEAD_SECONDS)


def _taken() -> _Begun | None:
    """Return what `begin_ahead` has started, if it is there and has not ended."""
    global _ahead
    begun, _ahead = _ahead, None
    if begun is not None and begun.process.poll() is not None:
        begun.control.close()
        begun = None
    return begun


class ForkServer:
    """A Launcher, whose children are forks of one process. `wanted()`: called when it has begun."""

    own = True

    def __init__(self, wanted: Callable[[], None] = lambda: None) -> None:
        self._wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop
        self._numbers = itertools.count(1)
        self._coming: dict[int, _Forked] = {}  # by the number of the request for it
        self._running: dict[int, _Forked] = {}  # by its process's id
        self._unsent: deque[tuple[int, bytes, Given]] = deque()  # by number: what the socket had no room for
        self._environment: dict[str, str] = {}  # what its children inherit

    def start(self, loop: asyncio.AbstractEventLoop, given: Given, stderr: int, exited: Exited) -> Process:
        """See Launcher."""
        if self._control is None:
            self._begin(loop)
        number = next(self._numbers)
        message = marshal.dumps((number, _folder()))
        child = self._coming[number] = _Forked(loop, stderr, exited, self._unheard)
        self._unsent.append((number, message, given))
        if len(self._unsent) == 1:
            self._send()
        return child

    def changes(self) -> dict[str, str | None]:
        """See Launcher: what has changed in our environment since the fork server began."""
        before, now = self._environment, dict(os.environ)
        if before == now:
            return {}
        changes: dict[str, str | None] = {key: value for key, value in now.items() if before.get(key) != value}
        return changes | dict.fromkeys(before.keys() - now.keys())

    def close(self) -> None:
        """End it, with all children that are left. It may start once more."""
        process, control = self._process, self._control
        if process is None or control is None:
            return
        self._process = self._control = None
        self._loop.remove_reader(control.fileno())
        self._loop.remove_writer(control.fileno())
        control.close()
        process.kill()
        code = process.wait()
        how = f", which exited with code {code} (what it said of that is on stderr)" if code > 0 else ""
        while self._unsent:
            self._unsent.popleft()[2].close()
        gone = [*self._coming.values(), *self._running.values()]
        self._coming.clear()
        self._running.clear()
        for child in gone:
            child.kill()
            child.ended(-signal.SIGKILL, f"ended with the fork server that it came from{how}")

    # -- what is said --------------------------------------------------------------------------------------------------

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        begun = _taken() or _Begun.begin()
        self._process, self._environment = begun.process, begun.environment
        self._loop, self._control = loop, begun.control
        loop.add_reader(begun.control.fileno(), self._read)
        self._wanted()

    def _unheard(self) -> None:
        """It does not say what it has to: it was stopped, or hangs. Whoever needs a child would wait for ever."""
        if self._process is not None:
            log.error(
                "the fork server, process %d, does not answer: it is ended, and with it the %d processes that came from it",
                self._process.pid,
                len(self._running),
            )
            self.close()

    def _send(self) -> None:
        """Ask for the children that have not been asked for."""
        control, unsent = self._control, self._unsent
        assert control is not None
        while unsent:
            number, message, given = unsent[0]
            descriptors = [given.socket, given.inbound, given.outbound, given.tickets, given.stderr, *_stdout()]
            try:
                socket.send_fds(control, [message], descriptors)
            except BlockingIOError:
                self._loop.add_writer(control.fileno(), self._send)
                return
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET):  # it has ended, which the reader sees
                    return
                self._loop.call_soon(self._failed, number, error)
            unsent.popleft()
            given.close()
        self._loop.remove_writer(control.fileno())

    def _read(self) -> None:
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        kind, number, value = marshal.loads(data)
        if kind == "begun":
            child = self._running[value] = self._coming.pop(number)
            child.begun(value, descriptors[0] if descriptors else -1)
        elif kind == "ended":
            self._running.pop(number).ended(value)
        elif kind == "failed":
            self._failed(number, value)

    def _failed(self, number: int, why: object) -> None:
        child = self._coming.pop(number, None)
        if child is not None:
            child.ended(1, f"can't be forked: {why}")


def _folder() -> str:
    """Return the folder that we are in, "" where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _stdout() -> list[int]:
    """Return the descriptor that children are to write their output to, if there is one."""
    try:
        os.fstat(1)
    except OSError:
        return []
    return [1]
