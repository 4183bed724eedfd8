"""What is known of each model name and of each of its versions: the records of the catalog.

No behaviour but what can be read off a record. Others read; catalog.py alone writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel.errors import ServingError
from kernel.models import Model, ModelState, become
from kernel.repository import LoadPlan, Origin, Sighting, SourcePlace

__all__ = [
    "DUPLICATE",
    "LOADING",
    "READY",
    "UNAVAILABLE",
    "UNLOADED",
    "UNLOADING",
    "Entry",
    "Failure",
    "ModelIndex",
    "Version",
]

LOADING, READY, UNLOADING, UNAVAILABLE = (
    ModelState.LOADING,
    ModelState.READY,
    ModelState.UNLOADING,
    ModelState.UNAVAILABLE,
)

UNLOADED = "unloaded"
DUPLICATE = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """One line of the repository index. `version` and `state` are empty for a model `name` that was never loaded.

    `state`: a ModelState's name. `reason`: why it is UNAVAILABLE, "" otherwise.
    """

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


@dataclass(slots=True)
class Version:
    """One version. `model` is what serves, `origin` what it was made from; `leaving` counts those that are on the way out.

    `state` and `reason` are what the index shows; they change by `become` only.
    """

    name: str  # of the model, and its number: for messages
    number: int
    state: ModelState = ModelState.UNAVAILABLE
    reason: str = ""
    model: Model | None = None
    origin: Origin | None = None
    leaving: int = 0

    def become(self, state: ModelState, reason: str = "") -> None:
        """Move to another state, or to another reason for this one. Raises AssertionError where that may not follow."""
        become(self, state)
        self.reason = reason

    def __str__(self) -> str:
        return f"version {self.number} of model '{self.name}'"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a load failed, in words and in the model's own files.

    `place`: `file`, `line`, `column` and `source` (the line itself), `file:line:column` as a `str`; None where it is not known.
    `causes`: lines on what is behind it, the nearest cause first.
    """

    message: str  # a sentence
    place: SourcePlace | None
    causes: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: ServingError) -> Failure:
        """Return what `error` says, which may be one of a load (plans.py) that knows the place, or any other."""
        return cls(getattr(error, "why", error.message), getattr(error, "place", None), getattr(error, "causes", ()))


@dataclass(slots=True)
class Entry:
    """What is known of one model name.

    `plan`: the last that was carried out. `seen`: its files when they were last read, and `config` the override that came with
    that load. `wanted`: somebody asked for it, and nobody asked for its unload. `implicit`: only an ensemble did. `problem`: why
    its files could not even be read; `blocks`: that makes the server not ready. `error`: of the last load.
    """

    versions: dict[int, Version] = field(default_factory=dict)
    plan: LoadPlan | None = None
    seen: Sighting | None = None
    config: str | None = None
    wanted: bool = False
    implicit: bool = False
    problem: str = ""
    blocks: bool = False
    error: Failure | None = None

    @property
    def serves(self) -> bool:
        return any(version.state is READY for version in self.versions.values())

    @property
    def failed(self) -> bool:
        """Whether the last attempt to load it came to nothing, at least for one version."""
        return self.error is not None or any(
            version.state is UNAVAILABLE and version.reason != UNLOADED for version in self.versions.values()
        )
