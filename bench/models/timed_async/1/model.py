"""Times async_exec(), with making the request and reading the response."""

from __future__ import annotations

import time

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [await self.answer(request) for request in requests]

    async def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        count = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
        x = np.ones(4, dtype=np.float32)
        start = time.perf_counter()
        for _ in range(count):
            call = pb_utils.InferenceRequest(
                model_name="identity", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"]
            )
            response = await call.async_exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            x = pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
        microseconds = (time.perf_counter() - start) / count * 1e6
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([microseconds], dtype=np.float32))])
