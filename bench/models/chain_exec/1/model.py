"""Y = X, by ten blocking calls in a row."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        for _ in range(10):
            call = pb_utils.InferenceRequest(
                model_name="identity", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"]
            )
            response = call.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            x = pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
