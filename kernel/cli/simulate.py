"""`kernel simulate`: what would become of requests, by the real scheduler on virtual time, as a table and as pictures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernel.cli.asking import ask
from kernel.cli.chart import Chart, bars, spark, svg
from kernel.cli.flags import add_config_flags, auto_complete
from kernel.cli.parser import Parser, positive
from kernel.cli.table import columns
from kernel.errors import ServingError
from kernel.observability import LogOptions, set_up_log
from kernel.simulation import Simulated, duration, read_arrivals, read_costs
from kernel.simulation import simulate as run

__all__ = ["simulate"]

DESCRIPTION = """\
Simulate what would become of requests to a model: how they are batched, how long they take, which are refused.

The real scheduler serves them on virtual time, by the model's own config, with stand-ins that take the time
an execution is said to cost and compute nothing. REPO is a model repository, MODEL one of its models; its
code is not run. The same command line gives the same result.

--arrivals says when the requests come:
  poisson:RATE[,SECONDS]      by chance, RATE a second on average (for 10 seconds)
  constant:RATE[,SECONDS]     at equal distances
  ramp:FROM-TO[,SECONDS]      by chance, from one rate to another
  intervals:FILE              microseconds between them, one a line, as perf_analyzer's --request-intervals
  FILE                        seconds from the start and, if need be, rows, one request a line; or what
                              kernel serve --record has written

--cost says how long an execution takes; MODEL=COST says it of one model only (steps of ensembles):
  2ms+0.3ms/row               a sum of s, ms and us; what ends with /row is for each row
  FILE.json                   {"1": 0.002, "8": {"mean": 0.004, "p99": 0.007}}: rows -> seconds
  http://localhost:8000       what a running server has measured
"""

EPILOG = """\
examples:
  kernel simulate repository/ detect --arrivals poisson:400 --cost 2ms+0.3ms/row
  kernel simulate repository/ detect --arrivals ramp:100-900,60 --cost http://localhost:8000 --svg ramp.svg
  kernel simulate repository/ pipeline --arrivals day.txt --cost 1ms --cost detect=detect.json --json

