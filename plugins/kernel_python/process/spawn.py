"""Starts the process of a child and sees its end. Knows what a child is given (descriptors), not what is said to it.

No fork of the server. Where its own Python runs the model, a fork server makes the child (fork_server.py); another Python is
started afresh and executes child/start.py. Nothing of a child has a name in the file system, so nothing is left behind
however either side ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import kernel
from kernel_python.process.notes import Notes
from kernel_python.process.pool import Loans, Pool, create, mapped

__all__ = ["Ends", "Exited", "Given", "Interpreter", "Launcher", "Process", "boot", "spawn"]

#: What the interpreter is told to run: in the syntax of the oldest Python, to be able to refuse it in words.
BOOT = (
    "import sys\n"
    "if sys.version_info < (3, 9): sys.exit('Python 3.9 or newer is wanted; %s is %s' "
    "% (sys.executable, sys.version.split()[0]))\n"
    "sys.dont_write_bytecode = True\n"
    "if sys.path and not sys.path[0]: del sys.path[0]\n"  # the folder that the server happens to be in
    "path = sys.argv[1]\n"
    "with open(path, 'rb') as file: code = compile(file.read(), path, 'exec')\n"
    "exec(code, {'__name__': 'kernel_python_child', '__file__': path})\n"
)
START = Path(__file__).resolve().parent / "child" / "start.py"
KERNEL = Path(kernel.__file__).resolve().parent
LINES = 20  # of what the child wrote to stderr last
LINE_LENGTH = 500
KILL_SECONDS = 0.05  # how long to wait for the end of a process that was killed; after that the loop will notice it
EXIT_SECONDS = 1.0  # a process that has closed its socket is killed if it has not ended by then

#: Is told how a process has ended, in words.
Exited = Callable[[str], None]


@dataclass(frozen=True)
class Given:
    """The descriptors that a child gets: its end of the socket, the memory both ways, the pipe of tickets, its stderr.

    They belong to whoever starts the child until `close`.
    """

    socket: int
    inbound: int
    outbound: int
    tickets: int
    stderr: int

    def close(self) -> None:
        """Close them, once the child has its own."""
        for descriptor in (self.socket, self.inbound, self.outbound, self.tickets, self.stderr):
            os.close(descriptor)


class Launcher(Protocol):
    """Starts children. `own`: with the server's own Python, whose sys.path they take over."""

    @property
    def own(self) -> bool: ...

    def start(self, loop: asyncio.AbstractEventLoop, given: Given, stderr: int, exited: Exited) -> Process:
        """Start a child that gets `given`, and closes that here. On the loop's thread. Raises OSError."""

    def changes(self) -> dict[str, str | None]:
        """Return what a child that has just been started must change in its environment; None: a variable is to go."""


@dataclass(frozen=True)
class Ends:
    """What we share with a child: our end of the socket, both ends of the pipe of tickets, the memory both ways."""

    socket: socket.socket
    tickets: tuple[int, int]
    pool: Pool
    loans: Loans
    notes: Notes


class Process:
    """A child's process. `exited(how)` is called once, on the loop, after what it has written to stderr was read.

    `pid`: 0 as long as it is not known. `stderr`: what we read of it, which is closed here.
    """

    pid = 0

    def __init__(self, loop: asyncio.AbstractEventLoop, stderr: int, exited: Exited) -> None:
        self._loop = loop
        self._exited: Exited | None = exited
        self._lines: deque[str] = deque(maxlen=LINES)
        self._line = b""
        self._stderr = stderr
        os.set_blocking(stderr, False)
        loop.add_reader(stderr, self._read_stderr)
        self._until = 0.0

    def poll(self) -> int | None:
        """Return how the process has ended, None as long as it has not: its exit code, or less than 0 for a signal."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once."""
        raise NotImplementedError

    def look(self) -> None:
        """See whether the process has ended; called when something says that it has, or is about to."""
        if self._exited is None:
            return
        code = self.poll()
        if code is None:
            now = self._loop.time()
            if not self._until:
                self._until = now + EXIT_SECONDS
            elif now > self._until:
                self.kill()
            self._loop.call_later(0.002, self.look)
            return
        exited, self._exited = self._exited, None
        while self._read_stderr():
            pass
        self._close()
        exited(self._how(code))

    def _how(self, code: int) -> str:
        """Return in words how the process has ended, with what it said last."""
        if code >= 0:
            how = f"exited with code {code}"
        else:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "signal"
            how = f"was killed by {name} ({-code})"
            if -code == signal.SIGKILL:
                how += ", perhaps by the system for lack of memory"
        if self._line:
            self._lines.append(_shown(self._line))
        return f"{how}; the last it wrote to stderr:\n" + "\n".join(self._lines) if self._lines else how

    def _read_stderr(self) -> bool:
        """Pass on what the child writes to stderr, and remember the end of it."""
        try:
            data = os.read(self._stderr, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._stderr)
            return False
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-LINE_LENGTH:]
        self._lines.extend(_shown(line) for line in lines)
        return True

    def _close(self) -> None:
        self._loop.remove_reader(self._stderr)
        os.close(self._stderr)


