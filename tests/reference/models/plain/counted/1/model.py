"""Y = X; an error for X < 0, an exception for X < -100."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        if x[0, 0] < -100:
            raise ValueError("far too small")
        if x[0, 0] < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("too small"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])
