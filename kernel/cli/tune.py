"""`kernel tune`: which settings of a model meet a goal. The simulator looks at all of them, a server of our own at the best."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import uvloop

from kernel.cli.asking import ask
from kernel.cli.bench_words import milliseconds
from kernel.cli.parser import Parser, positive
from kernel.cli.progress import progress
from kernel.cli.table import columns
from kernel.config import FieldPath, ModelConfig, did_you_mean, edited, read_config
from kernel.errors import Code, ServingError
from kernel.loadtest import (
    ClosedLoop,
    Expected,
    Load,
    OpenLoop,
    OwnServer,
    Plan,
    Result,
    Settings,
    TargetOptions,
    Told,
    choose,
    made_inputs,
    measure,
    open_target,
    own_server,
    reasons,
    settings_of,
)
from kernel.observability import LogOptions, set_up_log
from kernel.simulation import Costs, duration, number, read_arrivals, read_costs
from kernel.simulation import simulate as simulated

__all__ = ["tune"]

DESCRIPTION = """\
Find settings of a model with which 99 of 100 requests are answered within a time, at so many requests a second.

What executions cost is measured on a server that is started for it, unless --cost says it. The simulator then looks
at delays, preferred sizes, largest batches and numbers of instances (and, where these do not do, placements); what
looks best is tried live. Printed is what to change, and for each line what would be without it.
"""

EPILOG = """\
examples:
  kernel tune repository/ detect --p99 20ms --rate 500
  kernel tune repository/ detect --p99 20ms --rate 500 --write
  kernel tune repository/ detect --p99 20ms --rate 500 --cost 2ms+0.3ms/row --max-instances 8

