"""Sends TEXT back word by word. An `async def execute`: many requests take turns in one instance."""

from __future__ import annotations

import asyncio
import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.pause = float(parameters["pause_seconds"]["string_value"])

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Return nothing: the response senders answer."""
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        text: bytes = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0]
        for word in text.decode().split():
            await asyncio.sleep(self.pause)
            if sender.is_cancelled():  # nobody listens any more
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([word], dtype=np.object_))]))
        # Every request has to be ended, also where there was nothing to send.
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
