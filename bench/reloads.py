"""Replicas that are replaced, and replicas that are killed, under load: what fails, why, and how long until all is as before.

    python bench/reloads.py                                  100 rolling reloads, 100 kills; some minutes
    python bench/reloads.py --reloads 2 --kills 4            whether it works; half a minute

Three parts, each with a server of its own. Two replicas are replaced again and again, by SIGUSR2 and by HTTP in turn: no request
may fail. One of four, or the spare, is killed (SIGKILL) again and again: only requests may fail that were under way when it died
or that a client sent before it had read that their connection is over, each with a reason; and another one has to serve in its
place within a second, where there was a spare. And the supervisor is killed: nothing may be left of all its processes, nor
anything new in /dev/shm. The load is HTTP over kept and over new connections, and gRPC over one connection for all, to a model in
the server and to one in a process of its own; every answer is compared with what it has to be. The exit code is 1 when any of
this is not so.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import random
import re
import select
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from servers import Server, start
from soak import head, infer_of, message, take, tensors

PATIENCE_S = 30.0
BACK_S = 1.0
UNREAD_S = 0.1  # in which a client reads that a connection is over
KEPT, NEW, STREAMS = 4, 2, 8  # connections that are kept; threads that make new ones; calls at a time over the one of gRPC
MODELS = {"near": "", "far": '\nparameters { key: "placement" value { string_value: "process" } }\n'}
CODE = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""
CONFIG = """backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""


class Failure(NamedTuple):
    """A request that was not answered as it should: when it began and ended (time.monotonic), and what its client saw."""

    began: float
    ended: float
    seen: str


class Load:
    """What the processes of the clients say at their end."""

    def __init__(self, server: Server) -> None:
        self.requests = 0
        self.failures: list[Failure] = []
        context = multiprocessing.get_context("spawn")
        self._over, self._told = context.Event(), context.Queue()
        self._process = context.Process(target=client, args=(server.port, server.grpc_port, self._over, self._told), daemon=True)
        self._process.start()
        self._told.get(timeout=PATIENCE_S)  # it has begun

    def end(self) -> None:
        self._over.set()
        self.requests, self.failures = self._told.get(timeout=2 * PATIENCE_S)
        self._process.join()


# -- the clients -------------------------------------------------------------------------------------------------------


def client(port: int, grpc_port: int, over: Any, told: Any) -> None:
    counts: Counter[str] = Counter()
    failures: list[Failure] = []

    def run(ask: Callable[[int], Iterator[None]], k: int) -> None:
        """Ask until all is over; begin anew after each failure, as a client does."""
        while not over.is_set():
            began = time.monotonic()
            try:
                for _ in ask(k):
                    counts["requests"] += 1
                    if over.is_set():
                        return
                    began = time.monotonic()
            except (OSError, http.client.HTTPException, grpc.RpcError, ValueError) as error:
                counts["requests"] += 1
                failures.append(Failure(began, time.monotonic(), seen(error)))

    def kept(k: int) -> Iterator[None]:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
            while True:
                if select.select([sock], [], [], 0)[0]:  # it has ended between two requests
                    return
                if ask_http(sock, k):
                    yield
                    return
                yield

    def new(k: int) -> Iterator[None]:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
            ask_http(sock, k, b"Connection: close")
            yield

    channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
    infer = infer_of(channel)

    def call(k: int) -> Iterator[None]:
        while True:
            array = np.full(4, random.random(), np.float32)
            answer = infer(message("far" if k % 4 == 0 else "near", array), timeout=PATIENCE_S)
            if answer.raw_output_contents[0] != (array * 2).tobytes():
                raise ValueError("a wrong answer over gRPC")
            yield

    asking = [(kept, k) for k in range(KEPT)] + [(new, k) for k in range(NEW)] + [(call, k) for k in range(STREAMS)]
    threads = [threading.Thread(target=run, args=each) for each in asking]
    for thread in threads:
        thread.start()
    told.put("begun")
    for thread in threads:
        thread.join()
    channel.close()
    told.put((counts["requests"], failures))


