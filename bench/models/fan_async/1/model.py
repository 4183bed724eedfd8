"""Y = X, by sixteen concurrent calls."""

from __future__ import annotations

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [await self.answer(request) for request in requests]

    async def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        x = pb_utils.get_input_tensor_by_name(request, "X")
        calls = [
            pb_utils.InferenceRequest(model_name="identity", inputs=[x], requested_output_names=["Y"])
            for _ in range(16)
        ]
        responses = await asyncio.gather(*(call.async_exec() for call in calls))
        for response in responses:
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        y = pb_utils.get_output_tensor_by_name(responses[-1], "Y").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])
