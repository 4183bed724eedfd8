"""How long executions take, and which models they call: said on the command line, in a file, or measured by a running server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from kernel.errors import ServingError
from kernel.recording import is_recording
from kernel.simulation.numbers import duration, number, wrong
from kernel.simulation.recorded import recorded_times

__all__ = ["Cost", "Costs", "Measured", "ModelCall", "Steps", "read_costs"]

LONGEST = 86_400.0  # seconds that an execution may take

NORMAL_P99 = 2.3263478740408408  # of the standard normal distribution
DRAWN = 4096  # at a time
MOST = 10_000  # rows of a call, and calls for one request
TERM = re.compile(r"\s*[0-9.]+(s|ms|us|µs)(\s*[/+]|\s*$)")  # what a step begins with that is no call

#: Asks a server: `ask(url, path)` returns status, reason and content of the answer. Raises ServingError where there is none.
Ask = Callable[[str, str], tuple[int, str, Any]]

FORMS = "a sum such as 2ms+0.3ms/row, a JSON file of rows to seconds, a recording, or the URL of a server that has measured"


@dataclass(frozen=True)
class Cost:
    """Seconds of an execution by its rows: `points` (rows, mean, sigma), by rows; between them and beyond as a line goes on.

    `sigma`: of the logarithm, where the time of an execution is drawn from a lognormal distribution; 0.0: it is always the mean.
    """

    points: tuple[tuple[int, float, float], ...]

    def __post_init__(self) -> None:
        if (most := max(mean for _, mean, _ in self.points)) > LONGEST:
            raise wrong(f"--cost says that an execution takes {most:g} s, wanted are at most {LONGEST:.0f} s")

    @classmethod
    def line(cls, fixed: float, each: float) -> Cost:
        """`fixed` seconds, and `each` for a row."""
        return cls(((1, fixed + each, 0.0), (2, fixed + 2 * each, 0.0)))

    def mean(self, rows: int) -> float:
        """Return the mean of an execution of so many rows, in seconds."""
        return min(max(0.0, self._along(rows, [mean for _, mean, _ in self.points])), LONGEST)

    def sigma(self, rows: int) -> float:
        """Return how much it scatters."""
        known = [one[0] for one in self.points]
        return float(np.interp(rows, known, [sigma for _, _, sigma in self.points]))

    def _along(self, rows: int, values: Sequence[float]) -> float:
        known = [one[0] for one in self.points]
        if len(known) == 1 or known[0] <= rows <= known[-1]:
            return float(np.interp(rows, known, values))
        # Below the first point nothing is known: it costs as much. Beyond the last it grows as it did before it, and never falls.
        if rows < known[0]:
            return values[0]
        slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
        return values[-1] + max(0.0, slope) * (rows - known[-1])

    def drawing(self, seed: Sequence[int]) -> Callable[[int], float]:
        """Return what says how long the next execution of so many rows takes, in seconds."""
        if not any(sigma for _, _, sigma in self.points):
            return _Means(self).__getitem__
        generator = np.random.default_rng(seed)
        normal: list[float] = []

        known: dict[int, tuple[float, float]] = {}

        def drawn(rows: int) -> float:
            if not normal:
                normal.extend(generator.standard_normal(DRAWN).tolist())
            mean, sigma = known.get(rows) or known.setdefault(rows, (self.mean(rows), self.sigma(rows)))
            return mean * math.exp(sigma * normal.pop() - sigma * sigma / 2)

        return drawn


@dataclass(frozen=True)
class Measured(Cost):
    """As executions have taken: `times`: rows -> seconds, of which one is drawn; of other sizes as those of the nearest one."""

    times: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def of(cls, times: Mapping[int, NDArray[np.float64]]) -> Measured:
        """`times`: rows -> seconds of each execution."""
        return cls(tuple((rows, float(times[rows].mean()), 0.0) for rows in sorted(times)), times)

    def drawing(self, seed: Sequence[int]) -> Callable[[int], float]:
        generator = np.random.default_rng(seed)
        known: dict[int, list[float]] = {}

        def drawn(rows: int) -> float:
            left = known.get(rows)
            if not left:
                left = known[rows] = generator.choice(self._like(rows), DRAWN).tolist()
            return left.pop()

        return drawn

    def _like(self, rows: int) -> NDArray[np.float64]:
        """Return the times of executions of so many rows, as far as is known."""
        near = min(self.times, key=lambda one: (abs(one - rows), one))
        mean = float(self.times[near].mean())
        return self.times[near] * (self.mean(rows) / mean) if near != rows and mean else self.times[near]


class _Means(dict[int, float]):
    """Rows -> seconds, reckoned once: what is asked for each execution takes no Python code then."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def __missing__(self, rows: int) -> float:
        seconds = self[rows] = self._cost.mean(rows)
        return seconds


