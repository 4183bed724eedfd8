import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        told = [np.array([request.parameters()], np.object_) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", text)]) for text in told]
