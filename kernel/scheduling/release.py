"""The one way to RELEASED, and the one last call of a request's `respond`.

The law: every request gets exactly one final answer, through `release` and nothing else. How those of a model are counted,
lifecycle.py says; a request that reaches no model ends here as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kernel.errors import ServingError
from kernel.instances import all_gone
from kernel.requests import Batch, InferenceRequest, InferenceResponse, RequestState, nobody
from kernel.rules import Deadlines
from kernel.tensor import Tensor

__all__ = ["Release"]

log = logging.getLogger("kernel")

RELEASED = RequestState.RELEASED

_NOTHING: dict[str, Tensor] = {}


class Release:
    """How the requests end that go by the name of one model. `version_text`: its version, "" where there is no such model.

    `open`: executed, and still to be answered by a sender. `on_release(request)`: stages that hear of each final answer.
    """

    def __init__(self, name: str, version_text: str = "") -> None:
        self.name = name
        self.version_text = version_text
        self.open: set[InferenceRequest] = set()
        self.deadlines = Deadlines()
        self.on_release: tuple[Callable[[InferenceRequest], None], ...] = ()
        self._touched: set[Batch] = set()  # executions of which a request has been answered before their end

    def release(self, request: InferenceRequest, response: InferenceResponse | None) -> None:
        """Give the final answer; nothing where there has been one."""
        if request.state is RELEASED:
            return
        request.state = RELEASED
        batch = request.batch
        if not request.counted:
            self._count(request, batch, response)
        if self.open:
            self.open.discard(request)
        if request.deadline is not None and request.order:
            self.deadlines.released()
        if batch is not None and batch.children:
            self._cancel_children(batch)
        parent = request.parent
        if parent is not None:
            request.parent = None
            if parent.children is not None:
                parent.children.discard(request)
        respond, request.respond = request.respond, nobody
        if response is not None:  # what `sign` does
            response.model_name = self.name
            response.model_version = self.version_text
            response.id = request.id
        try:
            respond(response, True)
        except Exception:
            log.exception("%sthe receiver of an answer of model '%s' failed", request.log_id, self.name)
        request.batch = None  # only now: an ensemble reads the times of its steps there
        if batch is None or batch.ended:
            request.inputs = _NOTHING  # what still refers to the request (a deadline, a client) need not keep its tensors
        else:
            self._touched.add(batch)
        if self.on_release:
            for stage in self.on_release:
                stage(request)

    def end(self, request: InferenceRequest, error: ServingError) -> None:
        """Release a request with an error that is no answer of an execution: by it, statistics and `is_cancelled` say so."""
        request.error = error
        self.release(request, InferenceResponse([], error=error))

    def sign(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """Write on a response whose it is. Any thread."""
        response.model_name = self.name
        response.model_version = self.version_text
        response.id = request.id
        return response

    def _count(self, request: InferenceRequest, batch: Batch | None, response: InferenceResponse | None) -> None:
        """Enter a final answer into the statistics, if somebody keeps them."""

    def _cancel_children(self, batch: Batch) -> None:
        """The calls of an execution that nobody waits for any more are of no use either."""
        if all_gone(batch):
            children, batch.children = batch.children or (), None
            for child in list(children):
                child.model.scheduler.cancel(child)
