"""Would this request wait for ever? Pure: looks at who runs what and who waits for what, changes nothing.

A request of a model to a model whose instances are all held by executions that can't end before this very request is
answered would never run. The reference hangs there; we refuse and spell the cycle out.

The law: everything that the answer may come from is followed, and the request is stuck when nothing is met that can go on by
itself. What makes a request waits for it in any case: a call does not outlive the execution that has made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kernel.requests import InferenceRequest, RequestState

if TYPE_CHECKING:
    from kernel.requests import Batch

__all__ = ["Facts", "FarStretch", "GivenAway", "behind", "circular_wait", "closes_circle"]

PENDING, EXECUTING, RELEASED = RequestState.PENDING, RequestState.EXECUTING, RequestState.RELEASED


class Target(Protocol):
    """A model's scheduler, as it is looked at here: its name, and its instances with what each executes."""

    name: str

    @property
    def instances(self) -> Sequence[Any]: ...


class GivenAway(Protocol):
    """A request that another replica executes: its model's scheduler says what it waits for there."""

    model: Any


class FarStretch(Protocol):
    """A part of a way that other replicas have told of. `names`: of the models whose executions wait there, one for the next."""

    names: Sequence[str]

    def awaited(self, told: Callable[[], None]) -> Sequence[Any] | None:
        """Return what has to go on first at its end; None: nothing, or it is asked for, and `told` called."""


class Facts:
    """What executions wait for: here as far as they say so themselves."""

    def awaited(self, batch: Batch) -> Sequence[InferenceRequest] | None:
        """Return the calls without which an execution can't go on, None where it may."""
        return None if batch.blocked_on is None else (batch.blocked_on,)

    def holding(self, instance: Any) -> InferenceRequest | None:
        """Return the call that keeps an instance from beginning anything, though it has room; None where nothing does."""
        return None

    def elsewhere(self, one: GivenAway | FarStretch) -> Sequence[Any] | None:
        """Return what has to go on first for what another replica has, None where it may go on, or nobody knows."""
        return None


_SAID = Facts()


def circular_wait(request: InferenceRequest, target: Target) -> list[str] | None:
    """Return the names of the models of the cycle, `request`'s target last, or None when the request can be served.

    Called when `target` has no free instance, before the request waits there. An execution is stuck if it made this request
    (directly or through others), or if it waits in a synchronous call for a request that is stuck.
    """
    batch = request.parent
    if batch is not None and len(batch.requests) == 1 and batch.requests[0].parent is None:
        # Most calls are those of a client's request: there is but one execution that waits for this one.
        for instance in target.instances:
            oldest = next(iter(instance.running), None)
            if oldest is not None and oldest is not batch and oldest.blocked_on is None:
                return None
    ancestors = _ancestors(batch)
    if not ancestors or not _Search(ancestors, _SAID).is_stuck(target):
        return None
    return _lineage(batch, target.name)


def closes_circle(request: InferenceRequest, facts: Facts) -> list[str] | None:
    """Return the names of the models of the cycle, if a request that was accepted some time ago waits for itself, else None.

    Here nothing is taken for granted: also what has made it is known to wait. Who only waits behind a circle is not in it.
    """
    search = _Search({}, facts)
    if not search.is_stuck(request):
        return None
    return search.cycle() if search.closing is not None else None


def behind(request: InferenceRequest, facts: Facts) -> list[tuple[InferenceRequest, list[str]]] | None:
    """Return the requests that other replicas have without which `request` can't go on, each with the names of the models whose
    executions here wait for it, one for the next; None where it can. `facts`: as AwaitedHere.
    """
    search = _Search({}, facts)
    if not search.is_stuck(request):
        return None
    return [(one, search.names_to(one)) for one in search.met if isinstance(one, InferenceRequest) and is_away(one)]


def is_away(request: InferenceRequest) -> bool:
    """Whether another replica executes a request."""
    return request.model is not None and hasattr(request.model.scheduler, "awaited")


def _lineage(batch: Batch | None, last: str) -> list[str]:
    path = [last]
    while batch is not None:
        path.append(batch.instance.owner.name)
        batch = batch.requests[0].parent if batch.requests else None
    return path[::-1]


