"""When requests come: by chance, one after another, as they came once, or when clients have had their answers.

But for those of clients that wait, all are drawn before the first one comes.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernel.recording import is_recording
from kernel.simulation.numbers import number, wrong
from kernel.simulation.recorded import recorded_columns

__all__ = ["MOST", "Arrivals", "Closed", "read_arrivals"]

#: How many requests are simulated at most: some 60 bytes each.
MOST = 20_000_000

#: How long they may come, in seconds: beyond, the clock of a simulation has no microseconds.
LONGEST = 2_678_400.0

ROWS = 1_000_000  # of a request, at most

FASTEST = 1e9  # requests a second

CLIENTS = 10_000  # that wait for their answers, at most

SECONDS = 10.0  # where nobody has said for how long they come

FORMS = (
    "poisson:RATE[,SECONDS], constant:RATE[,SECONDS], ramp:FROM-TO[,SECONDS], closed:CLIENTS[,SECONDS], intervals:FILE, "
    "FILE.jsonl, a file of offsets or a recording"
)


@dataclass(frozen=True)
class Arrivals:
    """`offsets`: seconds from the start, not decreasing. Others are of each request, where a file says so; None: it does not.

    `contents`: those with the same one have the same inputs, 0 for none that others have; `timeouts`: the parameter `timeout`,
    in microseconds; `sequences`: whose it is, 0 for none, with `flags`: 1 for its start, 2 for its end.
    """

    offsets: NDArray[np.float64]
    rows: NDArray[np.int64] | None = None
    contents: NDArray[np.int64] | None = None
    priorities: NDArray[np.int64] | None = None
    timeouts: NDArray[np.int64] | None = None
    sequences: NDArray[np.int64] | None = None
    flags: NDArray[np.int64] | None = None

    @property
    def seconds(self) -> float:
        """From the first to the last."""
        return float(self.offsets[-1] - self.offsets[0])


@dataclass(frozen=True)
class Closed:
    """So many clients, each of which sends its next request when it has the answer to the one before, for so many seconds."""

    clients: int
    seconds: float


def read_arrivals(text: str, seed: int = 0, model: str = "") -> Arrivals | Closed:
    """Read what `--arrivals` says. Raises ServingError.

    `poisson:500,20`: 500 a second by chance, for 20 s; `constant:500`: at equal distances; `ramp:100-900,60`: by chance, from
    100 a second to 900 after 60 s; without seconds 10. `closed:8,20`: 8 clients that wait for their answers, for 20 s.
    `intervals:FILE`: microseconds between them, one a line, as perf_analyzer has them (`--request-intervals`). `FILE.jsonl`:
    one JSON object a line (`at`, and what is in KEYS). A recording of `kernel serve --record`: the requests of `model` in it, by
    default all. Else a file of offsets: seconds from the start and, if need be, rows, one request a line.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind in ("poisson", "constant", "ramp"):
        return Arrivals(_drawn(kind, rest, seed))
    if colon and kind == "closed":
        return _closed(rest)
    if colon and kind == "intervals":
        return _in_order(Path(rest), np.cumsum(_read(Path(rest), 1)[:, 0]) / 1e6)
    if not text or (colon and not Path(text).exists()):
        raise wrong(f"--arrivals '{text}' is of no known form; there are {FORMS}")
    if is_recording(text):
        columns = recorded_columns(text, model)
        return _in_order(Path(text), columns.pop("offsets"), **columns)
    if text.endswith(".jsonl"):
        return _of_objects(Path(text))
    lines = _read(Path(text), 2)
    return _in_order(Path(text), lines[:, 0], rows=lines[:, 1].astype(np.int64) if lines.shape[1] > 1 else None)


def _in_order(path: Path, offsets: NDArray[np.float64], **columns: NDArray[np.int64] | None) -> Arrivals:
    """Return arrivals that do not come too late, nor before those in front of them. Raises ServingError."""
    if (late := np.flatnonzero(np.diff(offsets) < 0)).size:
        place = int(late[0]) + 2
        raise wrong(f"{path}: request {place} comes at {offsets[place - 1]:g} s, before the one in front of it")
    if len(offsets) > MOST:
        raise wrong(f"{path} has {len(offsets)} requests, wanted are at most {MOST}")
    if offsets[-1] - offsets[0] > LONGEST:
        raise wrong(f"{path}: requests come for {offsets[-1] - offsets[0]:.0f} s, wanted are at most {LONGEST:.0f} s")
    return Arrivals(offsets, **columns)


def _seconds(text: str) -> float:
    seconds = number(text, "the number of seconds in --arrivals")
    if seconds > LONGEST:
        raise wrong(f"the number of seconds in --arrivals is '{text}', wanted are at most {LONGEST:.0f}")
    return seconds


def _closed(text: str) -> Closed:
    clients, comma, length = text.partition(",")
    seconds = _seconds(length) if comma else SECONDS
    if not (clients.isascii() and clients.isdigit() and 1 <= int(clients) <= CLIENTS and seconds):
        words = f"wanted are closed:CLIENTS[,SECONDS], 1 to {CLIENTS} clients and more than 0 seconds"
        raise wrong(f"--arrivals 'closed:{text}' is of no known form; {words}")
    return Closed(int(clients), seconds)