def ask_http(sock: socket.socket, k: int, *fields: bytes) -> bool:
    """Send one request; return whether the connection ends with its answer."""
    array = np.full(4, random.random(), np.float32)
    body, field = tensors(array, False)
    sock.sendall(head(f"/v2/models/{'far' if k % 4 == 0 else 'near'}/infer", len(body), field, *fields) + body)
    taken = Watched(sock)
    status, answer = take(taken, bytearray())  # type: ignore[arg-type]
    if status != 200 or not answer.endswith((array * 2).tobytes()):
        raise ValueError(f"HTTP {status}: {answer[:200]!r}")
    return b"connection: close" in taken.all.lower()


class Watched:
    """A socket, and all that has come from it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.all = b""

    def recv(self, size: int) -> bytes:
        data = self._sock.recv(size)
        self.all += data
        return data


def seen(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"gRPC {error.code().name}: {re.sub(r'[0-9.:]*:[0-9]+', 'ADDRESS', error.details() or '')}"
    return f"HTTP {type(error).__name__}: {error}"


# -- the server --------------------------------------------------------------------------------------------------------


class Group:
    """A server with replicas, and what its log and the system tell of it."""

    def __init__(self, folder: Path, name: str, replicas: int) -> None:
        self.count = replicas
        repository = folder / name
        for model, more in MODELS.items():
            (repository / model / "1").mkdir(parents=True)
            (repository / model / "1" / "model.py").write_text(CODE)
            (repository / model / "config.pbtxt").write_text(CONFIG + more)
        flags = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--replicas={replicas}")
        self.before = set(os.listdir("/dev/shm"))
        self.server = start("default", repository, *flags)
        self.wait(lambda: len(self.serving()) == replicas)

    def text(self) -> str:
        return self.server.log.read_text(errors="replace")

    def serving(self) -> list[int]:
        """Return the processes that have said that they serve, the latest last."""
        return [int(pid) for pid in re.findall(r"replica \d+ \(process (\d+)\) serves", self.text())]

    def spares(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"a spare \(process (\d+)\) waits", self.text())]

    def family(self) -> set[int]:
        """Return all processes that come from the supervisor."""
        children: dict[int, list[int]] = {}
        for pid, parent, _ in processes():
            children.setdefault(parent, []).append(pid)
        found, left = set(), [self.server.process.pid]
        while left:
            pid = left.pop()
            found.add(pid)
            left += children.get(pid, [])
        return found

    def wait(self, condition: Callable[[], object], limit: float = PATIENCE_S) -> None:
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"it never came to be:\n{self.server.tail()}")
            time.sleep(0.002)

    def left_in_memory(self) -> set[str]:
        return {name for name in set(os.listdir("/dev/shm")) - self.before if "kernel" in name}


def processes() -> Iterator[tuple[int, int, str]]:
    """Give number, parent and state of each."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        yield int(path.parent.name), int(parent), state


def is_gone(pid: int) -> bool:
    return all(state in "ZX" for number, _, state in processes() if number == pid)


@contextmanager
def group(folder: Path, name: str, replicas: int) -> Iterator[Group]:
    made = Group(folder, name, replicas)
    try:
        yield made
    finally:
        made.server.stop()


# -- the parts ---------------------------------------------------------------------------------------------------------


def reloads(folder: Path, count: int) -> list[str]:
    wrong = []
    times = []
    with group(folder, "reloads", 2) as one:
        load = Load(one.server)
        for k in range(count):
            before, began = len(one.serving()), time.monotonic()
            if k % 2:
                connection = http.client.HTTPConnection("127.0.0.1", one.server.port, timeout=120)
                connection.request("POST", "/v2/kernel/replicas/reload")
                response = connection.getresponse()
                answer = response.read()
                if response.status != 200 or answer != b'{"replaced":2}':
                    wrong.append(f"reload {k}: {response.status} {answer!r}")
                connection.close()
            else:
                one.server.process.send_signal(signal.SIGUSR2)
                one.wait(lambda: len(one.serving()) == before + 2, 120)  # noqa: B023
            if len(one.serving()) != before + 2:
                wrong.append(f"reload {k}: {len(one.serving()) - before} of 2 replaced")
            times.append(time.monotonic() - began)
            one.wait(lambda: one.text().count("has left: exit status 0") == 2 * (k + 1), 60)  # noqa: B023
        load.end()
        print(f"{count} reloads of 2 replicas: {statistics.median(times):.2f} s each, {max(times):.2f} s at most")
        wrong += told(load, [])
        wrong += ended(one)
    return wrong


