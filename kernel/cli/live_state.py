"""What a running server does just now: its models, their rates between two looks, and the requests without an answer.

Pure but for `look`, which asks. Whatever a server says is read with suspicion: it may be another one, or of another release.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from kernel.cli.asking import ask
from kernel.errors import Code, ServingError

__all__ = ["Inflight", "Look", "ModelLine", "ServerState", "compared", "look"]


#: A count as servers have them: one that can be divided.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Counted(msgspec.Struct):
    count: Count = 0
    ns: Count = 0


class Durations(msgspec.Struct):
    success: Counted = msgspec.field(default_factory=Counted)
    fail: Counted = msgspec.field(default_factory=Counted)
    queue: Counted = msgspec.field(default_factory=Counted)


class Statistics(msgspec.Struct):
    name: str
    version: str
    inference_count: Count = 0
    execution_count: Count = 0
    inference_stats: Durations = msgspec.field(default_factory=Durations)


class AllStatistics(msgspec.Struct):
    model_stats: list[Statistics]


class IndexLine(msgspec.Struct):
    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class Inflight(msgspec.Struct):
    """A request that has no answer; `age`: in seconds."""

    model: str
    version: int
    id: str
    state: str
    age: float
    why: str


class AllInflight(msgspec.Struct):
    inflight: list[Inflight]


class Instances(msgspec.Struct):
    name: str
    version: int
    current: int
    wanted: int


class Scale(msgspec.Struct):
    models: list[Instances]
    server: dict[str, Any]


@dataclass(frozen=True)
class Look:
    """What the server has said at a moment; `moment`: in seconds, of a clock that only goes on. `untold`: why not all of it."""

    moment: float
    statistics: Sequence[Statistics]
    index: Sequence[IndexLine]
    inflight: Sequence[Inflight]
    scale: Scale | None
    untold: Sequence[str] = ()


@dataclass(frozen=True)
class ModelLine:
    """A version of a model, or a model that has none.

    `requests`, `failures`: a second. `batch`: rows an execution; `queue`, `latency`: seconds a request, on average; None where
    there was none. `inflight`: requests without an answer, the oldest for `oldest` seconds.
    """

    model: str
    version: str
    state: str
    reason: str
    instances: int | None
    requests: float
    failures: float
    batch: float | None
    queue: float | None
    latency: float | None
    inflight: int
    oldest: float


@dataclass(frozen=True)
class ServerState:
    """What is shown. `seconds`: between the looks. `inflight`: the oldest first."""

    url: str
    seconds: float
    models: Sequence[ModelLine]
    inflight: Sequence[Inflight]
    replicas: int | None = None
    untold: Sequence[str] = field(default_factory=tuple)

    @property
    def requests(self) -> float:
        """A second, of all models."""
        return sum(line.requests for line in self.models)

    @property
    def failures(self) -> float:
        """The same of those that failed."""
        return sum(line.failures for line in self.models)


def look(url: str, headers: Mapping[str, str]) -> Look:
    """Ask the server. Raises ServingError where it says nothing of its models."""
    statistics = _told(url, "/v2/models/stats", headers, AllStatistics)
    untold: list[str] = []

    def perhaps(path: str, kind: Any, body: bytes | None = None) -> Any:
        """Ask for what not every server tells to everybody."""
        try:
            return _told(url, path, headers, kind, body)
        except ServingError as error:
            untold.append(error.message)
            return None

    index = perhaps("/v2/repository/index", list[IndexLine], b"{}")
    inflight = perhaps("/v2/inflight", AllInflight)
    scale = perhaps("/v2/kernel/scale", Scale)
    return Look(
        time.monotonic(), statistics.model_stats, index or (), [] if inflight is None else inflight.inflight, scale, tuple(untold)
    )


def _told(url: str, path: str, headers: Mapping[str, str], kind: Any, body: bytes | None = None) -> Any:
    status, reason, told = ask(url, path, headers, body)
    if status != 200:
        why = told.get("error", "") if isinstance(told, dict) else ""
        raise ServingError(Code.UNAVAILABLE, f"{url} answers {path} with {status} {reason}{': ' if why else ''}{why}")
    try:
        return msgspec.convert(told, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        words = f"{url} answers {path} with what is not of this server: {error}; it may be another one, or of another release"
        raise ServingError(Code.UNAVAILABLE, words) from None


def compared(url: str, before: Look | None, after: Look) -> ServerState:
    """Return what the server does, by two looks; by one alone, what it has done since it started, which has no rates."""
    seconds = 0.0 if before is None else max(1e-6, after.moment - before.moment)
    known = {} if before is None else {(one.name, one.version): one for one in before.statistics}
    alive: dict[tuple[str, str], list[Inflight]] = {}
    for request in after.inflight:
        alive.setdefault((request.model, str(request.version)), []).append(request)
    counts = {(one.name, str(one.version)): one.current for one in (after.scale.models if after.scale is not None else ())}
    told = {(one.name, one.version): one for one in after.index}
    lines = []
    for one in after.statistics:
        key = (one.name, one.version)
        state = told.pop(key, IndexLine(one.name, one.version, "READY"))
        lines.append(_line(one, known.get(key), seconds, state, alive.get(key, ()), counts.get(key)))
    lines += [
        ModelLine(one.name, one.version, one.state or "not loaded", one.reason, None, 0.0, 0.0, None, None, None, 0, 0.0)
        for one in told.values()
    ]
    replicas = after.scale.server.get("current") if after.scale is not None else None
    return ServerState(
        url,
        seconds,
        sorted(lines, key=lambda line: (line.model, line.version)),
        sorted(after.inflight, key=lambda request: -request.age),
        replicas if isinstance(replicas, int) else None,
        after.untold,
    )


def _line(
    now: Statistics,
    before: Statistics | None,
    seconds: float,
    state: IndexLine,
    alive: Sequence[Inflight],
    instances: int | None,
) -> ModelLine:
    """Return the line of a version. Where its counters are smaller than before, it has begun anew, and all of it is new."""
    if before is None or before.inference_count > now.inference_count or before.execution_count > now.execution_count:
        before = Statistics(now.name, now.version)
    ended, was = now.inference_stats, before.inference_stats
    executions = now.execution_count - before.execution_count
    answered, failed = ended.success.count - was.success.count, ended.fail.count - was.fail.count
    return ModelLine(
        now.name,
        now.version,
        state.state or "READY",
        state.reason,
        instances,
        max(0, answered) / seconds if seconds else 0.0,
        max(0, failed) / seconds if seconds else 0.0,
        (now.inference_count - before.inference_count) / executions if executions else None,
        _average(ended.queue, was.queue),
        _average(ended.success, was.success),
        len(alive),
        max((request.age for request in alive), default=0.0),
    )


def _average(now: Counted, before: Counted) -> float | None:
    count = now.count - before.count
    return max(0.0, (now.ns - before.ns) / count / 1e9) if count > 0 else None
