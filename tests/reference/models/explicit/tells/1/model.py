"""TOLD is the request's parameters, in order."""

import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = json.dumps(json.loads(request.parameters()), sort_keys=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([text], dtype=np.object_))])
