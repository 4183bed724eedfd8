"""REQUEST is what an InferenceRequest tells beside its tensors, ARGS the arguments of initialize; both as JSON."""

import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        told = {
            "request_id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": request.parameters(),
            "requested_output_names": sorted(request.requested_output_names()),
            "inputs": [[tensor.name(), tensor.shape()] for tensor in request.inputs()],
            "is_cancelled": request.is_cancelled(),
        }
        texts = {"REQUEST": json.dumps(told), "ARGS": json.dumps(self.args, sort_keys=True)}
        tensors = [pb_utils.Tensor(name, np.array([[text]], dtype=np.object_)) for name, text in texts.items()]
        return pb_utils.InferenceResponse(tensors)
