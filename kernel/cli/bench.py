"""`kernel bench`: load on a server, or on two in turns, as a table and a histogram. kernel/loadtest sends and measures."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from kernel.cli.asking import ask
from kernel.cli.bench_words import report
from kernel.cli.parser import Parser, positive
from kernel.cli.progress import progress
from kernel.cli.values import read_tensor
from kernel.config import did_you_mean
from kernel.errors import Code, ServingError
from kernel.loadtest import (
    LOOKED_AT,
    Ask,
    ClosedLoop,
    Described,
    Load,
    LoadTarget,
    OpenLoop,
    Plan,
    Result,
    TargetOptions,
    Told,
    datasets_of,
    given_inputs,
    is_address,
    made_inputs,
    measure,
    open_target,
    own_server,
    ratios,
)
from kernel.observability import LogOptions, set_up_log
from kernel.simulation import duration, number
from kernel.tensor import Tensor

__all__ = ["bench", "headers_of", "loads_of", "windows_of"]

DESCRIPTION = """\
Send requests to a model and tell how fast it answers.

TARGET is a server's address (localhost:8000, http://…, https://…, grpc://localhost:8001, grpcs://…), or a model
repository, for which a server is started and ended; what stands behind `--` are its flags of `kernel serve`.
Any server of the KServe v2 protocol will do. With --against a second target is measured in turns with the first.

--concurrency: so many clients, each of which sends its next request when it has an answer
  8         eight                        1:32      1, 2, 4, 8, 16 and 32
  1,3,20    one after the other          1:32:8    from 1 to 32 in steps of 8
--rate: requests a second, sent whether or not others have been answered; latencies begin when a request was to be sent
  500       by chance (poisson:500)      constant:500   at equal distances      100,200,400   one after the other

What is sent is made from what the server says of the model, unless it is given:
  --input NAME=VALUE    as `kernel infer` takes it: JSON, @FILE.npy, @FILE.json; without the batch dimension, or with it
  --input-data FILE     a file as perf_analyzer has them; or the words random (the default) and zero
"""

EPILOG = """\
examples:
  kernel bench localhost:8000 detect --concurrency 1:32
  kernel bench localhost:8000 detect --concurrency 8 --duration 5s
  kernel bench grpc://localhost:8001 detect --rate poisson:500 --input-data requests.json
  kernel bench repository/ add_sub --input A=[1,2] --input B=[3,4] -- --log-verbose 1
  kernel bench localhost:8000 detect --against localhost:9000 --concurrency 8 --json

