"""Which models are on their way, and the calls that wait for them: those that a model makes while it is warmed up itself.

The law: such a call waits as long as the called model is still being loaded, and is then made like any other; it never waits for
what can only come after its own model. A model is on its way from when it is asked for until it serves or has failed. Everything
on the loop. (Contract: reported cases, BC17.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from kernel.errors import NotLoaded, ServingError
from kernel.models import warmup_of
from kernel.requests import InferenceRequest

__all__ = ["Coming", "PendingLoads"]

#: What one operation is still at: the names of the models, each with those that it, an ensemble, consists of.
Coming = dict[str, set[str]]


class PendingLoads:
    """The models that are being loaded in one kernel, and the calls that wait for them."""

    def __init__(self) -> None:
        self._operations: list[Coming] = []
        self._calls: dict[str, list[tuple[str, Callable[[], None]]]] = {}  # called model -> calling models, and their calls
        self._demands: list[tuple[str, str]] = []  # calling models, and those that are loaded since these call them

    @contextmanager
    def expecting(self, names: Iterable[str]) -> Iterator[Coming]:
        """Note that these are on their way until the end of the block, or until they are settled; more may be entered."""
        coming: Coming = {name: set() for name in names}
        self._operations.append(coming)
        try:
            yield coming
        finally:
            self._operations = [one for one in self._operations if one is not coming]
            for name in list(coming):
                self.settle(coming, name)

    def settle(self, coming: Coming, name: str) -> None:
        """Note that the operation is done with a model, which serves or has failed; make the calls that waited for it."""
        coming.pop(name, None)
        if not self._is_coming(name):
            for _, call in self._calls.pop(name, ()):
                call()

    def _is_coming(self, name: str) -> bool:
        return any(name in coming for coming in self._operations)

    def give_up(self) -> None:
        """Make all calls that wait: nothing is loaded any more."""
        self._operations.clear()
        while self._calls:
            _, calls = self._calls.popitem()
            for _, call in calls:
                call()

    def hold(
        self, request: InferenceRequest, error: ServingError, submit: Callable[[InferenceRequest], None]
    ) -> ServingError | None:
        """Keep a call to a model that is not there, if it is worth waiting for, and submit it again then.

        Return None if so, else the error to answer it with: `error`, and what to do about it where a warmup has made the call. A
        NotLoaded is for somebody else to wait for.
        """
        caller = warmup_of(request)
        if caller is None:
            return error
        called = request.model_name
        if not self._is_coming(called):
            if isinstance(error, NotLoaded):
                return self._demanded(caller, called, error)
            words = (
                f"the warmup of model '{caller}' calls '{called}', which is not being loaded: load it before '{caller}', "
                "or together with it"
            )
            return _told(error, words)
        if path := self._path(called, caller):
            way = " -> ".join([caller, *path])
            words = f"the warmup of model '{caller}' calls '{called}', which can't be there before '{caller}' is ({way})"
            return _told(error, words)
        self._calls.setdefault(called, []).append((caller, lambda: submit(request)))
        return None

    def _demanded(self, caller: str, called: str, away: NotLoaded) -> NotLoaded:
        """Return what is to be waited for instead of `away`, so that it is known who waits for whom as long as that takes."""
        demand = caller, called

        def wait(then: Callable[[ServingError | None], None], waits: Callable[[], bool], by_model: bool) -> None:
            self._demands.append(demand)
            left = [demand]

            def over() -> None:
                if left:
                    self._demands.remove(left.pop())

            def goes_on(error: ServingError | None) -> None:
                over()
                then(error)

            def still_waits() -> bool:
                if not waits():
                    over()
                return bool(left)

            away.wait(goes_on, still_waits, by_model)

        return NotLoaded(away.message, wait)

    def _path(self, name: str, end: str) -> list[str]:
        """Return how `name`, on its way, waits for `end`, both ends included; nothing if it doesn't."""
        ways = [[name]]
        seen = {name}
        while ways:
            way = ways.pop()
            if way[-1] == end:
                return way
            for other in self._waits_for(way[-1]) - seen:
                seen.add(other)
                ways.append([*way, other])
        return []

    def _waits_for(self, name: str) -> set[str]:
        """Return the models that have to be there before `name` can be."""
        called = {other for other, calls in self._calls.items() if any(caller == name for caller, _ in calls)}
        for coming in self._operations:
            called |= coming.get(name, set())
        return {one for one in called if self._is_coming(one)} | {one for caller, one in self._demands if caller == name}


def _told(error: ServingError, words: str) -> ServingError:
    return ServingError(error.code, f"{error.message}; {words}", error.reason)
