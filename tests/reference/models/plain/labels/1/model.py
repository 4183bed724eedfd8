"""Answers X as numbers of several kinds."""

import numpy as np

import triton_python_backend_utils as pb_utils

KINDS = {"NAMED": np.float32, "WHOLE": np.int32, "SMALL": np.uint8, "HALF": np.float16, "TRUTH": np.bool_}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            tensors = [pb_utils.Tensor(name, x.astype(kind)) for name, kind in KINDS.items()]
            if x.shape[1] % 2 == 0:
                tensors.append(pb_utils.Tensor("GRID", x.astype(np.float64).reshape(len(x), 2, -1)))
            wanted = request.requested_output_names()
            responses.append(pb_utils.InferenceResponse([each for each in tensors if each.name() in wanted]))
        return responses
