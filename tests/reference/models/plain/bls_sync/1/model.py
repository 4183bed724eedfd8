"""Calls MODEL with the tensor X; gives Y back, and in TEXT what went wrong."""

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        model = pb_utils.get_input_tensor_by_name(request, "MODEL").as_numpy()[0].decode()
        name, _, output = model.partition(">")
        x = pb_utils.get_input_tensor_by_name(request, "X")
        call = pb_utils.InferenceRequest(
            model_name=name, inputs=[x], requested_output_names=[output] if output else [], request_id="called"
        )
        response = call.exec()
        if response.has_error():
            text = np.array([response.error().message()], dtype=np.object_)
            return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("Y", tensor.as_numpy()) for tensor in response.output_tensors()]
        )
