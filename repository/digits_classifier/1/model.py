"""Classifies a batch of normalised images with a small perceptron: 64 grey values, one hidden layer, ten digits.

train_digits.py made `weights.npz` from scikit-learn's digits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights from the version's folder and the labels from the model's."""
        folder = Path(args["model_repository"])
        with np.load(folder / args["model_version"] / "weights.npz") as weights:
            self.hidden, self.hidden_bias = weights["hidden"], weights["hidden_bias"]
            self.output, self.output_bias = weights["output"], weights["output_bias"]
        self.labels = np.array((folder / "labels.txt").read_text().split(), dtype=np.object_)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Compute all requests of the batch at once and give each its own rows."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "PIXELS").as_numpy() for request in requests]
        scores = self.classify(np.concatenate(inputs))
        responses, start = [], 0
        for pixels in inputs:
            rows = scores[start : start + len(pixels)]
            start += len(pixels)
            labels = self.labels[rows.argmax(axis=1)].reshape(-1, 1)
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", rows), pb_utils.Tensor("LABEL", labels)])
            )
        return responses

    def classify(self, pixels: np.ndarray) -> np.ndarray:
        """Return the probability of each digit: (n, 8, 8, 3) -> (n, 10). The ink's colour doesn't matter."""
        grey = pixels.mean(axis=3).reshape(len(pixels), -1)
        hidden = np.maximum(grey @ self.hidden + self.hidden_bias, 0)
        logits = hidden @ self.output + self.output_bias
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponents / exponents.sum(axis=1, keepdims=True)
