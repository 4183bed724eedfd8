"""What travels: a request with its continuation, its response, and the batch of requests that one execution answers.

The state table below is the law of a request's life: `respond(…, final=True)` happens exactly once, on the way to RELEASED.
Knows nothing of queues, models or clocks; the scheduler moves the states. A batch gathers inputs into one array and scatters
output arrays back as views, for backends that compute on whole batches.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kernel.errors import Code, Reason, ServingError, clipped
from kernel.tensor import Array, Tensor, response_html

if TYPE_CHECKING:
    from typing import TypeAlias  # not at run time: children of Python 3.9 use this file, too

__all__ = [
    "LATER",
    "RESCHEDULED",
    "SKIPPED",
    "TRANSITIONS",
    "Batch",
    "InferenceRequest",
    "InferenceResponse",
    "RequestState",
    "Respond",
    "log_ids",
    "nobody",
]

#: The one completion. `(response, final)`; the response is None only for a final flag that carries no data.
Respond: TypeAlias = "Callable[[InferenceResponse | None, bool], None]"


class RequestState(enum.IntEnum):
    """Where a request is in its life; who made it may look, the core alone moves it."""

    INITIALIZED = 0  # made; not accepted yet
    PENDING = 1  # accepted, waits in a queue
    EXECUTING = 2  # handed to an instance
    RELEASED = 3  # it has had its final answer


#: From which state to which; everything else is a bug of the core. The core's tests run on requests that assert it at every
#: move (tests/helpers/virtual.py); in service only what matters most is asserted: nothing comes back from RELEASED.
#: INITIALIZED to EXECUTING: nobody waits and an instance is free. EXECUTING to PENDING: a run that was taken back.
TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.INITIALIZED: frozenset({RequestState.PENDING, RequestState.EXECUTING, RequestState.RELEASED}),
    RequestState.PENDING: frozenset({RequestState.EXECUTING, RequestState.RELEASED}),
    RequestState.EXECUTING: frozenset({RequestState.PENDING, RequestState.RELEASED}),
    RequestState.RELEASED: frozenset(),
}


# Looked up here once; as a global they cost a tenth of an enum member's price.
_INITIALIZED, _PENDING = RequestState.INITIALIZED, RequestState.PENDING
_NONE: frozenset[str] = frozenset()

LISTED = 16  # of a batch's ids, in a message


class CheckedForm(Protocol):
    """What a model's check says of a request: whom it is for, its rows, the outputs that it is to get (request_check.py)."""

    @property
    def model(self) -> Any: ...

    @property
    def rows(self) -> int: ...

    @property
    def wanted(self) -> frozenset[str]: ...


