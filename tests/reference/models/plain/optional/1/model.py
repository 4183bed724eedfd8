"""SUM of whatever came; B counts 100 when it is absent."""

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        a, b, c = (pb_utils.get_input_tensor_by_name(request, name) for name in "ABC")
        total = a.as_numpy() + (np.int32(100) if b is None else b.as_numpy())
        if c is not None:
            total = total + c.as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total.astype(np.int32))])