def _drawn(kind: str, rest: str, seed: int) -> NDArray[np.float64]:
    rates, comma, length = rest.partition(",")
    seconds = _seconds(length) if comma else SECONDS
    first, dash, last = rates.partition("-")
    if bool(dash) != (kind == "ramp"):
        raise wrong(f"--arrivals '{kind}:{rest}' is of no known form; there are {FORMS}")
    begin = number(first, "the rate in --arrivals")
    end = number(last, "the rate in --arrivals") if dash else begin
    if max(begin, end) > FASTEST:
        raise wrong(f"the rate in --arrivals '{kind}:{rest}' is {max(begin, end):g} a second, wanted are at most {FASTEST:g}")
    expected = (begin + end) / 2 * seconds
    if not 1 <= expected <= MOST:
        raise wrong(f"--arrivals '{kind}:{rest}' are {expected:.0f} requests, wanted are 1 to {MOST}")
    if kind == "constant":
        return np.arange(int(expected)) / begin
    # By chance at a rate of 1 a second, whose clock then goes as the rate says: the rate's sum up to a moment is the other clock.
    generator = np.random.default_rng(seed)
    count = int(expected + 6 * expected**0.5 + 10)
    clock = np.cumsum(generator.exponential(size=count))
    clock = clock[clock <= expected]
    if not clock.size:
        clock = np.array([expected / 2])
    slope = (end - begin) / seconds
    if not slope:
        return np.asarray(clock / begin)
    return np.asarray((np.sqrt(begin**2 + 2 * slope * clock) - begin) / slope)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Return number and text of each line. Raises ServingError."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from enumerate(file, 1)
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(f"--arrivals: {path} can't be read: {error}") from None


def _read(path: Path, columns: int) -> NDArray[np.float64]:
    """Read lines of numbers. Raises ServingError with the place."""
    found: array[float] = array("d")
    width = 0
    for count, line in _lines(path):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) > columns or (width and len(words) != width):
            wanted = width or (f"1 to {columns}" if columns > 1 else 1)
            raise wrong(f"{path}:{count}: there are {len(words)} numbers, wanted {wanted}")
        width = len(words)
        found.extend(number(word, f"{path}:{count}: a number") for word in words)
        if width > 1 and (not 1 <= found[-1] <= ROWS or found[-1] % 1):
            raise wrong(f"{path}:{count}: a request has {words[1]} rows, wanted is an integer from 1 to {ROWS}")
        if len(found) > MOST * width:
            break
    return np.frombuffer(_some(path, found, len(found) // max(width, 1))).reshape(-1, max(width, 1))


def _some(path: Path, found: array[float], count: int) -> array[float]:
    """Return what was found if it is not too little or too much. Raises ServingError."""
    if not 1 <= count <= MOST:
        raise wrong(f"{path} has {'more than ' if count > MOST else ''}{min(count, MOST)} requests, wanted are 1 to {MOST}")
    return found


#: What a line of FILE.jsonl may say besides `at`: -> name in Arrivals, least, most, and what goes where it says nothing.
KEYS = {
    "rows": ("rows", 1, ROWS, 1),
    "content": ("contents", 1, 2**62, 0),
    "priority": ("priorities", 0, 2**32 - 1, 0),
    "timeout_us": ("timeouts", 0, 2**62, 0),
    "sequence": ("sequences", 1, 2**62, 0),
}
FLAGS = {"start": 1, "end": 2}


def _of_objects(path: Path) -> Arrivals:
    """Read JSON objects, one a line. Raises ServingError with the place."""
    offsets: array[float] = array("d")
    columns = {key: array("q") for key in (*KEYS, "flags")}
    for count, line in _lines(path):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise wrong(f"{path}:{count}: this is no JSON: {error}") from None
        if not isinstance(told, dict) or "at" not in told or (unknown := told.keys() - KEYS.keys() - FLAGS.keys() - {"at"}):
            odd = sorted(unknown)[0] if isinstance(told, dict) and "at" in told else None
            words = f"'{odd}' is not known" if odd is not None else "there is no object with 'at'"
            raise wrong(f"{path}:{count}: {words}; wanted are at, {', '.join((*KEYS, *FLAGS))}")
        offsets.append(number(str(told["at"]), f"{path}:{count}: at"))
        for key, (_, least, most, default) in KEYS.items():
            columns[key].append(_integer(told.get(key, default), least, most, default, f"{path}:{count}: {key}"))
        for key in FLAGS:
            if type(told.get(key, False)) is not bool:
                raise wrong(f"{path}:{count}: {key} is {json.dumps(told[key])[:80]}, wanted is true or false")
        columns["flags"].append(sum(flag for key, flag in FLAGS.items() if told.get(key)))
        if len(offsets) > MOST:
            break
    _some(path, offsets, len(offsets))
    if (lost := np.frombuffer(columns["sequence"], np.int64) == 0).any() and not lost.all():
        raise wrong(f"{path}: request {int(np.flatnonzero(lost)[0]) + 1} has no 'sequence', others have")
    said: dict[str, NDArray[np.int64]] = {}
    for key, (name, _, _, default) in KEYS.items():
        column = np.frombuffer(columns[key], np.int64)
        if (column != default).any():
            said[name] = column
    if "sequences" in said:
        said["flags"] = np.frombuffer(columns["flags"], np.int64)
    return _in_order(path, np.frombuffer(offsets), **said)


def _integer(value: object, least: int, most: int, default: int, what: str) -> int:
    if type(value) is not int or not (least <= value <= most or value == default):
        raise wrong(f"{what} is {json.dumps(value)}, wanted is an integer from {least} to {most}")
    return value