Exit status: 0 if requests were simulated, whatever became of them, 1 if not, 2 if the command line is wrong.
"""

PERCENTILES = (50, 90, 99)
BINS = 16  # of latencies, up to p99
SLICES = 60  # of time


def simulate(arguments: Sequence[str]) -> int:
    """Run `kernel simulate`; return the exit status."""
    usage = "[FLAG ...] REPO [MODEL] --arrivals ARRIVALS --cost COST [--cost MODEL=COST ...]"
    parser = Parser("kernel simulate", usage, DESCRIPTION, epilog=EPILOG)
    parser.add_argument("repository", metavar="REPO", help="model repository")
    parser.add_argument("model", metavar="MODEL", nargs="?", default="", help="whose requests they are (default: the only one)")
    parser.add_argument("--version", default="", metavar="N", help="version of the model (default: the newest)")
    parser.add_argument("--arrivals", required=True, metavar="ARRIVALS", help="when requests come, see above")
    parser.add_argument("--cost", action="append", required=True, metavar="COST", help="how long executions take, see above")
    parser.add_argument("--rows", type=positive, default=1, metavar="N", help="of each request, where no file says (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is by chance (default: 0)")
    parser.add_argument(
        "--overhead", default="0s", metavar="TIME", help="that the server's loop takes for a request, such as 50us (default: 0s)"
    )
    parser.add_argument("--gpus", type=positive, metavar="N", help="simulate a machine with N GPUs (default: as this one)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the pictures as SVG")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_config_flags(parser)
    options = parser.read(arguments)
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}, wanted is an integer of at least 0")
    set_up_log(LogOptions(info=False, error=False))  # what fails is told
    try:
        result = _run(options)
        charts = [_latencies(result), *_batches(result)]
        if options.svg is not None:
            options.svg.write_text(svg(_title(result), _summary(result), charts))
    except ServingError as error:
        print(f"error: {error.message.strip()}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {options.svg} can't be written: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(_as_json(result, options), ensure_ascii=False))
        return 0
    print("\n".join([_title(result), *_summary(result), ""]))
    for chart in charts:
        print("\n".join([*bars(chart), ""]))
    print(f"p99 over time  {spark(_over_time(result))}  up to {_ms(max(_over_time(result), default=0.0))}")
    # How fast this computer is, is no part of the result.
    print(f"simulated {result.requests / max(result.took, 1e-9):.0f} requests a second", file=sys.stderr)
    return 0


def _run(options: argparse.Namespace) -> Simulated:
    return run(
        options.repository,
        options.model,
        read_arrivals(options.arrivals, options.seed, options.model),
        read_costs(options.cost, ask),
        version=options.version,
        rows=options.rows,
        seed=options.seed,
        effort=duration(options.overhead, "--overhead"),
        auto_complete=auto_complete(options),
        config_name=options.model_config_name,
        **({"gpus": range(options.gpus)} if options.gpus else {}),
    )


def _title(result: Simulated) -> str:
    rate = result.requests / result.seconds if result.seconds else 0.0
    return f"{result.model} version {result.version}: {result.requests} requests in {result.seconds:.1f} s, {rate:.0f} a second"


def _summary(result: Simulated) -> list[str]:
    well = result.latencies
    rows = [("answered", f"{well.size}", f"{well.size / result.requests:.1%}")]
    rows += [("not answered", str(count), words) for words, count in result.refused.items()]
    if well.size:
        percentiles = (f"p{percent} {_ms(result.latency(percent))}" for percent in PERCENTILES)
        rows.append(("latency", f"mean {_ms(float(well.mean()))}", "  ".join([*percentiles, f"max {_ms(float(well.max()))}"])))
    for work in result.works:
        count = sum(work.batches.values())
        mean = sum(size * times for size, times in work.batches.items()) / max(count, 1)
        instances = "1 instance" if work.instances == 1 else f"{work.instances} instances"
        told = f"{count} executions of {mean:.1f} rows on average"
        rows.append((f"{work.model}", f"{work.busy:.1%} busy", f"{instances}, {told}"))
    return columns(rows, indent="  ")


def _latencies(result: Simulated) -> Chart:
    """The histogram of latencies: equal steps up to p99, and what is beyond."""
    title = "latency"
    if not result.latencies.size:
        return Chart(title, ())
    low, high = float(result.latencies.min()), result.latency(99)
    if high - low < 1e-9:
        return Chart(title, [(_ms(low), float(result.latencies.size), str(result.latencies.size))])
    edges = np.linspace(low, high, BINS + 1)
    counts, _ = np.histogram(result.latencies, edges)
    beyond = int((result.latencies > high).sum())
    rows = [(f"– {_ms(edge)}", float(count), str(count)) for edge, count in zip(edges[1:], counts)]
    return Chart(title, [*rows, ("above", float(beyond), str(beyond))])


def _batches(result: Simulated) -> list[Chart]:
    charts = []
    for work in result.works:
        rows = [(str(rows), float(count), str(count)) for rows, count in work.batches.items()]
        charts.append(Chart(f"executions of {work.model} by rows", rows))
    return charts


def _over_time(result: Simulated) -> list[float]:
    """Return p99 of the requests that came in each slice of the time."""
    if not result.latencies.size:
        return []
    place = np.minimum((result.arrivals / max(float(result.arrivals.max()), 1e-9) * SLICES).astype(int), SLICES - 1)
    slices = (result.latencies[place == number] for number in range(SLICES))
    return [float(np.percentile(one, 99)) if one.size else 0.0 for one in slices]


def _as_json(result: Simulated, options: argparse.Namespace) -> dict[str, Any]:
    well = result.latencies
    latency = {f"p{percent}": result.latency(percent) for percent in PERCENTILES}
    return {
        "model": result.model,
        "version": result.version,
        "arrivals": options.arrivals,
        "seed": options.seed,
        "requests": result.requests,
        "answered": int(well.size),
        "refused": result.refused,
        "seconds": result.seconds,
        "latency_seconds": {"mean": float(well.mean()), **latency, "max": float(well.max())} if well.size else {},
        "models": {
            work.model: {
                "instances": work.instances,
                "utilization": work.busy,
                "batches": {str(rows): count for rows, count in work.batches.items()},
            }
            for work in result.works
        },
    }


def _ms(seconds: float) -> str:
    """Return a duration as people read it."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
