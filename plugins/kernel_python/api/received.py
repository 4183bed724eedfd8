"""pb_utils.InferenceRequest as `execute` receives it (contract: python_backend, 1.3).

A thin view of the core's request: nothing is computed before the model asks.
"""

from __future__ import annotations

import json

from kernel import InferenceRequest as CoreRequest
from kernel_python.api.requests import InferenceRequest, InferenceTrace
from kernel_python.api.sender import InferenceResponseSender
from kernel_python.api.tensors import Tensor, received
from kernel_python.calling import Instance

__all__ = ["Received"]


class Received(InferenceRequest):
    """A request that a model is given to execute."""

    __slots__ = ("_by_name", "_core", "_given", "_instance", "_release", "_sender")
    __module__ = "c_python_backend_utils"

    _sender: InferenceResponseSender | None

    def __init__(self, core: CoreRequest, instance: Instance) -> None:
        self._core = core
        self._instance = instance
        self._given = core.inputs
        self._by_name: dict[str, Tensor] = {}  # those that the model has asked for
        self._release = 0
        self._sender = InferenceResponseSender(core, instance) if instance.decoupled else None

    def _input(self, name: str) -> Tensor | None:
        """Return the input of that name for the first time, None where there is none."""
        core = self._given.get(name)
        if core is None:
            return None
        self._by_name[name] = tensor = received(core, self._instance.zero_copy)
        return tensor

    def inputs(self) -> list[Tensor]:
        by_name = self._by_name
        for name in self._given:
            if name not in by_name:
                self._input(name)
        return [by_name[name] for name in self._given]

    def request_id(self) -> str:
        return self._core.id

    def correlation_id(self) -> int | str:
        return self._core.correlation_id

    def flags(self) -> int:
        return self._core.flags

    def _set_flags(self, flags: int) -> None:
        self._core.flags = flags

    def timeout(self) -> int:
        return self._core.timeout_us

    def parameters(self) -> str:
        parameters = self._core.parameters
        return json.dumps(dict(parameters), separators=(",", ":"), ensure_ascii=False) if parameters else "{}"

    def requested_output_names(self) -> set[str]:
        core = self._core  # `wanted` may name outputs that hold a sequence's state, too; no client has asked for those
        return set(core.requested_outputs or core.wanted & self._instance.outputs)

    def trace(self) -> InferenceTrace:
        return InferenceTrace(self._core.trace)

    def is_cancelled(self) -> bool:
        return self._core.is_cancelled

    def get_response_sender(self) -> InferenceResponseSender:
        sender = self._sender
        if sender is None:
            sender = self._sender = InferenceResponseSender(self._core, self._instance)
        return sender

    def _release_as(self, flags: int) -> None:
        self._release = flags

    def _as_call(self) -> InferenceRequest:
        """Return a request of the model's own that asks the same of the same model."""
        core = self._core
        call = InferenceRequest(
            request_id=core.id,
            correlation_id=core.correlation_id,
            inputs=self.inputs(),
            requested_output_names=list(core.requested_outputs or ()),
            model_name=core.model_name,
            model_version=int(core.model_version or -1),
            flags=core.flags,
            timeout=core.timeout_us,
            trace=self.trace(),
        )
        call._site = call._site or (self._instance, core.batch)
        return call


Received.__name__ = Received.__qualname__ = "InferenceRequest"
