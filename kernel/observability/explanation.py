"""Why a request took as long as it did, in plain words, from its record and those of what its model executed meanwhile. Pure.

The law: only what was recorded is told. A time that nothing accounts for is named as what it is, and short ones are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kernel.errors import clipped
from kernel.rules import Left, WaitReason

__all__ = ["Explanation", "Interval", "PastExecution", "Ran", "Traits", "Waited", "duration", "explained", "wait", "waited"]

#: Why a batch left the queue, or what a request of it has waited for besides instances.
Why = Left | WaitReason | None

#: An interval is told that took so much of a request's time, or so many seconds.
LEAST_SHARE = 0.01
LEAST_SECONDS = 0.0005

#: What is shorter is no interval of its own, and for such a wait nobody looks at what was executed meanwhile; seconds.
HAND_OVER: Final = 0.00005


@dataclass(frozen=True, slots=True)
class Ran:
    """A time in which an instance executed something, for so many `requests`."""

    instance: str
    started: float
    ended: float
    requests: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of a request's life. `kind`: queue, delay, wait, execute or answer. `at`: seconds after it came; `seconds`: how
    long it took; `words`: why, for people.
    """

    kind: str
    at: float
    seconds: float
    words: str

    def __post_init__(self) -> None:
        _make_writable(self, "words")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one request of version `version` of `model` took as long as it did.

    `id`: the client's, "" for none. `arrived`: when it came, in seconds since the epoch. `state`: ANSWERED, FAILED, PENDING or
    EXECUTING. `seconds`: from its arrival to its final answer, or until now. `intervals`: what the time went to, in their order.
    `instance`: that executed it, "" for none; `batch`: how many requests were executed together, 0 for none. `words`: of all, one
    sentence. `error`: why it failed, "" where it did not. `calls`: the requests that its execution has made, as far as they are
    kept.
    """

    model: str
    version: int
    id: str
    arrived: float
    state: str
    seconds: float
    intervals: tuple[Interval, ...]
    instance: str
    batch: int
    words: str
    error: str = ""
    calls: tuple[Explanation, ...] = ()

    def __post_init__(self) -> None:
        _make_writable(self, "id", "words", "error")

    def lines(self, depth: int = 0) -> list[str]:
        """Return it as text, calls indented under what has made them."""
        named = f"request '{clipped(self.id)}'" if self.id else "a request"
        lines = [f"{'  ' * depth}{named} of model '{self.model}' version {self.version}, {duration(self.seconds)}: {self.words}"]
        for call in self.calls:
            lines += call.lines(depth + 1)
        return lines


@dataclass(frozen=True, slots=True)
class PastExecution:
    """The execution of a request. `ended`: 0.0 for not yet. `others`: how many requests went with it."""

    instance: str
    started: float
    ended: float
    why: Why = None
    others: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a model before anything is executed, as far as it says why its requests take long.

    `is_ensemble`: its times between start and end are sums. `in_order`: answers go out in the order of the requests. `decoupled`:
    a sender answers. `in_sequences`: who may execute, sequences say, which hold their requests for `delay` seconds at most.
    """

    is_ensemble: bool = False
    in_order: bool = False
    decoupled: bool = False
    in_sequences: bool = False
    delay: float = 0.0


NO_TRAITS = Traits()


@dataclass(frozen=True, slots=True)
class Waited:
    """What one wait was for. `busy`: seconds in which no instance was free; `rest`: the others. `executions`, for so many
    `requests`, were under way in it.
    """

    busy: float
    rest: float
    executions: int
    requests: int


def wait(enqueued: float, until: float, ran: Iterable[Ran], slots: int) -> Waited:
    """Return how long of a wait as many executions as there may be at a time, `slots`, were under way."""
    meanwhile = [one for one in ran if one.started < until and one.ended > enqueued]
    # Of what begins and ends at the same moment, the beginning is looked at first: an instance goes over to the next at once.
    events = sorted(
        [(max(one.started, enqueued), 1) for one in meanwhile] + [(min(one.ended, until), -1) for one in meanwhile],
        key=lambda event: (event[0], -event[1]),
    )
    running, busy, since = 0, 0.0, enqueued
    for at, change in events:
        if running >= slots:
            busy += at - since
        running, since = running + change, at
    return Waited(busy, until - enqueued - busy, len(meanwhile), sum(one.requests for one in meanwhile))


def waited(enqueued: float, until: float, ran: Callable[[], Iterable[Ran]], slots: int) -> Waited:
    """As `wait`. `ran()`: only asked where the wait is long enough to be told of, as most are not."""
    if until - enqueued < HAND_OVER:
        return Waited(0.0, until - enqueued, 0, 0)
    return wait(enqueued, until, ran(), slots)


