"""The answer of a request that asks why it takes as long as it does: the header `x-explain: 1`.

The words go into the response's parameters, and as Server-Timing into its header, where browsers show them beside the request. No
other request pays anything for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel import InferenceRequest, InferenceResponse
from kernel_http.connection import replies
from kernel_http.inference.answers import WorkedExchange

if TYPE_CHECKING:
    from kernel import Explanation
    from kernel_http.connection.exchange import ClientConnection
    from kernel_http.connection.heads import Head
    from kernel_http.inference.encode import Replies
    from kernel_http.inference.reader import Reader

__all__ = ["ExplainedExchange", "server_timing"]

#: How long a header may become, and a description in it, in characters.
LONGEST_HEADER = 2000
LONGEST_WORDS = 200


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
            (explanation,) = self.kernel.explain(request)
            self.timing = server_timing(explanation)
            if response.error is None:
                response.parameters = {**(response.parameters or {}), "explain": "\n".join(explanation.lines())}
        super().respond(response, final)

    def answer(self, payload: replies.Payload) -> None:
        timing = self.timing
        if timing:
            first, *rest = [payload] if isinstance(payload, bytes) else payload
            first = bytes(first).replace(b"\r\n", b"\r\nServer-Timing: " + timing + b"\r\n", 1)
            payload = [first, *rest] if rest else first
        super().answer(payload)


def server_timing(explanation: Explanation) -> bytes:
    """Return the value of the header Server-Timing (W3C): what the time went to, in milliseconds, with the words."""
    entries = [("total", explanation.seconds, explanation.state)]
    entries += [(one.kind, one.seconds, one.words) for one in explanation.intervals]
    told = ""
    for name, seconds, words in entries:
        shown = words.replace("µ", "u").encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
        shown = "".join(letter if letter.isprintable() else " " for letter in shown[:LONGEST_WORDS])
        entry = f'{name};dur={seconds * 1e3:.3f};desc="{shown}"'
        if len(told) + len(entry) > LONGEST_HEADER:
            break
        told += f", {entry}" if told else entry
    return told.encode()
