"""A server of our own, in a child process, on ports that the system chooses; ended with the block that has started it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import Code, ServingError

__all__ = ["OwnServer", "own_server"]

PORTS = ("http", "grpc", "metrics")
STARTED = re.compile(r"Started (HTTP|GRPCInference)Service at [^ ]+:(\d+)")
STOP_SECONDS = 15.0
LOOKED = 0.02  # seconds between two looks at its log
SHOWN = 15  # lines of its log


@dataclass(frozen=True)
class OwnServer:
    """Where it listens, and what it logs."""

    http: str
    grpc: str
    log: Path

    def said_of(self, model: str) -> str:
        """Return what its log has of a model that was not loaded, "" for nothing."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = [line for line in lines if line.startswith("E") and f"'{model}' failed to load: " in line]
        return found[-1].partition(" failed to load: ")[2].strip('"').replace("\\n", "\n").strip() if found else ""


@contextmanager
def own_server(repository: str, flags: Sequence[str], told: Callable[[str], None], limit: float = 600.0) -> Iterator[OwnServer]:
    """Serve a repository for as long as the block goes on. `flags`: of `kernel serve`; `limit`: seconds until it has to listen.

    Raises ServingError with the end of its log where it does not come to listen.
    """
    ports = [f"--{name}-{what}" for name in PORTS for what in ("port=0", "address=127.0.0.1")]
    command = [sys.executable, "-m", "kernel", "serve", repository, *ports, "--exit-on-error=false", *flags]
    with tempfile.TemporaryDirectory(prefix="kernel-load-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            # Signals from the terminal are ours: whoever waits for answers is to see them first.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield _listening(process, log, repository, told, limit)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listening(
    process: subprocess.Popen[bytes], log: Path, repository: str, told: Callable[[str], None], limit: float
) -> OwnServer:
    """Return the server once it listens."""
    told(f"starting a server of {repository}")
    end = time.monotonic() + limit
    while True:
        text = log.read_text(errors="replace")
        found = dict(STARTED.findall(text))
        if len(found) == 2:
            return OwnServer(f"http://127.0.0.1:{found['HTTP']}", f"grpc://127.0.0.1:{found['GRPCInference']}", log)
        status = process.poll()
        if status is not None or time.monotonic() > end:
            words = f"has ended with {status}" if status is not None else f"does not listen after {limit:g} s"
            last = "\n".join(text.splitlines()[-SHOWN:])
            raise ServingError(Code.UNAVAILABLE, f"the server of {repository} {words}:\n{last}")
        time.sleep(LOOKED)