def explained(
    enqueued: float, answered: float, execution: PastExecution | None, waited: Waited, instances: int, *,
    cached: bool = False, pending: str = "", traits: Traits = NO_TRAITS,
) -> tuple[tuple[Interval, ...], str]:  # fmt: skip
    """Return the intervals of a request, and one sentence of them.

    `execution`: None for one that has not begun. `waited`: until that began, or until now, for one of so many `instances`.
    `cached`: the response cache had the answer. `pending`: what it waits for now, where it has no answer. `traits`: of its model.
    """
    if cached:
        seconds = answered - enqueued
        words = f"answered by the response cache in {duration(seconds)}"
        return (Interval("answer", 0.0, seconds, words),), words
    total = answered - enqueued
    intervals: list[Interval] = []
    why = execution.why if execution is not None else None
    waited = _of_sequence(waited, why, traits)
    least = max(min(LEAST_SECONDS, total * 0.1), total * LEAST_SHARE, HAND_OVER)
    if waited.busy >= least:
        intervals.append(Interval("queue", 0.0, waited.busy, f"queued {duration(waited.busy)}: {_busy(waited, instances)}"))
    if waited.rest >= least:
        intervals.append(_rest(waited, why, pending, traits))
    if execution is None or not execution.started:
        return tuple(intervals), _sentence(intervals) or (f"waits {pending}" if pending else "")
    left = _left(execution, why)
    end = execution.ended or answered
    took = end - execution.started
    verb = "executed" if execution.ended else "executing for"
    words = f"{left}{verb} {duration(took)}"
    if pending:
        words += f"; {pending}"
    intervals.append(Interval("execute", execution.started - enqueued, took, words))
    if execution.ended and answered - execution.ended >= least and not pending:
        late = answered - execution.ended
        intervals.append(Interval("answer", execution.ended - enqueued, late, _late(duration(late), traits)))
    sentence = _sentence(intervals)
    return tuple(intervals), f"began at once; {sentence}" if intervals[0].kind == "execute" else sentence


def _of_sequence(waited: Waited, why: Why, traits: Traits) -> Waited:
    """What its sequence waits for a request waits for, whatever the instances do meanwhile."""
    if traits.in_sequences and isinstance(why, WaitReason):
        return Waited(0.0, waited.busy + waited.rest, 0, 0)
    return waited


def _late(late: str, traits: Traits) -> str:
    """Return what is said of the time between an execution and the answer."""
    if traits.decoupled:
        return f"its sender took {late} more until the final response"
    if traits.in_order:
        return f"its answer waited {late} for those of requests before it (preserve_ordering)"
    return f"{late} passed until its answer went out"


def _busy(waited: Waited, instances: int) -> str:
    who = {1: "the only instance", 2: "both instances"}.get(instances, f"all {instances} instances")
    executions, requests = waited.executions, waited.requests
    if executions == 1:
        return f"{who} ran a batch of {requests}" if requests > 1 else f"{who} ran another request"
    if requests > executions:
        return f"{who} ran {executions} batches of {requests} requests in all"
    return f"{who} ran {executions} other requests"


def _rest(waited: Waited, why: Why, pending: str, traits: Traits) -> Interval:
    """Return what is said of the time in which an instance was free, and it still waited."""
    at, seconds = waited.busy, duration(waited.rest)
    if isinstance(why, WaitReason):
        return Interval("wait", at, waited.rest, f"waited {seconds} {why.then}")
    if (isinstance(why, Left) and why is not Left.FREE) or (traits.delay and not pending):
        return Interval("delay", at, waited.rest, f"held {seconds} for the delay")
    if pending:
        return Interval("wait", at, waited.rest, f"has waited {seconds} {pending}")
    return Interval("wait", at, waited.rest, f"waited {seconds} to be handed to an instance")


def _left(execution: PastExecution, why: Why) -> str:
    others = execution.others
    if not isinstance(why, Left) or (why is Left.FREE and not others):
        return f"with {others} other{'s' if others > 1 else ''}, " if others else ""
    company = "alone" if not others else f"with {others} other{'s' if others > 1 else ''}"
    return f"left {company} as {why.value}; "


def _sentence(intervals: Iterable[Interval]) -> str:
    return "; ".join([interval.words for interval in intervals])


def duration(seconds: float) -> str:
    """Return a time for people, with two or three digits: 41 ms, 3.2 ms, 250 µs, 12.4 s."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    if seconds >= 0.0009995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
    return f"{seconds * 1e6:.0f} µs"


def _make_writable(told: Interval | Explanation, *names: str) -> None:
    """Have texts that came from models, such as names of files, be ones that can be sent: without halves of surrogates."""
    for name in names:
        text = getattr(told, name)
        if not text.isascii():
            object.__setattr__(told, name, text.encode("utf-8", "backslashreplace").decode())
