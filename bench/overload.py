"""What a server does under many times the load that it can serve: `python bench/overload.py` prints one table.

Open loop: requests come by a clock (Poisson), whatever has become of those before, each with a deadline (the parameter
`timeout`). The model sleeps for as long, whatever the batch. First a closed loop finds what can be served (the peak), then
requests come as often, and --factor times as often. Of the answers only those count that come within the deadline. The same
for the real Triton, with the same model and config: its queue has a time-out there (REJECT) that leaves time for two
executions.

The times of accepted requests count from when they were to be sent, so that a generator that lags flatters nobody; `lag`
says by how much it did, and where it is more than a few milliseconds the machine was too busy for any figure. Those of
refusals count from when they were sent. A connection has one request at a time, as answers come in order over HTTP.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import select
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from servers import Server, start, why_no_triton

EXECUTION_S = 0.02
BATCH = 8
DEADLINE_S = 0.2
FACTOR = 10.0
CONNECTIONS = 4000  # of one generator; a request that finds none free counts as not served
GIVEN_UP_S = 2.0  # after the last request

MODEL = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(EXECUTION_S)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())])
            for request in requests
        ]
"""
CONFIG = """backend: "python"
max_batch_size: {batch}
input {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
dynamic_batching {{
  default_queue_policy {{ timeout_action: REJECT default_timeout_microseconds: {wait} allow_timeout_override: true }}
}}
parameters {{ key: "refuse_late" value {{ string_value: "{headroom}" }} }}
"""


@dataclass
class Figures:
    """What came of one load. Seconds, but for the counts."""

    sent: int = 0
    no_connection: int = 0
    failed: int = 0
    unanswered: int = 0
    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def message(deadline: float) -> bytes:
    """Return the bytes of one request."""
    body = {
        "parameters": {"timeout": round(deadline * 1e6)},
        "inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(body).encode()
    head = (
        f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + 16}\r\n\r\n"
    )
    return head.encode() + text + bytes(16)


