"""N responses to one request: Y = 0, 1, … N - 1."""

from __future__ import annotations

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            sender = request.get_response_sender()
            for k in range(count):
                response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([k], np.int32))])
                last = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if k == count - 1 else 0
                sender.send(response, flags=last)
