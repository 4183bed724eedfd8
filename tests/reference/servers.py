"""Starts a model server as a child process, tells when it is ready, starts it again when it dies, and ends it whatever happens.

Knows how to start the reference and ours; nothing about what is asked of them.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import triton

__all__ = ["Memory", "Server", "deaths_since", "ours", "reference"]

START_LIMIT_S = 90.0
STOP_LIMIT_S = 40.0

#: Below those that systems give out for port 0 and for connections: other tests take from there at the same time.
PORTS = (15000, 32000)

#: Stands in a command for the beginning of the names of what the server itself makes in shared memory.
PREFIX = "@PREFIX@"

#: So often one server is started again. The reference dies now and then of a fault of its own, and more often says nothing.
RESTARTS = 5

#: What it prints when it does: the signal, or what a process of its models could not lock.
FAULT = re.compile(r"Signal \((4|6|7|8|11)\) received|lock_exception")


#: Who was started again, since `deaths_since` was last asked.
RESTARTED: list[str] = []


def deaths_since() -> int:
    """Return how often the reference was started again since this was last asked."""
    count = RESTARTED.count("reference")
    RESTARTED.clear()
    return count


#: Reads "+ pid" and "- pid"; when nobody writes any more, ends the process groups that are left.
REAPER = """
import os, signal, sys
left = set()
for line in sys.stdin:
    sign, pid = line.split()
    (left.add if sign == "+" else left.discard)(int(pid))
for pid in left:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Reaper:
    """A process that ends the servers of this one, should it be killed before it has ended them itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def note(self, sign: str, pid: int) -> None:
        """Say that a server has been started ("+"), or has gone ("-")."""
        with self._lock:
            if self._process is None:
                command = [sys.executable, "-c", REAPER]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
            assert self._process.stdin is not None
            self._process.stdin.write(f"{sign} {pid}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Tell it nothing any more, and wait for its end."""
        with self._lock:
            if self._process is not None:
                self._process.communicate()
                self._process = None


reaper = Reaper()
atexit.register(reaper.close)


class Memory:
    """Two shared memory objects for a server's clients, called `key`, and `key` and a 2; contents as cases_rest.py wants them."""

    def __init__(self, server: str) -> None:
        name = f"kernel_test_{server}_{uuid.uuid4().hex}"
        self.key = f"/{name}"
        self.prefix = f"{name}_model_"  # for what the server itself makes: it leaves some of it behind
        self._paths = (Path(f"/dev/shm/{name}"), Path(f"/dev/shm/{name}2"))
        self.fill()

    def fill(self) -> None:
        """Give both their first contents."""
        content = bytearray(4096)
        content[:8] = struct.pack("<2f", 1, 2)
        content[1024:1035] = struct.pack("<I2sI1s", 2, b"ab", 1, b"c")
        for path in self._paths:
            path.write_bytes(content)

    def remove(self) -> None:
        for path in (*self._paths, *Path("/dev/shm").glob(f"{self.prefix}*")):
            path.unlink(missing_ok=True)


#: HTTP, gRPC and metrics port -> what starts a server on them.
Command = Callable[[int, int, int], Sequence[str]]


