"""Holds a model's answers to its config: names, datatypes, dims and rows of every output.

Strict, each answer is looked at where the scheduler takes it from its executor, and one that does not fit, or lacks an output
that is wanted, becomes an error that says so: no client, no calling model and no statistic sees it as a success. Otherwise
answers pass as they are, like the reference's; only the first ones of a model are looked at, for one warning about what came and
one about each output that did not, and then nothing is left here that costs anything.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Sequence

from kernel.config import ModelConfig, TensorSpec
from kernel.errors import Code, Reason, ServingError
from kernel.requests import InferenceRequest, InferenceResponse, RequestState
from kernel.tensor import DATATYPES, Tensor

__all__ = ["FIRST_ANSWERS", "DeclaredOutputs", "OutputCheck"]

log = logging.getLogger("kernel")

FIRST_ANSWERS = 32  # of a model that is not held to its config strictly: a model that is wrong is so from the beginning


class DeclaredOutputs:
    """What the outputs of one model have to be. Any thread."""

    def __init__(self, config: ModelConfig) -> None:
        self._name = config.name
        self._batches = config.max_batch_size > 0
        #: How many rows there are is a matter of the model where it may answer any number of times.
        self._decoupled = config.decoupled
        self._same_rows = self._batches and not config.decoupled
        self._specs = {spec.name: (spec.datatype, _dims(spec)) for spec in config.outputs}

    def mistakes(self, request: InferenceRequest, response: InferenceResponse) -> list[str]:
        """Return what is wrong with the outputs: what came, and what the config declares."""
        found = []
        for tensor in response.outputs:
            known = self._specs.get(tensor.name)
            if known is None:
                found.append(self._undeclared(tensor.name))
                continue
            datatype, dims = known
            if tensor.datatype != datatype:
                found.append(f"output '{tensor.name}' is {tensor.datatype}, its config declares {datatype}")
            elif tensor.array.dtype != DATATYPES.get(datatype):
                found.append(f"output '{tensor.name}' is called {datatype}, but its array holds '{tensor.array.dtype}'")
            own = tensor.array.shape[1:] if self._batches else tensor.array.shape
            if (self._batches and not tensor.array.shape) or not _fits(own, dims):
                found.append(self._misshapen(tensor, dims))
            elif self._same_rows and tensor.array.shape[0] != request.batch_size:
                found.append(
                    f"output '{tensor.name}' has {_rows(tensor.array.shape[0])} (shape {list(tensor.array.shape)}) "
                    f"for a request of {_rows(request.batch_size)}"
                )
        return found

    def missing(self, request: InferenceRequest, response: InferenceResponse) -> list[str]:
        """Return which outputs the client wants and does not get. Of a decoupled model each response may bring what it likes."""
        wanted = request.requested_outputs or self._specs
        if self._decoupled or len(response.outputs) >= len(wanted):
            return []
        given = {tensor.name for tensor in response.outputs}
        return [f"output '{name}' is missing" for name in dict.fromkeys(wanted) if name not in given]

    def _undeclared(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._specs, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        declared = ", ".join(self._specs) or "none"
        return f"output '{name}' is not in its config, which declares {declared}{hint}"

    def _misshapen(self, tensor: Tensor, dims: tuple[int, ...]) -> str:
        wanted = list(dims)
        text = f"output '{tensor.name}' has shape {list(tensor.array.shape)}, its config declares {wanted}"
        return f"{text} behind the batch dimension" if self._batches else text


def _dims(spec: TensorSpec) -> tuple[int, ...]:
    """The shape that the model itself has to give; clients may be promised another."""
    return tuple(spec.dims if spec.reshape is None else spec.reshape)


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(want in (-1, size) for size, want in zip(shape, dims))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


class OutputCheck:
    """Looks at the answers of one model on their way through its scheduler: at all of them if `strict`, else at the first ones.

    Strict, an answer that does not fit becomes an error. Otherwise it passes, with one warning, and `over` is called once there
    is nothing more to look at. Any thread, if `strict`; else on the loop.
    """

    def __init__(self, config: ModelConfig, *, strict: bool, over: Callable[[], None]) -> None:
        self.strict = strict
        self._name = config.name
        self._declared = DeclaredOutputs(config)
        self._over = over
        self._to_look_at = FIRST_ANSWERS
        self._has_words = config.is_ensemble  # an ensemble says itself what its steps have left out
        self._missed: set[str] = set()  # what has been told to be missing

    def __call__(self, requests: Sequence[InferenceRequest], responses: Sequence[object]) -> None:
        for request, response in zip(requests, responses):
            if (
                not isinstance(response, InferenceResponse)
                or response.error is not None
                or request.state is RequestState.RELEASED
            ):
                continue
            mistakes = self._declared.mistakes(request, response)
            if self.strict:
                mistakes += self._declared.missing(request, response)
                if mistakes:
                    response.outputs = []
                    response.error = self._refusal(request, mistakes)
                continue
            self._to_look_at -= 1
            if not self._has_words:
                self._tell_missing(self._declared.missing(request, response))
            if mistakes:
                log.warning(
                    "model '%s': %s; it is passed on as it is, and there are no more warnings about this model",
                    self._name,
                    "; ".join(mistakes),
                )
            if mistakes or self._to_look_at <= 0:
                self._over()
                return

    def _tell_missing(self, missing: Sequence[str]) -> None:
        for words in missing:
            if words not in self._missed:
                self._missed.add(words)
                log.warning("model '%s': %s in an answer, which is passed on without it", self._name, words)

    def _refusal(self, request: InferenceRequest, mistakes: Sequence[str]) -> ServingError:
        words = f"{request.log_id}model '{self._name}' does not keep to its config: {'; '.join(mistakes)}"
        return ServingError(Code.INTERNAL, words, Reason.BACKEND)
