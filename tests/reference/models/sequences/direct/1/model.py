import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with what it was told about each request, null requests among them."""

    def execute(self, requests):
        told = []
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy().ravel().tolist() for tensor in request.inputs()}
            if not inputs["READY"][0]:
                inputs["X"] = "whatever"  # the reference does not clear it
            about = {"id": request.request_id(), "correlation": request.correlation_id(), "flags": request.flags()}
            told.append({**inputs, **about})
        text = np.array([[json.dumps(told, sort_keys=True)]], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]) for _ in requests]
