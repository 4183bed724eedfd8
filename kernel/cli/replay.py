"""`kernel replay`: has recorded requests answered again and compares, or writes them for perf_analyzer."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kernel.cli.asking import headers_of
from kernel.cli.flags import add_config_flags, add_storage_flags, auto_complete, storage_options
from kernel.cli.parser import Parser, patience, positive
from kernel.cli.replaying import Answering, InProcess, OverGrpc, OverHttp, Replayed, Unexpected
from kernel.cli.replaying import replay as send_again
from kernel.cli.table import columns
from kernel.errors import Code, ServingError, clipped
from kernel.loadtest import is_address
from kernel.observability import LogOptions, duration, set_up_log
from kernel.recording import Placed, RecordedRequest, Recording, Told, Tolerance, export_input_data, read_recording

__all__ = ["replay"]

DESCRIPTION = """\
Have the requests of a recording answered again, compare the answers, and say how long they took.

FILE is what `kernel serve --record FILE --record-tensors` has written. They are sent to the server at URL
(over HTTP, or gRPC: grpc://…, which decoupled models need), or to the models of REPO in this process, in the
order and, by --speed 1x, at the pace in which they came. Or they are written as perf_analyzer reads them.
"""

EPILOG = """\
examples:
  kernel replay day.zip --against localhost:8000
  kernel replay day.zip --against new_models/ --speed max
  kernel replay day.zip --against http://triton:8000 --model detect --relative 1e-3 --report differences.jsonl
  kernel replay day.zip --against grpc://localhost:8001 --model chat
  kernel replay day.zip --model detect --export-input-data input.json

Numbers with a fraction are the same where they differ by --absolute + --relative times the recorded one at
most, all else where it is equal. What had failed as the server had too much to do is sent and not compared; what
else is not compared is told with its reason, and each request of it in the report.

Exit status: 0 if all that was compared is the same, 1 if not, or if nothing could be compared, 2 if the
command line is wrong.
"""

#: How many differences are printed.
PRINTED = 10

Line = tuple[int, RecordedRequest[Placed]]


def replay(arguments: Sequence[str]) -> int:
    """Run `kernel replay`; return the exit status."""
    usage = "[FLAG ...] FILE --against URL|REPO | --export-input-data OUT"
    parser = Parser("kernel replay", usage, DESCRIPTION, epilog=EPILOG)
    parser.add_argument("file", metavar="FILE", help="the recording")
    parser.add_argument("--against", default="", metavar="URL|REPO", help="who is asked: a server, or a model repository")
    parser.add_argument("--export-input-data", type=Path, metavar="OUT", help="write the requests of a model for perf_analyzer")
    parser.add_argument("--model", default="", metavar="NAME", help="only requests of this model (default: all)")
    parser.add_argument(
        "--version", default="", metavar="N|recorded", help="which is asked; recorded: the one that was (default: the newest)"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N requests")
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="Nx|max", help="how fast they are sent (default: 1x)")
    parser.add_argument("--concurrency", type=positive, default=16, metavar="N", help="how many may be under way (default: 16)")
    parser.add_argument("--timeout", type=patience, default=60.0, metavar="SECONDS", help="of each request (default: 60)")
    parser.add_argument("--relative", type=_least_zero, default=1e-5, metavar="X", help="tolerance (default: 1e-5)")
    parser.add_argument("--absolute", type=_least_zero, default=1e-6, metavar="X", help="tolerance (default: 1e-6)")
    parser.add_argument(
        "--slower", type=float, metavar="FACTOR", help="exit status 1 as well where p99 is more than FACTOR times that of then"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write each difference as a line of JSON")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="send this, such as a key")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_config_flags(parser)
    add_storage_flags(parser)
    options = parser.read(arguments)
    if bool(options.against) == bool(options.export_input_data):
        parser.error("one of --against and --export-input-data is wanted")
    set_up_log(LogOptions(info=False, warning=False, error=False))  # what fails is told
    try:
        with read_recording(options.file) as recording:
            for words in recording.warnings():
                print(f"warning: {words}", file=sys.stderr)
            lines = _chosen(recording, options)
            return _export(recording, lines, options) if options.export_input_data else _replay(recording, lines, options)
    except ServingError as error:
        print(f"error: {error.message.strip()}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename} can't be written: {error.strerror or error}", file=sys.stderr)
        return 1


def _chosen(recording: Recording, options: argparse.Namespace) -> list[Line]:
    """Return the requests of clients that are asked for, in their order. Raises ServingError where there are none."""
    if not recording.head.tensors:
        words = f"{options.file} has no tensors, so there is nothing to send: it was written without --record-tensors"
        raise ServingError(Code.INVALID_ARG, words)
    lines = recording.lines()
    found = [(number, line) for number, line in lines if line.caller is None and options.model in ("", line.model)]
    if not found:
        there = ", ".join(sorted({f"'{clipped(line.model)}'" for _, line in lines})) or "none"
        of = f" of model '{options.model}'" if options.model else ""
        raise ServingError(Code.INVALID_ARG, f"{options.file} has no requests{of}; its models are {there}")
    return found[: options.limit]


def _export(recording: Recording, lines: list[Line], options: argparse.Namespace) -> int:
    if len(models := sorted({line.model for _, line in lines})) > 1:
        shown = ", ".join(map(clipped, models))
        raise ServingError(Code.INVALID_ARG, f"perf_analyzer asks one model; choose one of {shown} by --model")
    with open(options.export_input_data, "w") as out:
        written, left_out = export_input_data(recording, lines, out)
    print(f"{written} entries of model '{clipped(models[0])}' are in {options.export_input_data}")
    if left_out:
        print(f"warning: {left_out} requests are left out: their strings are no UTF-8", file=sys.stderr)
    return 0 if written else 1


def _replay(recording: Recording, lines: list[Line], options: argparse.Namespace) -> int:
    if recording.head.redaction:
        words = f"it was written with --record-redaction {clipped(recording.head.redaction)}: answers differ by that"
        print(f"warning: {words}", file=sys.stderr)

    def told() -> Iterator[Told]:
        for number, line in lines:
            yield recording.with_tensors(number, line)

    with ExitStack() as stack:
        report = _reporter(stack, options.report)
        target = stack.enter_context(closing(_target(options)))
        result = send_again(
            told(), target, speed=options.speed, concurrency=options.concurrency,
            tolerance=Tolerance(options.relative, options.absolute), report=report,
        )  # fmt: skip
    if options.json:
        print(json.dumps(_as_json(result), ensure_ascii=False))
    else:
        _print(result)
    return 0 if _well(result, options.slower) else 1


def _target(options: argparse.Namespace) -> Answering:
    against = options.against
    if not Path(against).is_dir() and ("://" in against or ":" in against):
        url = against if "://" in against else f"http://{against}"
        kind = OverHttp if url.startswith(("http://", "https://")) else OverGrpc if is_address(url) else None
        if kind is not None:
            return kind(url, options.timeout, options.version, headers_of(options.header))
    return InProcess(
        against, options.timeout, options.version, auto_complete=auto_complete(options),
        config_name=options.model_config_name, storage=storage_options(options),
    )  # fmt: skip


def _reporter(stack: ExitStack, path: Path | None) -> Callable[[Unexpected], None] | None:
    if path is None:
        return None
    file = stack.enter_context(open(path, "w"))
    lock = threading.Lock()

    def report(worked: Unexpected) -> None:
        with lock:
            file.write(json.dumps(asdict(worked), ensure_ascii=False) + "\n")

    return report


def _print(result: Replayed) -> None:
    for one in result.told[:PRINTED]:
        id = f" '{clipped(one.id)}'" if one.id else ""
        print(f"request{id} of model '{clipped(one.model)}': {one.words}")
    if result.told:
        many = sum(outcome.differ + outcome.failed for outcome in result.models.values())
        print(f"… ({many} requests in all)\n" if len(result.told) > PRINTED else "")
    rows: list[tuple[str, ...]] = [("model", "sent", "same", "differ", "failed", "not compared", "p50", "then", "p99", "then")]
    for model, outcome in sorted(result.models.items()):
        counts = (outcome.sent, outcome.same, outcome.differ, outcome.failed, outcome.not_compared.total())
        latencies = [_percentile(of, percent) for percent in (50, 99) for of in (outcome.after, outcome.before)]
        rows.append((clipped(model), *map(str, counts), *("-" if one is None else duration(one) for one in latencies)))
    print("\n".join(columns(rows)))
    for model, outcome in sorted(result.models.items()):
        for why, count in outcome.not_compared.most_common():
            print(f"not compared of model '{clipped(model)}': {count}: {why}")
    if result.late > 0.1:
        words = f"requests left up to {duration(result.late)} late: the target, or this client, takes no more"
        print(f"{words}; --concurrency says how many may be under way", file=sys.stderr)


def _percentile(values: Any, percent: float) -> float | None:
    return float(np.percentile(np.frombuffer(values), percent)) if len(values) else None


def _well(result: Replayed, slower: float | None) -> bool:
    outcomes = result.models.values()
    if any(outcome.differ or outcome.failed for outcome in outcomes) or not any(outcome.same for outcome in outcomes):
        return False
    for outcome in outcomes if slower is not None else ():
        now, then = _percentile(outcome.after, 99), _percentile(outcome.before, 99)
        if now is not None and then is not None and slower is not None and now > slower * then:
            return False
    return True


def _as_json(result: Replayed) -> dict[str, Any]:
    return {
        "seconds": result.seconds,
        "late_seconds": result.late,
        "models": {
            model: {
                "sent": outcome.sent, "same": outcome.same, "differ": outcome.differ, "failed": outcome.failed,
                "not_compared": outcome.not_compared.total(), "why_not_compared": dict(outcome.not_compared.most_common()),
                "latency_seconds": {f"p{percent}": _percentile(outcome.after, percent) for percent in (50, 90, 99)},
                "recorded_latency_seconds": {f"p{percent}": _percentile(outcome.before, percent) for percent in (50, 90, 99)},
            }
            for model, outcome in sorted(result.models.items())
        },
        "differences": [asdict(one) for one in result.told],
    }  # fmt: skip


def _speed(text: str) -> float:
    """Read a value of --speed: 0.0 for max."""
    if text == "max":
        return 0.0
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — '{text}' is neither max nor a number such as 1x")
    return speed


def _least_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0.0:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — '{text}' is no number of at least 0")
    return number
