"""Calls `echo` twice, first with its own trace."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        asked = {"model_name": "echo", "requested_output_names": ["Y"], "inputs": [x]}
        response = pb_utils.InferenceRequest(**asked, request_id="traced", trace=request.trace()).exec()
        pb_utils.InferenceRequest(**asked, request_id="not traced").exec()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", response.output_tensors()[0].as_numpy())])
