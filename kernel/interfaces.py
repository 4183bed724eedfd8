"""What plugins supply: protocols, no code. Whoever writes a backend, a front end or a repository reads this file first.

Hooks (`kernel/hookspecs.py`) hand these objects over at start-up or load; on a request's path only their methods run.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kernel.errors import ServingError
from kernel.rules import CacheUsage, StoredResponse

if TYPE_CHECKING:
    from kernel.config import ConfigError, ModelConfig, TensorSpec
    from kernel.requests import Batch, InferenceRequest, InferenceResponse

__all__ = [
    "Asking",
    "Backend",
    "Batcher",
    "Cache",
    "Document",
    "Door",
    "Executor",
    "Finding",
    "Frontend",
    "Gate",
    "Host",
    "HostedModel",
    "InstanceContext",
    "Observer",
    "Placement",
    "PlacementChoice",
    "Reader",
    "Record",
    "RemoteExecutor",
    "RemoteOwner",
    "Result",
    "Site",
    "SiteRoute",
    "Standing",
    "Stay",
]

#: What `Executor.execute` gives back for its batch: a sequence with one InferenceResponse for each request, in the batch's order,
#: None for one that is, or will be, answered through `Kernel.send`; or None altogether when all of them are. RESCHEDULED
#: may stand for a response, too. A sequence of another length fails the whole batch (INTERNAL).
Result = Sequence["InferenceResponse | None"] | None

#: What is kept of one request that was answered with success, and what an Observer is told, a tuple of eleven. Its rows, an int
#: (0: the response cache had the answer). Six moments in seconds on the kernel's clock: it was enqueued, its execution started,
#: had its input, began its output, ended, and the request was answered; only differences mean something; of an ensemble, those
#: between the four in the middle are sums over its steps. Its id, "" for none. The name of the instance that executed it, "" for
#: none. Why its batch left the queue (rules.Left), or what it waited for besides instances (rules.WaitReason), or None. Who has
#: called it: the name of that instance and when the first request of its execution was enqueued, None for a client.
Record = tuple[int, float, float, float, float, float, float, str, str, Any, "tuple[str, float] | None"]


class Placement(enum.Enum):
    """Where an instance's `execute` runs."""

    LOOP = "loop"  # called on the kernel's loop, inside a greenlet: may use `kernel.wait(request)` to wait for a child
    TASK = "task"  # `execute` returns an awaitable: one asyncio task a batch on the kernel's loop
    THREAD = "thread"  # called on the instance's own thread
    THREAD_TASK = "thread_task"  # `execute` returns an awaitable that runs on an asyncio loop in the instance's own thread
    REMOTE = "remote"  # as CALLBACK, by a RemoteExecutor: work done elsewhere, to which several batches may be handed at once
    CALLBACK = "callback"  # called on the kernel's loop; returns at once and later calls `batch.instance.finished(batch, result)`


class HostedModel(Protocol):
    """A version of a model that is READY, as a Host tells of it. It is a Model, which has more."""

    @property
    def name(self) -> str:
        """Whose version it is."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def config(self) -> ModelConfig:
        """With all defaults filled in."""

    @property
    def input_specs(self) -> Mapping[str, TensorSpec]:
        """What requests may have, by name."""

    @property
    def output_specs(self) -> Mapping[str, TensorSpec]:
        """What requests may ask for, by name."""

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses."""

    @property
    def check(self) -> Callable[[InferenceRequest], None]:
        """Called with a request, it accepts its form, or raises ServingError (INVALID_ARG)."""

    @property
    def enqueue(self) -> Callable[[InferenceRequest], None]:
        """Called with a request that has passed `check`, it takes that over, as `Host.submit` does."""


