"""The one door of a model: the check that each request passes, and the form of one that has, for others that look just like it.

Decides whether a request fits the config, in the reference's order and words (contract: http_protocol, section 3.4), and alone
says which model a request is for, how many rows it has and which outputs it is to get: front ends, calls and ensembles write none
of these fields. Knows no queue and no instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel.config import ModelConfig
from kernel.errors import Code, ServingError
from kernel.requests import InferenceRequest
from kernel.tensor import Tensor

__all__ = ["FORMS", "Form", "RequestCheck"]

BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)

FORMS = 64  # shapes of an input that are remembered as right, and choices of outputs


class Form:
    """What the check has said of one request, which holds for each that has the same inputs but for their data.

    Such a request is made with it (`InferenceRequest(…, form=…)`), and has then passed the check. `request`: the one that has
    been looked at. `model`: the Model that has accepted it; `rows`: how many rows it has, 1 where the model does not batch;
    `wanted`: names of the outputs that it is to get. Who keeps one asks `Model.is_meant_by` whether the names still mean its
    model whenever `Kernel.generation` has changed.
    """

    __slots__ = ("model", "rows", "wanted")

    def __init__(self, request: InferenceRequest) -> None:
        self.model = request.model
        self.rows = request.batch_size
        self.wanted = request.wanted


class RequestCheck:
    """The check of one model version. `model`: whom a request that passes is for."""

    def __init__(self, model: object, config: ModelConfig) -> None:
        self._model = model
        self._name = config.name
        self._max_batch_size = config.max_batch_size
        self._batches = config.max_batch_size > 0
        self._outputs = frozenset(spec.name for spec in config.outputs)
        self._required = frozenset(spec.name for spec in config.inputs if not spec.optional)
        # What is compared, in one tuple a name: datatype, dims, rank, and the dims of a fixed size with their axes.
        first = 1 if self._batches else 0
        self._expected = {
            spec.name: (
                spec.datatype,
                tuple(spec.dims),
                len(spec.dims) + first,
                tuple((axis, size) for axis, size in enumerate(spec.dims, first) if size != -1),
            )
            for spec in config.inputs
        }
        self._forms: dict[str, tuple[str, dict[tuple[int, ...], int]]] = {  # name -> datatype, right shapes with their rows
            spec.name: (spec.datatype, {}) for spec in config.inputs
        }
        self._wanted: dict[tuple[str, ...], frozenset[str]] = {}  # requested outputs that have passed

    def check(self, request: InferenceRequest) -> None:
        """Accept the request's form or raise ServingError(INVALID_ARG).

        Sets `model`, `batch_size` and `wanted` of the request; `Form(request)` keeps them for others like it.
        """
        inputs, requested = request.inputs, request.requested_outputs
        wanted = self._wanted.get(tuple(requested)) if requested else self._outputs
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
                request.model = self._model
                return
        self.check_anew(request)

    def check_anew(self, request: InferenceRequest) -> None:
        """As `check`, without a look at what has passed before."""
        expected, inputs = self._expected, request.inputs
        request.wanted = self._checked_outputs(request.requested_outputs)
        if len(inputs) != len(expected) and not len(self._required) <= len(inputs) <= len(expected):
            raise self._missing(request)
        if self._batches:
            self._check_batch(request)
        for name, tensor in inputs.items():
            self._check_input(request, name, tensor)
        if len(inputs) != len(expected) and not self._required <= inputs.keys():
            raise self._missing(request)  # as many as it has to bring, but optional ones among them
        self._remember(request)
        request.model = self._model

    def _checked_outputs(self, requested: Sequence[str] | None) -> frozenset[str]:
        for name in requested or ():
            if name not in self._outputs:
                raise _invalid(f"unexpected inference output '{name}' for model '{self._name}'")
        return frozenset(requested) if requested else self._outputs

    def _check_input(self, request: InferenceRequest, name: str, tensor: Tensor) -> None:
        known = self._expected.get(name)
        if known is None:
            raise _invalid(f"unexpected inference input '{name}' for model '{self._name}'")
        datatype, _, rank, sizes = known
        if tensor.datatype != datatype:
            raise _invalid(
                f"{request.log_id}inference input '{name}' data-type is '{tensor.datatype}', "
                f"but model '{self._name}' expects '{datatype}'"
            )
        shape = tensor.array.shape
        if len(shape) != rank or any(shape[axis] != size for axis, size in sizes):
            raise self._wrong_shape(request, name, shape)
        if self._batches and not shape[0]:
            raise self._empty_batch(request, name)

    def _remember(self, request: InferenceRequest) -> None:
        """Let others like a request that is right pass by one look-up an input."""
        for name, tensor in request.inputs.items():
            shapes = self._forms[name][1]
            if len(shapes) >= FORMS:
                shapes.clear()
            shapes[tensor.array.shape] = request.batch_size
        if request.requested_outputs:
            if len(self._wanted) >= FORMS:
                self._wanted.clear()
            self._wanted[tuple(request.requested_outputs)] = request.wanted

    def _check_batch(self, request: InferenceRequest) -> None:
        rows = 0
        for name, tensor in request.inputs.items():
            shape = tensor.array.shape
            if not shape:
                raise _invalid(
                    f"{request.log_id}input '{name}' has no shape but model requires batch dimension for '{self._name}'"
                )
            if not rows:
                rows = shape[0]
            elif rows != shape[0]:
                raise _invalid(f"{request.log_id}input '{name}' batch size does not match other inputs for '{self._name}'")
        if rows > self._max_batch_size:
            raise _invalid(
                f"{request.log_id}inference request batch-size must be <= {self._max_batch_size} for '{self._name}'"
            )
        request.batch_size = rows or 1

    # -- what is wrong -------------------------------------------------------------------------------------------------

    def _missing(self, request: InferenceRequest) -> ServingError:
        total, required, got = len(self._expected), len(self._required), request.inputs
        missing = [name for name in self._expected if name in self._required and name not in got]
        wanted = f"expected {total} inputs" if required == total else f"expected number of inputs between {required} and {total}"
        return _invalid(
            f"{request.log_id}{wanted} but got {len(got)} inputs for model '{self._name}'. Got input(s) {_names(sorted(got))}, "
            f"but missing required input(s) {_names(missing)}. Please provide all required input(s)."
        )

    def _wrong_shape(self, request: InferenceRequest, name: str, shape: tuple[int, ...]) -> ServingError:
        dims = self._expected[name][1]
        full = (-1, *dims) if self._batches else dims
        return _invalid(
            f"{request.log_id}unexpected shape for input '{name}' for model '{self._name}'. "
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
                f"for model '{self._name}', got 0"
            )
        return _invalid(
            f"{request.log_id}input byte size mismatch for input '{name}' for model '{self._name}'. "
            f"Expected {elements * tensor.array.itemsize}, got 0"
        )


def _invalid(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)


def _names(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
