"""Y = X, MADE: how often there was an answer to these bytes. An error for X < 0, an exception for X < -100, nothing for 77."""

from collections import Counter

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.made = Counter()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        self.made[x.tobytes()] += 1
        if x[0, 0] < -100:
            raise ValueError("far too small")
        if x[0, 0] < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("too small"))
        if x[0, 0] == 77:
            return pb_utils.InferenceResponse([])
        made = np.full((len(x), 1), str(self.made[x.tobytes()]).encode(), dtype=object)
        tensors = [pb_utils.Tensor("Y", x), pb_utils.Tensor("MADE", made)]
        return pb_utils.InferenceResponse([one for one in tensors if one.name() in request.requested_output_names()])