def _ancestors(batch: Batch | None) -> dict[Batch, None]:
    """Return the executions that wait for what `batch` calls: itself, and those that have made its requests.

    Where its requests may be answered one by one, we can't tell for which of them it calls: the first one stands for all.
    """
    found: dict[Batch, None] = {}
    after = [batch]
    for one in after:
        if one is not None and one not in found:
            found[one] = None
            after += [request.parent for request in (one.requests if one.instance.answers_together else one.requests[:1])]
    return found


class _Search:
    """Follows what an answer may come from: models (their schedulers), executions, requests.

    `met`: what was found -> what it was found by. `closing`: what has led back to where it began, if anything. `outer`: the
    search that this one is a part of.
    """

    def __init__(self, ancestors: dict[Batch, None], facts: Facts, outer: _Search | None = None) -> None:
        self.ancestors = ancestors
        self.facts = facts
        self.met: dict[Any, Any] = {} if outer is None else dict(outer.met)
        self.began: Any = None if outer is None else outer.began
        self.closing: Any = None

    def is_stuck(self, first: Any) -> bool:
        """Whether nothing that `first` waits for can go on by itself."""
        met = self.met
        met.setdefault(first, None)
        if self.began is None:
            self.began = first
        ways = [first]
        while ways:
            one = ways.pop()
            after = self._after(one)
            if after is None:
                return False
            for other in after:
                if other not in met:
                    met[other] = one
                    ways.append(other)
                elif other is self.began:
                    self.closing = one
        return True

    def cycle(self) -> list[str]:
        """Return the names of the models that call one another, the one of the request that was begun with at both ends."""
        names = self.names_to(self.closing)
        if isinstance(self.closing, InferenceRequest):  # to somebody who is kept from beginning it
            names.append(self.closing.model.scheduler.name)
        return [*names, self.began.model.scheduler.name]

    def names_to(self, one: Any) -> list[str]:
        """Return the names of the models whose executions lie on the way to what was met."""
        names: list[str] = []
        while one is not None:
            if hasattr(one, "blocked_on"):  # an execution
                names.append(one.instance.owner.name)
            elif hasattr(one, "names"):  # of other replicas
                names += reversed(one.names)
            one = self.met[one]
        return names[::-1]

    def _after(self, one: Any) -> Sequence[Any] | None:
        """Return what has to go on first, all of which holds `one` up; None where it can go on by itself."""
        if isinstance(one, InferenceRequest):
            return self.facts.elsewhere(one) if is_away(one) else self._after_request(one)
        if hasattr(one, "names"):
            return self.facts.elsewhere(one)
        return self._after_execution(one) if hasattr(one, "blocked_on") else self._after_model(one)

    def _after_model(self, target: Target) -> Sequence[Any] | None:
        found: list[Any] = []
        for instance in target.instances:
            if len(instance.running) >= instance.capacity:
                begun = [one for one in instance.running if one.started] if instance.runs else None
                found += begun or instance.running  # what waits in a thread's inbox goes when those before it do
            elif (holding := self.facts.holding(instance)) is not None:
                found.append(holding)
            elif instance.contender is None or not instance.contender.would_starve(partial(self._would_stay, target)):
                return None
            else:
                found.append(target)  # it is free, but what it needs is held
        return found or None

    def _would_stay(self, target: Target, execution: Batch) -> bool:
        """Whether an execution that holds what `target` needs is stuck itself."""
        inner = _Search(self.ancestors, self.facts, self)
        inner.met.setdefault(execution, target)
        if not inner.is_stuck(execution):
            return False
        self.met.update(inner.met)
        if inner.closing is not None:
            self.closing = inner.closing
        return True

    def _after_execution(self, batch: Batch) -> Sequence[Any] | None:
        if batch in self.ancestors:
            return ()
        return None if batch.ended else self.facts.awaited(batch)

    def _after_request(self, request: InferenceRequest) -> Sequence[Any] | None:
        if request.state is PENDING:
            return None if request.model is None else (request.model.scheduler,)
        batch = request.batch
        if batch is None or request.state is not EXECUTING:
            return None
        instance = batch.instance
        if not batch.started and not instance.inline:  # handed to a thread that has not come to it
            holding = self.facts.holding(instance)
            return (request.model.scheduler,) if holding is None else (holding,)
        if instance.waits_only:  # an ensemble: all its steps are held up
            return tuple(batch.children or ()) or None
        if request.model.decoupled and batch not in self.ancestors:
            return None  # by whoever has its sender
        if not instance.answers_together and sum(one.state is not RELEASED for one in batch.requests) > 1:
            return None  # it may be answered while other parts of its execution wait
        return (batch,)
