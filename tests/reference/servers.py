"""Starts a model server as a child process, tells when it is ready, and ends it whatever happens.

Knows how to start the reference and ours; nothing about what is asked of them.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Memory", "Server", "ours", "reference", "reference_script"]

PROJECT = Path(__file__).parents[2]
START_LIMIT_S = 90.0

#: Stands in a command for the beginning of the names of what the server itself makes in shared memory.
PREFIX = "@PREFIX@"
STOP_LIMIT_S = 40.0


class Memory:
    """Two shared memory objects for a server's clients, called `key`, and `key` and a 2; contents as cases_rest.py wants them."""

    def __init__(self, server: str) -> None:
        name = f"kernel_test_{server}_{uuid.uuid4().hex}"
        self.key = f"/{name}"
        self.prefix = f"{name}_model_"  # for what the server itself makes: it leaves some of it behind
        self._paths = (Path(f"/dev/shm/{name}"), Path(f"/dev/shm/{name}2"))
        content = bytearray(4096)
        content[:8] = struct.pack("<2f", 1, 2)
        content[1024:1035] = struct.pack("<I2sI1s", 2, b"ab", 1, b"c")
        for path in self._paths:
            path.write_bytes(content)

    def remove(self) -> None:
        for path in (*self._paths, *Path("/dev/shm").glob(f"{self.prefix}*")):
            path.unlink(missing_ok=True)


class Server:
    """A running server. `log` is the file with all that it printed, `memory` shared memory for its clients."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, grpc_port: int, log: Path, metrics_port: int
    ) -> None:
        self.name = name
        self.port = port
        self.grpc_port = grpc_port
        self.metrics_port = metrics_port
        self.log = log
        self.memory = Memory(name)
        command = [part.replace(PREFIX, self.memory.prefix) for part in command]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, start_new_session=True
            )

    def wait_live(self) -> None:
        """Return once the server answers. Raises RuntimeError with its log when it ends or takes too long."""
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode} at start:\n{self.tail()}")
            try:
                if self.get("/v2/health/live") in (200, 403):  # perhaps health is restricted
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} isn't live after {START_LIMIT_S:.0f} s:\n{self.tail()}")

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
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.memory.remove()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def reference_script() -> Path:
    """Where the script that runs the real Triton should be: $KERNEL_REFERENCE, or beside the project."""
    return Path(os.environ.get("KERNEL_REFERENCE", PROJECT.parent / "shared/tools/reference_triton.py"))


#: Every reference that was started.
REFERENCES: list[Server] = []


def reference_has_crashed() -> bool:
    """Whether one of them was ended by a fault of its own, which it tells in its log."""
    crashed = re.compile(r"Signal \((4|6|7|8|11)\) received")
    return any(crashed.search(server.log.read_text(errors="replace")) for server in REFERENCES if server.log.exists())


def reference(repository: Path, log: Path, flags: Sequence[str] = ()) -> Server:
    """Start the real Triton. The caller stops it."""
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = ["--http-port", http_port, "--grpc-port", grpc_port, "--metrics-port", metrics_port]
    more = ["--exit-timeout-secs=8", f"--backend-config=python,shm-region-prefix-name={PREFIX}"]
    command = [sys.executable, reference_script(), repository, *ports, *more, *flags]
    server = Server("reference", [str(part) for part in command], http_port, grpc_port, log, metrics_port)
    REFERENCES.append(server)
    return server


def ours(repository: Path, log: Path, flags: Sequence[str] = ()) -> Server:
    """Start ours. The caller stops it. With KERNEL_REFERENCE_SELF set, the reference stands in: the suite tests itself."""
    if os.environ.get("KERNEL_REFERENCE_SELF"):
        return reference(repository, log, flags)
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = ["--http-port", http_port, "--grpc-port", grpc_port, "--metrics-port", metrics_port]
    command = [sys.executable, "-m", "kernel", "serve", repository, *ports, *flags]
    return Server("ours", [str(part) for part in command], http_port, grpc_port, log, metrics_port)