Exit status: 0 if the goal is met live, 1 if not, 2 if the command line is wrong.
"""

MOST_INSTANCES = 1024  # that a config may say
MOST_RATE = 1_000_000
MOST_WINDOW = 3600  # seconds
TRIED = 4  # settings that are tried live
SECONDS = 8  # of simulated requests
OVERHEAD = 100e-6  # seconds of the server's loop for a request
MEASURE = Plan(warm_up=0.1, window=0.2, most=3)  # of what executions cost
WAIT_US = 20_000  # microseconds for which a batch that is measured waits for its requests
PLACEMENTS = ("process", "thread")


def tune(arguments: Sequence[str]) -> int:
    """Run `kernel tune`; return the exit status."""
    parser = Parser("kernel tune", "[FLAG ...] REPO MODEL --p99 TIME --rate RATE", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("repository", metavar="REPO", help="model repository, a folder")
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    parser.add_argument("--p99", required=True, metavar="TIME", help="within which 99 of 100 are to be answered, such as 20ms")
    parser.add_argument("--rate", required=True, metavar="RATE", help="requests a second, by chance")
    parser.add_argument("-b", "--batch-size", type=positive, default=1, metavar="N", help="rows of each request (default: 1)")
    parser.add_argument("--cost", action="append", default=[], metavar="COST", help="as `kernel simulate` has it")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--max-instances", type=positive, default=cores, metavar="N", help="at most (default: as many as there are cores)"
    )
    parser.add_argument("--window", default="2s", metavar="TIME", help="of the three that are measured live (default: 2s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is by chance (default: 0)")
    parser.add_switch("--write", False, "put what is found into config.pbtxt, and leave all else in it as it stands")
    options = parser.read(arguments)
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}, wanted is an integer of at least 0")
    if options.max_instances > MOST_INSTANCES:
        parser.error(f"--max-instances is {options.max_instances}, wanted is an integer from 1 to {MOST_INSTANCES}")
    try:
        options.goal, options.load = duration(options.p99, "--p99"), number(options.rate, "--rate")
        options.plan = Plan(1.0, duration(options.window, "--window"), 3, seed=options.seed)
        if not (options.goal and options.load and options.plan.window):
            raise ServingError(Code.INVALID_ARG, "--p99, --rate and --window are to be above 0")
        if not 0.01 <= options.load <= MOST_RATE:
            raise ServingError(Code.INVALID_ARG, f"--rate is '{options.rate}', wanted is a number from 0.01 to {MOST_RATE}")
        if options.plan.window > MOST_WINDOW:
            raise ServingError(Code.INVALID_ARG, f"--window is '{options.window}', wanted are at most {MOST_WINDOW} s")
    except ServingError as error:
        parser.error(error.message)
    set_up_log(LogOptions(info=False, warning=False, error=False))  # what fails is told
    try:
        with progress() as told:
            return _Tuning(options, told).run()
    except ServingError as error:
        print(f"error: {error.message.strip()}", file=sys.stderr)
        return 1


class _Tuning:
    """One run: what is known of the model, and what has been looked at."""

    def __init__(self, options: argparse.Namespace, told: Told) -> None:
        self.options = options
        self.told = told
        self.folder: Path = Path(options.repository) / options.model
        self.config = _read(Path(options.repository), self.folder)
        file = self.folder / "config.pbtxt"
        self.text = file.read_text() if file.exists() else ""
        self.before = settings_of(self.config)
        self.costs: dict[str, Costs] = {}
        self.seen: dict[Settings, Expected] = {}
        self.live: list[Result] = []  # with the placement as it is

    def run(self) -> int:
        options = self.options
        counts = sorted({self.before.count, *(2**k for k in range(12) if 2**k <= options.max_instances)})
        lines = [f"model '{options.model}': p99 within {options.p99} at {options.load:g} requests a second", ""]
        rows = [("", "p99 simulated", "busy", "p99 live")]
        rows.append(self._row("as it is", self.before, None))
        found: tuple[Settings, Result] | None = None
        nearest: tuple[Settings, Result] | None = None
        for placement in (self.before.placement, *(one for one in self._placements() if one != self.before.placement)):
            candidates = choose(replace(self.before, placement=placement), options.goal, counts, self.look)
            for settings, outcome in candidates[:TRIED]:
                if outcome.p99 > 2 * options.goal and nearest is not None:
                    continue  # it is too far away to be tried
                result = self._live(settings)
                row = self._row(self._name(settings), settings, result)
                rows[1:] = [row] if settings == self.before else [*rows[1:], row]
                if placement == self.before.placement:
                    self.live.append(result)
                if _meets(result, options.goal):
                    found = settings, result
                    break
                if nearest is None or _nearer(result, nearest[1]):
                    nearest = settings, result
            if found is not None:
                break
        lines += [*columns(rows), ""]
        best = found or nearest
        assert best is not None
        if found is None:
            p99 = _p99(best[1])
            lines.append(f"the goal can't be met: the nearest is p99 {_shown(p99)} with what follows")
        changes = best[0].changes(self.before)
        lines += self._told(best[0], changes)
        if changes and options.write and found is not None:
            lines.append(f"written to {self._write(changes)}")
        print("\n".join(lines))
        return 0 if found is not None else 1

    # -- what is looked at ---------------------------------------------------------------------------------------------

    def look(self, settings: Settings) -> Expected:
        """Say what would become of requests."""
        if settings not in self.seen:
            self.told(f"simulating {self._name(settings)}", 0.3)
            options = self.options
            with self._variant(settings) as repository:
                arrivals = read_arrivals(f"poisson:{options.load!r},{SECONDS}", options.seed)
                result = simulated(
                    repository, options.model, arrivals, self._costs(settings.placement), rows=options.batch_size,
                    seed=options.seed, effort=OVERHEAD,
                )  # fmt: skip
            busy = max((work.busy for work in result.works if work.model == options.model), default=0.0)
            p99 = result.latency(99)
            self.seen[settings] = Expected(math.inf if math.isnan(p99) else p99, sum(result.refused.values()), busy)
        return self.seen[settings]

    def _costs(self, placement: str) -> Costs:
        """Return what executions cost there: said, or measured on a server of our own with batches of all sizes."""
        if placement not in self.costs:
            options = self.options
            if options.cost:
                self.costs[placement] = read_costs(options.cost, ask)
            else:
                waits = None if not self.before.most else WAIT_US
                settings = replace(self.before, count=1, placement=placement, delay=waits, preferred=())
                clients = [2**k for k in range(self.before.most.bit_length())] if self.before.most else [1]
                clients = [one for one in clients if one * options.batch_size <= max(1, self.before.most)] or [1]
                with self._server(settings, 0.1) as server:
                    self._asked(server, [ClosedLoop(count) for count in clients], MEASURE, 0.1)
                    costs = read_costs([server.http], ask)
                    costs.of(options.model)  # while the server is there to be asked
                self.costs[placement] = costs
        return self.costs[placement]

    def _live(self, settings: Settings) -> Result:
        """Measure settings on a server of our own."""
        with self._server(settings, 0.6) as server:
            return self._asked(server, [OpenLoop("poisson", self.options.load)], self.options.plan, 0.6)[0]

    @contextmanager
    def _server(self, settings: Settings, part: float) -> Iterator[OwnServer]:
        with self._variant(settings) as repository, own_server(repository, (), lambda words: self.told(words, part)) as server:
            yield server

    def _asked(self, server: OwnServer, loads: Sequence[Load], plan: Plan, part: float) -> list[Result]:
        async def main() -> list[Result]:
            model = self.options.model
            try:
                target = await open_target(server.http, model, TargetOptions(), ask)
            except ServingError as error:
                raise ServingError(error.code, server.said_of(model) or error.message) from None
            try:
                made, _ = made_inputs(target.model, {}, self.options.batch_size, "random", self.options.seed)
                results = await measure([target], loads, [[made]], plan, lambda words, done: self.told(words, part + 0.3 * done))
                return [row[0] for row in results]
            finally:
                await target.close()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results = runner.run(main())
        if not all(one.latencies.size for one in results):
            why = ", ".join(results[-1].errors) or "there was no answer"
            raise ServingError(Code.UNAVAILABLE, f"model '{self.options.model}' did not answer what was sent to it: {why}")
        return results

    def _placements(self) -> tuple[str, ...]:
        return PLACEMENTS if self.config.backend == "python" else ()

    # -- configs -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _variant(self, settings: Settings) -> Iterator[str]:
        """Have a repository whose model has these settings; all else in it is what is there already."""
        repository = self.folder.parent.resolve()
        with tempfile.TemporaryDirectory(prefix="kernel-tune-") as place:
            own = Path(place) / self.folder.name
            own.mkdir()
            for one in repository.iterdir():
                if one.name != own.name and one.is_dir():
                    (own.parent / one.name).symlink_to(one)
            for one in self.folder.resolve().iterdir():
                if one.name != "config.pbtxt":
                    (own / one.name).symlink_to(one)
            (own / "config.pbtxt").write_text(self._edited(settings.changes(self.before)))
            yield place

    def _edited(self, changes: Mapping[FieldPath, str]) -> str:
        return edited(self.text, changes)

    def _write(self, changes: Mapping[FieldPath, str]) -> Path:
        file: Path = self.folder / "config.pbtxt"
        beside = file.with_name(".config.pbtxt.new")
        beside.write_text(self._edited(changes))
        if file.exists():
            beside.chmod(file.stat().st_mode & 0o777)
        os.replace(beside, file)
        return file

    # -- words ---------------------------------------------------------------------------------------------------------

    def _row(self, name: str, settings: Settings, result: Result | None) -> tuple[str, str, str, str]:
        outcome = self.look(settings)
        return name, _outcome(outcome), f"{outcome.busy:.0%}", "" if result is None else _shown(_p99(result))

    def _name(self, settings: Settings) -> str:
        changes = settings.changes(self.before)
        return ", ".join(f"{_field(path)} {value}" for path, value in changes.items()) or "as it is"

    def _told(self, settings: Settings, changes: Mapping[FieldPath, str]) -> list[str]:
        if not changes:
            return ["nothing is to be changed"]
        lines = [f"in {self.folder / 'config.pbtxt'}:", ""]
        for path, without in reasons(self.before, settings, self.look).items():
            why = f"without it: p99 {_outcome(without)}, {without.busy:.0%} busy (simulated)"
            if path[-1] == "string_value" and self.live:  # all that could be simulated was done before it
                why = f"without it: p99 {_shown(min(map(_p99, self.live)))} at best (live)"
            lines.append(f"{edited('', {path: changes[path]}).strip()}  # {why}")
        return lines


def _read(repository: Path, folder: Path) -> ModelConfig:
    """Read the config. Raises ServingError for what is not tuned."""
    if not repository.is_dir():
        raise ServingError(Code.INVALID_ARG, f"'{repository}' is no folder; wanted is a model repository of this machine")
    if not folder.is_dir():
        names = sorted(one.name for one in repository.iterdir() if one.is_dir())
        raise ServingError(Code.NOT_FOUND, f"{repository} has no model '{folder.name}'{did_you_mean(folder.name, names)}")
    config = read_config(folder)
    for there, words in (
        (config.is_ensemble, "an ensemble: tune its steps"),
        (config.sequence_batching is not None, "one for sequences, which go by their own rules"),
        (config.decoupled, "decoupled: its requests have no one answer whose latency could be a goal"),
    ):
        if there:
            raise ServingError(Code.UNSUPPORTED, f"model '{folder.name}' is {words}")
    return config


def _meets(result: Result, goal: float) -> bool:
    kept_up = result.rate >= 0.95 * result.offered
    return kept_up and not result.errors and _p99(result) <= goal


def _nearer(one: Result, other: Result) -> bool:
    return (one.errors.total(), _p99(one)) < (other.errors.total(), _p99(other))


def _p99(result: Result) -> float:
    """Return the middle one of the windows', so that a moment in which the machine did something else does not decide."""
    return float(np.median([np.percentile(one.latencies, 99) if one.latencies.size else math.inf for one in result.last]))


def _field(path: FieldPath) -> str:
    return {"count": "instances", "string_value": "placement"}.get(path[-1], path[-1])


def _outcome(outcome: Expected) -> str:
    return _shown(outcome.p99) + (f", {outcome.lost} lost" if outcome.lost else "")


def _shown(seconds: float) -> str:
    return milliseconds(seconds) if math.isfinite(seconds) else "-"
