"""Answers with an error."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], pb_utils.TritonError("as asked")) for _ in requests]
