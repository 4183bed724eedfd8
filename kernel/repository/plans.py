"""What is known of a model between its name and its start: where its files lie, what a load is going to do, why it can't.

Records and errors only; loading.py makes them, rollout.py acts on them, others compare them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel.config import ModelConfig, words_first
from kernel.errors import Code, ServingError
from kernel.repository.causes import cause_lines
from kernel.repository.fingerprint import Fingerprint, Stamps
from kernel.repository.places import SourcePlace, place_of
from kernel.repository.repository import FetchedFiles, ModelFolder, shown

__all__ = ["Listing", "LoadFailed", "LoadPlan", "NotRead", "Origin", "Problem", "Sighting", "StartFailed", "behind"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where a model's files lay, and in what state, at some moment. Equal as long as nothing has changed.

    `paths`: none where there is no such model, several where it lies in several repositories.
    """

    paths: tuple[Path, ...] = ()
    fingerprint: Fingerprint = field(default_factory=Fingerprint)


@dataclass(frozen=True, slots=True)
class Listing:
    """The names in the repositories. `incomplete`: a repository could not be read, and there may be more."""

    names: Collection[str]
    duplicates: Collection[str] = ()
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """What one model version is made from. A version of an equal origin need not be made anew.

    `config`: all of it but the instance groups and the version policy, which can change under a running version.
    """

    folder: Path
    files: Stamps
    shared: Stamps
    config: bytes


@dataclass(slots=True)
class LoadPlan:
    """What a load is going to do, as read from the files.

    `lies_at`: where the model lies, be it a folder of this machine or not. `files`: those that are there for who is made of
    them alone: they came with the request, or were fetched.
    """

    folder: ModelFolder
    config: ModelConfig
    versions: tuple[int, ...]
    fingerprint: Fingerprint
    lies_at: Path
    files: FetchedFiles | None
    warnings: tuple[str, ...] = ()

    def origin(self, number: int) -> Origin:
        """Return what a version is made from: one of an equal origin need not be made anew."""
        message = type(self.config.message)()
        message.CopyFrom(self.config.message)
        if not self.config.is_elsewhere:  # whose instances can't be exchanged from here
            message.ClearField("instance_group")
        message.ClearField("version_policy")
        return Origin(
            self.lies_at,
            self.fingerprint.versions[number],
            self.fingerprint.other,
            message.SerializeToString(deterministic=True),
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a version did not come up: `<Code>: <words>`, and where in the model's own files, if that is known.

    `cause`: the exception behind it, `causes`: lines that tell it. Exceptions keep alive what the model has made, so they are for
    who is raised the problem, and the catalog keeps the lines.
    """

    version: int
    reason: str
    place: SourcePlace | None = None
    causes: tuple[str, ...] = ()
    cause: BaseException | None = field(default=None, compare=False)

    @classmethod
    def of(cls, version: int, error: ServingError, folder: Path) -> Problem:
        reason = f"{error.code.value}: {words_first(error)}"
        return cls(version, reason, place_of(error, folder), cause_lines(error, folder), error.__cause__)


class _FilesWrong(ServingError):
    """`problem`: what the index shows. `why`: without the words around it."""

    problem: str
    why: str

    def relocate(self, fetched: Path, lies_at: Path) -> None:
        """Tell of where the model lies, and not of the folder that its files were fetched to."""
        for name in ("message", "problem", "why"):
            setattr(self, name, getattr(self, name).replace(str(fetched), shown(lies_at)))


class LoadFailed(_FilesWrong):
    """Versions of a model did not come up; in the reference's words. Without `problems` there was no version that could.

    `problem`: what the index shows. `why` and `place`: without the words around it, and where in the model's own files.
    `causes`: lines on what is behind it; `__cause__` is the exception itself.
    """

    def __init__(
        self, name: str, problems: Sequence[Problem] = (), reason: str = "", place: SourcePlace | None = None
    ) -> None:
        details = "".join(f"version {one.version} is at UNAVAILABLE state: {one.reason};\n" for one in problems)
        super().__init__(Code.INVALID_ARG, f"load failed for model '{name}': {details or reason}")
        self.problems = tuple(problems)
        self.problem = f"{Code.INVALID_ARG.value}: {details or reason}".strip()
        self.why = "\n".join(one.reason for one in problems) or reason
        self.place = place or next((one.place for one in problems if one.place is not None), None)
        self.causes = tuple(dict.fromkeys(line for one in problems for line in one.causes))
        self.__cause__ = next((one.cause for one in problems if one.cause is not None), None)


class NotRead(_FilesWrong):
    """A model's files could not be read or make no sense; in the reference's words. The rest as for LoadFailed."""

    def __init__(self, name: str, error: ServingError, folder: Path | None = None) -> None:
        words = f"failed to load '{name}', failed to poll from model repository"
        code = Code.NOT_FOUND if error.code is Code.NOT_FOUND else Code.INTERNAL
        told = words_first(error)
        super().__init__(code, f"{words}: {told}")
        self.problem = f"{error.code.value}: {told}"
        self.why = told
        self.place = place_of(error, folder) if folder is not None else None


def behind(error: ServingError) -> dict[str, str] | None:
    """Return what the log shows below a failed load, as a record's extra: the line of the model's file, and what led to it.

    Indented, so that nothing an exception says can pass for a line of the log.
    """
    place: SourcePlace | None = getattr(error, "place", None)
    lines = [str(place), *(f"    {line}" for line in place.source.splitlines())] if place is not None and place.source else []
    lines += getattr(error, "causes", ())
    return {"table": "\n".join(f"    {line}" for line in lines)} if lines else None


class StartFailed(ServingError):
    """Models that were to be loaded at the start did not come up. `brief`: without the reasons, where they have been told.

    `others`: there are some that did.
    """

    def __init__(self, failures: Mapping[str, ServingError], hints: Sequence[str], others: bool) -> None:
        words = "failed to load all models"
        reasons = "".join(f"\n  {name}: {error.message.strip()}" for name, error in failures.items())
        told = "".join(f"\n  {hint}" for hint in hints)
        super().__init__(Code.INTERNAL, f"{words}{reasons}{told}")
        names = " and ".join(f"'{name}'" for name in failures)
        stopped = ", and the others were stopped" if others else ""
        self.brief = f"{words}\n  {names} did not load{stopped}; the reasons are above{told}"