@dataclass(frozen=True)
class ModelCall:
    """A call of a model for each request of an execution. `rows`: None: as many as the request has. `times`: how often."""

    model: str
    rows: int | None = None
    times: int = 1


@dataclass(frozen=True)
class Steps:
    """What an execution does, one after another: it computes, or makes calls, all of those in a tuple together, and waits."""

    steps: tuple[Cost | tuple[ModelCall, ...], ...]

    @property
    def calls(self) -> set[ModelCall]:
        """All of them."""
        return {call for step in self.steps if isinstance(step, tuple) for call in step}


class Costs:
    """What executions of each model cost. `given`: by the name of a model, "" for all others."""

    def __init__(self, given: Mapping[str, str], ask: Ask | None = None) -> None:
        self._given = given
        self._ask = ask
        self._read: dict[str, Cost | Steps] = {}

    @property
    def models(self) -> set[str]:
        """The names that something is said of."""
        return {*self._given} - {""}

    @property
    def calls(self) -> set[ModelCall]:
        """What executions call, as far as files say it. Raises ServingError."""
        found: set[ModelCall] = set()
        for text in self._given.values():
            if Path(text).is_file() and not is_recording(text) and isinstance(cost := _of_file(Path(text)), Steps):
                found |= cost.calls
        return found

    def of(self, model: str) -> Cost | Steps:
        """Return what executions of a model cost. Raises ServingError where nothing says it."""
        cost = self._read.get(model)
        if cost is None:
            text = self._given.get(model, self._given.get(""))
            if text is None:
                raise wrong(f"nothing says what an execution of model '{model}' costs: --cost {model}=…; wanted is {FORMS}")
            cost = self._read[model] = read_cost(text, model, self._ask)
        return cost


def read_costs(texts: Sequence[str], ask: Ask | None = None, arrivals: str = "") -> Costs:
    """Read what `--cost` says, any number of times: `SPEC`, or `MODEL=SPEC`. Raises ServingError.

    `ask`: how servers are asked; without it none can be. `arrivals`: what `--arrivals` says; `measured` means the executions of
    the recording that it names, if it names one.
    """
    given: dict[str, str] = {}
    for text in texts:
        name, equals, spec = text.partition("=")
        if not equals or "/" in name or ":" in name:
            name, spec = "", text
        if name in given:
            raise wrong("--cost is given twice for " + (f"model '{name}'" if name else "all models"))
        if not spec:
            raise wrong(f"--cost '{text}' says no cost; wanted is {FORMS}")
        if spec == "measured" and is_recording(arrivals):
            spec = arrivals
        if "://" not in spec and not is_recording(spec):
            read_cost(spec, name, ask)  # raises what is wrong with it before models are loaded
        given[name] = spec
    if not given:
        raise wrong(f"nothing says what executions cost: --cost; wanted is {FORMS}")
    return Costs(given, ask)


def read_cost(text: str, model: str, ask: Ask | None) -> Cost | Steps:
    """Read one cost. `model`: whose it is, for a server that is asked. Raises ServingError."""
    if "://" in text and ask is not None:
        return _measured(text, model, ask)
    if is_recording(text):
        return Measured.of(recorded_times(text, model))
    if Path(text).is_file():
        return _of_file(Path(text))
    if text == "measured":
        words = "wanted is a recording as --arrivals, whose executions are meant, or the URL of a server that has measured"
        raise wrong(f"--cost measured: {words}")
    if text.endswith((".json", ".zip")):
        raise wrong(f"--cost '{text}': there is no such file")
    return _sum(text, f"--cost '{text}'")


def _sum(text: str, what: str) -> Cost:
    """Read `2ms+0.3ms/row`. `what`: where it stands, for the error."""
    fixed = each = 0.0
    for term in text.split("+"):
        value, slash, unit = term.partition("/")
        if slash and unit.strip() != "row":
            raise wrong(f"{what}: '{term}' is of no known form; wanted is {FORMS}")
        seconds = duration(value, f"a term of {what}")
        if slash:
            each += seconds
        else:
            fixed += seconds
    return Cost.line(fixed, each)


def _of_file(path: Path) -> Cost | Steps:
    """Read rows -> seconds (`{"1": 0.002, "8": {"mean": 0.004, "p99": 0.007}}`), or a list of steps. Raises ServingError."""
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise wrong(f"--cost {path} can't be read as JSON: {error}") from None
    if isinstance(told, list) and told:
        return Steps(tuple(_step(path, place, one) for place, one in enumerate(told, 1)))
    return _by_rows(path, told)