class Host(Protocol):
    """The kernel, as plugins may use it; `kernel.Kernel` says more of each. On the loop, where nothing else is said."""

    loop: asyncio.AbstractEventLoop  # the kernel's; there from its start on
    clock: Callable[[], float]  # the present moment in seconds, on the clock of all moments that are told
    epoch_offset: float  # seconds that make wall-clock time of such a moment
    strict_outputs: bool  # whether outputs that differ from the config are errors

    def model(self, name: str, version: int | str = "") -> HostedModel:
        """Return the model version that is READY, the newest one by default.

        Raises ServingError: NOT_FOUND for an unknown one, UNAVAILABLE for one that is not ready.
        """

    def models(self) -> Sequence[HostedModel]:
        """Return the model versions that are READY, by name and version."""

    def submit(self, request: InferenceRequest) -> None:
        """Take over `request` and answer it through its `respond`, perhaps before this returns; never raises."""

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        """Nobody waits for `request` any more. Does nothing once it has been answered."""

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Answer an executing request outside of what `execute` returns. Any thread."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(*args)` on the loop. Any thread. Raises RuntimeError once the kernel has stopped."""

    def wait_for(self, step: Callable[[Callable[[], None]], None]) -> None:
        """Call `step(wake)` on the loop and return once `wake()` was called. In executions, and on threads."""

    def is_model_ready(self, name: str, version: int | str = "") -> bool:
        """Whether the version, by default any, is READY. Raises ServingError for what is no version number."""

    def backend_settings(self, name: str) -> dict[str, str]:
        """Return what the backend of that name was told at start (`--backend-config`)."""