def kills(folder: Path, count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    wrong: list[str] = []
    backs: list[float] = []
    deaths: list[tuple[float, float]] = []
    with group(folder, "kills", 4) as one:
        load = Load(one.server)
        victims = one.serving()
        size = 0
        for k in range(count):
            one.wait(lambda: one.spares() and not is_gone(one.spares()[-1]) and one.spares()[-1] not in victims)
            size = size or len(one.family())
            spare = one.spares()[-1]
            time.sleep(chance.random() / 2)
            victim = chance.choice([*victims, spare] if k % 10 == 9 else victims)
            serving, began = len(one.serving()), time.monotonic()
            os.kill(victim, signal.SIGKILL)
            one.wait(lambda: is_gone(victim))  # noqa: B023
            if victim == spare:
                continue
            deaths.append((began, time.monotonic()))
            one.wait(lambda: len(one.serving()) > serving)  # noqa: B023
            backs.append(time.monotonic() - began)
            victims[victims.index(victim)] = one.serving()[-1]
        one.wait(lambda: not is_gone(one.spares()[-1]) and one.spares()[-1] not in victims)
        load.end()
        print(f"{len(deaths)} kills of one of 4: back after {statistics.median(backs):.3f} s, {max(backs):.3f} s at most")
        wrong += [f"back after {back:.2f} s" for back in backs if back > BACK_S]
        wrong += told(load, deaths)
        if len(one.family()) != size:
            wrong.append(f"{len(one.family())} processes, {size} before")
        wrong += ended(one)
    return wrong


def orphans(folder: Path) -> list[str]:
    with group(folder, "orphans", 2) as one:
        one.wait(lambda: one.spares())
        family = one.family()
        one.server.process.kill()
        one.server.process.wait()
        began = time.monotonic()
        wrong = []
        try:
            one.wait(lambda: all(map(is_gone, family)), 60)
        except TimeoutError:
            wrong = [f"left of a supervisor that was killed: {[pid for pid in family if not is_gone(pid)]}"]
        print(f"supervisor killed: its {len(family) - 1} processes gone after {time.monotonic() - began:.1f} s")
        wrong += [f"left in /dev/shm: {name}" for name in one.left_in_memory()]
    return wrong


def told(load: Load, deaths: Sequence[tuple[float, float]]) -> list[str]:
    """Print what has failed; return what should not have: nothing but requests under way when a replica died may."""
    print(f"  {len(load.failures)} of {load.requests} requests failed")
    for words, count in Counter(failure.seen for failure in load.failures).most_common():
        print(f"    {count} x {words}")
    return [f"failed without a reason: {one}" for one in load.failures if not is_excused(one, deaths)]


def is_excused(failure: Failure, deaths: Sequence[tuple[float, float]]) -> bool:
    """Whether a request was under way when a replica died, and was not answered wrongly."""
    near = any(failure.began <= dead + UNREAD_S and failure.ended >= began for began, dead in deaths)
    return near and "wrong" not in failure.seen and "HTTP 200" not in failure.seen


def ended(one: Group) -> list[str]:
    """End a server; return what is not as it should be then."""
    family = one.family()
    one.server.process.terminate()
    status = one.server.process.wait(60)
    wrong = [f"exit status {status}:\n{one.server.tail()}"] if status else []
    wrong += [f"process {pid} is left" for pid in family if not is_gone(pid)]
    return wrong + [f"left in /dev/shm: {name}" for name in one.left_in_memory()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--reloads", type=int, default=100)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed, and when")
    parser.add_argument("--plain", action="store_true", help="no model in a process of its own, which takes 0.3 s to start")
    options = parser.parse_args()
    if options.plain:
        MODELS["far"] = ""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        if options.reloads:
            wrong += reloads(Path(name), options.reloads)
        if options.kills:
            wrong += kills(Path(name), options.kills, options.seed)
        wrong += orphans(Path(name))
    for words in wrong[:40]:
        print(f"WRONG: {words}")
    print("all as wanted" if not wrong else f"{len(wrong)} things are not as wanted")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