class InferenceRequest:
    """One inference request.

    Who makes it fills the first group and hands it to `Kernel.submit`, which owns it from then on and calls `respond` until
    one call has said `final=True`. The second group belongs to the core.

    `model_name`, `model_version`: of the model that is asked, "" for its newest version. `inputs`: name -> Tensor of the full
    shape, in the order of arrival; the request owns them. `respond`: called on the loop with each response. `id`: the client's,
    "" for none. `requested_outputs`: names, or None for all. `parameters`: of the request, as the wire has them: str, int,
    float or bool by name. `priority`: 1 is the most urgent, 0 the model's default. `timeout_us`: the request parameter
    `timeout`, which only a queue policy heeds. `deadline`: the latest moment, on the kernel's clock in seconds, at which an
    answer is of use; enforced in the queue and while executing. `parent`: the batch whose execution made this request (BLS,
    ensemble steps). `correlation_id`: int or str, 0 for none. `flags`: 1 for the start of a sequence, 2 for its end. `trace`:
    the Trace that this one's continues, None for none. `form`: what the model's check has said of another request with the same
    inputs but for their data, and the same `requested_outputs`: this one has passed it, too, and goes to `model.enqueue`. Where
    a microsecond counts, give the arguments by position: for keywords Python makes a dict a call.

    A backend reads `inputs`, `requested_outputs`, `parameters`, `batch_size` (rows; 1 where the model does not batch), `wanted`
    (names of the outputs to return), `enqueued` (when it was accepted) and `trail` (which models of other servers wait for it;
    not set where none is known). The core's own: `put_back`.
    """

    trail: str

    __slots__ = (
        "batch",
        "batch_size",
        "correlation_id",
        "counted",
        "deadline",
        "enqueued",
        "error",
        "expires",
        "flags",
        "id",
        "inputs",
        "model",
        "model_name",
        "model_version",
        "order",
        "parameters",
        "parent",
        "priority",
        "requested_outputs",
        "respond",
        "responded",
        "state",
        "timeout_us", "trace", "trail",
        "wanted",
    )

    def __init__(
        self,
        model_name: str,
        inputs: dict[str, Tensor],
        respond: Respond,
        model_version: str = "",
        id: str = "",
        requested_outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        deadline: float | None = None,
        correlation_id: int | str = 0,
        flags: int = 0,
        parent: Batch | None = None,
        trace: Any = None,
        form: CheckedForm | None = None,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.inputs = inputs
        self.requested_outputs = requested_outputs
        self.parameters = parameters
        self.priority = priority
        self.timeout_us = timeout_us
        self.deadline = deadline
        self.correlation_id = correlation_id
        self.flags = flags
        self.parent = parent
        self.trace = trace
        self.respond = respond
        # The core's, from here on.
        self.state = _INITIALIZED
        if form is None:  # the model's check is to come
            self.model: Any = None  # the Model that accepted it
            self.wanted = _NONE  # names of the outputs to return
            self.batch_size = 1  # rows
        else:
            self.model = form.model
            self.wanted = form.wanted
            self.batch_size = form.rows
        self.batch: Batch | None = None  # the execution that holds it
        self.enqueued = 0.0
        self.expires: float | None = None  # when the queue policy's time-out strikes
        self.order = 0  # position in the order of acceptance
        self.error: ServingError | None = None  # why it was released, where not by an answer
        self.counted = False  # the statistics have it
        self.responded = False  # its first response has been told to the statistics' observers

    def put_back(self) -> None:
        """Wait again, after an execution that has not begun, or that asks for another one. The core's."""
        self.state = _PENDING
        self.batch = None

    @property
    def log_id(self) -> str:
        """The prefix that the reference puts in front of its messages about one request."""
        return f"[request id: {clipped(self.id) or '<id_unknown>'}] "

    @property
    def is_cancelled(self) -> bool:
        """True once nobody waits for the answer any more; a running model may stop. Safe from any thread."""
        error = self.error
        return error is not None and error.reason is not Reason.BACKEND

    def __repr__(self) -> str:
        return f"<InferenceRequest {clipped(self.id) or '-'} for {self.model_name} {self.state.name}>"


def log_ids(requests: Sequence[InferenceRequest]) -> str:
    """Return the prefix for a message about several requests, that of one where there is one; "" for none."""
    if len(requests) < 2:
        return requests[0].log_id if requests else ""
    named = ", ".join(clipped(request.id) or "<id_unknown>" for request in requests[:LISTED])
    return f"[request ids: {named}{', …' if len(requests) > LISTED else ''}] "


class InferenceResponse:
    """One response: the outputs, or an error.

    `outputs`: Tensors of their full shapes, in the order the model produced them; none where there is an `error`. Who receives a
    response owns its arrays: nobody else sees them. `parameters`: of the response, None for none. `model_name`,
    `model_version`, `id`: whose answer it is, and to which request; the core writes them.
    """

    __slots__ = ("error", "id", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self,
        outputs: list[Tensor],
        error: ServingError | None = None,
        parameters: dict[str, Any] | None = None,
        model_name: str = "",
        model_version: str = "",
        id: str = "",
    ) -> None:
        self.outputs = outputs
        self.error = error
        self.parameters = parameters
        self.model_name = model_name
        self.model_version = model_version
        self.id = id

    def __getitem__(self, name: str) -> Array:
        """Return the array of the output called `name`; KeyError names the outputs that there are."""
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor.array
        raise KeyError(f"no output '{name}' in the response; it has {[tensor.name for tensor in self.outputs]}")

    def __contains__(self, name: object) -> bool:
        """Whether there is an output called `name`."""
        return any(tensor.name == name for tensor in self.outputs)

    @classmethod
    def failure(cls, code: Code, message: str, reason: Reason = Reason.OTHER) -> InferenceResponse:
        """Return a response that is an error; `reason`: how it is counted."""
        return cls([], error=ServingError(code, message, reason))

    def __repr__(self) -> str:
        return f"<InferenceResponse {self.error!r}>" if self.error else f"<InferenceResponse {self.outputs}>"

    _repr_html_ = response_html


def nobody(response: InferenceResponse | None, final: bool) -> None:
    """The continuation of a request that has had its final answer, or for which nobody ever waited."""


#: What an executor gives instead of a response (see Result) to a request that is to be executed once more, as one of an
#: iterative sequence may be (`sequence_batching { iterative_sequence: true }`). Of any other model's request it is a mistake,
#: and the batch fails with INTERNAL.
RESCHEDULED: Any = object()

#: The result of a batch, instead of a Result, that was not executed as nobody waited for any of its requests any more when
#: its turn came. They have had their answers, and nothing is counted. For executors that keep batches waiting (REMOTE, CALLBACK),
#: which tell it by `finished(batch, SKIPPED)`.
SKIPPED: Any = object()

#: What an instance's `start` returns where the execution is not over by then, or has told its end already.
LATER: Any = object()


class Batch:
    """The requests of one execution. `requests`: in the order in which they are answered; `size`: rows, which are more than
    requests where a request has several. `instance`: that executes it; an executor tells it `finished(batch, result)`.

    `children`: requests that this execution has made (BLS, ensemble steps) and that are still alive; they are cancelled when
    every request of the batch is gone. `blocked_on`: the child that the execution can't go on without (a synchronous call).
    `handed_over`: when the instance was given it, in seconds on the kernel's clock. `started`, `input_ended`, `output_started`,
    `ended`: likewise, 0.0 until then; executors may set the middle two. `why`: what the scheduler has decided by, for
    explanations: why these went together (rules.Left), or what they have waited for besides instances (rules.WaitReason).
    """

    __slots__ = (
        "blocked_on",
        "children",
        "ended",
        "handed_over",
        "input_ended",
        "instance",
        "output_started",
        "requests",
        "size",
        "started",
        "why",
    )

    def __init__(self, requests: list[InferenceRequest], size: int) -> None:
        self.requests = requests
        self.size = size
        self.instance: Any  # set as the execution starts
        self.handed_over: float  # likewise
        self.why: Any = None
        self.children: set[InferenceRequest] | None = None
        self.blocked_on: InferenceRequest | None = None
        self.started = 0.0
        self.input_ended = 0.0
        self.output_started = 0.0
        self.ended = 0.0

    def why_of(self, request: InferenceRequest) -> Any:
        """Return what `why` is for one request of the batch."""
        return self.why

    def gather(self, name: str) -> Array:
        """Return the input `name` of all requests as one array of `size` rows, concatenated along the first dimension.

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