def _by_rows(path: Path, told: object) -> Cost:
    if not isinstance(told, dict) or not told:
        words = 'wanted is an object of rows to seconds, such as {"1": 0.002, "8": 0.004}, or a list of steps'
        raise wrong(f"--cost {path}: {words}")
    points = sorted(_point(path, rows, value) for rows, value in told.items())
    if (twice := {one[0] for one in points if [other[0] for other in points].count(one[0]) > 1}):
        raise wrong(f"--cost {path}: {min(twice)} rows are there twice")
    return Cost(tuple(points))


def _step(path: Path, place: int, told: object) -> Cost | tuple[ModelCall, ...]:
    """Read one of: "2ms+0.1ms/row", rows to seconds, a call, a list of calls that are made together."""
    what = f"--cost {path}: step {place}"
    if isinstance(told, list) and told:
        return tuple(_call(what, one) for one in told)
    if isinstance(told, dict) and "model" not in told:
        return _by_rows(path, told)
    if isinstance(told, str) and TERM.match(told):
        return _sum(told, what)
    return (_call(what, told),)


def _call(what: str, told: object) -> ModelCall:
    """Read the name of a model, or `{"model": "rank", "rows": 8, "times": 2}`."""
    call = {"model": told} if isinstance(told, str) else told
    if not isinstance(call, dict) or call.keys() - {"model", "rows", "times"} or not isinstance(call.get("model"), str):
        words = 'a time such as "2ms+0.1ms/row", the name of a model, {"model": …, "rows": …, "times": …} or a list of calls'
        raise wrong(f"{what} is {json.dumps(told, ensure_ascii=False)[:80]}, wanted is {words}")
    rows, times = call.get("rows"), call.get("times", 1)
    for name, value in (("rows", 1 if rows is None else rows), ("times", times)):
        if type(value) is not int or not 1 <= value <= MOST:
            raise wrong(f"{what}: {name} is {json.dumps(value)}, wanted is an integer from 1 to {MOST}")
    return ModelCall(call["model"], rows, times)


def _point(path: Path, rows: str, value: object) -> tuple[int, float, float]:
    if not (rows.isascii() and rows.isdigit() and int(rows)):
        raise wrong(f"--cost {path}: '{rows}' is no number of rows, wanted is an integer of at least 1")
    if not isinstance(value, dict):
        return int(rows), number(str(value), f"--cost {path}: of {rows} rows the time"), 0.0
    if value.keys() != {"mean", "p99"}:
        raise wrong(f"--cost {path}: of {rows} rows there are {sorted(value)}, wanted are mean and p99, or a number")
    mean, p99 = (number(str(value[name]), f"--cost {path}: of {rows} rows {name}") for name in ("mean", "p99"))
    ratio = p99 / mean if mean else math.inf
    if not 1 <= ratio < math.exp(NORMAL_P99**2 / 2):
        raise wrong(f"--cost {path}: of {rows} rows p99 is {ratio:.2f} times the mean, wanted is 1 to 14 times")
    return int(rows), mean, NORMAL_P99 - math.sqrt(NORMAL_P99**2 - 2 * math.log(ratio))


def _measured(url: str, model: str, ask: Ask) -> Cost:
    """Ask a running server what executions of the model have cost it: the means of its statistics, by rows."""
    try:
        status, reason, told = ask(url, f"/v2/models/{quote(model, safe='')}/stats")
    except ServingError as error:
        raise wrong(f"--cost: {error.message}") from None
    try:
        if status != 200:
            raise wrong(f"--cost {url} has no statistics of model '{model}': {status} {told.get('error', reason)}")
        sums: dict[int, list[float]] = {}
        for version in told["model_stats"]:
            for batch in version["batch_stats"]:
                times = [batch[name] for name in ("compute_input", "compute_infer", "compute_output")]
                entry = sums.setdefault(int(batch["batch_size"]), [0.0, 0.0])
                entry[0] += times[1]["count"]
                entry[1] += sum(one["ns"] for one in times) / 1e9
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise wrong(f"--cost {url} answers with no statistics: {type(error).__name__}: {error}") from None
    points = tuple((rows, seconds / count, 0.0) for rows, (count, seconds) in sorted(sums.items()) if count)
    if not points:
        raise wrong(f"--cost {url} has executed nothing of model '{model}' yet; send it requests first")
    return Cost(points)
