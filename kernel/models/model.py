"""One loaded version of a model: its config, its instances, its scheduler, and the check that every request passes.

Decides whether a request fits the config; who may reach the model and when it comes and goes is the registry's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kernel.config import ModelConfig, TensorSpec
from kernel.errors import Code, ServingError
from kernel.instances.instance import CallbackInstance, LoopInstance, ModelInstance, TaskInstance
from kernel.instances.on_thread import ThreadInstance, ThreadTaskInstance
from kernel.instances.remote import RemoteInstance
from kernel.instances.thread import InstanceThread
from kernel.interfaces import Backend, InstanceContext, Placement, PlacementChoice, RemoteExecutor
from kernel.models.cache_stage import CacheStage
from kernel.models.life import ModelState, moved
from kernel.models.runtime import Runtime
from kernel.models.warming import give_up, warm_up
from kernel.models.warmup_samples import Sample, read_samples
from kernel.observability.statistics import Duration, ModelStatistics
from kernel.requests.request import InferenceRequest, InferenceResponse, nobody
from kernel.rules.batching import BatchRule
from kernel.rules.instance_groups import Slot, rearranged, slots_of
from kernel.rules.rate_limiter import needs_of
from kernel.rules.sequence_state import initial_values
from kernel.scheduling.batchers import chosen_by, held_back
from kernel.scheduling.limited import limited
from kernel.scheduling.output_check import OutputWatch
from kernel.scheduling.scheduler import Scheduler
from kernel.scheduling.sequences import SequenceScheduler
from kernel.supplied import check_executor, never_answers

if TYPE_CHECKING:
    from kernel.observability.request_log import RequestTracing

__all__ = ["Model"]

log = logging.getLogger("kernel")

BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)

FORMS = 64  # shapes of an input that are remembered as right, and choices of outputs


class Model:
    """One loaded model version. Lives from `start` to `close`.

    `input_specs`, `output_specs`: name -> TensorSpec. `attachments`: a place where front ends keep what they have worked
    out for this model; it dies with the model, so a reload starts afresh.
    """

    def __init__(self, kernel: Runtime, config: ModelConfig, version: int, model_folder: Path) -> None:
        self.kernel = kernel
        self.config = config
        self.name = config.name
        self.version = version
        self.model_folder = model_folder
        self.version_folder = model_folder / str(version)
        self.input_specs: dict[str, TensorSpec] = {spec.name: spec for spec in config.inputs}
        self.output_specs: dict[str, TensorSpec] = {spec.name: spec for spec in config.outputs}
        self.output_names = frozenset(self.output_specs)
        self.decoupled = config.decoupled
        self.attachments: dict[object, object] = {}
        self.state = ModelState.LOADING
        self.tracing: RequestTracing | None = None  # told of each request that comes in; None: nothing is traced
        self.placement: PlacementChoice | None = None  # where it runs, and why, if its backend chooses that
        self.load_seconds = 0.0  # how long it took from the start of its instances until it was READY
        self._began = 0.0
        self._asked = 0
        self._finalizing: asyncio.Future[None] | None = None
        self._slots: dict[ModelInstance, Slot] = {}
        self._passive: list[ModelInstance] = []  # instances that are there and take no requests
        self._samples: list[Sample] = []  # what the instances are yet to be warmed up with
        self._changing = asyncio.Lock()  # held by who exchanges instances
        self._backend: Backend | None = None
        self._departures: set[asyncio.Future[None]] = set()  # instances that leave while the model goes on
        self.scheduler: Scheduler
        self.enqueue: Callable[[InferenceRequest], None] = self._not_started
        self._initial: Mapping[str, Any] = {}  # the first values of a sequence's state
        self._required = frozenset(spec.name for spec in config.inputs if not spec.optional)
        self._batches = config.max_batch_size > 0
        # What `check` compares, in one tuple a name: datatype, dims, rank, and the dims of a fixed size with their places.
        first = 1 if self._batches else 0
        self._expected = {
            spec.name: (
                spec.datatype,
                tuple(spec.dims),
                len(spec.dims) + first,
                tuple((place, size) for place, size in enumerate(spec.dims, first) if size != -1),
            )
            for spec in config.inputs
        }
        self._forms: dict[str, tuple[str, dict[tuple[int, ...], int]]] = {  # name -> datatype, right shapes with their rows
            spec.name: (spec.datatype, {}) for spec in config.inputs
        }
        self._wanted: dict[tuple[str, ...], frozenset[str]] = {}  # requested outputs that have passed
        self._reshaped_in = [spec for spec in config.inputs if spec.reshape is not None]
        self._reshaped_out = {spec.name: spec for spec in config.outputs if spec.reshape is not None}

    # -- the life of a version -----------------------------------------------------------------------------------------

    async def start(self, backend: Backend) -> None:
        """Make the instances. Raises ServingError when one of them fails; the others are finalized then."""
        kernel, self._backend = self.kernel, backend
        self._began = kernel.clock()
        slots = slots_of(self.config)
        self._check_needs(slots)
        await self._choose_placement(backend)
        self._samples = await self._read_samples(self.config)
        if self.config.sequence_batching is not None:
            read = kernel.loop.run_in_executor(kernel.load_pool, initial_values, self.config, self.model_folder)
            self._initial = await read
        instances = await self._make_instances(backend, self.config, slots)
        try:
            self._check_needs(slots)  # once more: others may have come meanwhile
            scheduler = self.scheduler = self._make_scheduler(self._taking(instances))
        except BaseException:
            await asyncio.gather(*(self._close_instance(instance) for instance in instances))
            raise
        self.find_observers()
        scheduler.watch = OutputWatch(self.config, strict=kernel.strict_outputs, over=self.accept_any_output)
        self.enqueue = self._enqueue_reshaped if self._reshaped_in or self._reshaped_out else self.scheduler.enqueue
        if self.is_cached:
            assert kernel.cache is not None
            self.enqueue = CacheStage(kernel.cache, scheduler, self.enqueue, self.output_names, kernel.clock).enqueue
        elif self.config.message.response_cache.enable and kernel.cache is None:
            words = "model '%s' asks for response_cache, and the server has none (--cache-config): nothing is kept"
            log.warning(words, self.name)

    @property
    def is_cached(self) -> bool:
        """Whether answers may come from the response cache. Of decoupled models they never do."""
        return self.kernel.cache is not None and self.config.message.response_cache.enable and not self.decoupled

    def _make_scheduler(self, instances: Sequence[ModelInstance]) -> Scheduler:
        kernel = self.kernel
        kind: type[Scheduler] = Scheduler
        arguments: tuple[Any, ...] = (
            self.config, self.version, instances, kernel.loop, kernel.clock, kernel.mailbox, kernel.turn,
        )  # fmt: skip
        if self.config.sequence_batching is not None:
            kind = SequenceScheduler
            arguments = (*arguments, self._initial)
        if kernel.limits is None:
            scheduler = kind(*arguments)
        else:
            scheduler = limited(kind)(*arguments, limits=kernel.limits, slot_of=self._slots.__getitem__)
        if scheduler.rule is not None:
            batcher = kernel.plugins.batcher(self.config)
            if batcher is not None:
                scheduler.rule = chosen_by(batcher, BatchRule.of(self.config), self.name)
            scheduler.rule = held_back(scheduler.rule)
        if not instances:
            scheduler.refuse_all(self._only_passive())
        return scheduler

    def _taking(self, instances: Sequence[ModelInstance]) -> list[ModelInstance]:
        """Return those of new instances that take requests, and keep the others."""
        self._passive += [instance for instance in instances if self._slots[instance].passive]
        return [instance for instance in instances if not self._slots[instance].passive]

    def _only_passive(self) -> ServingError:
        words = f"model '{self.name}' has only instances that take no requests (instance_group.passive)"
        return ServingError(Code.UNAVAILABLE, words)

    def _check_needs(self, slots: Sequence[Slot]) -> None:
        """Refuse instances that could never start under the kernel's rate limiter. Raises ServingError."""
        if self.kernel.limits is not None:
            self.kernel.limits.limiter.check([needs_of(slot.resources, slot.device_id) for slot in slots if not slot.passive])

    async def _choose_placement(self, backend: Backend) -> None:
        """Have the backend say where the instances are to run, if it decides that, and tell it."""
        choose = getattr(backend, "choose_placement", None)
        if choose is None:
            return
        kernel = self.kernel
        arguments = self.config, self.model_folder, self.version_folder
        choice: PlacementChoice = await kernel.loop.run_in_executor(kernel.load_pool, choose, *arguments)
        self.placement = choice
        level = logging.DEBUG if choice.asked else logging.INFO
        log.log(level, "model '%s' version %d runs in placement %s", self.name, self.version, choice)

    async def _read_samples(self, config: ModelConfig) -> list[Sample]:
        """Return what new instances are to be warmed up with. Raises ServingError for what is no request to this model."""
        if not config.warmup:
            return []
        kernel = self.kernel
        samples: list[Sample] = await kernel.loop.run_in_executor(kernel.load_pool, read_samples, config, self.model_folder)
        for sample in samples:
            self._prepare(sample.request(self.name, nobody), sample)
        return samples

    def _prepare(self, request: InferenceRequest, sample: Sample) -> None:
        """Check a request of a warm-up, and make of it what the model is to see."""
        self.check(request)
        sample.add_surplus(request)
        self._reshape_inputs(request)

    async def warm_up(self) -> None:
        """Have the instances execute the config's samples. Raises ServingError; what is left to do then is to close it."""
        samples, self._samples = self._samples, []
        await self._warm_up(self.scheduler.instances, samples)

    async def _warm_up(self, instances: Sequence[ModelInstance], samples: Sequence[Sample]) -> None:
        await warm_up(self.scheduler, instances, samples, self._prepare, max(1, self.config.max_batch_size))

    def serve(self) -> None:
        """Requests may come from now on."""
        self._become(ModelState.READY)
        self.tracing = self.kernel.tracer.of_model(self.name)
        self.load_seconds = self.kernel.clock() - self._began
        self.find_observers()

    def find_observers(self) -> None:
        """Ask those for an observer whom `Kernel.observe` has named and who have not been asked yet."""
        asked, self._asked = self._asked, len(self.kernel.observers)
        statistics = self.scheduler.statistics
        statistics.settle()  # what has been is nothing to those who come now
        found = [ask(self) for ask in self.kernel.observers[asked:]]
        statistics.observers = (*statistics.observers, *(observer for observer in found if observer is not None))

    def accept_any_output(self) -> None:
        """Look at no answer any more."""
        self.scheduler.watch = None

    async def rearrange(self, backend: Backend, config: ModelConfig) -> None:
        """Have the instances of another config, which differs from this one in nothing else that counts.

        Instances that it also asks for go on untouched, new ones take requests once all of them are up, the rest finishes what
        it has. Raises ServingError when a new one fails; nothing has changed then. (Contract: lifecycle, section 4.7.)
        """
        async with self._changing:
            await self._rearrange(backend, config)

    async def leave_loop(self, reason: str) -> None:
        """Exchange the instances, which run on the loop, for new ones on threads of their own; `reason` says why.

        The old ones finish what they have. Where a new one can't be made, everything stays as it is.
        """
        async with self._changing:
            backend, old, was = self._backend, self.scheduler.instances, self.placement
            if backend is None or not self._serves():
                return
            self.placement = PlacementChoice("thread", reason)
            try:
                samples = await self._read_samples(self.config)
                made = await self._make_instances(backend, self.config, [self._slots[instance] for instance in old])
                try:
                    if any(instance.inline for instance in made):
                        raise ServingError(Code.UNSUPPORTED, f"backend '{backend.name}' has made them for the loop, too")
                    await self._warm_up(made, samples)
                except BaseException:
                    await self._close_all(made)
                    raise
            except Exception as error:
                self.placement = was
                log.warning("model '%s' stays on the event loop: its new instances failed: %s", self.name, error)
                return
            if not self._serves():
                await self._close_all(made)
                return
            self._see_all_off([self._see_off(one, gone) for one, gone in zip(old, self.scheduler.rearrange(made, old))])
            log.info("model '%s' runs on threads of its own now", self.name)

    def _serves(self) -> bool:
        return self.state is ModelState.READY

    async def _rearrange(self, backend: Backend, config: ModelConfig) -> None:
        scheduler = self.scheduler
        running = {instance: self._slots[instance] for instance in (*scheduler.instances, *self._passive)}
        go, missing = rearranged(running, slots_of(config))
        self._check_needs(missing)
        samples = await self._read_samples(config) if missing else []
        made = await self._make_instances(backend, config, missing)
        come = [instance for instance in made if not self._slots[instance].passive]
        try:
            await self._warm_up(come, samples)
            if self._serves():
                self._check_needs(missing)
        except BaseException:
            await self._close_all(made)
            raise
        if not self._serves():  # it was replaced or unloaded meanwhile
            await self._close_all(made)
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
        elif not leaving and len(come) == len(scheduler.instances):  # there was none before
            scheduler.refuse_all(None)
        self._see_all_off(departures)

    def _see_all_off(self, departures: Sequence[Coroutine[Any, Any, None]]) -> None:
        for departure in departures:
            task = asyncio.ensure_future(departure)
            self._departures.add(task)
            task.add_done_callback(self._departures.discard)

    async def _close_all(self, instances: Sequence[ModelInstance]) -> None:
        await asyncio.gather(*(self._close_instance(instance) for instance in instances))

    async def _see_off(self, instance: ModelInstance, gone: asyncio.Future[None] | None) -> None:
        """Finalize an instance that has left the scheduler, or never was in it."""
        if gone is not None:
            await gone
        self._slots.pop(instance, None)
        await self._close_instance(instance)

    async def _make_instances(self, backend: Backend, config: ModelConfig, slots: Sequence[Slot]) -> list[ModelInstance]:
        """Make an instance for each slot, some at a time. Raises what one of them raises; the others are finalized then."""
        contexts = [
            InstanceContext(
                kernel=self.kernel,
                config=config,
                version=self.version,
                instance_name=slot.name,
                kind=slot.kind,
                device_id=slot.device_id,
                model_folder=self.model_folder,
                version_folder=self.version_folder,
                placement=self.placement,
            )
            for slot in slots
        ]
        limit = asyncio.Semaphore(self.kernel.load_threads)

        async def make(context: InstanceContext) -> ModelInstance:
            async with limit:
                return await self._make_instance(backend, context)

        results = await asyncio.gather(*map(make, contexts), return_exceptions=True)
        instances = [result for result in results if isinstance(result, ModelInstance)]
        problems = [result for result in results if isinstance(result, BaseException)]
        if problems:
            for instance in instances:
                await self._close_instance(instance)
            raise problems[0]
        self._slots.update(zip(instances, slots))
        if instances and (words := never_answers(instances[0].executor, f"model '{self.name}'")):
            log.warning("%s", words)
        return instances

    async def _make_instance(self, backend: Backend, context: InstanceContext) -> ModelInstance:
        kernel, name = self.kernel, context.instance_name
        if backend.creates_on_loop:
            executor = backend.create(context)
            thread = None
        else:
            thread = InstanceThread(name)
            try:
                executor = await thread.call(backend.create, context)
            except BaseException:
                thread.stop()
                kernel.on_unload()
                raise
        try:
            check_executor(executor, f"model '{self.name}' of backend '{context.config.backend or 'ensemble'}'")
        except ServingError:
            if thread is not None:
                thread.stop()
            raise
        placement = executor.placement
        if placement in (Placement.THREAD, Placement.THREAD_TASK):
            thread = thread or InstanceThread(name)
            kind = ThreadInstance if placement is Placement.THREAD else ThreadTaskInstance
            try:
                return kind(name, executor, kernel.clock, thread, kernel.mailbox)
            except OSError:  # no more files for a loop of its own
                await thread.call(executor.finalize)
                thread.stop()
                raise
        if thread is not None:
            thread.stop()
        if placement is Placement.TASK:
            return TaskInstance(name, executor, kernel.clock, kernel.loop)
        if placement is Placement.LOOP:
            return LoopInstance(name, executor, kernel.clock, kernel.turn)
        if placement is Placement.REMOTE:
            return RemoteInstance(name, cast("RemoteExecutor", executor), kernel.clock)
        return CallbackInstance(name, executor, kernel.clock)

    def stop(self, continuing: bool = False) -> None:
        """Accept nothing more. `continuing`: but for what goes on with a sequence, as the model can still be reached."""
        if self.state is not ModelState.UNLOADING:
            self._become(ModelState.UNLOADING)
        self.scheduler.stop(continuing)

    def _become(self, state: ModelState) -> None:
        self.state = moved(self.state, state, f"model '{self.name}' version {self.version}")

    @property
    def healthy(self) -> bool:
        """Whether all instances can be counted on."""
        return all(instance.healthy for instance in self.scheduler.instances)

    @property
    def closed(self) -> bool:
        """True once not even the calls of accepted requests are accepted."""
        return self.scheduler.closed

    async def close(self, timeout: float | None = None) -> None:
        """Wait until all that was accepted is answered, for `timeout` seconds at most, then finalize the instances.

        May be called again, with less patience: it is done once, and all wait for it.
        """
        if self.state in (ModelState.LOADING, ModelState.READY):
            self.stop()
        scheduler = self.scheduler
        if not scheduler.is_idle:
            try:
                async with asyncio.timeout(timeout):
                    await scheduler.drained()
            except TimeoutError:
                words = f"Server is stopping, request to model '{self.name}' was given up"
                give_up(scheduler, ServingError(Code.UNAVAILABLE, words))
        scheduler.closed = True
        if self._finalizing is None:
            self._finalizing = asyncio.ensure_future(self._finalize())
        await asyncio.shield(self._finalizing)

    async def _finalize(self) -> None:
        self.scheduler.leave_behind()
        going = [self._close_instance(instance) for instance in (*self.scheduler.instances, *self._passive)]
        await asyncio.gather(*going, *self._departures)
        self._become(ModelState.UNAVAILABLE)
        self.attachments.clear()
        self.kernel.on_unload()

    async def _close_instance(self, instance: ModelInstance) -> None:
        if self.kernel.limits is not None:
            self.kernel.limits.let_go(instance)
        if instance.outstanding and not instance.inline and not instance.may_be_killed:
            log.warning("instance '%s' of model '%s' is left in the middle of an execution", instance.name, self.name)
            instance.abandon()
            return
        try:
            await instance.close()
        except Exception:  # threads turn what is worse into one (thread.py)
            log.exception("finalize of instance '%s' of model '%s' failed", instance.name, self.name)
        self.kernel.on_unload()

    def statistics(self) -> ModelStatistics:
        record = self.scheduler.statistics.snapshot(self.name, self.version, self.kernel.epoch_offset)
        return record if self.placement is None else replace(record, placement=self.placement, hop=self._hop())

    def _hop(self) -> Duration | None:
        """Return what the way to other processes and back has cost; None where there is none, or nobody knows."""
        hops = [hops for one in self.scheduler.instances if (hops := getattr(one.executor, "hops", None)) is not None]
        return Duration(sum(count for count, _ in hops), round(sum(seconds for _, seconds in hops) * 1e9)) if hops else None

    def is_meant_by(self, name: str, version: str) -> bool:
        """Whether requests for `name` and `version` are for this very model; ask again when `kernel.generation` changes."""
        try:
            return self.kernel.model(name, version) is self
        except ServingError:
            return False

    # -- requests ------------------------------------------------------------------------------------------------------

    def check(self, request: InferenceRequest) -> None:
        """Accept the request's form or raise ServingError(INVALID_ARG) in the reference's order and words.

        Sets `model`, `batch_size` and `wanted` of the request. (Contract: http_protocol, section 3.4.)
        """
        inputs, requested = request.inputs, request.requested_outputs
        wanted = self._wanted.get(tuple(requested)) if requested else self.output_names
        forms = self._forms
        if wanted is not None and len(inputs) == len(forms):
            # Most requests look like one before them: each input has a form that has passed, and all the same rows.
            rows = 0
            for name, tensor in inputs.items():
                form = forms.get(name)
                if form is None or tensor.datatype != form[0]:
                    break
                own = form[1].get(tensor.array.shape, 0)
                if not own or (rows and own != rows):
                    break
                rows = own
            else:
                request.wanted = wanted
                request.batch_size = rows or 1
                request.model = self
                return
        self._check_anew(request)

    def _check_anew(self, request: InferenceRequest) -> None:
        expected, inputs = self._expected, request.inputs
        requested = request.requested_outputs
        if requested:
            for name in requested:
                if name not in self.output_names:
                    raise _invalid(f"unexpected inference output '{name}' for model '{self.name}'")
            request.wanted = frozenset(requested)
        else:
            request.wanted = self.output_names
        if len(inputs) != len(expected) and not len(self._required) <= len(inputs) <= len(expected):
            raise self._missing(request)
        if self._batches:
            self._check_batch(request)
        for name, tensor in inputs.items():
            known = expected.get(name)
            if known is None:
                raise _invalid(f"unexpected inference input '{name}' for model '{self.name}'")
            datatype, _, rank, sizes = known
            if tensor.datatype != datatype:
                raise _invalid(
                    f"{request.log_id}inference input '{name}' data-type is '{tensor.datatype}', "
                    f"but model '{self.name}' expects '{datatype}'"
                )
            shape = tensor.array.shape
            if len(shape) != rank:
                raise self._wrong_shape(request, name, shape)
            for place, size in sizes:
                if shape[place] != size:
                    raise self._wrong_shape(request, name, shape)
            if self._batches and not shape[0]:
                raise self._empty_batch(request, name)
        if len(inputs) != len(expected) and not self._required <= inputs.keys():
            raise self._missing(request)  # as many as it has to bring, but optional ones among them
        for name, tensor in inputs.items():
            shapes = self._forms[name][1]
            if len(shapes) >= FORMS:
                shapes.clear()
            shapes[tensor.array.shape] = request.batch_size
        if requested:
            if len(self._wanted) >= FORMS:
                self._wanted.clear()
            self._wanted[tuple(requested)] = request.wanted
        request.model = self

    def _check_batch(self, request: InferenceRequest) -> None:
        rows = 0
        for name, tensor in request.inputs.items():
            shape = tensor.array.shape
            if not shape:
                raise _invalid(
                    f"{request.log_id}input '{name}' has no shape but model requires batch dimension for '{self.name}'"
                )
            if not rows:
                rows = shape[0]
            elif rows != shape[0]:
                raise _invalid(f"{request.log_id}input '{name}' batch size does not match other inputs for '{self.name}'")
        if rows > self.config.max_batch_size:
            raise _invalid(
                f"{request.log_id}inference request batch-size must be <= {self.config.max_batch_size} for '{self.name}'"
            )
        request.batch_size = rows or 1

    def _missing(self, request: InferenceRequest) -> ServingError:
        total, required, got = len(self._expected), len(self._required), request.inputs
        missing = [name for name in self._expected if name in self._required and name not in got]
        wanted = f"expected {total} inputs" if required == total else f"expected number of inputs between {required} and {total}"
        return _invalid(
            f"{request.log_id}{wanted} but got {len(got)} inputs for model '{self.name}'. Got input(s) {_names(sorted(got))}, "
            f"but missing required input(s) {_names(missing)}. Please provide all required input(s)."
        )

    def _wrong_shape(self, request: InferenceRequest, name: str, shape: tuple[int, ...]) -> ServingError:
        dims = self._expected[name][1]
        full = (-1, *dims) if self._batches else dims
        return _invalid(
            f"{request.log_id}unexpected shape for input '{name}' for model '{self.name}'. "
            f"Expected {_shape(full)}, got {_shape(shape)}. {BATCH_NOTE if self._batches else ''}"
        )

    def _empty_batch(self, request: InferenceRequest, name: str) -> ServingError:
        """No rows: the reference takes that for one row whose bytes are missing."""
        tensor = request.inputs[name]
        elements = 1
        for size in tensor.array.shape[1:]:
            elements *= size
        if tensor.datatype == "BYTES":
            return _invalid(
                f"{request.log_id}expected {elements} string elements for inference input '{name}' "
                f"for model '{self.name}', got 0"
            )
        return _invalid(
            f"{request.log_id}input byte size mismatch for input '{name}' for model '{self.name}'. "
            f"Expected {elements * tensor.array.itemsize}, got 0"
        )

    def _not_started(self, request: InferenceRequest) -> None:
        raise AssertionError(f"model '{self.name}' has not started")

    # -- reshape: the client sees dims, the model sees reshape -----------------------------------------------------------

    def _reshape_inputs(self, request: InferenceRequest) -> None:
        for spec in self._reshaped_in:
            tensor = request.inputs.get(spec.name)
            if tensor is not None:
                tensor.array = self._reshape(tensor.array, spec.dims, spec.reshape or ())

    def _enqueue_reshaped(self, request: InferenceRequest) -> None:
        self._reshape_inputs(request)
        if self._reshaped_out:
            request.respond = _Reshaping(self, request.respond)
        self.scheduler.enqueue(request)

    def reshape_outputs(self, response: InferenceResponse) -> None:
        """Give the outputs the shapes that the client is promised."""
        for tensor in response.outputs:
            spec = self._reshaped_out.get(tensor.name)
            if spec is not None:
                tensor.array = self._reshape(tensor.array, spec.reshape or (), spec.dims)

    def _reshape(self, array: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
        """Return `array` with its dims as in `after`; the variable ones keep their sizes, in order."""
        rows = array.shape[:1] if self._batches else ()
        own = array.shape[len(rows) :]
        if len(own) != len(before):
            return array  # not what the config promises: passed on as it is, like everything the reference doesn't check
        variable = iter(size for want, size in zip(before, own) if want == -1)
        shape = tuple(next(variable) if size == -1 else size for size in after)
        try:
            return array.reshape(rows + shape)
        except ValueError:
            return array


class _Reshaping:
    """The continuation of a request whose outputs are to be reshaped."""

    __slots__ = ("_model", "_respond")

    def __init__(self, model: Model, respond: Callable[[InferenceResponse | None, bool], None]) -> None:
        self._model = model
        self._respond = respond

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            self._model.reshape_outputs(response)
        self._respond(response, final)


def _invalid(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)


def _names(names: Any) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
