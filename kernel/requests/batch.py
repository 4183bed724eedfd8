"""A batch: the requests that one execution answers, their times, and the calls they made meanwhile.

Gathers inputs into one array and scatters output arrays back as views, for backends that compute on whole batches.
Pure data: who executes it and when is the scheduler's and the instance's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel.errors import Code, ServingError
from kernel.tensor import Array, Tensor

if TYPE_CHECKING:
    from kernel.requests.request import InferenceRequest

__all__ = ["RESCHEDULED", "Batch"]


#: What an executor gives in the place of a response to a request that is to be executed once more, as the request of an iterative
#: sequence may be.
RESCHEDULED: Any = object()


class Batch:
    """The requests of one execution. `size` counts rows, `len(batch.requests)` requests.

    `children`: requests that this execution has made (BLS, ensemble steps) and that are still alive; they are cancelled when
    every request of the batch is gone. `blocked_on`: the child that the execution can't go on without (a synchronous call).
    `times`: start, end of input, start of output, end, in seconds on the kernel's clock; executors may set the middle two.
    """

    __slots__ = (
        "blocked_on",
        "children",
        "ended",
        "input_ended",
        "instance",
        "output_started",
        "requests",
        "size",
        "started",
    )

    def __init__(self, requests: list[InferenceRequest], size: int) -> None:
        self.requests = requests
        self.size = size
        self.instance: Any = None
        self.children: set[InferenceRequest] | None = None
        self.blocked_on: InferenceRequest | None = None
        self.started = 0.0
        self.input_ended = 0.0
        self.output_started = 0.0
        self.ended = 0.0

    def gather(self, name: str) -> Array:
        """Return the input `name` of all requests as one array, concatenated along the first dimension in batch order.

        A batch of one request gives that request's own array, without a copy. Raises ServingError(INVALID_ARG) when a request
        lacks the input: batches are only formed of requests with the same inputs, so this means a backend asked for a wrong name.
        """
        arrays = []
        for request in self.requests:
            tensor = request.inputs.get(name)
            if tensor is None:
                raise ServingError(
                    Code.INVALID_ARG,
                    f"{request.log_id}no input '{name}' for model '{request.model_name}' to gather; it has "
                    f"{list(request.inputs)}",
                )
            arrays.append(tensor.array)
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def scatter(self, name: str, datatype: str, array: Array) -> list[Tensor]:
        """Split `array` along its first dimension into one Tensor a request, each a view of that request's rows.

        Raises ServingError(INTERNAL) when the rows of `array` are not the rows of the batch.
        """
        if len(self.requests) == 1:
            return [Tensor(name, datatype, array)]
        rows = array.shape[0] if array.ndim else -1
        if rows != self.size:
            raise ServingError(
                Code.INTERNAL,
                f"output '{name}' of model '{self.requests[0].model_name}' has {rows} rows for a batch of {self.size}",
            )
        tensors = []
        at = 0
        for request in self.requests:
            tensors.append(Tensor(name, datatype, array[at : at + request.batch_size]))
            at += request.batch_size
        return tensors
