"""`kernel simulate` with a recording of `kernel serve --record`: its requests come again, and cost what they have cost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
from virtual import TestBackend, echo, write_repository

from kernel import Batch, Kernel, Result, ServingError
from kernel.cli.simulate import simulate as command
from kernel.recording import Recorder, RecordOptions
from kernel.simulation import Measured, read_arrivals, read_costs, simulate

CONFIG = """
backend: "test"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1000 }
"""


def slow(batch: Batch) -> Result:
    time.sleep(0.001 * batch.size)
    return echo(batch)


def record(folder: Path, *, rate: float = 1.0, tensors: bool = False) -> str:
    """Record 40 requests of one row, of 4 contents, and one of 3 rows; return the file."""
    path = folder / "day.zip"

    async def main() -> None:
        write_repository(folder / "models", {"m": CONFIG})
        async with Kernel(folder / "models", plugins=[TestBackend({"m": slow})]) as kernel:
            options = RecordOptions(str(path), rate=rate, tensors=tensors)
            recorder = Recorder(kernel, kernel.supervision.history, options, None, "0")
            recorder.start()
            for _ in range(10):
                await asyncio.gather(*(kernel.infer("m", {"X": np.full((1, 1), one, np.float32)}) for one in range(4)))
            await kernel.infer("m", {"X": np.zeros((3, 1), np.float32)})
            await recorder.stop()

    asyncio.run(main())
    return str(path)


def repository(folder: Path) -> str:
    """Return a repository with the same model, of a backend that a simulation knows."""
    write_repository(folder / "simulated", {"m": CONFIG.replace('"test"', '"python"')})
    code = "class TritonPythonModel:\n    def execute(self, requests): 1 / 0\n"
    (folder / "simulated" / "m" / "1" / "model.py").write_text(code)
    return str(folder / "simulated")


def test_requests_and_costs_of_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = record(tmp_path)
    arrivals, costs = read_arrivals(file, model="m"), read_costs(["measured"], arrivals=file)
    cost = costs.of("m")
    assert isinstance(cost, Measured) and sum(rows * len(times) for rows, times in cost.times.items()) == 43
    assert all(0.001 * rows <= times.min() for rows, times in cost.times.items())
    result = simulate(repository(tmp_path), "m", arrivals, costs)
    assert result.requests == result.latencies.size == 41
    assert result.latencies.min() >= 0.003
    assert sum(rows * count for rows, count in result.works[0].batches.items()) == 43
    monkeypatch.setattr("kernel.cli.simulate.set_up_log", lambda options: None)
    assert command([repository(tmp_path), "m", "--arrivals", file, "--cost", file]) == 0


def test_what_is_known_where_tensors_were_recorded(tmp_path: Path) -> None:
    arrivals = read_arrivals(record(tmp_path, tensors=True))
    assert arrivals.contents is not None and len(arrivals.contents) == 41
    assert np.unique(arrivals.contents).size == 5 and arrivals.rows is not None and arrivals.rows[-1] == 3
    assert (arrivals.priorities, arrivals.timeouts, arrivals.sequences) == (None, None, None)


def test_costs_of_sizes_that_were_not_seen() -> None:
    cost = Measured.of({1: np.array([0.001, 0.003]), 3: np.array([0.004])})
    draw = cost.drawing((1,))
    assert {draw(1) for _ in range(100)} == {0.001, 0.003} and draw(3) == 0.004
    assert cost.mean(2) == pytest.approx(0.003) and {round(draw(2), 6) for _ in range(100)} == {0.0015, 0.0045}
    assert draw(5) == pytest.approx(0.006)


def test_recordings_that_do_not_say_it(tmp_path: Path) -> None:
    file = record(tmp_path, rate=0.99)
    with pytest.raises(ServingError, match="which were executed together is not known"):
        read_costs([file]).of("m")
    with pytest.raises(ServingError, match="has no request of model 'other'"):
        read_arrivals(file, model="other")
    with pytest.raises(ServingError, match="--cost measured: wanted is a recording as --arrivals"):
        read_costs(["measured"], arrivals="poisson:5").of("m")
    with pytest.raises(ServingError, match="there is no such file"):
        read_costs(["away.zip"]).of("m")
