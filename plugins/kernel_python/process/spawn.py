"""Starts the process of a child and watches over its end. Knows what a child is given (descriptors), not what is said to it.

No fork of the server: a fresh interpreter executes child/start.py. Nothing of a child has a name in the file system, so
nothing is left behind however either side ends.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import kernel
from kernel_python.process.notes import Notes
from kernel_python.process.pool import Loans, Pool, create, mapped

__all__ = ["Ends", "Interpreter", "Process", "spawn"]

#: What the interpreter is told to run: as plain as can be, since it may be any Python.
BOOT = (
    "import sys\n"
    "if sys.version_info < (3, 9): sys.exit('Python 3.9 or newer is wanted; %s is %s' "
    "% (sys.executable, sys.version.split()[0]))\n"
    "sys.dont_write_bytecode = True\n"
    "path = sys.argv[1]\n"
    "with open(path, 'rb') as file: code = compile(file.read(), path, 'exec')\n"
    "exec(code, {'__name__': 'kernel_python_child', '__file__': path})\n"
)
START = Path(__file__).resolve().parent / "child" / "start.py"
KERNEL = Path(kernel.__file__).resolve().parent
LINES = 20  # of what the child wrote to stderr last
LINE_LENGTH = 500
KILL_SECONDS = 0.05  # what the end of a killed process may take, before it is left to the loop
EXIT_SECONDS = 1.0  # between the end of the socket and that of the process, before it is helped along


@dataclass(frozen=True)
class Interpreter:
    """How to start Python. `own`: the server's, whose sys.path the child takes over. `use`: lives as long as it is used."""

    command: tuple[str, ...] = (sys.executable,)
    environment: Mapping[str, str] | None = None
    own: bool = True
    use: object = None


@dataclass(frozen=True)
class Ends:
    """What we share with a child: our end of the socket, both ends of the pipe of tickets, the memory both ways."""

    socket: socket.socket
    tickets: tuple[int, int]
    pool: Pool
    loans: Loans
    notes: Notes


class Process:
    """A child's process. `exited(how)` is called once, on the loop, after what it has written to stderr was read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], exited: Callable[[str], None]) -> None:
        self.pid = process.pid
        self._loop = loop
        self._process = process
        self._exited: Callable[[str], None] | None = exited
        self._lines: deque[str] = deque(maxlen=LINES)
        self._line = b""
        assert process.stderr is not None
        self._stderr = process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        loop.add_reader(self._stderr, self._read_stderr)
        self._watch = -1
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._watch = os.pidfd_open(process.pid)
                loop.add_reader(self._watch, self.look)
        self._until = 0.0

    def look(self) -> None:
        """See whether the process has ended; called when something says that it has, or is about to."""
        if self._exited is None:
            return
        code = self._process.poll()
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

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)  # the loop may not turn any more: leave no zombie behind

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
        if self._watch >= 0:
            self._loop.remove_reader(self._watch)
            os.close(self._watch)
        assert self._process.stderr is not None
        self._process.stderr.close()


def _shown(line: bytes) -> str:
    return line[:LINE_LENGTH].decode(errors="replace").rstrip()


def spawn(
    loop: asyncio.AbstractEventLoop, interpreter: Interpreter, exited: Callable[[str], None]
) -> tuple[Process, Ends]:
    """Start a child. On the loop's thread, with whose end the child would end. Raises OSError where that can't be done."""
    given: list[int] = []  # what the child gets
    kept: list[int] = []
    ours, theirs = socket.socketpair()
    try:
        inbound, outbound = create(), create()
        given += [theirs.detach(), inbound, outbound]
        reading, writing = os.pipe()
        kept += [reading, writing]
        os.set_blocking(reading, False)
        given.append(os.dup(reading))
        process = subprocess.Popen(
            [*interpreter.command, "-c", BOOT, str(START), str(KERNEL), *map(str, given)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=given,
            env=interpreter.environment,
        )
    except BaseException:
        ours.close()
        for descriptor in (*given, *kept):
            os.close(descriptor)
        raise
    os.close(given[0])
    os.close(given[3])
    memory = mapped(outbound)
    ends = Ends(ours, (reading, writing), Pool(mapped(inbound)), Loans(memory), Notes(memory))
    return Process(loop, process, exited), ends


