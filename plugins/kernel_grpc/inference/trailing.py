"""What a call is told of itself that asks for it: how much its model has to do, and why it took as long as it did.

The words go into the response's parameter `explain`, and into the trailers of unary calls, beside Server-Timing. A call that asks
for nothing pays nothing.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from kernel import InferenceRequest, InferenceResponse, server_timing
from kernel_grpc.http2 import literal
from kernel_grpc.inference.load import load_of
from kernel_grpc.rpc.status import escaped, fitting

if TYPE_CHECKING:
    from kernel import Explanation, Kernel, Model
    from kernel_grpc.rpc.calls import Call

__all__ = ["have_told", "told"]

log = logging.getLogger(__name__)

TIMING = b"server-timing"
WORDS = b"x-explain"

#: What a field counts in a header list beside its name and value (RFC 9113, section 10.5.1).
FIELD = 32

#: Where there is room for fewer bytes of words, there are none.
LEAST = 64


def have_told(call: Call, request: InferenceRequest, model: Model, kernel: Kernel) -> None:
    """Have a call told what it has asked for. `request`: its answer is known, and it is not under way yet."""
    asked = call.meaning.asked
    assert asked is not None
    if asked.explain:
        request.respond = Explained(call, request, kernel)
    if asked.report:
        call.meaning = call.meaning.with_trailing(partial(told, model, asked.report, None))


class Explained:
    """The continuation of a request that explains itself, in front of its own."""

    __slots__ = ("answer", "call", "kernel", "request")

    def __init__(self, call: Call, request: InferenceRequest, kernel: Kernel) -> None:
        self.call = call
        self.request: InferenceRequest | None = request
        self.kernel = kernel
        self.answer: Any = request.respond

    @property
    def client(self) -> str:
        client: str = self.answer.client
        return client

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        request = self.request
        if final and request is not None:
            self.request = None  # breaks the cycle request -> respond -> request
            if response is not None and request.model is not None:
                try:
                    self._explain(request, response)
                except Exception:  # who asks for both has the answer, at least
                    log.exception("%sthe request can't be explained", request.log_id)
        self.answer(response, final)

    def _explain(self, request: InferenceRequest, response: InferenceResponse) -> None:
        (explanation,) = self.kernel.explain(request)
        if response.error is None:
            response.parameters = {**(response.parameters or {}), "explain": "\n".join(explanation.lines())}
        call = self.call
        if not call.is_stream:
            asked = call.meaning.asked
            assert asked is not None
            call.meaning = call.meaning.with_trailing(partial(told, request.model, asked.report, explanation))


def told(model: Model, report: str, explanation: Explanation | None, room: int) -> bytes:
    """Return fields of the trailers, of so many bytes at most but for the report, which is short."""
    block = load_of(model, report) if report else b""
    if explanation is None:
        return block
    room -= len(block)
    timing = server_timing(explanation)
    if (size := len(TIMING) + len(timing) + FIELD) <= room:
        block += literal(TIMING, timing)
        room -= size
    most = room - len(WORDS) - FIELD
    return block + literal(WORDS, escaped(fitting("\n".join(explanation.lines()), most))) if most >= LEAST else block
