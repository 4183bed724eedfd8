"""`kernel serve` as the child of an actor: started, watched until it serves, ended with the actor. No Ray in here.

Its output is passed on and read for where it listens; that it serves it tells by NOTIFY_SOCKET, as it tells systemd.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Child"]

#: Lines of a child that are kept, for who asks why it has ended.
KEPT = 20

_STARTED = re.compile(r"Started (\w+?)(?:Inference)?(?: ?Service) at (\S+:\d+)").search

#: Has the child ended by the system as soon as the thread that has started it has gone, in a way that lets it finish.
_BOUND = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except (AttributeError, OSError):
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class Child:
    """One `kernel serve`. `ready`, `over`: set when it serves, when it has ended; `endpoints`: service -> where it listens."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.ready = threading.Event()
        self.over = threading.Event()
        self.endpoints: dict[str, str] = {}
        self.status: int | None = None
        self.pid = 0
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = threading.Event()
        # The thread lives as long as the child: it is the one at whose end the system ends it.
        threading.Thread(target=self._run, args=(list(arguments),), name="kernel serve", daemon=True).start()
        self._begun.wait()

    def why(self) -> str:
        """Return how it has ended, and its last words."""
        status = self.status or 0
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return "\n".join([f"kernel serve has ended with {how}", *(f"    {line}" for line in self._lines)])

    def stop(self, seconds: float) -> None:
        """Have it finish what is in flight; end it where that takes longer."""
        process = self._process
        if process is not None and not self.over.is_set():
            process.terminate()
            if not self.over.wait(seconds):
                process.kill()
                self.over.wait()

    def _run(self, arguments: list[str]) -> None:
        datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with tempfile.TemporaryDirectory(prefix="kernel_serve-") as folder, datagrams as told:
            told.bind(str(Path(folder) / "notify"))
            told.setblocking(False)
            command = [sys.executable, "-c", _BOUND, str(os.getpid()), "-m", "kernel", "serve", *arguments]
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NOTIFY_SOCKET": told.getsockname()},
            ) as process:
                self._process, self.pid = process, process.pid
                self._begun.set()
                assert process.stdout is not None
                self._watch(process.stdout.fileno(), told)
            self.status = process.returncode
            self.over.set()

    def _watch(self, output: int, told: socket.socket) -> None:
        """Read what it says, until it says no more."""
        rest = b""
        os.set_blocking(output, False)
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(told, selectors.EVENT_READ)
            while True:
                selector.select()
                serves = self._serves(told)  # looked at first: what it has said before is in the pipe then
                try:
                    while data := os.read(output, 65536):
                        *lines, rest = (rest + data).split(b"\n")
                        for line in lines:
                            self._said(line.decode(errors="replace"))
                    return
                except BlockingIOError:
                    pass
                if serves:
                    self.ready.set()

    @staticmethod
    def _serves(told: socket.socket) -> bool:
        try:
            return b"READY=1" in told.recv(4096).split(b"\n")
        except BlockingIOError:
            return False

    def _said(self, line: str) -> None:
        self._lines.append(line)
        print(line, file=sys.stderr, flush=True)
        if (match := _STARTED(line)) is not None:
            self.endpoints[match[1].lower()] = match[2]