class RemoteOwner(Protocol):
    """Who hands executions to a RemoteExecutor, and is told how they end and whether more may come. On the loop."""

    capacity: int  # executions that the executor takes at a time

    def finished(self, batch: Batch, result: object) -> None:
        """An execution has ended; `result`: what `execute` would have returned, or the exception."""

    def down(self) -> None:
        """The executor takes no more executions until `up`."""

    def up(self) -> None:
        """The executor takes executions again."""

    def give_back(self, batches: Sequence[Batch]) -> None:
        """What was handed over and has not begun waits again. Called while down."""

    def lost(self, why: ServingError) -> None:
        """What executions have left in the executor is lost: sequences that went on there are over. After `give_back`."""

    def hopeless(self, problem: ServingError) -> None:
        """The executor goes on trying, but nobody should wait for it."""


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """Where the instances of a model version run, and why.

    `where`: "loop", "thread" or "process". `reason`: a clause, such as "imports torch (model.py:3)". `asked`: the config says so.
    """

    where: str
    reason: str
    asked: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What `kernel doctor` tells of a model: one thing that a file shows.

    `severity`: "refused" (it can't be served), "differs" (from what Triton makes of it) or "costs" (time, that it need not).
    `rule`: a short name for what was looked for. `place`: `file:line:column`, as far as it is known. `what` and `remedy`: a
    sentence each.
    """

    severity: str
    rule: str
    place: str
    what: str
    remedy: str = ""

    @classmethod
    def of(cls, severity: str, rule: str, mistake: ConfigError, remedy: str = "") -> Finding:
        """Return one that is placed as a mistake in a config is: `Finding.of("costs", "rule", config.error("…", at=…))`."""
        place = ":".join(str(one) for one in (mistake.path, mistake.line, mistake.column) if one is not None)
        return cls(severity, rule, place, mistake.words or mistake.detail, remedy)


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """What a backend is told when it makes the executor of one model instance."""

    kernel: Host  # whose model it is
    config: ModelConfig  # completed and checked
    version: int  # of the model
    instance_name: str  # `<group>_<k>`
    kind: str  # "CPU", "GPU" or "MODEL"
    device_id: int  # of the GPU; 0 for the CPU
    model_folder: Path  # with config.pbtxt
    version_folder: Path  # with the model's file
    placement_choice: PlacementChoice | None = None  # what the backend has chosen, if it does


@runtime_checkable
class Executor(Protocol):
    """One model instance of a backend.

    `placement` is read once, after the executor was made. `capacity` is how many executions it takes at a time (1 for
    LOOP and THREAD; more lets awaitables overlap). `may_wait` counts for LOOP only and is read before each execution: False
    says that this one will not call `Kernel.wait`, which saves the greenlet it would need for that. One of THREAD may have a
    method `cancelled(batch, request)`, as a RemoteExecutor has: it is called on the loop, and may end what goes on in the thread.
    One that can tell whether it is ready has a method `is_ready` that returns a bool, plain (called on a thread of its own) or
    `async` (where the instance's tasks run); clients that ask are told no where it says so, raises, or takes five seconds.
    """

    placement: Placement
    capacity: int
    may_wait: bool

    def execute(self, batch: Batch) -> Result | Awaitable[Result]:
        """Run one batch and return a response for each of its requests.

        An exception fails every request of the batch that has no final answer yet: a ServingError with its own code and
        words, anything else as INTERNAL. Output arrays that are handed over must be the request's own: nobody else may
        write to them afterwards.
        """

    def finalize(self) -> None:
        """Called once when the instance goes, on the thread that made the executor for THREAD and THREAD_TASK."""


class Workers(Protocol):
    """What executes behind one executor: from `least` to `most` of them, `size` are wanted, and `serving` there. On the loop."""

    least: int
    most: int
    size: int

    @property
    def serving(self) -> int:
        """How many serve."""

    def resize(self, size: int) -> int:
        """Want so many, within the bounds; return how many. Those that go finish what they have."""


class RemoteExecutor(Executor, Protocol):
    """What an executor of placement REMOTE has besides. Everything is called on the loop.

    Its `execute` sets `batch.started` of an execution that begins at once, and later calls `batch.instance.finished(batch,
    result)` with all of the batch's times set; `finalize` is not called, `close` is. One that knows what the way there and back
    costs may have `hops`: of how many executions it does, and the seconds that they spent on it in all.
    One whose executions call models may have two methods by which circles of calls are found. `awaited(batch, told)` returns
    the calls without which an execution can't go on; None where it may, or where that has to be asked for first, and `told()` is
    called once it is known. `holding()` returns the call that keeps it from beginning anything, None where there is none.
    One that knows where in a model's code an execution is has `place(batch)`, `file:line` or "". One whose executions can be
    ended has `end(reason)`, by which all that are under way fail, and it goes down; it may come up again. One behind which there
    are several workers, of which there may be more or fewer, has `fleet`: Workers, whose number follows the load then.
    """

    def attach(self, instance: RemoteOwner) -> None:
        """Called once, before the first execution. From here on `instance` is told when the executor goes down or comes up."""

    def take_back(self) -> list[Batch]:
        """Return the batches that were handed over and have not begun, in their order; they never will here."""

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """Nobody waits for the answer of `request` any more, whose execution may go on."""

    async def close(self) -> None:
        """Finalize, as nothing is running any more, or was told to end at once; return when nothing is left."""

    def kill(self) -> None:
        """End at once whatever still runs; `close` may follow."""


class Backend(Protocol):
    """Serves the models whose config names it. One object per kernel.

    One that computes on no GPU may say so by an attribute `uses_gpus` that is false: KIND_AUTO means the CPU then, everywhere.
    One that decides where a model runs has a method `choose_placement(config, model_folder, version_folder)` that returns a
    PlacementChoice; it is called on a load thread, once a version, runs no model code, and is what `kernel check` asks, too.
    One that keeps something besides its executors may have a method `close`, called on the loop once the kernel has stopped.
    Two methods more are for `kernel check` alone, take what `validate` takes and run no model code either. `look` returns, as
    ConfigErrors with their places, what can be seen that a load would fail of; None where it can't look at the model's code.
    `may_complete` returns whether `complete_config` may change this config, so that nobody can tell the model's inputs and
    outputs before it is loaded. For `kernel doctor`, `advise(config, model_folder, versions, choice)` returns a Finding for each
    thing that the files show to cost time or to differ from Triton (`choice`: what `choose_placement` has said, or None); and
    an attribute `heeds` names those fields, such as "optimization.graph", that other backends read without effect.
    """

    name: str  # as in a config's `backend`
    #: True where `create` is quick and must happen on the loop; otherwise it runs on the instance's own thread.
    creates_on_loop: bool

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Return the config with what the model itself can tell (auto-complete). Called on a load thread, once a version.

        Raises ServingError; the load fails with its message.
        """

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse a config or a missing file that this backend can't serve, by raising ServingError.

        Loads nothing and runs no model code: `kernel check` calls it. `versions`: those that would be loaded.
        """

    def create(self, context: InstanceContext) -> Executor:
        """Make one instance: import, initialise, ready to execute. Raises ServingError (or anything; it is then INTERNAL)."""


class Batcher(Protocol):
    """Decides which of a model's waiting requests are executed together, instead of the core's rule. One object per version."""

    def choose(
        self, waiting: Collection[InferenceRequest], now: float
    ) -> tuple[Sequence[InferenceRequest], float | None]:
        """Return `(requests, None)`: execute these as one batch now; or `((), when)`: look again then, or on an arrival.

        Called on the loop while an instance is free and requests wait, before each batch. `waiting` has them in the order in
        which they may be taken: by priority, then by arrival. Their rows (`batch_size`) must not exceed `max_batch_size`, and
        only inputs with `allow_ragged_batch` may differ in shape. `now` and `when` are seconds on the kernel's clock, as
        `enqueued` is. What is chosen otherwise, and what is raised, is logged, and the core's rule decides.
        """


class Frontend(Protocol):
    """Something that takes requests from outside, such as a wire protocol.

    `kernel serve` also calls, where a front end has them as a ListeningFrontend has: `retire()`, after which clients are
    told to go on elsewhere and are still served: at the signal, or when the sequences that run are over; `refuse()` after
    --drain-delay, after which nobody new is let in; and reads `busy`, whether a client waits for something. `drain`
    comes when nobody does, or at the limit.
    """

    async def start(self) -> None:
        """Begin to listen. Raises OSError where the address can't be had."""

    async def drain(self) -> None:
        """Accept no new connections, let those that are busy finish; returns when none is left."""

    async def stop(self) -> None:
        """Close at once whatever is still open."""

    @property
    def address(self) -> str:
        """Where it listens, for the start-up table, e.g. `http://0.0.0.0:8000`."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a Site answers to one question: `body`, which is of the `content_type`. `fields`: further header fields, as names and
    values; `packed`: the body by gzip, b"" where nobody has packed it.
    """

    body: bytes
    content_type: str
    fields: tuple[tuple[str, str], ...] = ()
    packed: bytes = b""


class Reader(Protocol):
    """A client that a Site sends events to, as they come. On the loop."""

    @property
    def is_gone(self) -> bool:
        """Whether nobody reads any more."""

    @property
    def waiting(self) -> int:
        """Bytes that it was sent and has not begun to take."""

    def send(self, piece: bytes) -> None:
        """Send a piece of the stream."""

    def end(self) -> None:
        """There will be no further piece."""


@dataclass(frozen=True, slots=True)
class SiteRoute:
    """Paths of a Site. `pattern`: a regular expression that they match as a whole, percent escapes undecoded.

    `category`: of restricted APIs that they belong to; "" for what anybody may have, as it tells nothing of this server.
    `follows`: events are sent, there is no Document. `of_all_clients`: it tells of everybody's requests, which `--safe` keeps for
    clients of this machine.
    """

    pattern: str
    category: str
    follows: bool = False
    of_all_clients: bool = False


class Site(Protocol):
    """Pages for people in a browser, and what these ask for; a front end for HTTP serves them beside its protocol. On the loop.

    `routes`: what is asked of it, by GET. `controls`: its pages may change what is served: a browser's request that does is let
    through where it comes from a page of this server, and refused where no Site controls.
    """

    routes: Sequence[SiteRoute]
    controls: bool

    def document(self, path: str) -> Document:
        """Return what there is at a path of `routes`. Raises ServingError, and AskOthers."""

    def follow(self, path: str, reader: Reader) -> None:
        """Send events to a reader from now on. Raises ServingError."""

    def close(self) -> None:
        """The server is about to stop: end what readers follow, and what they will."""


class Asking(Protocol):
    """A request, or the connection that it came on, as a Gate sees it."""

    @property
    def client(self) -> str:
        """Where it comes from, for people, such as `HTTP 10.0.0.7:51234`."""


class Standing:
    """Whether a Gate's last word still `holds`: the gate that has given it says when it no longer does."""

    __slots__ = ("holds",)

    def __init__(self, holds: bool) -> None:
        self.holds = holds


#: Counts a request that has entered by a door as one that is under way; returns what is to be called when it is over.
Stay = Callable[[], Callable[[], None]]


class Door(Protocol):
    """What a Gate says to requests that are alike: front ends make one for what they remember of a request's head. On the loop.

    The methods raise Denied where the request may not pass. As long as `standing` holds, there is nothing to ask: `enter` lets
    all pass and counts none, and so does `allow` for the model `allowed`, where that is not None and nothing is changed.
    """

    standing: Standing
    allowed: str | None

    def check(self, asking: Asking) -> None:
        """Is it known who asks, and may he? Counts as no request: for what is only about to be one."""

    def enter(self, asking: Asking) -> Stay | None:
        """Let one request pass. None: nobody counts it. Else, where its handling returns before it is answered, the Stay is
        called, and what that returns is called once when the request is over.
        """

    def allow(self, asking: Asking, model: str, changes: bool) -> None:
        """May this request, which has entered, be for that model? For a door that was made without knowing the model."""


class Gate(Protocol):
    """Says who may ask for what, and how much of it. One object per kernel, at most; on the loop.

    Where there is none, front ends ask nothing: they decide when they are made, by `Kernel.gate`.
    """

    def door(
        self, fields: Iterable[tuple[bytes, bytes]], category: str, operation: str, model: str | None, changes: bool
    ) -> Door:
        """Return the door of requests with these header fields.

        `category`: one of those of restricted APIs. `operation`: for people, such as `POST /v2/models/m/infer`. `model`: that it
        is for, "" for none; None: only the message says, so `allow` will be asked. `changes`: it changes the server.
        """


class Observer(Protocol):
    """Is told of the requests of one model version, as `Kernel.observe` has asked for. On the loop; must not raise.

    Records come many at a time, some time after: `StatisticsCounter.settle` tells of those that have not been told yet.
    """

    def answered(self, records: Sequence[Record]) -> None:
        """These requests have been answered with success."""

    def first_response(self, seconds: float) -> None:
        """A request to a decoupled model has got its first response, `seconds` after it was enqueued."""

    def looked_up(self, hit: bool, seconds: float, now: float) -> None:
        """The response cache was asked for an answer, which took `seconds`; after a miss, with what keeping the answer took."""


class Cache(Protocol):
    """Keeps the answers of models whose config says so; hook `make_cache`, or `Kernel(cache=…)`. On the loop: must not block.

    What it raises is logged, and the request is executed as if there were no cache. Keys are hashes: two of one kernel are the
    same exactly if model, load and inputs are; other kernels have other keys.
    """

    @property
    def largest(self) -> int:
        """Bytes of the largest answer that it takes (`StoredResponse.size`); others are not offered to it."""

    def lookup(self, key: bytes) -> StoredResponse | None:
        """Return what was inserted with `key`, if it is still there."""

    def insert(self, key: bytes, response: StoredResponse) -> None:
        """Keep `response`, if there is room for it or can be made; the same key again replaces it."""

    def usage(self) -> CacheUsage:
        """How full it is, for the metrics."""
