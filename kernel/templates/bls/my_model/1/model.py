"""Y = X + what another model makes of X. An `async def execute` serves others while it waits for the answer."""

from __future__ import annotations

import asyncio
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.target: str = parameters["target"]["string_value"]

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer all requests concurrently."""
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        x = pb_utils.get_input_tensor_by_name(request, "X")
        call = pb_utils.InferenceRequest(model_name=self.target, inputs=[x], requested_output_names=["Y"])
        answer = await call.async_exec()
        if answer.has_error():  # the other model's error is an answer too: pass it on
            return pb_utils.InferenceResponse(error=answer.error())
        y = pb_utils.get_output_tensor_by_name(answer, "Y").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy() + y)])
