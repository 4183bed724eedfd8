"""The kernel of a replica as those see it who steer a server and ask about it: as if all replicas were one.

A change is made by all replicas; what is asked is put together of the answers of all: counts are summed, lists are joined. What a
front end calls is what class Kernel has; but where others have to be asked first, `AskOthers` is raised, and the operation is run
again when they have answered. It has done nothing by then but read its request, and what it calls gives the answer then.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec

from kernel.observability import Duration, Explanation, ModelStatistics
from kernel.registry import ModelIndex
from kernel.server.inflight import InflightRequest
from kernel.server.scaling import ServerScale, together

__all__ = ["AskOthers", "Peers", "Together", "join", "joined", "steered", "summed"]

log = logging.getLogger("kernel")

#: How often it is looked whether this replica is ready.
LOOK_SECONDS = 0.1

_encode = msgspec.msgpack.encode
_TOPIC = "kernel"


class ReplicaNumber(Protocol):
    """How many replicas there are, and are to be, between which limits, and why."""

    @property
    def current(self) -> int: ...
    @property
    def wanted(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def reason(self) -> str: ...


class Peers(Protocol):
    """The other replicas of a group, as the room of replicas says of its Member."""

    @property
    def index(self) -> int: ...
    @property
    def others_ready(self) -> bool: ...
    @property
    def number(self) -> ReplicaNumber | None: ...
    def tell_ready(self, ready: bool) -> None: ...
    def tell_load(self, share: float, queue_age: float) -> None: ...
    def answer(self, topic: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None: ...
    async def ask(self, topic: str, data: bytes) -> list[bytes]: ...
    async def change(self, topic: str, data: bytes, key: str, forget: bool = False) -> None: ...
    async def reload(self) -> int: ...


class AskOthers(Exception):
    """Other replicas have to be asked before an operation can answer.

    `wait`: after `wait(again)` on the loop, `again()` is called there when they have answered: it runs the operation once more.
    """

    def __init__(self, wait: Callable[[Callable[[], None]], None]) -> None:
        super().__init__("other replicas have to be asked")
        self.wait = wait


class Together:
    """Stands for `kernel`. What is not here is the kernel's own. `replica`: which of them it is.

    Plugins have topics of their own, by name: `answer(topic, handler)` has the coroutine function `handler(data)` answer, in
    bytes, what `await ask(topic, data)` asks of all other replicas, whose answers it returns; ServingError where one has none.
    """

    def __init__(self, kernel: Any, peers: Peers) -> None:
        self._kernel = kernel
        self._peers = peers
        self._found: Any = None  # of the others, for the operation that is run again; a list of one
        self._tasks: set[asyncio.Task[None]] = set()
        self._told_ready = True
        self.trace_settings = _Changing(self, kernel.trace_settings, "trace")
        self.log_settings = _Changing(self, kernel.log_settings, "log")
        self.shared_memory = _Changing(self, kernel.shared_memory, "region")
        self.cuda_shared_memory = _Changing(self, kernel.cuda_shared_memory, "cuda_region")
        self.replica = peers.index
        self.answer = peers.answer  # for plugins: questions of a topic of theirs
        self.ask = peers.ask
        peers.answer(_TOPIC, self._told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    # -- what a front end calls ----------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether this replica and all others that serve are ready."""
        return bool(self._kernel.is_ready()) and self._peers.others_ready

    def statistics(self, name: str = "", version: int | str = "") -> list[ModelStatistics]:
        own = self._kernel.statistics(name, version)  # raises what all would
        found: list[ModelStatistics] = self.asked(
            lambda: self._others("statistics", [name, str(version)], list[ModelStatistics]), lambda others: summed([own, *others])
        )
        return found

    def index(self, ready: bool = False) -> list[ModelIndex]:
        lines: list[ModelIndex] = self.asked(
            lambda: self._others("index", [], list[ModelIndex]), lambda others: joined([self._kernel.index(), *others])
        )
        return [line for line in lines if line.state == "READY"] if ready else lines

    def inflight(self, most: int = 0) -> list[InflightRequest]:
        own = self._kernel.inflight(most)
        found: list[list[InflightRequest]] = self.asked(
            lambda: self._others("inflight", [most], list[InflightRequest]), lambda others: [own, *others]
        )
        return sorted((one for each in found for one in each), key=lambda one: -one.age)[: most or None]

    def each_inflight(self) -> Iterator[InflightRequest]:
        return iter(self.inflight())

    def explain(self, asked: Any = "", *, slowest: int = 0, failed: int = 0) -> list[Explanation]:
        """As Kernel.explain: of all replicas, but for a request that is being answered, which is known here."""
        own: list[Explanation] = self._kernel.explain(asked, slowest=slowest, failed=failed)
        if not isinstance(asked, str):
            return own
        found: list[list[Explanation]] = self.asked(
            lambda: self._others("explain", [asked, slowest, failed], list[Explanation]), lambda others: [own, *others]
        )
        every = [one for each in found for one in each]
        if slowest:
            return sorted(every, key=lambda one: -one.seconds)[:slowest]
        return sorted(every, key=lambda one: -one.arrived)[: failed or None]

    def scale(self) -> ServerScale:
        found: ServerScale = self.asked(
            lambda: self._others("scale", [], ServerScale), lambda others: together([self._kernel.scale(), *others])
        )
        number = self._peers.number
        if number is None:
            return found
        return replace(
            found, current=number.current, wanted=number.wanted, min=number.least, max=number.most, reason=number.reason
        )

    async def load(self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        await self.change("load", [name, config, files], f"model:{name}")

    def unload(self, name: str, *, dependents: bool = False) -> None:
        self.asked(lambda: self.change("unload", [name, dependents], f"model:{name}"))

    def replace_replicas(self) -> int:
        """Replace all replicas, one after another, and return how many they are. Raises ServingError where one isn't."""
        count: int = self.asked(self._peers.reload)
        return count

    # -- how others are asked ------------------------------------------------------------------------------------------

    def asked(self, ask: Callable[[], Awaitable[Any]], then: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Return `then(answer)`, or raise what `ask` has raised; the first time raise AskOthers."""
        answer, self._found = self._found, None
        if answer is None:
            raise AskOthers(partial(self._begin, ask))
        if isinstance(answer[0], Exception):
            raise answer[0]
        return then(answer[0])

    def _begin(self, ask: Callable[[], Awaitable[Any]], again: Callable[[], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(ask, again))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, ask: Callable[[], Awaitable[Any]], again: Callable[[], None]) -> None:
        try:
            answer = await ask()
        except Exception as error:
            answer = error
        self._found = [answer]
        try:
            again()  # takes the answer before anybody else runs
        except Exception:
            log.exception("an operation failed")
        finally:
            self._found = None

    async def change(self, what: str, arguments: Sequence[Any], key: str, forget: bool = False) -> None:
        """Have all replicas call what `_do` has under this name. Raises ServingError."""
        await self._peers.change(_TOPIC, _encode([what, arguments]), key, forget)

    async def _others(self, what: str, arguments: Sequence[Any], kind: Any) -> list[Any]:
        answers = await self._peers.ask(_TOPIC, _encode([what, arguments]))
        return [msgspec.msgpack.decode(answer, type=kind) for answer in answers]

    # -- what others ask -----------------------------------------------------------------------------------------------

    async def _told(self, data: bytes) -> bytes:
        what, arguments = msgspec.msgpack.decode(data)
        kernel = self._kernel
        if what == "load":
            name, config, files = arguments
            return _encode(await kernel.load(name, config=config, files=files))
        if what == "unload":
            kernel.unload(arguments[0], dependents=arguments[1])
            return b""
        ways: dict[str, Callable[..., Any]] = {
            "statistics": kernel.statistics,
            "index": kernel.index,
            "inflight": kernel.inflight,
            "explain": lambda asked, slowest, failed: kernel.explain(asked, slowest=slowest, failed=failed),
            "scale": kernel.scale,
            "trace": kernel.trace_settings.update,
            "log": kernel.log_settings.update,
            "region": kernel.shared_memory.register,
            "no_region": kernel.shared_memory.unregister,
            "cuda_region": kernel.cuda_shared_memory.register,
            "no_cuda_region": kernel.cuda_shared_memory.unregister,
        }
        return _encode(ways[what](*arguments))

    def watch(self) -> None:
        """Tell, from now on, when this replica is not ready and when it is again, and its load where somebody goes by that."""
        ready = bool(self._kernel.is_ready())
        if ready is not self._told_ready:
            self._told_ready = ready
            self._peers.tell_ready(ready)
        if self._peers.number is not None:
            self._peers.tell_load(*self._kernel.supervision.scaling.at_work())
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self.watch)


_together: weakref.WeakKeyDictionary[Any, Together] = weakref.WeakKeyDictionary()


def join(kernel: Any, peers: Peers) -> Together:
    """Make a kernel one of several replicas. Called once, before front ends are made."""
    _together[kernel] = found = Together(kernel, peers)
    return found


def steered(kernel: Any) -> Any:
    """Return as what a front end steers a kernel and asks about it: the kernel, or what stands for it and all other replicas.

    The latter may raise AskOthers.
    """
    return _together.get(kernel, kernel)


class _Changing:
    """Stands for settings or for regions: what changes them is done by all replicas, the rest is their own."""

    def __init__(self, together: Together, own: Any, what: str) -> None:
        self._together = together
        self._own = own
        self._what = what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def update(self, changes: Mapping[str, Any], model: str = "") -> None:
        """Change settings, which add up: each set of names has a key of its own."""
        arguments = [changes, model] if self._what == "trace" else [changes]
        self._change(self._what, arguments, f"{self._what}:{model}:{','.join(sorted(changes))}")

    def register(self, name: str, *arguments: Any) -> None:
        self._change(self._what, [name, *arguments], f"{self._what}:{name}")

    def unregister(self, name: str = "") -> None:
        self._change(f"no_{self._what}", [name], f"{self._what}:{name}", forget=True)

    def _change(self, what: str, arguments: Sequence[Any], key: str, forget: bool = False) -> None:
        self._together.asked(lambda: self._together.change(what, arguments, key, forget))


# -- how answers become one ------------------------------------------------------------------------------------------------


def summed(records: Sequence[Sequence[ModelStatistics]]) -> list[ModelStatistics]:
    """Return the sums of several replicas' statistics, by name and version, in the order of the first that has each."""
    found: dict[tuple[str, int], ModelStatistics] = {}
    for each in records:
        for record in each:
            key = (record.name, record.version)
            found[key] = _both(found[key], record) if key in found else record
    return list(found.values())


_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def _both(one: ModelStatistics, other: ModelStatistics) -> ModelStatistics:
    durations: dict[str, Any] = {name: _added(getattr(one, name), getattr(other, name)) for name in _DURATIONS}
    batches = dict(one.batch_stats)
    for size, times in other.batch_stats.items():
        first, second, third = (_added(*pair) for pair in zip(batches.get(size, (Duration(),) * 3), times))
        batches[size] = (first, second, third)
    responses = {key: dict(times) for key, times in one.response_stats.items()}
    for key, kinds in other.response_stats.items():
        own = responses.setdefault(key, {})
        for kind, time in kinds.items():
            own[kind] = _added(own.get(kind, Duration()), time)
    failures = dict(one.failures)
    for reason, count in other.failures.items():
        failures[reason] = failures.get(reason, 0) + count
    hops = [record.hop for record in (one, other) if record.hop is not None]
    return replace(
        one,
        **durations,
        last_inference_ms=max(one.last_inference_ms, other.last_inference_ms),
        inference_count=one.inference_count + other.inference_count,
        execution_count=one.execution_count + other.execution_count,
        batch_stats=batches,
        response_stats=responses,
        failures=failures,
        hop=_added(*hops) if len(hops) == 2 else hops[0] if hops else None,
    )


def _added(one: Duration, other: Duration) -> Duration:
    return Duration(one.count + other.count, one.ns + other.ns)


def joined(indexes: Sequence[Sequence[ModelIndex]]) -> list[ModelIndex]:
    """Return one index of several replicas': a version is READY where it is so everywhere, else the reason says where not."""
    found: dict[tuple[str, str], list[tuple[int, ModelIndex]]] = {}
    for k, each in enumerate(indexes):
        for line in each:
            found.setdefault((line.name, line.version), []).append((k, line))
    known = {name for name, version in found if version}
    lines = []
    for (name, version), there in found.items():
        if not version and name in known:
            continue  # not loaded at one, while it is at another
        other = next((line for _, line in there if line.state != "READY"), there[0][1])
        missing = len(there) < len(indexes) and bool(version)
        if missing and other.state == "READY":
            other = ModelIndex(name, version, "UNAVAILABLE", "it is not loaded at every replica")
        lines.append(other)
    return lines
