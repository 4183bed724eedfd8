"""The response sender: how a model answers outside of what `execute` returns (contract: python_backend, 2.4, 2.5).

Holds the rules of what may be sent when. A sender that is dropped without having answered sends an error that says so, or
the client would wait for ever.
"""

from __future__ import annotations

import contextlib
import threading
from sys import getrefcount
from typing import Any

from kernel import InferenceRequest
from kernel import InferenceResponse as CoreResponse
from kernel_python.api.memory import Handover
from kernel_python.api.responses import InferenceResponse, answer_of
from kernel_python.calling import Instance
from kernel_python.faults import TritonModelException, execution_error, incompatible

__all__ = ["FINAL", "InferenceResponseSender"]

FINAL = 1
SENT = Handover("sent")
_SIGNATURE = (
    "(self: c_python_backend_utils.InferenceResponseSender, response: c_python_backend_utils.InferenceResponse = None, "
    "flags: int = 0) -> None"
)
_LOST = (
    "the response sender of the request was dropped without having sent the final flag: end every request of a decoupled "
    "model with sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
)
_LOST_SINGLE = "no response was returned for the request, and its response sender was dropped without having sent one"
_lock = threading.Lock()


class InferenceResponseSender:
    """Sends the responses of one request, from any thread.

    `_sent`: responses so far. `_closed`: nothing may be sent any more. `_settled`: the request has its final answer, or
    gets it in another way, so there is nothing to make good for when the sender goes.
    """

    __slots__ = ("__weakref__", "_closed", "_core", "_instance", "_sent", "_settled")
    __module__ = "c_python_backend_utils"

    def __init__(self, core: InferenceRequest, instance: Instance) -> None:
        self._core = core
        self._instance = instance
        self._sent = 0
        self._closed = False
        self._settled = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both at once.

        Raises TritonModelException when that is not allowed (any more).
        """
        if (response is not None and not isinstance(response, InferenceResponse)) or not isinstance(flags, int):
            raise incompatible("send", _SIGNATURE, (self, response, flags) if flags else (self, response))
        if flags != FINAL and flags != 0:
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        instance = self._instance
        final = flags == FINAL
        # The answer is made first: where that raises, nothing has been noted and the model may send another.
        answer: CoreResponse | None = None
        if response is not None:
            answer = answer_of(instance, self._core, response, getrefcount(response), SENT)
        with _lock:
            if self._closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if not instance.decoupled:
                self._check_single(response)
            if response is not None:
                self._sent += 1
            self._closed = final
            # The one response of a normal model answers the request: the final flag, should it come late, adds nothing.
            answered = final if instance.decoupled else response is not None
            self._settled = self._settled or answered
        if response is None and not instance.decoupled:
            return
        instance.kernel.send(self._core, answer, answered)

    def _check_single(self, response: InferenceResponse | None) -> None:
        """Hold a model that is not decoupled to its one response, which comes before the final flag or with it."""
        if response is not None and self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is None and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the request's responses any more."""
        return self._core.is_cancelled

    def _settle(self) -> None:
        """The request is answered in another way: nothing to make good for."""
        self._settled = True

    def _close(self) -> None:
        """The request has had its final answer: whoever sends more is told."""
        self._settled = self._closed = True

    def __del__(self) -> None:
        if not self._settled:
            instance: Any = self._instance
            message = _LOST if instance.decoupled else _LOST_SINGLE
            answer = CoreResponse([], error=execution_error(instance.name, message))
            # On the loop, not here: the garbage collector may call this in the middle of any code. Where the kernel has stopped
            # (RuntimeError) or the interpreter is ending (any error), nobody waits for the answer.
            with contextlib.suppress(Exception):
                instance.kernel.call_soon(instance.kernel.send, self._core, answer, True)