Exit status: 0 if requests of each load were answered, 1 if not, 2 if the command line is wrong.
"""

MOST = 10_000  # clients


def bench(arguments: Sequence[str]) -> int:
    """Run `kernel bench`; return the exit status."""
    own, flags = _split(arguments)
    options = _options(own)
    options.flags = flags
    set_up_log(LogOptions(info=False, warning=False, error=False))  # what fails is told
    try:
        with progress() as told, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            names, notes, results = runner.run(_bench(options, told))
    except ServingError as error:
        print(f"error: {error.message.strip()}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(_document(names, notes, results), ensure_ascii=False))
    else:
        print("\n".join(report(names, notes, results)))
    return int(not all(one.latencies.size for row in results for one in row))


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return what is ours, and what stands behind `--`."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return (arguments[:place], arguments[place + 1 :]) if place < len(arguments) else (arguments, [])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("kernel bench", "[FLAG ...] TARGET MODEL [-- SERVE_FLAG ...]", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("target", metavar="TARGET", help="address of a server, or a model repository")
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    parser.add_argument("--version", default="", metavar="N", help="version of the model (default: the server's choice)")
    parser.add_argument("--against", default="", metavar="TARGET", help="a second target, measured in turns")
    parser.add_argument("--against-model", default="", metavar="MODEL", help="name of its model (default: the same)")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--concurrency", metavar="SPEC", help="clients at a time, see above (default: 1)")
    load.add_argument("--rate", metavar="SPEC", help="requests a second, see above")
    parser.add_argument("-i", "--input", action="append", default=[], metavar="NAME=VALUE", help="an input, see above")
    parser.add_argument("--input-data", default="random", metavar="FILE", help="what is sent, see above (default: random)")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME:SIZES",
        help="of an input, without the batch dimension, such as X:3,224,224 (default: 1 for each size that is open)",
    )  # fmt: skip
    parser.add_argument("-b", "--batch-size", type=positive, default=1, metavar="N", help="rows of each request (default: 1)")
    parser.add_argument("--sequences", type=positive, default=4, metavar="N", help="at a time, with --rate (default: 4)")
    parser.add_argument(
        "--sequence-length", type=positive, default=20, metavar="N", help="requests of each sequence (default: 20)"
    )
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="of each request, such as a key")
    parser.add_argument("--timeout", default="60s", metavar="TIME", help="after which an answer counts as none (default: 60s)")
    parser.add_switch("--binary", True, "send tensors over HTTP as bytes, not as JSON")
    parser.add_switch("--grpc", False, "ask the server that is started for a repository over gRPC")
    parser.add_argument("--warm-up", default="1s", metavar="TIME", help="before anything counts (default: 1s)")
    parser.add_argument("--duration", metavar="TIME", help="measure each load for so long, such as 5s (default: see --window)")
    parser.add_argument("--window", metavar="TIME", help="of which three alike are looked for (default: 1s)")
    parser.add_argument("--windows", type=positive, metavar="N", help="at most (default: 10)")
    parser.add_argument("--tolerance", default="10", metavar="PERCENT", help="by which they may differ (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is by chance (default: 0)")
    parser.add_switch("--json", False, "print the result as JSON")
    options = parser.read(arguments)
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}, wanted is an integer of at least 0")
    try:
        options.loads = loads_of(options.concurrency, options.rate)
        options.shapes = dict(_shape(text) for text in options.shape)
        options.target_options = TargetOptions(
            options.version, headers_of(options.header), _time(options.timeout, "--timeout"), options.binary
        )
        options.plan = Plan(
            duration(options.warm_up, "--warm-up"), *windows_of(options.duration, options.window, options.windows),
            number(options.tolerance, "--tolerance") / 100, options.seed, options.sequences, options.sequence_length,
        )  # fmt: skip
        for text in options.input:
            if not re.match(r"[^=]+=", text):
                raise ServingError(Code.INVALID_ARG, f"--input '{text}' is not of the form NAME=VALUE")
    except ServingError as error:
        parser.error(error.message)
    return options


async def _bench(options: argparse.Namespace, told: Told) -> tuple[list[str], list[str], list[list[Result]]]:
    """Return what the targets are called, what was chosen for the requests, and what became of each load on each target."""
    async with contextlib.AsyncExitStack() as stack:
        targets: list[LoadTarget] = []
        names: list[str] = []
        for place, model in ((options.target, options.model), (options.against, options.against_model or options.model)):
            if place:
                targets.append(await _opened(stack, place, model, options, told))
                names.append(place)
        notes: list[str] = []
        datasets = []
        for target, name in zip(targets, names):
            _check(target, name)
            target.address = name
            sent, said = await asyncio.to_thread(_requests, target.model, options)
            datasets.append(sent)
            notes += [one for one in said if one not in notes]
        results = await measure(targets, options.loads, datasets, options.plan, told)
        shown = [f"model '{one.model.name}' version {one.model.version} at {name}" for one, name in zip(targets, names)]
        return shown, notes, results


async def _opened(
    stack: contextlib.AsyncExitStack, place: str, model: str, options: argparse.Namespace, told: Told
) -> LoadTarget:
    """Return a model at a server's address, or at a server that is started for a repository."""
    if is_address(place):
        target = await open_target(place, model, options.target_options, _asking(options))
    else:
        _must_be_there(place)
        # Waited for on the loop, which has nothing else to do yet.
        server = stack.enter_context(own_server(place, options.flags, lambda words: told(words, 0.0)))
        address = server.grpc if options.grpc else server.http
        try:
            target = await open_target(address, model, options.target_options, _asking(options))
        except ServingError as error:
            why = server.said_of(model) or did_you_mean(model, sorted(os.listdir(place))).removeprefix("; ")
            raise ServingError(error.code, f"{error.message.replace(address, place)}{f'; {why}' if why else ''}") from None
    stack.push_async_callback(target.close)
    return target


def _asking(options: argparse.Namespace) -> Ask:
    """Return how servers are asked what a model is: nobody is waited for any longer than for his other answers."""
    asking: Ask = partial(ask, seconds=options.target_options.timeout)
    return asking


def _must_be_there(repository: str) -> None:
    if "://" not in repository and not os.path.isdir(repository):
        words = f"'{repository}' is neither a folder nor an address such as localhost:8000 or grpc://localhost:8001"
        raise ServingError(Code.INVALID_ARG, words)


def _check(target: LoadTarget, name: str) -> None:
    if target.model.decoupled and not target.address.startswith("grpc"):
        how = "--grpc" if not is_address(name) else "the server's address of gRPC, such as grpc://localhost:8001"
        words = f"model '{target.model.name}' is decoupled, so an HTTP request can't have its answers; use {how}"
        raise ServingError(Code.UNSUPPORTED, words)


