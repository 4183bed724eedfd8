"""Calls `preprocess`, then two classifiers together; for each image the answer of the surer one counts."""

from __future__ import annotations

import asyncio

import numpy as np

import triton_python_backend_utils as pb_utils

CLASSIFIERS = ("digits_classifier", "digits_linear")


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer all requests concurrently."""
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE")
        prepared = await pb_utils.InferenceRequest(
            model_name="preprocess",
            request_id=request.request_id(),
            inputs=[image],
            requested_output_names=["PIXELS"],
        ).async_exec()
        if prepared.has_error():
            return pb_utils.InferenceResponse(error=prepared.error())
        pixels = pb_utils.get_output_tensor_by_name(prepared, "PIXELS")
        opinions = await asyncio.gather(
            *(
                pb_utils.InferenceRequest(
                    model_name=name,
                    request_id=request.request_id(),
                    inputs=[pixels],
                    requested_output_names=["SCORES", "LABEL"],
                ).async_exec()
                for name in CLASSIFIERS
            )
        )
        for opinion in opinions:
            if opinion.has_error():
                return pb_utils.InferenceResponse(error=opinion.error())
        return self.verdict(opinions)

    def verdict(self, opinions: list[pb_utils.InferenceResponse]) -> pb_utils.InferenceResponse:
        """Choose row by row between the classifiers' answers, and say where they agreed."""
        scores, labels = (
            np.stack([pb_utils.get_output_tensor_by_name(opinion, name).as_numpy() for opinion in opinions])
            for name in ("SCORES", "LABEL")
        )
        surer = scores.max(axis=2).argmax(axis=0)
        rows = np.arange(len(surer))
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SCORES", scores[surer, rows]),
                pb_utils.Tensor("LABEL", labels[surer, rows]),
                pb_utils.Tensor("AGREED", (labels == labels[0]).all(axis=0)),
            ]
        )
