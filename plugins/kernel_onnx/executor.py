"""One instance of an ONNX model: a batch in, one run of the session, each request's rows out.

Each run gives fresh memory, which belongs to the answers: rows of a batch go out as views of it. A run that fails fails the
requests of its batch and nothing else; one that nobody waits for any more is told to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernel import (
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    InstanceContext,
    Placement,
    RequestState,
    Result,
    ServingError,
    Tensor,
    TensorSpec,
)
from kernel_onnx.ragged import BatchInputs, cuts, laid_out
from kernel_onnx.runtime import SEVERITY, failure, terminated
from kernel_onnx.sessions import Session
from kernel_onnx.settings import RunSettings
from kernel_onnx.tensors import NotText, decoded, encoded, from_value, readable, to_value

__all__ = ["OnnxExecutor"]

Array = np.ndarray[Any, Any]
RELEASED = RequestState.RELEASED


class OnnxExecutor:
    """Runs the batches of one instance. `close` gives the session back."""

    capacity = 1
    may_wait = False

    def __init__(
        self, session: Session, context: InstanceContext, settings: RunSettings, close: Callable[[], None]
    ) -> None:
        config = context.config
        self.placement = Placement.LOOP if settings.placement == "loop" else Placement.THREAD
        self._session = session
        self._close = close
        self._model = config.name
        self._instance = context.instance_name
        self._clock = context.kernel.clock
        self._batches = config.max_batch_size > 0
        self._settings = settings
        signature = session.signature
        known = {**signature.initializers, **signature.inputs}
        self._inputs = {
            spec.name: _Input(spec, not self._batches and known[spec.name].dims == ())
            for spec in (*config.added_inputs, *config.inputs)
        }
        self._ragged = frozenset(spec.name for spec in config.inputs if spec.allow_ragged_batch)
        self._made = BatchInputs(config) if config.message.batch_input else None
        self._cuts = cuts(config)
        declared = frozenset(spec.name for spec in config.outputs)
        self._outputs = (*config.outputs, *(spec for spec in config.kept_outputs if spec.name not in declared))
        self._names = [spec.name for spec in self._outputs]
        self._all = frozenset(self._names)
        self._anything = next(iter(signature.outputs), "")
        self._values = any(spec.datatype == "BF16" for spec in (*config.inputs, *config.added_inputs, *self._outputs))
        self._options(False)  # refuses entries that onnxruntime doesn't take
        self._current: _Run | None = None

    def execute(self, batch: Batch) -> Result:
        """Run one batch; see kernel.Executor."""
        requests = batch.requests
        try:
            feeds = self._gather(batch)
        except NotText:
            return self._execute_readable(batch)
        return self._answer(batch, batch, self._wanted(requests), feeds)

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """End the run of a batch that nobody waits for any more. On the loop, while the run goes on elsewhere."""
        run = self._current
        if run is not None and run.batch is batch:
            run.end_if_alone()

    def finalize(self) -> None:
        """Give the session back."""
        self._session = None  # type: ignore[assignment]
        self._close()

    # -- in ------------------------------------------------------------------------------------------------------------

    def _gather(self, batch: Batch) -> dict[str, Any]:
        """Return what the session is fed. Raises NotText."""
        feeds: dict[str, Any] = {}
        for name in batch.requests[0].inputs:  # the batcher lets only requests with the same inputs together
            array = laid_out(batch.requests, name) if name in self._ragged else batch.gather(name)
            known = self._inputs.get(name)  # none of a name that only a warmup sample brings: onnxruntime refuses it
            feeds[name] = array if known is None else known.feed(array)
        if self._made is not None:
            self._made.add(batch.requests, feeds)
        return feeds

    def _execute_readable(self, batch: Batch) -> list[InferenceResponse | None]:
        """Run the requests whose strings are UTF-8; each other one is answered with what is wrong with it."""
        answers: dict[InferenceRequest, InferenceResponse | None] = {}
        good: list[InferenceRequest] = []
        for request in batch.requests:
            problem = self._not_text(request)
            if problem is None:
                good.append(request)
            else:
                answers[request] = InferenceResponse([], error=problem)
        if good:
            part = Batch(good, sum(request.batch_size for request in good))
            answers.update(zip(good, self._answer(batch, part, self._wanted(good), self._gather(part))))
        return [answers[request] for request in batch.requests]

    def _not_text(self, request: InferenceRequest) -> ServingError | None:
        for name, tensor in request.inputs.items():
            if tensor.datatype == "BYTES":
                try:
                    decoded(tensor.array)
                except NotText as problem:
                    index, why = problem.args
                    return ServingError(
                        Code.INVALID_ARG,
                        f"{request.log_id}element {index} of input '{name}' for model '{self._model}' is not UTF-8, which "
                        f"strings of ONNX models have to be: {why}",
                    )
        return None

    # -- run -----------------------------------------------------------------------------------------------------------

    def _wanted(self, requests: list[InferenceRequest]) -> tuple[TensorSpec, ...]:
        """Return the outputs that some request of the batch wants."""
        wanted = requests[0].wanted
        for request in requests:
            if request.wanted is not wanted:
                wanted = wanted | request.wanted
        if wanted >= self._all:
            return self._outputs
        return tuple(spec for spec in self._outputs if spec.name in wanted)

    def _answer(
        self, batch: Batch, part: Batch, wanted: tuple[TensorSpec, ...], feeds: dict[str, Any]
    ) -> list[InferenceResponse | None]:
        """Run `part`, which is the batch or some of its requests."""
        batch.input_ended = self._clock()
        options = self._options(wanted is not self._outputs)
        run = self._current = _Run(batch, part, options)
        if self.placement is Placement.THREAD:
            run.end_if_alone()  # the last of them may have gone before there was anything to end
        try:
            arrays = self._run(wanted, feeds, options)
        except Exception as error:
            if terminated(error):
                raise ServingError(Code.CANCELLED, f"the execution of model '{self._model}' was cancelled") from None
            raise failure(error, f"model '{self._model}', instance '{self._instance}'") from None
        finally:
            self._current = None
        batch.output_started = self._clock()
        columns = [self._split(part, spec, array) for spec, array in zip(wanted, arrays)]
        return self._responses(part, columns)

    def _options(self, some: bool) -> Any:
        """Return what a run is told. `some`: not all outputs are wanted."""
        options = self._session.runtime.RunOptions()
        options.log_severity_level = SEVERITY
        if some:
            options.only_execute_path_to_fetches = (
                True  # builds of onnxruntime that can't do this compute the rest, too
            )
        for key, value in self._settings.run_entries.items():
            options.add_run_config_entry(key, value)
        return options

    def _run(self, wanted: tuple[TensorSpec, ...], feeds: dict[str, Any], options: Any) -> list[Array]:
        inner = self._session.inner
        names = self._names if wanted is self._outputs else [spec.name for spec in wanted]
        if not self._values:
            arrays: list[Array] = inner.run(names or [self._anything], feeds, options)
            return arrays
        runtime = self._session.runtime
        inputs = self._inputs
        values = {
            name: to_value(runtime, array, inputs[name].datatype if name in inputs else "")
            for name, array in feeds.items()
        }
        results = inner.run_with_ort_values(names or [self._anything], values, options)
        return [from_value(value, spec.datatype) for spec, value in zip(wanted, results)]

    # -- out -----------------------------------------------------------------------------------------------------------

    def _split(self, part: Batch, spec: TensorSpec, array: Array) -> list[Tensor]:
        """Return the output of each request."""
        name, datatype = spec.name, spec.datatype
        if datatype == "BYTES":
            array = encoded(array)
        cut = self._cuts.get(name)
        if cut is not None:
            return [Tensor(name, datatype, own) for own in cut.split(part.requests, array, self._model)]
        if self._batches:
            if len(part.requests) == 1 and (not array.ndim or array.shape[0] != part.size):
                rows = f"{array.shape[0]} rows" if array.ndim else "no batch dimension"
                raise ServingError(
                    Code.INTERNAL, f"output '{name}' of model '{self._model}' has {rows} for a batch of {part.size}"
                )
        elif not array.ndim:
            array = array.reshape((1,) * len(spec.reshape or spec.dims))
        return part.scatter(name, datatype, array)

    def _responses(self, part: Batch, columns: list[list[Tensor]]) -> list[InferenceResponse | None]:
        requests = part.requests
        if not columns:
            return [InferenceResponse([]) for _ in requests]
        responses: list[InferenceResponse | None] = []
        for request, outputs in zip(requests, zip(*columns)):
            wanted = request.wanted
            if len(wanted) == len(outputs):
                responses.append(InferenceResponse(list(outputs)))
            else:
                responses.append(InferenceResponse([tensor for tensor in outputs if tensor.name in wanted]))
        return responses


class _Input:
    """How one input is handed to the session."""

    __slots__ = ("_feed", "datatype", "scalar")

    def __init__(self, spec: TensorSpec, scalar: bool) -> None:
        self.datatype = spec.datatype
        self.scalar = scalar
        self._feed = decoded if spec.datatype == "BYTES" else readable

    def feed(self, array: Array) -> Array:
        array = self._feed(array)
        return array.reshape(()) if self.scalar else array


class _Run:
    """One run of the session, for a batch or some of its requests. A new one each time: a late end must not hit the next run."""

    __slots__ = ("_options", "_requests", "batch")

    def __init__(self, batch: Batch, part: Batch, options: Any) -> None:
        self.batch = batch
        self._requests = part.requests
        self._options = options

    def end_if_alone(self) -> None:
        """Tell the run to end when none of its requests waits for an answer any more. Any thread."""
        if all(request.state is RELEASED for request in self._requests):
            self._options.terminate = True
