"""Measures, once at import, which reference counts mean "nobody else holds it" at each handover of arrays.

Runs the real code on fresh objects and notes the counts; then once more on objects that somebody does hold. Where the two
can't be told apart (an interpreter that lends references), that handover copies always.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernel import Code, ServingError
from kernel import InferenceRequest as CoreRequest
from kernel_python.api import bls, memory, responses, sender
from kernel_python.api.copies import COPIES
from kernel_python.api.memory import NEVER, SMALL
from kernel_python.api.requests import InferenceRequest
from kernel_python.api.responses import InferenceResponse
from kernel_python.api.tensors import Tensor
from kernel_python.calling import EXECUTION, Instance

__all__ = ["calibrate"]


def _tensor() -> Tensor:
    return Tensor("X", np.zeros(SMALL + 2, np.uint8)[1:])


def calibrate() -> None:
    memory.measure(_tensor())
    handovers = (responses.OUTPUT, sender.SENT, bls.CALLED)
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        for handover in handovers:
            handover.holder = NEVER
        return
    taken: list[Any] = []
    kernel = SimpleNamespace(
        send=lambda *_: None, loop=None, loop_thread=0, wait=lambda *_: None, find=_unknown, strict_outputs=False
    )
    instance = Instance(kernel, "calibration", "calibration", "", "execute")
    request = CoreRequest("calibration", {}, lambda response, final: None)
    request.wanted = frozenset("X")
    token = EXECUTION.set(instance.idle)
    try:
        for held in (False, True):
            _output(instance, request, taken if held else None)
            _sent(instance, request, held)
            _called(held)
            for handover in handovers:
                if held and not getattr(COPIES, handover.name):
                    handover.holder = NEVER
    finally:
        EXECUTION.reset(token)
        COPIES.reset()


def _unknown(*_: object) -> None:
    raise ServingError(Code.NOT_FOUND, "there are no models yet")


def _output(instance: Instance, request: CoreRequest, taken: list[Any] | None) -> None:
    result = _execute(taken)
    responses.answers(instance, [request], result)


def _execute(taken: list[Any] | None) -> list[InferenceResponse]:
    result = [InferenceResponse([_tensor()])]
    if taken is not None:
        taken.append(result[0])
    return result


def _sent(instance: Instance, request: CoreRequest, held: bool) -> None:
    one = sender.InferenceResponseSender(request, instance)
    if held:
        response = InferenceResponse([_tensor()])
        one.send(response, 1)
        del response
    else:
        one.send(InferenceResponse([_tensor()]), 1)


def _called(held: bool) -> None:
    if held:
        request = InferenceRequest(model_name="x", inputs=[_tensor()], requested_output_names=[])
        request.exec()
        del request
    else:
        InferenceRequest(model_name="x", inputs=[_tensor()], requested_output_names=[]).exec()
