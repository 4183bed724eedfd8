"""The servers that are measured: started on a copy of the models, ended.

The real Triton, ours as it is ("default"), ours with every Python model placed on the loop ("loop"), and ours with each in a
process of its own ("process"), but for the one that other models call.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MODELS", "PROJECT", "Server", "copy_models", "start", "why_no_triton"]

PROJECT = Path(__file__).parents[1]
MODELS = Path(__file__).parent / "models"
TRITON = PROJECT / "tests" / "reference" / "triton.py"  # installs and starts it
START_LIMIT_S = 60.0
STOP_LIMIT_S = 40.0
PLACED = '\nparameters {{ key: "placement" value {{ string_value: "{}" }} }}\n'
CALLED = "identity"  # by other models
TWICE = "work"  # there is a second one of it with two instances, `work_2`


class Server:
    """A running server and its children. `started_s` is how long it took until it was ready to serve."""

    def __init__(self, name: str, command: Sequence[str], port: int, grpc_port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self.grpc_port = grpc_port
        self.log = log
        start = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent, start_new_session=True
            )
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() - start > START_LIMIT_S:
                self.stop()
                raise RuntimeError(f"{name} didn't get ready: {' '.join(command)}\n{self.tail()}")
            time.sleep(0.01)
        self.started_s = time.monotonic() - start

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def tail(self) -> str:
        """Return the end of what the server printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def pss_mb(self) -> float:
        """Return the proportional set size of the server and its children, in MB (10**6 bytes)."""
        kilobytes = 0
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):  # it may have gone meanwhile
                    if os.getpgid(int(folder.name)) == self.process.pid:
                        text = (folder / "smaps_rollup").read_text()
                        kilobytes += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        return kilobytes * 1024 / 1e6

    def stop(self) -> None:
        """End the server and all its children: first kindly, then not."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(name: str, repository: Path, *flags: str, under: Sequence[str] = ()) -> Server:
    """Start "triton", "default", "loop" or "process" on `repository`, which the caller has made, as with `copy_models`.

    `under`: the command of what is to run it, such as a profiler; it works in the folder of `repository`.
    """
    log = repository.parent / f"{repository.name}-{name}.log"
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        port, grpc_port, metrics_port = (each.getsockname()[1] for each in sockets)
    ports = ["--http-port", str(port), "--grpc-port", str(grpc_port), "--metrics-port", str(metrics_port)]
    program = [str(TRITON)] if name == "triton" else ["-m", "kernel", "serve"]
    return Server(name, [*under, sys.executable, *program, str(repository), *ports, *flags], port, grpc_port, log)


def why_no_triton() -> str:
    """Install the real Triton if it isn't there yet; return why that can't be, or nothing."""
    done = subprocess.run([sys.executable, str(TRITON), "--install"], stderr=subprocess.PIPE, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def copy_models(target: Path, *, placement: str | None = None, source: Path = MODELS) -> Path:
    """Copy the models to `target`, and have every Python model run where `placement` says. Nothing else changes.

    With `process`, what calls `identity` calls one on the loop, under the name `identity_loop`.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    if (target / TWICE).exists():
        shutil.copytree(target / TWICE, target / f"{TWICE}_2")
        with (target / f"{TWICE}_2" / "config.pbtxt").open("a") as file:
            file.write("\ninstance_group { kind: KIND_CPU count: 2 }\n")
    if placement == "process":
        shutil.copytree(target / CALLED, target / f"{CALLED}_loop")
        for model in target.glob("*/1/model.py"):
            model.write_text(model.read_text().replace(f'model_name="{CALLED}"', f'model_name="{CALLED}_loop"'))
    if placement is not None:
        for config in target.glob("*/config.pbtxt"):
            if 'backend: "python"' in config.read_text():
                with config.open("a") as file:
                    file.write(PLACED.format("loop" if config.parent.name == f"{CALLED}_loop" else placement))
    return target


def ten_models(target: Path) -> Path:
    """Make a repository of ten small models, copies of `add_sub`."""
    for k in range(10):
        shutil.copytree(MODELS / "add_sub", target / f"model_{k}", ignore=shutil.ignore_patterns("__pycache__"))
    return target
