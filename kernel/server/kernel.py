"""class Kernel: submit, infer, stream, load, unload, ready; start-up and drain in their right order.

Everything a front end, a model or an embedding app may do with the kernel is a method here; how an app's arrays become requests
calls.py says.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any, NoReturn

from kernel.config import did_you_mean
from kernel.errors import Code, ServingError
from kernel.forking import FORKED, guard, put_away_loop
from kernel.frontends import CudaSharedMemory, MemoryBudget, SharedMemory
from kernel.instances import Mailbox, Turn
from kernel.interfaces import Cache, Gate, Observer
from kernel.models import Model, ResponseCache, usable_gpus
from kernel.observability import (
    CustomMetrics,
    Explanation,
    LogSettings,
    ModelStatistics,
    TraceOptions,
    Tracer,
    TraceSettings,
)
from kernel.options import Options, StorageOptions
from kernel.plugins import Plugins
from kernel.registry import (
    WATCH_SECONDS,
    Failure,
    LoadRequest,
    ModelIndex,
    Poller,
    Registry,
    Reload,
    Watcher,
    log_reload,
)
from kernel.repository import Repository
from kernel.requests import Batch, InferenceRequest, InferenceResponse, RequestState, Respond
from kernel.rules import Budget
from kernel.scheduling import Release
from kernel.server import waiting
from kernel.server.calls import (
    Collected,
    NotStarted,
    answered_elsewhere,
    check_running,
    inferred,
    make_request,
    responses,
)
from kernel.server.explain import explain
from kernel.server.inflight import InflightRequest, each_inflight, inflight
from kernel.server.pools import Pools
from kernel.server.recent import known, observed_calls, recent, states
from kernel.server.scaling import scale
from kernel.server.supervision import Supervision

__all__ = ["Kernel"]

log = logging.getLogger("kernel")

_EXPLICIT = "Kernel(..., control_mode='explicit', load_models=['*'])"
_ELSEWHERE = {
    "load": "asyncio.run_coroutine_threadsafe(kernel.load(...), kernel.loop).result()",
    "unload": "kernel.call_soon(kernel.unload, ...)",
}


class Kernel:
    """Serves the models of one or more model repositories inside the running event loop.

    - Which models: `repositories`: paths of model repositories, or locations such as `s3://bucket/models` (`storage`: how what
      lies there is kept here). `namespacing`: several repositories may have models of one name, and an ensemble uses those
      beside it. `control_mode`: "none" loads all models at start, "poll" too, and then follows the repositories every
      `poll_seconds` (0.0: never), "explicit" loads only `load_models` (`["*"]` for all) and allows `load` and `unload`; so does
      "on-demand", where who is first asked for is loaded, as `budget` says. `config_name`: use `configs/<name>.pbtxt`.
      `auto_complete`: whether configs may be completed from the model.
    - How they are loaded: `load_threads`: models that load at a time. `load_retries`: how often one that fails is tried again.
      `exit_on_error`: whether `start` raises where one fails. `strict_readiness`: whether the server is not ready then.
    - With what: `plugins`: besides the installed ones, e.g. an object with hook implementations. `backend_config`: settings by
      the name of their backend, "" for all, as `{"python": {"stub-timeout-seconds": "60"}}`. `gpus`: ids of the GPUs that
      instances may use, by default all that this machine has. `cache`: keeps the answers of models with `response_cache`, e.g.
      `LocalCache(2**28)`; or a name and settings of which a plugin makes one, as `("local", {"size": "268435456"})`.
    - How requests are executed: `strict_outputs`: whether outputs that differ from the config are errors; else they are passed
      on, with one warning a model. `execution_timeout`: for how many seconds an execution may last, where its model's parameter
      of that name does not say otherwise (0.0: any). `rate_limit`: "execution_count" has instances start only when the resources
      of their `rate_limiter` are free, "off" ignores those. `rate_limit_resources`: how much there is of some, as
      `<name>:<count>` or `<name>:<count>:<device>`. `drain_seconds`: how long `stop` waits for requests in flight, by default.
    - Which requests are refused: `max_inflight`: how many may be in flight, besides the calls of models, before further ones are
      refused (0: any). `refuse_late`: those whose deadline can't be met, as the queue predicts, are refused at once; the share of
      its time that a request has to have left then, 0.0 to below 1.0 (None: nobody predicts).
    - What clients may take: `memory_limit_receive`, `memory_limit_send`: how many bytes of requests and of answers front ends may
      hold (0: each a quarter of the machine's memory). `max_request_values`: how many JSON values and strings one request may
      have (0: 2**20). `max_connections`, `max_connections_per_address`: how many connections (0: as many as there are
      descriptors). `allow_client_shm`: whether clients may register shared memory.
    - What is told: `log_settings`: what clients see and change of the log, where it is no app's own. `trace`: settings at start.

    Use it as `async with Kernel("repository/") as kernel`, or call `start` and `stop`. It takes the loop it is started on
    (asyncio or uvloop); several kernels may live in one process. Arguments that can't be are refused with ServingError.

    Besides methods it has `loop` (from the start on), `clock` (its moments, in seconds) and `epoch_offset` (what makes wall-
    clock time of these), `live` and `accepting` (it has started; it is not about to stop), `generation` (changes whenever
    another model serves some name), `find` (as `model`, of a version that is a string), `shared_memory` and
    `cuda_shared_memory` (what clients have registered), `memory` (what front ends hold for clients: MemoryBudget), `gate`
    (who says what clients may, None for nobody; to be set before front ends are made), `pools.aside` (an executor of one
    thread, for what front ends can't do on the loop as it is too large), `trace_settings`, `log_settings`, `custom_metrics`
    (those that models make), `options` (what it was told), and `cache` (None, or what has `figures()`, CacheFigures).

    The core's own: `forked`, `changed`.
    """

    def __init__(
        self,
        *repositories: str | os.PathLike[str] | Repository,
        namespacing: bool = False,
        control_mode: str = "none",
        poll_seconds: float = 15.0,
        budget: Budget | None = None,
        storage: StorageOptions | None = None,
        load_models: Sequence[str] = (),
        config_name: str = "",
        auto_complete: bool = True,
        load_threads: int = 4,
        load_retries: int = 0,
        exit_on_error: bool = True,
        strict_readiness: bool = True,
        plugins: Sequence[object] | Plugins = (),
        backend_config: Mapping[str, Mapping[str, str]] | None = None,
        gpus: Sequence[int] | None = None,
        cache: Cache | tuple[str, Mapping[str, str]] | None = None,
        strict_outputs: bool = False,
        execution_timeout: float = 0.0,
        rate_limit: str = "off",
        rate_limit_resources: Sequence[str] = (),
        drain_seconds: float = 30.0,
        max_inflight: int = 0,
        refuse_late: float | None = None,
        memory_limit_receive: int = 0,
        memory_limit_send: int = 0,
        max_request_values: int = 0,
        max_connections: int = 0,
        max_connections_per_address: int = 0,
        allow_client_shm: bool = True,
        log_settings: LogSettings | None = None,
        trace: TraceOptions | None = None,
    ) -> None:
        self.options = Options(
            control_mode=control_mode, load_models=tuple(load_models), poll_seconds=poll_seconds, exit_on_error=exit_on_error,
            strict_readiness=strict_readiness, auto_complete=auto_complete, strict_outputs=strict_outputs,
            config_name=config_name, load_threads=load_threads, load_retries=load_retries, namespacing=namespacing,
            drain_seconds=drain_seconds, allow_client_shm=allow_client_shm, gpus=None if gpus is None else tuple(gpus),
            rate_limit=rate_limit, rate_limit_resources=tuple(rate_limit_resources), backend_config=backend_config or {},
            memory_limit_receive=memory_limit_receive, memory_limit_send=memory_limit_send, execution_timeout=execution_timeout,
            max_request_values=max_request_values, max_connections=max_connections,
            max_connections_per_address=max_connections_per_address, max_inflight=max_inflight, refuse_late=refuse_late,
        )  # fmt: skip
        self.strict_outputs = strict_outputs  # for the next load: the kit for tests of models changes it from one to the other
        self.plugins = plugins if isinstance(plugins, Plugins) else Plugins(plugins)
        keeper = self.plugins.cache(*cache) if isinstance(cache, tuple) else cache
        self.cache = None if keeper is None else ResponseCache(keeper)
        self.loop: asyncio.AbstractEventLoop  # this, `mailbox` and `turn` are there from `start` on
        self.clock: Callable[[], float] = time.monotonic
        self.epoch_offset = 0.0  # wall clock minus `clock`
        self.mailbox: Mailbox
        self.turn: Turn
        self.loop_thread = 0  # of the loop, by `threading.get_ident`
        self.supervision = Supervision(lambda: self.clock(), max_inflight, self.options.resource_limits())
        self.custom_metrics = CustomMetrics()  # those that models make
        self.on_unload: Callable[[], None] = lambda: None  # called when an instance has gone, or all that a failed load has left
        self.live = False
        self.exiting = False  # requests are refused; there is no way back
        self.generation = 0  # changes whenever another model serves some name; what was looked up before is stale then
        self.pools = Pools(load_threads)
        self.gate: Gate | None = None
        self.memory = MemoryBudget(  # what front ends may hold
            memory_limit_receive, memory_limit_send, max_request_values, (max_connections, max_connections_per_address)
        )
        self.shared_memory = SharedMemory(allow_client_shm, self.memory.receive.limit)
        self.cuda_shared_memory = CudaSharedMemory(allow_client_shm)
        self.log_settings = log_settings or LogSettings()
        self.tracer = Tracer(self, TraceSettings(self.is_model_ready, trace))
        backends = self.plugins.backends(self)
        _warn_of_strangers(self.options.backend_config, backends)
        self._registry = Registry(self, self.plugins.repositories(repositories, storage), backends, budget)
        self.find = self._registry.lookup  # as `model`, of a version that is a string

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there: before `start` that is what belongs to the loop."""
        if name in ("loop", "mailbox", "turn"):
            raise NotStarted()
        raise AttributeError(f"'Kernel' object has no attribute '{name}'", name=name, obj=self)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the repositories and load what is to be loaded at start-up.

        Raises ServingError when a repository is missing or, with `exit_on_error`, when a model fails to load; nothing is
        left running then.
        """
        self.open()
        try:
            self.tracer.start()
            await self._registry.start()
        except BaseException:
            await self.stop(0.0)
            raise
        self.live = self.broken is None
        if self.live and self.options.polls:
            self._registry.follow(Poller(self._registry, self.options.poll_seconds).run())

    def open(self) -> None:
        """Take the running loop, on which front ends can be made from now on. `start` does so, too."""
        if self.exiting:
            raise ServingError(Code.UNAVAILABLE, "this Kernel has been stopped and can't start again; make a new one")
        if hasattr(self, "mailbox"):
            return
        loop = self.loop = asyncio.get_running_loop()
        # uvloop's own clock has milliseconds and stands still within a turn; ours is the one it is made from.
        self.clock = time.monotonic if type(loop).__module__.startswith("uvloop") else loop.time
        self.epoch_offset = time.time() - self.clock()
        self.mailbox = Mailbox(loop)
        self.supervision.begin(loop, self.clock, self.options.execution_timeout, self._registry.follow, self.models)
        self.turn = Turn(loop)
        self.loop_thread = get_ident()
        guard(self)

    @property
    def broken(self) -> ServingError | None:
        """Why nothing at all is served, though `start` did not raise: without `exit_on_error` a repository may be missing."""
        return self._registry.broken

    def retire(self, silence: float | None = None) -> None:
        """The end is near: not ready from now on, and no model is loaded any more; requests are served until `stop`.

        `silence`: but no sequence begins, and those that run go on until nobody sends anything of them for so many seconds, or
        for as long as their model says.
        """
        self._registry.retire(silence)

    async def stop(self, timeout: float | None = None) -> None:
        """Accept nothing more, finish what was accepted (for `timeout` seconds at most), finalize all models."""
        self.exiting = True
        if not hasattr(self, "mailbox"):  # never started
            self.pools.shutdown()
            return
        await self._registry.stop(self.options.drain_seconds if timeout is None else timeout)
        self.live = False
        self.mailbox.close()
        await self.tracer.close()
        self.pools.shutdown()

    def forked(self) -> None:
        """In a child that model code has forked: whatever it asks of the kernel is refused at once, for nobody would answer."""
        if self.live or not self.exiting:
            put_away_loop(self.loop)
            self.loop_thread = 0  # no thread of the child is the loop's
            vars(self).update(_refusing(ServingError(Code.UNSUPPORTED, FORKED)))

    def changed(self) -> None:
        """Another model serves some name: what was looked up before is stale."""
        self.generation += 1

    def __enter__(self) -> NoReturn:
        raise TypeError("a Kernel is for asyncio, `async with Kernel(...)`; for scripts there is `with kernel.Local(...)`")

    def __exit__(self, *exception: object) -> None:
        """There for the sake of `__enter__`."""

    async def __aenter__(self) -> Kernel:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, request: InferenceRequest) -> None:
        """Take over `request` and answer it through its `respond`, perhaps before this returns. On the loop; never raises.

        A request that does not fit is answered with the error that says why.
        """
        try:
            find = self.find
            model = find(request.model_name, request.model_version)
        except ServingError as error:
            told = self._registry.hold(request, error, self.submit)
            if told is not None:
                _refuse(request, told)
            return
        self.submit_to(model, request)

    def submit_to(self, model: Model, request: InferenceRequest) -> None:
        """As `submit`, for a model that has just been looked up."""
        try:
            model.check(request)
        except ServingError as error:
            _refuse(request, error)
            return
        if request.trace is not None:
            self.tracer.go_on(request)
        enqueue = model.enqueue  # as it is no method, this costs less than to call it by its name
        enqueue(request)

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        """Nobody waits for `request` any more: it and what it has called leave the queues, running models can tell.

        Its `respond` is called with `error` (by default CANCELLED). Does nothing once it has been answered. On the loop.
        """
        if request.model is not None and request.state is not RequestState.INITIALIZED:
            request.model.scheduler.cancel(request, error)
        else:
            self._registry.held.cancel(request, error)

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Answer an executing request outside of what `execute` returns. Any thread.

        Non-decoupled models send one response, with `final`; decoupled ones any number, the last call with `final`. Does
        nothing once the request is released.
        """
        if get_ident() == self.loop_thread:
            if self.mailbox.calls:
                self.mailbox.drain()  # what threads have told the loop before, the responses before this one say, comes first
            request.model.scheduler.send(request, response, final)
        elif request.state is not RequestState.RELEASED:
            self.mailbox.post(request.model.scheduler.send, request, response, final)

    def report_response(
        self,
        request: InferenceRequest,
        index: int,
        *,
        started: float,
        output_started: float = 0.0,
        ended: float,
        error: ServingError | None = None,
    ) -> None:
        """Have the statistics count one response that a backend has sent; for those that want to. Any thread.

        `index`: 0 for the request's first response. `started`, `output_started`, `ended`: moments in seconds on the kernel's
        clock: work on the response began; its outputs were there, and were written from then on (0.0: it had none); that ended.
        """
        responded = request.model.scheduler.statistics.responded
        self.call_in_order(responded, index, _kind(output_started, error), started, output_started or ended, ended)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(*args)` on the loop. Any thread; many calls wake the loop once.

        Raises RuntimeError once the kernel has stopped.
        """
        if get_ident() == self.loop_thread and not self.mailbox.calls:
            self.loop.call_soon(callback, *args)
        else:
            self.mailbox.post(callback, *args)

    def call_in_order(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(*args)` on the loop: now where this is its thread, after what others have told it before, else soon.

        So what a thread has told the loop comes before what those do there who have waited for the thread. Any thread. Raises
        RuntimeError once the kernel has stopped.
        """
        if get_ident() == self.loop_thread:
            if self.mailbox.calls:
                self.mailbox.drain()
            callback(*args)
        else:
            self.mailbox.post(callback, *args)

    def wait_for(self, step: Callable[[Callable[[], None]], None]) -> None:
        """Call `step(wake)` on the loop and return once `wake()` was called.

        In code on the loop that can be left (`Leavable`) other work goes on meanwhile; on any other thread the thread waits.
        Raises RuntimeError elsewhere on the loop, where waiting would stop everything, and once the kernel has stopped.
        """
        waiting.wait_for(self, step)

    def wait(
        self, request: InferenceRequest, batch: Batch | None = None, model: Model | None = None
    ) -> InferenceResponse | None:
        """Submit `request` and return once its `respond` was called with `final`; see `wait_for`. Return the first response.

        `batch`: the execution that can't go on meanwhile. `model`: where it has just been looked up.
        """
        return waiting.wait(self, request, batch, model)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int | str = "",
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        id: str = "",
        timeout: float | None = None,
        priority: int = 0,
        correlation_id: int | str = 0,
        flags: int = 0,
    ) -> asyncio.Future[InferenceResponse]:
        """Run one inference; the future resolves to the InferenceResponse.

        `inputs`: name -> numpy array of the tensor's full shape, or a Tensor; arrays are copied, so the caller may go on using
        its own. Lists, and arrays of float64 for other floats, become the datatype that the model's config declares. `outputs`:
        names, all by default. `timeout`: seconds until the request is given up. Cancelling the future cancels the request.

        Raises ServingError for inputs that are no tensors. The future raises ServingError for every other kind of failure, and
        for decoupled models that don't give exactly one response (use `stream`). May be called where another loop runs, whose
        future it is then; threads without a loop have `infer_threadsafe`.
        """
        return inferred(
            self, model, inputs, version, outputs, timeout,
            id=id, parameters=parameters, priority=priority, correlation_id=correlation_id, flags=flags,
        )  # fmt: skip

    def infer_threadsafe(
        self, model: str, inputs: Mapping[str, Any], *, version: int | str = "", outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None, id: str = "", timeout: float | None = None, priority: int = 0,
        correlation_id: int | str = 0, flags: int = 0,
    ) -> concurrent.futures.Future[InferenceResponse]:  # fmt: skip
        """As `infer`, from any thread but the loop's: `kernel.infer_threadsafe(...).result()` waits for the response.

        Cancelling the future cancels the request. On the loop's own thread `result()` would wait for ever; use `infer` there.
        """
        collected = Collected(model)
        request = make_request(
            self, model, inputs, collected, version, outputs, timeout,
            id=id, parameters=parameters, priority=priority, correlation_id=correlation_id, flags=flags,
        )  # fmt: skip
        return answered_elsewhere(self, request, collected)

    def stream(
        self, model: str, inputs: Mapping[str, Any], *, version: int | str = "", outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None, id: str = "", timeout: float | None = None, priority: int = 0,
        correlation_id: int | str = 0, flags: int = 0,
    ) -> AsyncIterator[InferenceResponse]:  # fmt: skip
        """Run one inference and yield its responses as they come; arguments as for `infer`.

        Raises ServingError instead of giving an error response. Leaving the iteration cancels the request. May be iterated where
        another loop runs than the kernel's.
        """

        def make(respond: Respond) -> InferenceRequest:
            return make_request(
                self, model, inputs, respond, version, outputs, timeout,
                id=id, parameters=parameters, priority=priority, correlation_id=correlation_id, flags=flags,
            )  # fmt: skip

        return responses(self, make)

    # -- models --------------------------------------------------------------------------------------------------------

    def model(self, name: str, version: int | str = "") -> Model:
        """Return the READY model, the newest version by default.

        Raises ServingError in the reference's words: NOT_FOUND for an unknown one, UNAVAILABLE for one that is not ready.
        """
        return self._registry.lookup(name, str(version))

    def models(self) -> list[Model]:
        """Return the READY model versions, by name and version."""
        return self._registry.ready_models()

    def versions(self, name: str) -> list[int]:
        """Return the READY versions of a model, ascending."""
        return [model.version for model in self._registry.ready_models() if model.name == name]

    def is_ready(self) -> bool:
        """Whether the server may be sent requests (contract: lifecycle, section 7)."""
        return self.accepting and (not self.options.strict_readiness or self._registry.all_well())

    @property
    def accepting(self) -> bool:
        """Whether the server has started, and its end is not near."""
        return self.live and not self.exiting and not self._registry.retiring

    def is_model_ready(self, name: str, version: int | str = "") -> bool:
        """Whether the version (by default any) is READY. Raises ServingError for what is no version number."""
        return self._registry.is_ready(name, str(version))

    ready = is_model_ready
    scale, known, states, recent, observed_calls, each_inflight = scale, known, states, recent, observed_calls, each_inflight

    def ask_model_ready(self, name: str, version: int | str, reply: Callable[[bool], None]) -> None:
        """As `is_model_ready`, but a model that can say so itself is asked (`Executor.is_ready`); `reply` is told, once.

        Perhaps before this returns. On the loop. Raises ServingError for what is no version number.
        """
        self._registry.ask_ready(name, str(version), reply)

    async def load(
        self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None, within: str = ""
    ) -> None:
        """Load or reload a model from its repository; returns when it is READY.

        `config`: the configuration as JSON instead of the file. `files`: path under the model folder -> content, instead of
        the repository's files. A version that serves goes on until the new one is READY, and stays when that fails. Raises
        ServingError with the reason, and when the control mode is not explicit. Loads and unloads of related models take their
        turns; a model that loads another one while it is itself being loaded gives its name as `within`, and is refused what
        it could only wait for in vain. On the loop.
        """
        _check_loads(self, "load")
        await self._registry.load(name, LoadRequest(config, files), within)

    def unload(self, name: str, *, dependents: bool = False) -> Awaitable[None]:
        """Refuse new requests for the model from now on, finish what it has, then finalize it; returns at once.

        `dependents`: also the models that were only loaded for it. What is returned may be awaited, until the model has been
        finalized. Raises ServingError when the control mode is not explicit. On the loop.
        """
        _check_loads(self, "unload")
        return _Unloading(self._registry, name, self._registry.unload(name, dependents=dependents))

    def watch(self, report: Callable[[Reload], None] = log_reload, seconds: float = WATCH_SECONDS) -> None:
        """Reload models as soon as their files are saved, from now on, in any control mode; for development.

        In mode "none", in which all models are served, new ones are loaded, too. The files are looked at every `seconds`.
        `report` is told what came of each reload, and what has failed before.
        """
        if not self.live:
            words = "the kernel has not been started, or has been stopped: it has no models to watch"
            raise ServingError(Code.UNAVAILABLE, words)
        watcher = Watcher(self._registry, report, seconds, all_models=self.options.control_mode == "none")
        self._registry.follow(watcher.run())

    @functools.cached_property
    def gpus(self) -> tuple[int, ...]:
        """Ids of the GPUs that instances may use. Asked of the driver once, by the first model that is read. Any thread."""
        return usable_gpus() if self.options.gpus is None else tuple(self.options.gpus)

    @property
    def trace_settings(self) -> TraceSettings:
        """What is traced, for all models and for each."""
        return self.tracer.settings

    def backend_settings(self, name: str) -> dict[str, str]:
        """Return what a backend was told at start: what all of them are, and what it is itself."""
        return self.options.backend_settings(name)

    def index(self, ready: bool = False) -> list[ModelIndex]:
        """Return what is in the repositories and in what state, by name and version; `ready`: only what is READY."""
        return self._registry.index(ready)

    def failures(self) -> dict[str, Failure]:
        """Return why models failed at their last load, by name: in words, with the place in their files and what is behind it."""
        return self._registry.catalog.failures()

    def observe(self, ask: Callable[[Model], Observer | None]) -> None:
        """Ask for an observer of each model version that serves and, from now on, of each that is loaded. On the loop.

        `ask(model)` returns one, or None; it is called before the version is READY, and must not raise.
        """
        self._registry.observe(ask)

    def inflight(self, most: int = 0) -> list[InflightRequest]:
        """Return the requests that were accepted and have had no final answer, the oldest first: `most` of them, 0 for all."""
        return inflight([model.scheduler for model in self._registry.catalog.alive()], self.clock(), most)

    def explain(self, asked: str | InferenceRequest = "", *, slowest: int = 0, failed: int = 0) -> list[Explanation]:
        """Return why requests took so long: of that id, this one, so many of the `slowest`, or that `failed` last."""
        clock = self.clock(), self.epoch_offset
        return explain(self.supervision.history, self._registry.catalog.alive, clock, asked, slowest, failed)

    def statistics(self, name: str = "", version: int | str = "") -> list[ModelStatistics]:
        """Return the statistics of the READY versions of one model, or of all. Raises ServingError for unknown ones."""
        return self._registry.statistics(name, str(version))


def _check_loads(kernel: Kernel, what: str) -> None:
    """Raise where models can't be loaded and unloaded, with what an app is to do about it."""
    check_running(kernel)
    if get_ident() != kernel.loop_thread:
        words = f"Kernel.{what} was called on another thread than the one of the kernel's loop"
        raise ServingError(Code.UNSUPPORTED, f"{words}; there it is {_ELSEWHERE[what]}")
    try:
        kernel._registry.check_mode()
    except ServingError as error:
        mode = kernel.options.control_mode
        error.add_note(f"This Kernel has control_mode='{mode}'; one that may {what} is made by {_EXPLICIT}.")
        raise


def _warn_of_strangers(settings: Mapping[str, object], known: Mapping[str, object]) -> None:
    """Tell of settings for backends that are not there: a slip in the name would leave them without effect."""
    for name in sorted(settings.keys() - known.keys() - {""}):
        words = f"the settings for backend '{name}' have no effect: no installed plugin serves it"
        log.warning("%s; there are %s", words + did_you_mean(name, known), sorted(known))


def _kind(output_started: float, error: ServingError | None) -> str:
    """Return what the statistics call a response."""
    if error is None:
        return "success" if output_started else "empty_response"
    return "cancel" if error.code is Code.CANCELLED else "fail"


def _refuse(request: InferenceRequest, error: ServingError) -> None:
    """Answer a request that reaches no model."""
    Release(request.model_name).end(request, error)


def _refusing(error: ServingError) -> dict[str, Callable[..., Any]]:
    """Return what stands for a kernel's methods where nobody answers any more."""

    def find(name: str, version: str = "") -> Model:
        raise error

    def submit(request: InferenceRequest) -> None:
        _refuse(request, error)

    def submit_to(model: Model, request: InferenceRequest) -> None:
        _refuse(request, error)

    def wait(request: InferenceRequest, batch: Batch | None = None, model: Model | None = None) -> InferenceResponse | None:
        _refuse(request, error)
        return InferenceResponse([], error=error, model_name=request.model_name, id=request.id)

    def call_soon(callback: Callable[..., object], *args: Any) -> None:
        if callback is not submit:
            raise RuntimeError(error.message)
        callback(*args)

    methods = (find, submit, submit_to, wait, call_soon)
    return {**{method.__name__: method for method in methods}, "call_in_order": call_soon}


class _Unloading:
    """What `unload` returns: done when the model has gone. Costs nothing where nobody awaits it."""

    __slots__ = ("_name", "_registry", "_turn")

    def __init__(self, registry: Registry, name: str, turn: asyncio.Task[None] | None) -> None:
        self._registry = registry
        self._name = name
        self._turn = turn

    def __await__(self) -> Generator[Any, None, None]:
        return self._registry.unloaded(self._name, self._turn).__await__()