def _requests(model: Described, options: argparse.Namespace) -> tuple[list[Any], list[str]]:
    """Return what is sent to a model, and what was chosen for it."""
    if options.input_data not in ("random", "zero"):
        if options.input:
            raise ServingError(Code.INVALID_ARG, "--input and --input-data of a file exclude each other")
        return list(datasets_of(Path(options.input_data), model, options.shapes, options.batch_size)), []
    given: list[Tensor] = []
    for text in options.input:
        name, _, value = text.partition("=")
        given.append(read_tensor(model.spec(name), value))
    there = {one.name for one in given}
    made, notes = made_inputs(model, options.shapes, options.batch_size, options.input_data, options.seed)
    notes = [one for one in notes if not any(one.startswith(f"input '{name}' ") for name in there)]
    return [given_inputs(model, given, made, options.batch_size) if given else made], notes


def _document(names: Sequence[str], notes: Sequence[str], results: Sequence[Sequence[Result]]) -> dict[str, Any]:
    rows = []
    for row in results:
        one: dict[str, Any] = {"results": [result.as_json() for result in row]}
        if len(row) == 2:
            one["second_by_first"] = {
                name: {"median": ratio.middle, "low": ratio.low, "high": ratio.high} for name, ratio in ratios(*row).items()
            }
        rows.append(one)
    return {"targets": list(names), "inputs": list(notes), "loads": rows}


# -- what flags say ----------------------------------------------------------------------------------------------------


def loads_of(concurrency: str | None, rate: str | None) -> list[Load]:
    """Read what `--concurrency` or `--rate` says. Raises ServingError."""
    if rate is None:
        return [ClosedLoop(clients) for clients in _clients(concurrency or "1")]
    kind, colon, rates = rate.partition(":")
    if not colon:
        kind, rates = "poisson", rate
    if kind not in ("poisson", "constant"):
        raise ServingError(Code.INVALID_ARG, f"--rate '{rate}': '{kind}' is unknown, there are poisson:RATE and constant:RATE")
    loads: list[Load] = []
    for text in rates.split(","):
        value = number(text, "--rate")
        if not 0.01 <= value <= 1_000_000:
            raise ServingError(Code.INVALID_ARG, f"--rate is '{text}', wanted is a number from 0.01 to 1000000")
        loads.append(OpenLoop(kind, value))
    return loads


def _clients(text: str) -> list[int]:
    def count(word: str) -> int:
        if not (word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= MOST):
            raise ServingError(Code.INVALID_ARG, f"--concurrency '{text}': '{word}' is no integer from 1 to {MOST}")
        return int(word)

    parts = text.split(":")
    if len(parts) == 1:
        return [count(word) for word in text.split(",")]
    if len(parts) > 3:
        raise ServingError(Code.INVALID_ARG, f"--concurrency '{text}' is of no known form; there are 8, 1,3,20, 1:32 and 1:32:8")
    first, last = count(parts[0]), count(parts[1])
    if last < first:
        raise ServingError(Code.INVALID_ARG, f"--concurrency '{text}' goes from {first} down to {last}")
    if len(parts) == 3:
        return list(range(first, last + 1, count(parts[2])))
    found = [first]
    while found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return [*found, last] if last > first else found


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, sizes = text.rpartition(":")
    if not colon or not name or not re.fullmatch(r"\d{1,9}(,\d{1,9})*", sizes):
        raise ServingError(Code.INVALID_ARG, f"--shape '{text}' is not of the form NAME:SIZE,SIZE…, such as X:3,224,224")
    return name, tuple(map(int, sizes.split(",")))


def headers_of(texts: Sequence[str]) -> dict[str, str]:
    """Read `--header 'NAME: VALUE'`. Raises ServingError."""
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\0]|[^\x00-\xff]", value):
            raise ServingError(Code.INVALID_ARG, f"--header '{text}' is not of the form 'NAME: VALUE'")
        headers[name] = value.strip()
    return headers


def windows_of(whole: str | None, window: str | None, most: int | None) -> tuple[float, int]:
    """Return how long a window is, and how many there are at most. `whole`: what --duration says: its three are all of it."""
    if whole is None:
        return _time(window or "1s", "--window"), max(LOOKED_AT, most or 10)
    if window is not None or most is not None:
        words = "--duration says how long is measured, --window and --windows until when windows are alike; one of both is wanted"
        raise ServingError(Code.INVALID_ARG, words)
    return _time(whole, "--duration") / LOOKED_AT, LOOKED_AT


def _time(text: str, flag: str) -> float:
    seconds = duration(text, flag)
    if not seconds:
        raise ServingError(Code.INVALID_ARG, f"{flag} is '{text}', wanted is a time above 0")
    return seconds
