"""What the tests of live repositories share: models whose version folders say what they answer, and how to look at a kernel."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from virtual import BASE, Behaviour, TestBackend, TestExecutor, answer

from kernel import Batch, Code, InstanceContext, Kernel, Result, ServingError

__all__ = ["ENSEMBLE", "Answering", "Slowly", "X", "model", "said", "states", "write"]

X = {"X": np.ones(1, np.float32)}

#: An ensemble that passes on what the one model answers.
ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "%s" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }
] }
"""

_times = itertools.count(1_000_000_000)


def write(path: Path, text: str) -> None:
    """Write a file, with a time that no other file has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(0, next(_times)))


def model(folder: Path, name: str, value: object, version: int = 1, config: str = BASE) -> None:
    """Write a model that answers `value`; one that is no number is why it can't be loaded."""
    write(folder / name / "config.pbtxt", config)
    write(folder / name / str(version) / "answer", str(value))


class Answering(TestBackend):
    """Serves the models that `model` writes."""

    def __init__(self, behaviours: Mapping[str, Behaviour] | None = None) -> None:
        super().__init__(behaviours or {})

    def create(self, context: InstanceContext) -> TestExecutor:
        text = (context.version_folder / "answer").read_text()
        try:
            value = float(text)
        except ValueError:
            self.log.append((context.kernel.loop.time(), "refused", context.instance_name))
            raise ServingError(Code.INTERNAL, text) from None

        def execute(batch: Batch) -> Result:
            return [answer(request, Y=[value]) for request in batch.requests]

        return TestExecutor(self.behaviours.get(context.config.name, execute), context, self.log)

    def count(self, what: str) -> int:
        """Return how often an instance was made ("initialize"), "refused" or finalized ("finalize")."""
        return [entry for _, entry, _ in self.log].count(what)

    def instances(self, what: str) -> list[str]:
        return [name for _, entry, name in self.log if entry == what]


class Slowly:
    """Makes the versions of some models take their time: name -> virtual seconds."""

    def __init__(self, kernel: Kernel, **seconds: float) -> None:
        self.seconds = seconds
        loader = kernel._registry.loader
        self._make = loader.make
        loader.make = self.make  # type: ignore[method-assign]

    async def make(self, plan: Any, number: int, limit: Any) -> Any:
        await asyncio.sleep(self.seconds.get(plan.config.name, 0.0))
        return await self._make(plan, number, limit)


async def said(kernel: Kernel, name: str, version: int | str = "") -> float:
    """Return what a model answers."""
    return float((await kernel.infer(name, X, version=version))["Y"][0])


def states(kernel: Kernel) -> dict[str, str]:
    """Return the index: name/version -> state and reason."""
    lines = ((f"{one.name}/{one.version}".rstrip("/"), one) for one in kernel.index())
    return {key: f"{one.state} {one.reason}".strip() for key, one in lines}