class Server:
    """A running server. `log`: the file with all that it printed; `memory`: shared memory for its clients.

    `told`: what it was asked so far, for whoever starts it again and wants it in the state that it had; the server itself does
    not look at it. `restarts`: how often it was started again. The ports are others then.
    """

    def __init__(
        self, name: str, command: Command, log: Path, environment: Mapping[str, str] | None = None, mortal: bool = False
    ) -> None:
        """Start it. `mortal`: it may die of a fault of its own, and is started again then."""
        self.name = name
        self.log = log
        self.mortal = mortal
        self.restarts = 0
        self.told: list[object] = []
        self.memory = Memory(name)
        self._command = command
        self._environment = dict(os.environ if environment is None else environment)
        log.write_bytes(b"")
        self._start()

    def _start(self) -> None:
        self.port, self.grpc_port, self.metrics_port = ports = free_ports(3)
        command = [part.replace(PREFIX, self.memory.prefix) for part in self._command(*ports)]
        self._read = self.log.stat().st_size  # what those before have printed
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                env=self._environment,
                start_new_session=True,
            )
        reaper.note("+", self.process.pid)

    def wait_live(self) -> None:
        """Return once the server answers. Raises RuntimeError with its log when it ends or takes too long."""
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                if self.may_restart():
                    self._again()
                    continue
                raise RuntimeError(f"{self.name} ended with {self.process.returncode} at start:\n{self.tail()}")
            try:
                if self.get("/v2/health/live") in (200, 403):  # perhaps health is restricted
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} isn't live after {START_LIMIT_S:.0f} s:\n{self.tail()}")

    def has_died(self) -> bool:
        """Whether it has ended, or has said that it is about to."""
        return self.process.poll() is not None or self._tells_a_fault()

    def dies_within(self, seconds: float) -> None:
        """Give it so long to end, if it is about to: a connection is closed before the process has gone."""
        if self.mortal:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    def may_restart(self) -> bool:
        return self.mortal and self.restarts < RESTARTS

    def restart(self) -> None:
        """End what is left of it, start it anew, on other ports and with its memory as it was, and wait until it answers."""
        self._again()
        self.wait_live()

    def _again(self) -> None:
        self._kill()
        self.memory.fill()
        self.restarts += 1
        RESTARTED.append(self.name)
        self._start()

    def get(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def tail(self, lines: int = 30) -> str:
        """Return the end of what the server printed."""
        return "\n".join(line[:400] for line in self.log.read_text(errors="replace").splitlines()[-lines:])

    def _tells_a_fault(self) -> bool:
        """Whether there is one in the lines that it has printed since they were last looked at."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            lines, end, _ = file.read().rpartition(b"\n")
        if FAULT.search(lines.decode(errors="replace")):
            return True
        self._read += len(lines) + len(end)
        return False

    def end(self) -> None:
        """Ask the server to end; `stop` waits for it."""
        if self.process.poll() is None:
            self.process.terminate()

    def stop(self) -> None:
        """End the server and all its children: first kindly, then not."""
        self.end()
        if self.process.poll() is None:
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                pass
        self._kill()
        self.memory.remove()

    def _kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        reaper.note("-", self.process.pid)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on just now, and that the system gives to nobody before the server has taken them."""
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = random.SystemRandom().randrange(*PORTS)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def port_flags(http_port: int, grpc_port: int, metrics_port: int) -> list[str]:
    return [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]


def reference(repository: Path, log: Path, flags: Sequence[str] = ()) -> Server:
    """Start the real Triton. The caller stops it."""
    found = triton.install()
    more = ["--exit-timeout-secs=8", f"--backend-config=python,shm-region-prefix-name={PREFIX}", *flags]
    return Server(
        "reference",
        lambda *ports: found.command(repository, [*port_flags(*ports), *more]),
        log,
        found.environment(),
        mortal=True,
    )


def ours(repository: Path, log: Path, flags: Sequence[str] = ()) -> Server:
    """Start ours. The caller stops it. With KERNEL_REFERENCE_SELF set, the reference stands in: the suite tests itself.

    KERNEL_REFERENCE_FLAGS: flags for ours, so that it can be compared in another way of running, such as all models in processes.
    """
    if os.environ.get("KERNEL_REFERENCE_SELF"):
        return reference(repository, log, flags)
    more = os.environ.get("KERNEL_REFERENCE_FLAGS", "").split()
    start = [sys.executable, "-m", "kernel", "serve", str(repository), "--exit-timeout-secs=8", "--dashboard=false", *more]
    return Server("ours", lambda *ports: [*start, *port_flags(*ports), *flags], log)
