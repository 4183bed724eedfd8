"""The classification extension: an output as the names of its highest values (contract: http_protocol, section 5).

The labels of a model's outputs are read once, when they are first wanted, and kept as long as the model is loaded. Of a large
output no more than a block is looked at in one go, and no more values are sorted than are wanted.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel.config import is_inside
from kernel.errors import Code, ServingError
from kernel.requests import InferenceResponse
from kernel.tensor import Tensor

if TYPE_CHECKING:
    from kernel.models import Model

__all__ = ["classify"]

log = logging.getLogger(__name__)

#: How many values are looked at in one go.
BLOCK = 64 * 1024

FLOATS = frozenset({"FP32", "FP64"})
TYPES = FLOATS | {"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"}


class Labels:
    """The labels of one loaded model, by output; lives in `model.attachments`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[str, list[bytes]] = {}

    def of(self, output: str) -> list[bytes]:
        """Return the labels of an output, none where it has no file."""
        labels = self._known.get(output)
        if labels is None:
            labels = self._known[output] = self._read(output)
        return labels

    def _read(self, output: str) -> list[bytes]:
        spec = self._model.output_specs.get(output)
        if spec is None or not spec.label_filename:
            return []
        path = self._model.model_folder / spec.label_filename
        if not is_inside(self._model.model_folder, path):  # the load has looked, but a link may have changed since
            words = "the labels of output '%s' of model '%s' are not read: they lead out of its folder"
            log.warning(words, output, self._model.name)
            return []
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            log.warning("the labels of output '%s' of model '%s' can't be read: %s", output, self._model.name, error)
            return []
        return [line.removesuffix(b"\r") for line in lines]


def classify(response: InferenceResponse, counts: Mapping[str, int], model: Model, limit: int = sys.maxsize) -> None:
    """Put classes instead of the outputs in `counts`: name -> how many, by an output's highest values.

    Such an output becomes BYTES of shape (rows, count), each `value:index` or `value:index:label`. `limit`: of the strings that
    one output may become. Raises ServingError(INVALID_ARG) for datatypes that have no order, and above the limit. What takes long
    of it lets other threads go on.
    """
    known = model.attachments.get(Labels)
    labels = known if isinstance(known, Labels) else Labels(model)
    model.attachments[Labels] = labels
    batches = model.config.max_batch_size > 0
    response.outputs = [
        classes_of(tensor, counts[tensor.name], batches, labels.of(tensor.name), limit) if counts.get(tensor.name) else tensor
        for tensor in response.outputs
    ]


def classes_of(tensor: Tensor, count: int, batches: bool, labels: list[bytes], limit: int = sys.maxsize) -> Tensor:
    """Return the `count` highest values of each row as BYTES: value, index and label; of equal ones the first."""
    if tensor.datatype not in TYPES:
        raise ServingError(
            Code.INVALID_ARG, f"class result not available for output due to unsupported type '{tensor.datatype}'"
        )
    array = tensor.array
    rows = array.shape[:1] if batches else ()
    values = array.reshape(prod(rows), prod(array.shape[len(rows) :]))
    count = min(count, values.shape[1])
    if count * values.shape[0] > limit:
        raise ServingError(
            Code.INVALID_ARG,
            f"the classes of output '{tensor.name}' are {count * values.shape[0]} strings, more than the {limit} that "
            "--max-request-values allows",
        )
    chosen = _highest(values, count)
    form = b"%f:%d" if tensor.datatype in FLOATS else b"%d:%d"
    result = np.empty(chosen.size, np.object_)
    items = []
    for row, indices in zip(values, chosen.tolist()):
        for index, value in zip(indices, row[indices].tolist()):
            text = form % (value, index)
            if index < len(labels) and labels[index]:
                text += b":" + labels[index]
            items.append(text)
    result[:] = items
    return Tensor(tensor.name, "BYTES", result.reshape(*rows, count))


def _highest(values: Any, count: int) -> Any:
    """Return the indices of the `count` highest values of each row, in order; what is no number comes last."""
    if values.shape[1] > BLOCK:
        return np.stack([_highest_of_long(row, count) for row in values])
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -np.inf, values)
    last = values.shape[1] - 1
    # Backwards, so that a stable sort, turned round, has the first of equal values in front.
    return (last - np.argsort(values[:, ::-1], axis=1, kind="stable"))[:, ::-1][:, :count]


def _highest_of_long(row: Any, count: int) -> Any:
    """As `_highest`, of one long row, block by block: of what was best so far and the next block the best go on."""
    step = max(BLOCK, 2 * count)
    best = np.empty(0, np.intp)
    for at in range(0, len(row), step):
        indices = np.concatenate((best, _candidates(row[at : at + step], count) + at))  # in their order
        best = np.sort(indices[_sorted(row, indices, count)])
    return best[_sorted(row, best, count)]


def _candidates(block: Any, count: int) -> Any:
    """Return the indices, ascending, of the `count` highest values of a block; of equal ones the first."""
    if count >= len(block):
        return np.arange(len(block))
    if block.dtype.kind == "f":
        block = np.where(np.isnan(block), -np.inf, block)
    least = np.partition(block, len(block) - count)[len(block) - count]
    above = np.flatnonzero(block > least)
    equal = np.flatnonzero(block == least)[: count - len(above)]
    return np.sort(np.concatenate((above, equal)))


def _sorted(row: Any, indices: Any, count: int) -> Any:
    """Return the order of the values at `indices`, which are ascending: the `count` highest, the first of equal ones in front."""
    values = row[indices]
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -np.inf, values)
    return (len(values) - 1 - np.argsort(values[::-1], kind="stable"))[::-1][:count]
