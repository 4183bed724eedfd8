"""Multiplies X by the factor of the config."""

from __future__ import annotations

import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Get ready, once for each instance and before its first request. All of `args` is text, the config in JSON."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.factor = np.float32(parameters["factor"]["string_value"])

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Return a response for each request, in their order."""
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()  # rows x values
        if np.isnan(x).any():
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("X has values that are no numbers", pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x * self.factor)])

    def finalize(self) -> None:
        """Give back what `initialize` has taken: files, connections, threads."""