def is_whole(data: bytes) -> bool:
    """Whether an answer is complete. None of ours is chunked."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line[15:])
    return True


class Generator:
    """Sends requests by the clock, or whenever one is answered, over as many connections as that takes."""

    def __init__(self, port: int, data: bytes) -> None:
        self.figures = Figures()
        self._port = port
        self._data = data
        self._poll = select.epoll()
        self._free: list[socket.socket] = []
        self._busy: dict[int, tuple[socket.socket, float, float, bytes]] = {}  # by descriptor: when due, when sent, what has come

    def _connect(self) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self._port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
        self._poll.register(one, select.EPOLLIN)
        return one

    def open(self, count: int) -> None:
        """Have connections ready before the clock runs."""
        self._free += [self._connect() for _ in range(count)]

    def send(self, due: float) -> None:
        figures = self.figures
        figures.sent += 1
        if self._free:
            one = self._free.pop()
        elif len(self._busy) < CONNECTIONS:
            one = self._connect()
        else:
            figures.no_connection += 1
            return
        now = time.perf_counter()
        figures.lag.append(now - due)
        try:
            one.send(self._data)
        except OSError:
            self._lose(one)
        else:
            self._busy[one.fileno()] = one, due, now, b""

    def _lose(self, one: socket.socket) -> None:
        self.figures.failed += 1
        self._busy.pop(one.fileno(), None)
        one.close()

    def receive(self, timeout: float) -> int:
        """Take what comes within `timeout`; return how many requests were answered."""
        answered = 0
        figures = self.figures
        for descriptor, _ in self._poll.poll(max(timeout, 0.0), 256):
            if descriptor not in self._busy:  # a free one that the server has closed
                for one in [one for one in self._free if one.fileno() == descriptor]:
                    self._free.remove(one)
                    one.close()
                continue
            one, due, sent, before = self._busy[descriptor]
            try:
                data = before + one.recv(65536)
            except OSError:
                data = before
            now = time.perf_counter()
            if data == before:
                self._lose(one)
                answered += 1
            elif not is_whole(data):
                self._busy[descriptor] = one, due, sent, data
            else:
                answered += 1
                del self._busy[descriptor]
                self._free.append(one)
                status = data[9:12]
                if status == b"200":
                    figures.accepted.append(now - due)
                elif status in (b"503", b"429"):
                    figures.refused.append(now - sent)
                else:
                    figures.failed += 1
        return answered

    def closed(self, in_flight: int, seconds: float) -> None:
        """Have so many requests in flight for so long."""
        end = time.perf_counter() + seconds
        for _ in range(in_flight):
            self.send(time.perf_counter())
        while (now := time.perf_counter()) < end:
            for _ in range(self.receive(end - now)):
                self.send(time.perf_counter())
        self._finish()

    def by_clock(self, rate: float, seconds: float, seed: int) -> None:
        """Send `rate` requests a second, whatever becomes of them."""
        draw = random.Random(seed).expovariate
        due = time.perf_counter()
        end = due + seconds
        due += draw(rate)
        while due < end:
            now = time.perf_counter()
            while due <= now and due < end:
                self.send(due)
                due += draw(rate)
            self.receive(min(due, end) - time.perf_counter())
        self._finish()

    def _finish(self) -> None:
        end = time.perf_counter() + GIVEN_UP_S
        while self._busy and (now := time.perf_counter()) < end:
            self.receive(end - now)
        self.figures.unanswered = len(self._busy)


def generate(pipe: Pipe, port: int, deadline: float, rate: float, in_flight: int, seconds: float, seed: int) -> None:
    """Be one generator process."""
    generator = Generator(port, message(deadline))
    generator.open(in_flight or 256)
    pipe.send(None)
    pipe.recv()
    if in_flight:
        generator.closed(in_flight, seconds)
    else:
        generator.by_clock(rate, seconds, seed)
    pipe.send(generator.figures)


def load(
    server: Server, deadline: float, seconds: float, *, rate: float = 0.0, in_flight: int = 0, processes: int = 2
) -> Figures:
    """Return what comes of a load: `rate` a second by the clock, or so many `in_flight`."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for seed in range(1 if in_flight else processes):
        ours, theirs = context.Pipe()
        arguments = theirs, server.port, deadline, rate / processes, in_flight, seconds, seed
        context.Process(target=generate, args=arguments, daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send(None)
    total = Figures()
    for pipe in pipes:
        total.add(pipe.recv())
    return total


def of(times: Sequence[float], share: float) -> float:
    """Return the quantile of times in milliseconds, nan for none."""
    return sorted(times)[min(int(len(times) * share), len(times) - 1)] * 1e3 if times else float("nan")


@dataclass
class Row:
    """A line of the table. Times in milliseconds, rates a second."""

    server: str
    load: str
    offered: float
    goodput: float
    of_peak: float
    p50: float
    p99: float
    late: float
    refused: float
    refusal_p50: float
    refusal_p99: float
    lost: int
    lag_p99: float


def row(server: str, name: str, figures: Figures, deadline: float, seconds: float, peak: float) -> Row:
    """Say what came of a load. `peak`: goodput a second, 0.0 where this is where it is found."""
    good = sum(one <= deadline for one in figures.accepted)
    accepted, refused = figures.accepted, figures.refused
    return Row(
        server, name, figures.sent / seconds, good / seconds, 100 * good / seconds / peak if peak else 100.0,
        of(accepted, 0.5), of(accepted, 0.99), (len(accepted) - good) / seconds, len(refused) / seconds,
        of(refused, 0.5), of(refused, 0.99), figures.failed + figures.unanswered + figures.no_connection, of(figures.lag, 0.99),
    )  # fmt: skip


def measured(name: str, repository: Path, options: argparse.Namespace) -> list[Row]:
    """Return the rows of one server."""
    deadline, seconds = options.deadline, options.seconds
    server = start(name, repository)
    try:
        load(server, deadline, min(seconds, 1.0), in_flight=2 * BATCH)  # warm
        found = load(server, deadline, seconds, in_flight=3 * BATCH)
        rows = [row(name, "closed loop", found, deadline, seconds, 0.0)]
        for factor in (1.0, options.factor):
            peak = max(one.goodput for one in rows)
            came = load(server, deadline, seconds, rate=factor * rows[0].goodput, processes=options.processes)
            rows.append(row(name, f"{factor:g} x", came, deadline, seconds, peak))
        return rows
    finally:
        server.stop()


HEAD = (
    "server", "load", "offered/s", "in time/s", "of the peak", "accepted p50, p99 ms", "late/s", "refused/s",
    "refusal p50, p99 ms", "lost", "lag p99 ms",
)  # fmt: skip


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default: 10)")
    parser.add_argument("--factor", type=float, default=FACTOR, help="of the overload (default: 10)")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds (default: 0.2)")
    parser.add_argument("--execution", type=float, default=EXECUTION_S, help="seconds (default: 0.02)")
    parser.add_argument("--headroom", default="0.1", help="of ours: the model's parameter refuse_late, or off (default: 0.1)")
    parser.add_argument("--processes", type=int, default=2, help="that generate the load (default: 2)")
    parser.add_argument("--only", choices=("default", "thread", "process", "triton"), help="one server alone")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    wait = options.deadline - 2 * options.execution
    if wait <= 0:
        parser.error(f"the deadline has to be longer than two executions of {options.execution} s")
    names = [options.only] if options.only else ["default", "triton"]
    if "triton" in names and (why := why_no_triton()):
        print(f"without the real Triton: {why}", file=sys.stderr)
        names.remove("triton")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            repository = Path(folder) / name
            (repository / "m" / "1").mkdir(parents=True)
            (repository / "m" / "1" / "model.py").write_text(MODEL.replace("EXECUTION_S", str(options.execution)))
            config = CONFIG.format(batch=BATCH, wait=round(wait * 1e6), headroom=options.headroom)
            if name in ("thread", "process"):
                config += f'parameters {{ key: "placement" value {{ string_value: "{name}" }} }}\n'
            (repository / "m" / "config.pbtxt").write_text(config)
            rows += measured(name, repository, options)
    print(f"deadline {options.deadline * 1e3:g} ms, execution {options.execution * 1e3:g} ms, batch {BATCH}\n")
    print(f"| {' | '.join(HEAD)} |\n| --- | --- |{' ---: |' * (len(HEAD) - 2)}")
    for one in rows:
        cells = (
            one.server, one.load, f"{one.offered:.0f}", f"{one.goodput:.0f}", f"{one.of_peak:.0f} %",
            f"{one.p50:.1f}, {one.p99:.1f}", f"{one.late:.1f}", f"{one.refused:.0f}",
            f"{one.refusal_p50:.2f}, {one.refusal_p99:.2f}", one.lost, f"{one.lag_p99:.2f}",
        )  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in rows], indent=1))


if __name__ == "__main__":
    main()
