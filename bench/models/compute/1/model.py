"""Y = X, after 200 ms of computing in pure Python, which holds the interpreter lock."""

from __future__ import annotations

import time

import triton_python_backend_utils as pb_utils

SECONDS = 0.2


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            sum(range(100))
        inputs = [pb_utils.get_input_tensor_by_name(request, "X") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())]) for x in inputs]
