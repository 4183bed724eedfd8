"""Shrinks an image to 8 x 8 by averaging blocks of pixels, and normalises each colour channel."""

from __future__ import annotations

import json

import numpy as np

import triton_python_backend_utils as pb_utils

SIDE = 8


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Read mean and std of each channel from the model's parameters in config.pbtxt."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.mean, self.std = (
            np.array([float(value) for value in parameters[key]["string_value"].split(",")], dtype=np.float32)
            for key in ("mean", "std")
        )

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer each request on its own: one bad image doesn't fail the others of its batch."""
        return [self.answer(request) for request in requests]

    def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        images = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        count, height, width, channels = images.shape
        if height % SIDE or width % SIDE:
            message = f"IMAGE is {height} x {width} pixels; both have to be multiples of {SIDE}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
        blocks = images.reshape(count, SIDE, height // SIDE, SIDE, width // SIDE, channels)
        pixels = (blocks.mean(axis=(2, 4), dtype=np.float32) - self.mean) / self.std
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)])
