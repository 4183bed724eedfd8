"""Measure the real Triton and ours on the same models, and say whether ours is as fast as it has to be.

    python bench/run.py [--quick] [--rows KEY ...] [--servers NAME ...] [--rounds N] [--seconds S] [--json FILE]

Needs `wrk` and `h2load` (Debian: `apt-get install wrk nghttp2-client`), `tritonclient[grpc]` and this project installed in the
interpreter that runs it; the real Triton is installed by tests/reference/triton.py, and left out where that can't be. The servers
are alive all the time and cost nothing while they are idle (stopping them with SIGSTOP instead breaks the real Triton:
its locks time out). In each round, each row is measured on one server after the other, so that what else happens on the machine
meets all of them. The table has the medians of the rounds. The exit code is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h2load
import servers
import wrk
from rows import ROWS, Row, Target
from servers import Server

#: Figures of one row: server -> one for each round.
Figures = dict[str, list[float]]

SERVERS = ("triton", "default", "loop", "process")
PLACEMENTS = ("loop", "process")

#: After a start, before memory is counted: what belonged to the loading alone has gone then.
SETTLE_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    rows = [row for row in ROWS if not options.rows or row.key in options.rows]
    if "triton" in options.servers and (reason := servers.why_no_triton()):
        progress(f"{reason}: only ours is measured")
        options.servers.remove("triton")
    figures: dict[str, Figures] = {row.key: {} for row in rows}
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:
        folder = Path(name)
        running = [row for row in rows if row.kind in ("rate", "latency", "health", "client", "scaling")]
        if running:
            measure_running(running, options, folder, figures)
        in_process = [row for row in rows if row.kind == "core" and "default" in options.servers]
        if in_process:
            found = measure_core(folder)
            for row in in_process:
                figures[row.key]["default"] = [found[row.model]]
        for row in rows:
            if row.kind in ("ready", "memory"):
                measure_start(row, options, folder, figures[row.key])
    report = [line for row in rows for line in lines(row, figures[row.key])]
    print(markdown(report))
    if options.json:
        document = {"machine": machine(), "rounds": options.rounds, "figures": figures, "report": report}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(line["verdict"] == "missed" for line in report) else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    keys = [row.key for row in ROWS]
    parser.add_argument("--rows", nargs="+", metavar="KEY", choices=keys, help=f"only these of {', '.join(keys)}")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS), help="only these servers")
    parser.add_argument("--rounds", type=int, help="rounds (default: 5)")
    parser.add_argument("--seconds", type=float, help="of load, for each figure (default: 3)")
    parser.add_argument("--quick", action="store_true", help="two rounds of one second: does everything work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    options = parser.parse_args(argv)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    return options


# --- servers that keep running -------------------------------------------------------------------------------------------


def measure_running(rows: list[Row], options: argparse.Namespace, folder: Path, figures: dict[str, Figures]) -> None:
    with contextlib.ExitStack() as stack:
        started: list[Server] = []
        for name in options.servers:
            repository = servers.copy_models(folder / name, placement=name if name in PLACEMENTS else None)
            server = servers.start(name, repository)
            stack.callback(server.stop)
            started.append(server)
        check_answers(rows, started)
        for number in range(options.rounds):
            for row in rows:
                for server in started:
                    if server.name != "triton" and server.name not in row.targets:
                        continue
                    try:
                        figure = measure(row, server, options.seconds, folder, warm=number == 0)
                    except RuntimeError as error:
                        raise RuntimeError(f"{row.key} on {server.name}: {error}\nits log:\n{server.tail()}") from None
                    figures[row.key].setdefault(server.name, []).append(figure)
                    progress(f"round {number + 1}: {row.key}: {server.name}: {figure:.5g} {row.unit}")


def check_answers(rows: list[Row], started: list[Server]) -> None:
    """Refuse to measure servers that answer differently."""
    for row in rows:
        if row.load is not None:
            answers = {}
            for server in started:
                if isinstance(row.load, h2load.GrpcLoad):
                    answers[server.name], _ = h2load.verify(server.grpc_port, row.load)
                else:
                    answers[server.name] = wrk.verify(server.port, row.load)
            sizes = {name: len(answer) for name, answer in answers.items()}
            exact = row.load.model != "dense"  # sums of floats may differ in their last bits
            if len(set(answers.values() if exact else sizes.values())) != 1:
                raise RuntimeError(f"{row.key}: the servers answer differently: {sizes} bytes")


def measure(row: Row, server: Server, seconds: float, folder: Path, *, warm: bool) -> float:
    if row.kind == "health":
        return health_p99_ms(server, row.model, max(seconds, 2.0))
    if row.kind == "client":
        return by_client(server, row.model, seconds)
    assert row.load is not None
    if row.kind == "scaling":
        one, two = row.load, dataclasses.replace(row.load, model=f"{row.load.model}_2")
        return wrk.run(server.port, two, seconds, folder).per_second / wrk.run(server.port, one, seconds, folder).per_second
    if isinstance(row.load, h2load.GrpcLoad):
        if warm:
            h2load.run(server.grpc_port, row.load, 1, folder)
        return h2load.run(server.grpc_port, row.load, seconds, folder)
    if warm:
        wrk.run(server.port, row.load, 1, folder)
    result = wrk.run(server.port, row.load, seconds, folder)
    return result.p50_us if row.kind == "latency" else result.per_second


def by_client(server: Server, kind: str, seconds: float) -> float:
    """Return what Triton's own client gets out of the server; see client.py. `kind`: with the number of processes, if not one."""
    script = str(Path(__file__).parent / "client.py")
    what, *processes = kind.split()
    command = [sys.executable, script, str(server.grpc_port), what, str(seconds), *processes]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120 + seconds)
    if process.returncode:
        raise RuntimeError(f"{kind}: {process.stdout}{process.stderr}")
    return float(process.stdout.split()[-1])


