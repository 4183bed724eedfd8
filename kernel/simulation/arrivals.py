"""When requests come: by chance, one after another, or as they came once. All are drawn before the first one comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernel.recording import is_recording, read_recording
from kernel.simulation.numbers import number, wrong

__all__ = ["MOST", "Arrivals", "read_arrivals"]

#: How many requests are simulated at most: some 100 bytes each.
MOST = 50_000_000

SECONDS = 10.0  # where nobody has said for how long they come

FORMS = "poisson:RATE[,SECONDS], constant:RATE[,SECONDS], ramp:FROM-TO[,SECONDS], intervals:FILE, file of offsets, recording"


@dataclass(frozen=True)
class Arrivals:
    """`offsets`: seconds from the start, not decreasing. `rows`: of each request, where a file says so; None: all alike."""

    offsets: NDArray[np.float64]
    rows: NDArray[np.int64] | None = None

    @property
    def seconds(self) -> float:
        """From the first to the last."""
        return float(self.offsets[-1] - self.offsets[0])


def read_arrivals(text: str, seed: int = 0, model: str = "") -> Arrivals:
    """Read what `--arrivals` says. Raises ServingError.

    `poisson:500,20`: 500 a second by chance, for 20 s; `constant:500`: at equal distances; `ramp:100-900,60`: by chance, from
    100 a second to 900 after 60 s; without seconds 10. `intervals:FILE`: microseconds between them, one a line, as perf_analyzer
    has them (`--request-intervals`). A recording of `kernel serve --record`: the requests of `model` in it, by default all. Else
    a file of offsets: seconds from the start and, if need be, rows, one request a line.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind in ("poisson", "constant", "ramp"):
        return Arrivals(_drawn(kind, rest, seed))
    if colon and kind == "intervals":
        return Arrivals(np.cumsum(_read(Path(rest), 1)[:, 0]) / 1e6)
    if colon and not Path(text).exists():
        raise wrong(f"--arrivals '{text}' is of no known form; there are {FORMS}")
    if is_recording(text):
        with read_recording(text) as recording:
            return Arrivals(*recording.arrivals(model))
    lines = _read(Path(text), 2)
    offsets = lines[:, 0]
    if (late := np.flatnonzero(np.diff(offsets) < 0)).size:
        line = int(late[0]) + 2
        raise wrong(f"{text}: request {line} comes at {offsets[line - 1]:g} s, before the one in front of it")
    return Arrivals(offsets, lines[:, 1].astype(np.int64) if lines.shape[1] > 1 else None)


def _drawn(kind: str, rest: str, seed: int) -> NDArray[np.float64]:
    rates, comma, length = rest.partition(",")
    seconds = number(length, "the number of seconds in --arrivals") if comma else SECONDS
    first, dash, last = rates.partition("-")
    if bool(dash) != (kind == "ramp"):
        raise wrong(f"--arrivals '{kind}:{rest}' is of no known form; there are {FORMS}")
    begin = number(first, "the rate in --arrivals")
    end = number(last, "the rate in --arrivals") if dash else begin
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


def _read(path: Path, columns: int) -> NDArray[np.float64]:
    """Read lines of numbers. Raises ServingError with the place."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(f"--arrivals: {path} can't be read: {error}") from None
    found: list[list[float]] = []
    for count, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) > columns or (found and len(words) != len(found[0])):
            wanted = len(found[0]) if found else f"1 to {columns}" if columns > 1 else 1
            raise wrong(f"{path}:{count}: there are {len(words)} numbers, wanted {wanted}")
        found.append([number(word, f"{path}:{count}: a number") for word in words])
        if len(words) > 1 and (found[-1][1] < 1 or found[-1][1] % 1):
            raise wrong(f"{path}:{count}: a request has {words[1]} rows, wanted is an integer of at least 1")
    if not 1 <= len(found) <= MOST:
        raise wrong(f"{path} has {len(found)} requests, wanted are 1 to {MOST}")
    return np.array(found)
