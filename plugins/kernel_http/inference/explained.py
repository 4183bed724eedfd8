"""The answer of a request that asks why it takes as long as it does: the header `x-explain: 1`.

The words go into the response's parameters, and as Server-Timing into its header, where browsers show them beside the request. No
other request pays anything for that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernel import InferenceRequest, InferenceResponse, server_timing
from kernel_http.connection import replies
from kernel_http.inference.answers import WorkedExchange

if TYPE_CHECKING:
    from kernel_http.connection.exchange import ClientConnection
    from kernel_http.connection.heads import Head
    from kernel_http.inference.encode import Replies
    from kernel_http.inference.reader import Reader

__all__ = ["ExplainedExchange"]

log = logging.getLogger(__name__)


class ExplainedExchange(WorkedExchange):
    """`timing`: the header, b"" until the request has its answer."""

    __slots__ = ("kernel", "timing")

    def __init__(self, connection: ClientConnection, head: Head, reader: Reader, replies: Replies) -> None:
        super().__init__(connection, head, reader, replies)
        self.kernel = reader.kernel
        self.timing = b""

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        request = self.request
        if final and isinstance(request, InferenceRequest) and response is not None and request.model is not None:
            try:
                (explanation,) = self.kernel.explain(request)
                self.timing = server_timing(explanation)
                if response.error is None:
                    response.parameters = {**(response.parameters or {}), "explain": "\n".join(explanation.lines())}
            except Exception:  # who asks for both has the answer, at least
                log.exception("%sthe request can't be explained", request.log_id)
        super().respond(response, final)

    def answer(self, payload: replies.Payload) -> None:
        timing = self.timing
        if timing:
            first, *rest = [payload] if isinstance(payload, bytes) else payload
            first = bytes(first).replace(b"\r\n", b"\r\nServer-Timing: " + timing + b"\r\n", 1)
            payload = [first, *rest] if rest else first
        super().answer(payload)