def health_p99_ms(server: Server, model: str, seconds: float) -> float:
    """Return the 99th percentile of a health check's duration while `model` executes one request after the other."""
    load = wrk.Load(model, {"X": ([4], [1.0, 2.0, 3.0, 4.0])}, 1)
    over = threading.Event()
    failures: list[BaseException] = []

    def keep_busy() -> None:
        try:
            while not over.is_set():
                wrk.verify(server.port, load)
        except BaseException as error:
            failures.append(error)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    durations = []
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        time.sleep(0.3)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            connection.request("GET", "/v2/health/live")
            response = connection.getresponse()
            response.read()
            durations.append(time.perf_counter() - begin)
            if response.status != 200:
                raise RuntimeError(f"health check: {response.status}")
            time.sleep(0.002)
    finally:
        over.set()
        busy.join()
        connection.close()
    if failures:
        raise failures[0]
    return statistics.quantiles(durations, n=100)[98] * 1000


# --- servers that are started for the figure ---------------------------------------------------------------------------------


def measure_start(row: Row, options: argparse.Namespace, folder: Path, figures: Figures) -> None:
    """Start each server on ten small models: how long until it is ready, or how much memory it has then."""
    repository = folder / "ten"
    if not repository.exists():
        servers.ten_models(repository)
    names = [name for name in options.servers if name not in PLACEMENTS]
    for name in names:  # byte code, page cache
        servers.start(name, repository).stop()
    for number in range(options.rounds):
        for name in names:
            server = servers.start(name, repository)
            try:
                time.sleep(SETTLE_S)
                figure = server.started_s if row.kind == "ready" else server.pss_mb()
            finally:
                server.stop()
            figures.setdefault(name, []).append(figure)
            progress(f"round {number + 1}: {row.key}: {name}: {figure:.5g} {row.unit}")


def measure_core(folder: Path) -> dict[str, float]:
    """Return core.py's figures, measured in a process of its own."""
    file = folder / "core.json"
    subprocess.run(
        [sys.executable, str(Path(__file__).parent / "core.py"), "--json", str(file)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    figures: dict[str, float] = json.loads(file.read_text())["figures"]
    return figures


# --- the report --------------------------------------------------------------------------------------------------------------


def lines(row: Row, figures: Figures) -> list[dict[str, Any]]:
    """Return the lines of the report that `row` makes: one for each placement that has a target."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    triton = medians.get("triton")
    result = []
    for name, target in row.targets.items():
        ours = medians.get(name)
        ratio = ours / triton if ours is not None and triton else None
        result.append(
            {
                "what": row.title,
                "placement": name,
                "triton": triton,
                "ours": ours,
                "unit": row.unit,
                "ratio": ratio,
                "target": wanted(row, target),
                "verdict": verdict(row, target, ours, ratio),
            }
        )
    return result


def wanted(row: Row, target: Target) -> str:
    sign = "≤" if row.less_is_better else "≥"
    if target.times is not None:
        return f"{sign} {target.times:g} × T"
    return "–" if target.limit is None else f"{sign} {target.limit:g} {row.unit}"


def verdict(row: Row, target: Target, ours: float | None, ratio: float | None) -> str:
    figure, bound = (ratio, target.times) if target.times is not None else (ours, target.limit)
    if figure is None or bound is None:
        return "–"
    return "met" if (figure <= bound if row.less_is_better else figure >= bound) else "missed"


def markdown(report: list[dict[str, Any]]) -> str:
    table = [
        "| what | models placed | Triton | ours | ours / Triton | target | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in report:
        triton, ours = (number(line[name], line["unit"]) for name in ("triton", "ours"))
        ratio = "–" if line["ratio"] is None else f"{line['ratio']:.2f}"
        cells = (line["what"], line["placement"], triton, ours, ratio, line["target"], line["verdict"])
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} {unit}".replace(",", " ") if value >= 100 else f"{value:.3g} {unit}"


def machine() -> dict[str, str]:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "cpu": cpu.partition(":")[2].strip(),
        "cpus": str(len(Path("/proc/cpuinfo").read_text().split("processor\t")) - 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
