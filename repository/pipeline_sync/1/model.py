"""Calls `preprocess`, then `digits_classifier`, with blocking BLS calls; passes on whatever error they answer."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE")
        prepared = pb_utils.InferenceRequest(
            model_name="preprocess",
            request_id=request.request_id(),
            inputs=[image],
            requested_output_names=["PIXELS"],
        ).exec()
        if prepared.has_error():
            return pb_utils.InferenceResponse(error=prepared.error())
        pixels = pb_utils.get_output_tensor_by_name(prepared, "PIXELS")
        classified = pb_utils.InferenceRequest(
            model_name="digits_classifier",
            request_id=request.request_id(),
            inputs=[pixels],
            requested_output_names=["SCORES", "LABEL"],
        ).exec()
        if classified.has_error():
            return pb_utils.InferenceResponse(error=classified.error())
        return pb_utils.InferenceResponse(classified.output_tensors())
