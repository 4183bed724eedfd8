"""Send real handwritten digits to the three pipelines and compare what they read with what was written.

    pip install "tritonclient[http]" && python client.py [--url HOST:PORT]

Runs against any server of this repository, Triton included. Exits with 1 when a pipeline reads less than 80 % of the
digits right, or when the sync pipeline and the ensemble, which are the same two models, disagree.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton

PIPELINES = ("pipeline_sync", "pipeline_async", "pipeline_ensemble")
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLAUSIBLE = 0.8


def read(client: triton.InferenceServerClient, model: str, images: np.ndarray) -> list[str]:
    """Return the label that `model` gives each image; one request a batch, as binary tensors."""
    image = triton.InferInput("IMAGE", list(images.shape), "UINT8")
    image.set_data_from_numpy(images)
    result = client.infer(model, [image], outputs=[triton.InferRequestedOutput("LABEL")])
    return [label.decode() for label in result.as_numpy("LABEL")[:, 0]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="localhost:8000", help="address of the server (default: %(default)s)")
    options = parser.parse_args()

    with np.load(Path(__file__).parent / "digits.npz") as file:
        images, written = file["images"], [LABELS[digit] for digit in file["labels"]]
    answers: dict[str, list[str]] = {}
    with triton.InferenceServerClient(options.url) as client:
        for model in PIPELINES:
            batches = [images[k : k + 8] for k in range(0, len(images), 8)]
            answers[model] = [label for batch in batches for label in read(client, model, batch)]

    print(f"{'written':10}" + "".join(f"{model:20}" for model in PIPELINES))
    for k, label in enumerate(written):
        print(f"{label:10}" + "".join(f"{answers[model][k]:20}" for model in PIPELINES))
    right = {model: sum(map(str.__eq__, answers[model], written)) for model in PIPELINES}
    print(f"{'right':10}" + "".join(f"{f'{right[model]} of {len(written)}':20}" for model in PIPELINES))

    if min(right.values()) < PLAUSIBLE * len(written):
        print(f"implausible: a pipeline reads less than {PLAUSIBLE:.0%} of the digits right", file=sys.stderr)
        return 1
    if answers["pipeline_sync"] != answers["pipeline_ensemble"]:
        print("pipeline_sync and pipeline_ensemble are the same two models, but disagree", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
