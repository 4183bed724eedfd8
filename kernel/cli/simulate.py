"""`kernel simulate`: what would become of requests, by the real scheduler on virtual time, as a table and as pictures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.cli.asking import ask
from kernel.cli.cache_config import add_cache_flags, cache_options
from kernel.cli.chart import Chart, bars, look_for_pillow, spark, svg, write_png
from kernel.cli.flags import add_config_flags, add_rate_flags, auto_complete, refuse_late
from kernel.cli.parser import Parser, positive, size
from kernel.cli.table import columns
from kernel.errors import Code, ServingError
from kernel.observability import LogOptions, set_up_log
from kernel.simulation import (
    Mix,
    Simulated,
    duration,
    read_arrivals,
    read_contents,
    read_costs,
    read_priorities,
    read_shapes,
)
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
  closed:CLIENTS[,SECONDS]    from clients that send the next one when they have the answer
  intervals:FILE              microseconds between them, one a line, as perf_analyzer's --request-intervals
  FILE.jsonl                  JSON objects, one a line: {"at": 0.5, "rows": 2, "content": 7, "priority": 1,
                              "timeout_us": 5000, "sequence": 3, "start": true, "end": true}
  FILE                        seconds from the start and, if need be, rows, one request a line; or what
                              kernel serve --record has written

--cost says how long an execution takes; MODEL=COST says it of one model only (steps of ensembles, callees):
  2ms+0.3ms/row               a sum of s, ms and us; what ends with /row is for each row
  FILE.json                   {"1": 0.002, "8": {"mean": 0.004, "p99": 0.007}}: rows -> seconds
                              ["1ms", "detect", ["left", "right"], "2ms"]: computes, calls a model and waits,
                              calls two together, computes
  http://localhost:8000       what a running server has measured
  FILE.zip, measured          what kernel serve --record has written; that of --arrivals
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
MOST_OVERHEAD = 60.0  # seconds


def simulate(arguments: Sequence[str]) -> int:
    """Run `kernel simulate`; return the exit status."""
    options = _parser().read(arguments)
    set_up_log(LogOptions(info=False, warning=False, error=False))  # what fails is told
    try:
        for path in filter(None, (options.svg, options.png)):
            _write(path, lambda path: path.open("a").close())  # before all is simulated for nothing
        if options.png is not None:
            look_for_pillow()
        result = _run(options)
        charts = [_latencies(result), *_batches(result)]
        if options.svg is not None:
            _write(options.svg, lambda path: path.write_text(svg(_title(result), _summary(result), charts), encoding="utf-8"))
        if options.png is not None:
            _write(options.png, lambda path: write_png(path, _title(result), _summary(result), charts))
    except ServingError as error:
        print(f"error: {error.message.strip()}", file=sys.stderr)
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


def _parser() -> Parser:
    usage = "[FLAG ...] REPO [MODEL] --arrivals ARRIVALS --cost COST [--cost MODEL=COST ...]"
    parser = Parser("kernel simulate", usage, DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("repository", metavar="REPO", help="model repository")
    add("model", metavar="MODEL", nargs="?", default="", help="whose requests they are (default: the only one)")
    add("--version", default="", metavar="N", help="version of the model (default: the newest)")
    add("--arrivals", required=True, metavar="ARRIVALS", help="when requests come, see above")
    add("--cost", action="append", required=True, metavar="COST", help="how long executions take, see above")
    add("--seed", type=size, default=0, metavar="N", help="of all that is by chance (default: 0)")
    add("--overhead", default="0s", metavar="TIME", help="that the server's loop takes for a request, such as 50us (default: 0s)")
    add("--wake-up", default="0s", metavar="TIME", help="that an idle loop takes to notice something (default: 0s)")
    add("--gpus", type=positive, metavar="N", help="simulate a machine with N GPUs (default: as this one)")
    _add_mix(parser)
    add("--svg", type=Path, metavar="FILE", help="write the pictures as SVG")
    add("--png", type=Path, metavar="FILE", help="write the pictures as PNG; needs Pillow (kernel-serve[png])")
    add("--json", action="store_true", help="print the result as JSON")
    add("--max-inflight", type=size, default=0, metavar="N", help="as of kernel serve (default: 0, no limit)")
    add("--refuse-late", type=refuse_late, metavar="SHARE", help="as of kernel serve (default: off)")
    add_rate_flags(parser)
    add_cache_flags(parser)
    add_config_flags(parser)
    return parser


def _add_mix(parser: Parser) -> None:
    """Add what requests are like where the arrivals do not say it."""
    add = parser.add_argument
    add("--rows", type=positive, default=1, metavar="N", help="of each request, where no file says (default: 1)")
    add("--shape", action="append", default=[], metavar="NAME:D,D", help="of a tensor whose config has -1 (default: 1)")
    add("--distinct", metavar="N[,SKEW]", help="how many contents there are; the k-th comes 1/k^SKEW as often as the first")
    add("--priority", default="", metavar="LEVEL[:WEIGHT,…]", help="their priorities, such as 1:20,2:80 (default: the model's)")
    add("--timeout", default="0s", metavar="TIME", help="their parameter timeout, which queue policies heed (default: none)")
    add("--deadline", default="0s", metavar="TIME", help="after which no answer is of use to them (default: none)")
    add("--sequence-length", type=positive, default=20, metavar="N", help="requests of a sequence on average (default: 20)")
    add("--sequence-length-variation", type=share, default=20, metavar="PERCENT", help="more or fewer than that (default: 20)")
    add("--num-of-sequences", type=positive, default=4, metavar="N", help="that go on at a time (default: 4)")


def share(text: str) -> float:
    """Read a percentage."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"'{text}' is no percentage, wanted is a number from 0 to 100")
    return value


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise ServingError(Code.INVALID_ARG, f"{path} can't be written: {error}") from None


