"""One loaded version of a model from its start to its end: its config, its instances, its scheduler, and what stands before that.

Puts them together, exchanges instances while it serves, and finalizes them; who may reach the model and when it comes and goes is
the registry's business. Whether a request fits is request_check.py's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel.config import ModelConfig, TensorSpec, autoscale_of, execution_limit_of, left_here
from kernel.errors import Code, ServingError
from kernel.instances import ModelInstance
from kernel.interfaces import Backend, PlacementChoice
from kernel.models.admission import AdmissionStage, own_ceiling
from kernel.models.backpressure import Backpressure
from kernel.models.breaker_stage import BreakerStage, breaker_of
from kernel.models.cache_stage import CacheStage
from kernel.models.handover_stage import HandoverStage, is_single
from kernel.models.instance_factory import InstanceFactory
from kernel.models.prediction_stage import PredictionStage, prediction_of
from kernel.models.request_check import RequestCheck
from kernel.models.reshape import Reshape
from kernel.models.runtime import Runtime
from kernel.models.states import ModelState, become
from kernel.models.warmup import give_up, run_warmup
from kernel.models.warmup_samples import Sample, read_samples
from kernel.observability import Duration, ModelStatistics
from kernel.requests import InferenceRequest, nobody
from kernel.rules import BatchRule, InstanceSpec, instance_specs, needs_of, rearranged
from kernel.scheduling import BatchingQueue, OutputCheck, Scheduler, chosen_by, held_back
from kernel.tensor import html_table

if TYPE_CHECKING:
    from kernel.observability import RequestTracing

__all__ = ["Model"]

log = logging.getLogger("kernel")


class Model:
    """One loaded model version: what a front end asks whether a request fits, and hands it to. Made by the registry;
    `Kernel.model` returns it.

    `kernel`, `config`, `name`, `version`, `model_folder`: whose it is. `state`: a ModelState. `input_specs`, `output_specs`:
    name -> TensorSpec; `output_names`: a frozenset. `decoupled`: a request may have any number of responses. `attachments`: a
    mapping where front ends keep what they have worked out for this model; it dies with the model, so a reload starts afresh.
    `check(request)` accepts a request's form or raises ServingError (INVALID_ARG), and says what the request is to this model;
    `enqueue(request)` takes over one that has passed. `tracing`: None, or what is to be told of requests that have come in.
    `backpressure`: whether one more request that waits would be of use, and whose turn it is (`crowded`, `wait`).
    `placement_choice`: a PlacementChoice where the backend has made one. `load_seconds`: until it was READY.

    The core's own: `start`, `run_warmup`, `serve`, `find_observers`, `accept_any_output`, `read_samples`, `rearrange`,
    `scale`, `settle`, `leave_loop`, `stop`, `is_idle`, `drain`, `handover`, `close`.
    """

    def __init__(self, kernel: Runtime, config: ModelConfig, version: int, model_folder: Path) -> None:
        self.kernel = kernel
        self.config = config
        self.name = config.name
        self.version = version
        self.model_folder = model_folder
        self.input_specs: dict[str, TensorSpec] = {spec.name: spec for spec in config.inputs}
        self.output_specs: dict[str, TensorSpec] = {spec.name: spec for spec in config.outputs}
        self.output_names = frozenset(self.output_specs)
        self.decoupled = config.decoupled
        self.attachments: dict[object, object] = {}
        self.state = ModelState.LOADING
        self.tracing: RequestTracing | None = None  # told of each request that comes in; None: nothing is traced
        self.placement_choice: PlacementChoice | None = None  # where it runs, and why, if its backend chooses that
        self.load_seconds = 0.0  # how long it took from the start of its instances until it was READY
        self._asked = 0
        self._finalizing: asyncio.Future[None] | None = None
        self._passive: list[ModelInstance] = []  # instances that are there and take no requests
        self._changing = asyncio.Lock()  # held by who exchanges instances
        self._departures: set[asyncio.Future[Any]] = set()  # instances that leave while the model goes on
        self.scheduler: Scheduler  # this, the backpressure and the factory are there from `start` on
        self.backpressure: Backpressure
        self._factory: InstanceFactory
        self.enqueue: Callable[[InferenceRequest], None] = self._not_started
        self.check: Callable[[InferenceRequest], None] = RequestCheck(self, config).check
        self._reshape = Reshape(left_here(config))

    def __str__(self) -> str:
        return f"version {self.version} of model '{self.name}'"

    # -- the life of a version -----------------------------------------------------------------------------------------

    async def start(self, backend: Backend, initial: Mapping[str, Any]) -> None:
        """Make the instances. Raises ServingError when one of them fails; the others are finalized then.

        `initial`: the first values of a sequence's state.
        """
        execution_limit_of(self.config.parameters, 0.0)  # raises where it makes no sense
        kernel = self.kernel
        factory = self._factory = InstanceFactory(kernel, backend, self.name, self.version, self.model_folder)
        if (limits := autoscale_of(self.config.parameters)) is not None:
            factory.number = min(max(self.config.instance_groups[0].count, limits.least), limits.most)
        specs = self._specs(self.config)
        self._check_needs(specs)
        instances = await factory.make(self.config, specs, self.placement_choice)
        try:
            self._check_needs(specs)  # once more: others may have come meanwhile
            scheduler = self.scheduler = self._make_scheduler(self._taking(instances), initial)
        except BaseException:
            await factory.close_all(instances)
            raise
        self.find_observers()
        scheduler.life.check_outputs(OutputCheck(self.config, strict=kernel.strict_outputs, over=self.accept_any_output))
        self.enqueue = self._reshape.before(scheduler.enqueue) if self._reshape else scheduler.enqueue
        self.backpressure = Backpressure(scheduler, kernel.loop)
        if (headroom := prediction_of(left_here(self.config), scheduler, kernel.options.refuse_late)) is not None:
            self.enqueue = PredictionStage(headroom, scheduler, self.enqueue, kernel.clock).enqueue
            self.backpressure.open = True  # who would have to wait for too long is refused, and at once
        if (ceiling := kernel.supervision.ceiling) is not None:
            self.enqueue = AdmissionStage(ceiling, scheduler, self.enqueue).enqueue
        for ceiling in own_ceiling(self.config):
            self.enqueue = AdmissionStage(ceiling, scheduler, self.enqueue).enqueue
        if (breaker := breaker_of(self.config)) is not None:
            self.enqueue = BreakerStage(breaker, scheduler, self.enqueue, kernel.clock).enqueue
        if (peers := kernel.supervision.peers) is not None:
            stage = peers.stages[self] = HandoverStage(peers, self, scheduler, self.enqueue, kernel.clock)
            self.enqueue = stage.enqueue
        if self.is_cached:
            assert kernel.cache is not None
            self.enqueue = CacheStage(kernel.cache, scheduler, self.enqueue, self.output_names, kernel.clock).enqueue
        elif self.config.message.response_cache.enable and kernel.cache is None:
            words = "model '%s' asks for response_cache, and the server has none (--cache-config): nothing is kept"
            log.warning(words, self.name)

    def _not_started(self, request: InferenceRequest) -> None:
        raise AssertionError(f"model '{self.name}' has not started")

    @property
    def version_folder(self) -> Path:
        """Where the files of this version lie."""
        return self.model_folder / str(self.version)

    @property
    def is_cached(self) -> bool:
        """Whether answers may come from the response cache. Of decoupled models they never do."""
        return self.kernel.cache is not None and self.config.message.response_cache.enable and not self.decoupled

    def _make_scheduler(self, instances: Sequence[ModelInstance], initial: Mapping[str, Any]) -> Scheduler:
        kernel, config = self.kernel, left_here(self.config)
        scheduler = Scheduler(
            config,
            self.version,
            instances,
            kernel.loop,
            kernel.clock,
            kernel.mailbox,
            kernel.turn,
            initial=initial,
            limits=kernel.supervision.limits,
            spec_of=self._factory.specs.__getitem__,
        )
        queue = scheduler.queue
        if isinstance(queue, BatchingQueue):
            batcher = kernel.plugins.batcher(config)
            if batcher is not None:
                queue.rule = chosen_by(batcher, BatchRule.of(config), self.name)
            queue.rule = held_back(queue.rule)
        if not instances:
            scheduler.refuse_all(self._only_passive())
        return scheduler

    def _taking(self, instances: Sequence[ModelInstance]) -> list[ModelInstance]:
        """Return those of new instances that take requests, and keep the others."""
        self._passive += [instance for instance in instances if self._factory.specs[instance].passive]
        return [instance for instance in instances if not self._factory.specs[instance].passive]

    def _only_passive(self) -> ServingError:
        words = f"model '{self.name}' has only instances that take no requests (instance_group.passive)"
        return ServingError(Code.UNAVAILABLE, words)

    def _check_needs(self, specs: Sequence[InstanceSpec]) -> None:
        """Refuse instances that could never start under the kernel's rate limiter. Raises ServingError."""
        if (limits := self.kernel.supervision.limits) is not None:
            limits.limiter.check([needs_of(spec.resources, spec.device_id) for spec in specs if not spec.passive])

    async def read_samples(self, config: ModelConfig) -> list[Sample]:
        """Return what new instances are to be warmed up with. Raises ServingError for what is no request to this model."""
        if not config.warmup or config.is_elsewhere:
            return []
        kernel = self.kernel
        samples: list[Sample] = await kernel.loop.run_in_executor(kernel.pools.load, read_samples, config, self.model_folder)
        for sample in samples:
            self._prepare(sample.request(self.name, nobody), sample)
        return samples

    def _prepare(self, request: InferenceRequest, sample: Sample) -> None:
        """Check a request of a warmup, and make of it what the model is to see."""
        self.check(request)
        sample.add_surplus(request)
        self._reshape.inputs(request)

    async def run_warmup(self, samples: Sequence[Sample], instances: Sequence[ModelInstance] | None = None) -> None:
        """Have instances, by default all, execute samples that were read. Raises ServingError; they are to be closed then."""
        which = self.scheduler.instances if instances is None else instances
        await run_warmup(self.scheduler, which, samples, self._prepare, max(1, self.config.max_batch_size))

    def serve(self) -> None:
        """Take requests from now on."""
        become(self, ModelState.READY)
        self.tracing = self.kernel.tracer.of_model(self.name)
        self.load_seconds = self.kernel.clock() - self._factory.since
        self.find_observers()
        self.kernel.supervision.know(self)

    def find_observers(self) -> None:
        """Ask those for an observer whom `Kernel.observe` has named and who have not been asked yet."""
        asked, self._asked = self._asked, len(self.kernel.supervision.observers)
        statistics = self.scheduler.statistics
        statistics.settle()  # what was counted before is not told to new observers
        found = [ask(self) for ask in self.kernel.supervision.observers[asked:]]
        statistics.observers = (*statistics.observers, *(observer for observer in found if observer is not None))

    def accept_any_output(self) -> None:
        """Look at no answer any more."""
        self.scheduler.life.check_outputs(None)

    async def rearrange(self, config: ModelConfig) -> None:
        """Have the instances of another config, which differs from this one in nothing else that counts.

        Instances that it also asks for go on untouched, new ones take requests once all of them are up, the rest finishes what
        it has. Raises ServingError when a new one fails; nothing has changed then. (Contract: lifecycle, section 4.7.)
        """
        async with self._changing:
            await self._rearrange(config)

    def scale(self, number: int) -> asyncio.Task[str]:
        """Have so many instances, as `rearrange` does; the task has why that could not be, "" where it is done."""
        task = asyncio.ensure_future(self._scale(number))
        self._departures.add(task)  # its end waits for this one
        task.add_done_callback(self._departures.discard)
        return task

    async def _scale(self, number: int) -> str:
        async with self._changing:
            before, self._factory.number = self._factory.number, number
            try:
                await self._rearrange(self.config)
            except Exception as error:
                self._factory.number = before
                if not isinstance(error, ServingError):
                    log.exception("the number of instances of model '%s' could not be changed", self.name)
                return str(error)
        return ""

    def _specs(self, config: ModelConfig) -> list[InstanceSpec]:
        """Return what instances there are to be here: none where the model lives at another replica."""
        peers = self.kernel.supervision.peers
        if peers is not None and is_single(config) and not peers.lives_here(self.name):
            return []
        return list(instance_specs(config, self._factory.number))

    def settle(self, moved: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have `moved`, which calls `rearrange`, done; the end of this version waits for it."""
        task = asyncio.ensure_future(moved)
        self._departures.add(task)
        task.add_done_callback(self._departures.discard)
        return task

    async def leave_loop(self, reason: str) -> None:
        """Exchange the instances, which run on the loop, for new ones on threads of their own; `reason` says why.

        The old ones finish what they have. Where a new one can't be made, everything stays as it is.
        """
        async with self._changing:
            if not self._serves():
                return
            factory, old, was = self._factory, self.scheduler.instances, self.placement_choice
            self.placement_choice = PlacementChoice("thread", reason)
            try:
                samples = await self.read_samples(self.config)
                made = await factory.make(self.config, [factory.specs[instance] for instance in old], self.placement_choice)
                try:
                    if any(instance.inline for instance in made):
                        raise ServingError(Code.UNSUPPORTED, f"backend '{factory.backend.name}' has made them for the loop, too")
                    await self.run_warmup(samples, made)
                except BaseException:
                    await self._factory.close_all(made)
                    raise
            except Exception as error:
                self.placement_choice = was
                log.warning("model '%s' stays on the event loop: its new instances failed: %s", self.name, error)
                return
            if not self._serves():
                await self._factory.close_all(made)
                return
            self._see_all_off([self._see_off(one, gone) for one, gone in zip(old, self.scheduler.rearrange(made, old))])
            log.info("model '%s' runs on threads of its own now", self.name)

    def _serves(self) -> bool:
        return self.state is ModelState.READY

    async def _rearrange(self, config: ModelConfig) -> None:
        scheduler = self.scheduler
        running = {instance: self._factory.specs[instance] for instance in (*scheduler.instances, *self._passive)}
        go, missing = rearranged(running, self._specs(config))
        self._check_needs(missing)
        samples = await self.read_samples(config) if missing else []
        made = await self._factory.make(config, missing, self.placement_choice)
        come = [instance for instance in made if not self._factory.specs[instance].passive]
        try:
            await self.run_warmup(samples, come)
            if self._serves():
                self._check_needs(missing)
        except BaseException:
            await self._factory.close_all(made)
            raise
        if not self._serves():  # the version was replaced or unloaded while instances were made
            await self._factory.close_all(made)
            return
        self.config = config
        self._taking(made)
        leaving = [instance for instance in go if instance in scheduler.instances]
        departures = [self._see_off(instance, gone) for instance, gone in zip(leaving, scheduler.rearrange(come, leaving))]
        for instance in set(go).intersection(self._passive):
            self._passive.remove(instance)
            departures.append(self._see_off(instance, None))
        if not scheduler.instances:
            scheduler.refuse_all(self._only_passive())
        elif not leaving and len(come) == len(scheduler.instances):  # the first that take requests: those were refused until now
            scheduler.refuse_all(None)
        self._see_all_off(departures)

    def _see_all_off(self, departures: Sequence[Coroutine[Any, Any, None]]) -> None:
        for departure in departures:
            task = asyncio.ensure_future(departure)
            self._departures.add(task)
            task.add_done_callback(self._departures.discard)

    async def _see_off(self, instance: ModelInstance, gone: asyncio.Future[None] | None) -> None:
        """Finalize an instance that has left the scheduler, or never was in it."""
        if gone is not None:
            await gone
        self._factory.specs.pop(instance, None)
        await self._factory.close(instance)

    def begin_no_sequence(self, silence: float) -> None:
        """The server is about to stop: sequences that run go on, until they are silent for so many seconds; no other begins."""
        if left_here(self.config).sequence_batching is not None:
            self.backpressure.let_all_in()
            self.scheduler.stop(silence)

    def stop(self, silence: float | None = None) -> None:
        """Accept nothing more, but for what goes on with a sequence where `silence` is given (Scheduler.stop)."""
        if self.state is not ModelState.UNLOADING:
            become(self, ModelState.UNLOADING)
        self.backpressure.let_all_in()  # clients in front of it have come before the stop, and are served
        self.scheduler.stop(silence)

    @property
    def healthy(self) -> bool:
        """Whether all instances can be counted on."""
        return all(instance.healthy for instance in self.scheduler.instances)

    @property
    def closed(self) -> bool:
        """True once not even the calls of accepted requests are accepted."""
        return self.scheduler.drain.closed

    @property
    def handover(self) -> HandoverStage | None:
        """The way to other replicas, None where there are none."""
        peers = self.kernel.supervision.peers
        return None if peers is None else peers.stages.get(self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left of what was accepted, here or at other replicas."""
        return self.scheduler.is_idle and not ((stage := self.handover) is not None and len(stage.away))

    async def drain(self) -> None:
        """Return when nothing is left of what was accepted."""
        while not (self.is_idle or self.closed):
            if (stage := self.handover) is not None:
                await stage.away.wait()
            await self.scheduler.drain.wait()

    async def close(self, timeout: float | None = None) -> None:
        """Wait until all that was accepted is answered, for `timeout` seconds at most, then finalize the instances.

        May be called again, with less patience: it is done once, and all wait for it.
        """
        if self.state in (ModelState.LOADING, ModelState.READY):
            self.stop()
        scheduler = self.scheduler
        if not self.is_idle:
            try:
                async with asyncio.timeout(timeout):
                    await self.drain()
            except TimeoutError:
                words = f"Server is stopping, request to model '{self.name}' was given up"
                given_up = ServingError(Code.UNAVAILABLE, words)
                if (stage := self.handover) is not None:
                    stage.away.abort(given_up)
                give_up(scheduler, given_up)
        scheduler.drain.close()
        if self._finalizing is None:
            self._finalizing = asyncio.ensure_future(self._finalize())
        await asyncio.shield(self._finalizing)

    async def _finalize(self) -> None:
        self.scheduler.pool.leave_behind()
        await asyncio.gather(self._factory.close_all((*self.scheduler.instances, *self._passive)), *self._departures)
        become(self, ModelState.UNAVAILABLE)
        self.scheduler.statistics.settle()  # explanations outlive it
        self.attachments.clear()
        if self.kernel.supervision.peers is not None:
            self.kernel.supervision.peers.stages.pop(self, None)
        self.kernel.on_unload()

    def statistics(self) -> ModelStatistics:
        """Return what has been counted since it was loaded. On the loop."""
        record = self.scheduler.statistics.snapshot(self.name, self.version, self.kernel.epoch_offset)
        choice = self.placement_choice
        return record if choice is None else replace(record, placement_choice=choice, hop=self._hop())

    def _hop(self) -> Duration | None:
        """Return what the way to other processes and back has cost; None where there is none, or nobody knows."""
        hops = [hops for one in self.scheduler.instances if (hops := getattr(one.executor, "hops", None)) is not None]
        return Duration(sum(count for count, _ in hops), round(sum(seconds for _, seconds in hops) * 1e9)) if hops else None

    def _repr_html_(self) -> str:
        """Return it as notebooks show it."""
        batch = (-1,) if self.config.max_batch_size else ()
        rows = [
            (kind, one.name, one.datatype, str([*batch, *one.dims]), "optional" if one.optional else "")
            for kind, specs in (("input", self.config.inputs), ("output", self.config.outputs))
            for one in specs
        ]
        title = f"{self.name} version {self.version}, {self.config.metadata_platform}, {self.state.name}"
        return html_table(title, ("", "name", "datatype", "shape", ""), rows)

    def is_meant_by(self, name: str, version: str) -> bool:
        """Whether requests for `name` and `version` are for this very model; ask again when `kernel.generation` changes."""
        try:
            return self.kernel.model(name, version) is self
        except ServingError:
            return False
