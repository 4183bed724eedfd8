"""What models are to be loaded, and what their files say: from load requests to plans.

In explicit mode an ensemble brings along what it consists of. What is wrong with a model's files changes nothing for what
serves, and can be read in the index. Files are read on load threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType

from kernel.config import ModelConfig
from kernel.errors import Code, ServingError
from kernel.registry.catalog import Catalog
from kernel.registry.loading import Loader
from kernel.repository import LoadPlan, NotRead

__all__ = ["LoadRequest", "PlanReader", "Work"]


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """How a model is to be loaded: from its repository, with another config, or from files that come along.

    Apps make it out of what they have: raises ServingError where that is something else.
    """

    config: str | None = None
    files: Mapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.config, (str, NoneType)):
            raise _mistyped("the config of a load", self.config, "JSON as a str, such as json.dumps(...) makes")
        if self.files is None:
            return
        if not isinstance(self.files, Mapping):
            raise _mistyped("what is given as the files of a load", self.files, "a mapping of paths to contents")
        for path, content in self.files.items():
            if not isinstance(path, str):
                raise _mistyped(f"the path {path!r} of a file of a load", path, "a str, such as '1/model.py'")
            if not isinstance(content, (bytes, bytearray, memoryview)):
                raise _mistyped(f"the content of the file '{path}' of a load", content, "bytes")


def _mistyped(what: str, got: object, wanted: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, f"{what} is of type {type(got).__name__}, wanted {wanted}")


@dataclass(slots=True)
class Work:
    """What an operation has read: plans by name, and why there are none for others. `composing`: what nobody has asked for."""

    plans: dict[str, LoadPlan] = field(default_factory=dict)
    failures: dict[str, ServingError] = field(default_factory=dict)
    composing: set[str] = field(default_factory=set)

    def ensembles(self) -> dict[str, ModelConfig]:
        return {name: plan.config for name, plan in self.plans.items() if plan.config.is_ensemble}

    def discard(self) -> None:
        """Nothing will come of it."""
        for plan in self.plans.values():
            if plan.files is not None:
                plan.files.remove()


class PlanReader:
    """Reads for one registry. `brings_along`: ensembles bring what they consist of. `parallel`: models read at a time."""

    def __init__(self, catalog: Catalog, loader: Loader, *, brings_along: bool, parallel: int) -> None:
        self._catalog = catalog
        self._loader = loader
        self._brings_along = brings_along
        self._parallel = parallel

    async def read(self, asked: Mapping[str, LoadRequest]) -> Work:
        """Plan what was asked for, in explicit mode also what ensembles consist of, where it is there."""
        work = Work()
        entries = self._catalog.entries
        limit = asyncio.Semaphore(self._parallel)

        async def plan(name: str, load: LoadRequest) -> None:
            try:
                async with limit:
                    work.plans[name] = await self._plan(name, load)
            except ServingError as error:
                work.failures[name] = error

        pending = dict(asked)
        while pending:
            await asyncio.gather(*(plan(name, load) for name, load in pending.items()))
            for name in pending.keys() & asked.keys():
                self._catalog.ask(name)
            steps = {step.model_name for config in work.ensembles().values() for step in config.ensemble or ()}
            missing = steps - work.plans.keys() - work.failures.keys() if self._brings_along else set()
            sightings = await self._loader.in_thread(self._loader.sight, missing) if missing else {}
            pending = {}
            for name in sorted(missing):
                entry = entries.get(name)
                # What came with its own files stays as it is; what is nowhere, the check of the ensembles tells.
                if sightings[name].paths and not (entry is not None and entry.serves and entry.seen is None):
                    work.composing.add(name)
                    pending[name] = LoadRequest(None if entry is None else entry.config)
                    self._catalog.need(name)
        return work

    async def _plan(self, name: str, load: LoadRequest) -> LoadPlan:
        """Read what is to be loaded; a mistake changes nothing for what serves, and can be read in the index."""
        sighting, plan = await self._loader.in_thread(self._loader.read, name, load.config, load.files)
        if isinstance(plan, LoadPlan):
            self._catalog.read(name, load.config, sighting)
            return plan
        if isinstance(plan, NotRead) and plan.code is Code.NOT_FOUND:
            self._catalog.unknown(name)
        else:
            self._catalog.misread(name, plan, sighting)
        raise plan
