"""Sends the elements of IN back one by one. An `async def execute`: many requests take turns in one instance."""

from __future__ import annotations

import asyncio

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Return nothing: in a decoupled model the response senders answer."""
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        pause = pb_utils.get_input_tensor_by_name(request, "DELAY_MS")
        seconds = 0.0 if pause is None else float(pause.as_numpy()[0]) / 1000
        for index in range(len(values)):
            if seconds:
                await asyncio.sleep(seconds)
            if sender.is_cancelled():
                break
            out = pb_utils.Tensor("OUT", values[index : index + 1])
            position = pb_utils.Tensor("INDEX", np.array([index], dtype=np.uint32))
            sender.send(pb_utils.InferenceResponse([out, position]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