class _Started(Process):
    """A process that is our own child."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], stderr: int, exited: Exited
    ) -> None:
        super().__init__(loop, stderr, exited)
        self.pid = process.pid
        self._process = process
        self._pidfd = -1
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(process.pid)
                loop.add_reader(self._pidfd, self.look)

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)  # reaped here, since the loop may have ended, and nobody else would

    def _close(self) -> None:
        super()._close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)


def _shown(line: bytes) -> str:
    return line[:LINE_LENGTH].decode(errors="replace").rstrip()


@dataclass(frozen=True)
class Interpreter:
    """How to start Python afresh for each child. `use`: lives as long as it is used."""

    command: tuple[str, ...] = (sys.executable,)
    environment: Mapping[str, str] | None = None
    own: bool = True
    use: object = None

    def start(self, loop: asyncio.AbstractEventLoop, given: Given, stderr: int, exited: Exited) -> Process:
        """See Launcher."""
        descriptors = (given.socket, given.inbound, given.outbound, given.tickets)
        process = boot(
            self.command, "one", descriptors, stderr=given.stderr, environment=self.environment
        )
        given.close()
        return _Started(loop, process, stderr, exited)

    def changes(self) -> dict[str, str | None]:
        """See Launcher: it was started with all of it."""
        return {}


def boot(
    command: tuple[str, ...],
    mode: str,
    descriptors: tuple[int, ...],
    *,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a Python that executes child/start.py in a `mode`, with descriptors of ours. Raises OSError."""
    arguments = [str(START), str(KERNEL), mode, str(os.getpid()), *map(str, descriptors)]
    return subprocess.Popen(
        [*command, "-c", BOOT, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=descriptors,
        env=environment,
    )


@contextlib.contextmanager
def wanted_for(what: str) -> Iterator[None]:
    """Have an OSError say what was to be made."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {what} can't be made") from None


def spawn(loop: asyncio.AbstractEventLoop, launcher: Launcher, exited: Exited) -> tuple[Process, Ends]:
    """Start a child. Raises OSError where that can't be done.

    On the loop's thread: on Linux the child asks to end with its parent (child/parent.py), that is, the thread that started it.
    """
    opened: list[int] = []
    with wanted_for("its socket"):
        ours, theirs = socket.socketpair()
    try:
        opened.append(theirs.detach())
        with wanted_for("the memory that it shares with the server"):
            opened.append(create())
            opened.append(create())
        with wanted_for("the pipes of its tickets and of its stderr"):
            opened += os.pipe()
            opened += os.pipe()
            end, inbound, outbound, reading, writing, stderr, their_stderr = opened
            os.set_blocking(reading, False)
            os.set_blocking(writing, False)  # the loop writes there
            opened.append(os.dup(reading))
        with wanted_for("the memory that it shares with the server"):
            memory_in, memory_out = mapped(os.dup(inbound)), mapped(os.dup(outbound))
        given = Given(end, inbound, outbound, opened[7], their_stderr)
        process = launcher.start(loop, given, stderr, exited)
    except BaseException:
        ours.close()
        for descriptor in opened:
            os.close(descriptor)
        raise
    ends = Ends(ours, (reading, writing), Pool(memory_in), Loans(memory_out), Notes(memory_out))
    return process, ends