def _run(options: argparse.Namespace) -> Simulated:
    given: dict[str, Any] = {"gpus": range(options.gpus)} if options.gpus else {}
    return run(
        options.repository,
        options.model,
        read_arrivals(options.arrivals, options.seed, options.model),
        read_costs(options.cost, ask, options.arrivals),
        version=options.version,
        mix=_mix(options),
        seed=options.seed,
        effort=_overhead(options.overhead, "--overhead"),
        wake=_overhead(options.wake_up, "--wake-up"),
        auto_complete=auto_complete(options),
        config_name=options.model_config_name,
        max_inflight=options.max_inflight,
        refuse_late=options.refuse_late,
        rate_limit=options.rate_limit,
        rate_limit_resources=options.rate_limit_resource,
        cache=cache_options(options),
        **given,
    )


def _overhead(text: str, flag: str) -> float:
    seconds = duration(text, flag)
    if seconds > MOST_OVERHEAD:
        raise ServingError(Code.INVALID_ARG, f"{flag} is '{text}', wanted are at most {MOST_OVERHEAD:.0f} s")
    return seconds


def _mix(options: argparse.Namespace) -> Mix:
    contents, skew = read_contents(options.distinct) if options.distinct is not None else (0, 0.0)
    return Mix(
        rows=options.rows,
        contents=contents,
        skew=skew,
        priorities=read_priorities(options.priority) if options.priority else (),
        timeout=duration(options.timeout, "--timeout"),
        deadline=duration(options.deadline, "--deadline"),
        sequence_length=options.sequence_length,
        length_variation=options.sequence_length_variation / 100,
        sequences=options.num_of_sequences,
        shapes=read_shapes(options.shape),
    )


def _title(result: Simulated) -> str:
    rate = result.requests / result.seconds if result.seconds else 0.0
    return f"{result.model} version {result.version}: {result.requests} requests in {result.seconds:.1f} s, {rate:.0f} a second"


def _summary(result: Simulated) -> list[str]:
    well = result.latencies
    rows = [("answered", f"{well.size}", f"{well.size / result.requests:.1%}")]
    rows += [("not answered", str(count), words) for words, count in result.refused.items()]
    if well.size:
        rows.append(_latency_row("latency", well))
    if result.priorities is not None:
        levels = ((level, well[result.priorities == level]) for level in np.unique(result.priorities).tolist())
        rows += [_latency_row(f"priority {level}", one) for level, one in levels]
    for work in result.works:
        count = sum(work.batches.values())
        mean = sum(size * times for size, times in work.batches.items()) / max(count, 1)
        instances = "1 instance" if work.instances == 1 else f"{work.instances} instances"
        told = f"{count} executions of {mean:.1f} rows on average"
        if work.hits:
            told += f"; {work.hits} answers from the cache"
        rows.append((f"{work.model}", f"{work.busy:.1%} busy", f"{instances}, {told}"))
    return columns(rows, indent="  ")


def _latency_row(title: str, latencies: NDArray[np.float64]) -> tuple[str, str, str]:
    percentiles = (f"p{percent} {_ms(float(np.percentile(latencies, percent)))}" for percent in PERCENTILES)
    return title, f"mean {_ms(float(latencies.mean()))}", "  ".join([*percentiles, f"max {_ms(float(latencies.max()))}"])


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
    levels = [] if result.priorities is None else np.unique(result.priorities).tolist()
    return {
        "model": result.model,
        "version": result.version,
        "arrivals": options.arrivals,
        "seed": options.seed,
        "requests": result.requests,
        "answered": int(result.latencies.size),
        "refused": result.refused,
        "seconds": result.seconds,
        "latency_seconds": _as_object(result.latencies),
        "priorities": {str(level): _as_object(result.latencies[result.priorities == level]) for level in levels},
        "models": {
            work.model: {
                "instances": work.instances,
                "utilization": work.busy,
                "cache_hits": work.hits,
                "batches": {str(rows): count for rows, count in work.batches.items()},
            }
            for work in result.works
        },
    }


def _as_object(latencies: NDArray[np.float64]) -> dict[str, float]:
    if not latencies.size:
        return {}
    percentiles = {f"p{percent}": float(np.percentile(latencies, percent)) for percent in PERCENTILES}
    return {"mean": float(latencies.mean()), **percentiles, "max": float(latencies.max())}


def _ms(seconds: float) -> str:
    """Return a duration as people read it."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
