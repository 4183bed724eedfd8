"""Y = X, after a fixed amount of computing in pure Python."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

STEPS = 100_000


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        responses = []
        for request in requests:
            total = 0
            for step in range(STEPS):
                total += step & 7
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return responses
