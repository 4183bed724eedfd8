"""Make everything in this repository that was learnt or drawn: weights, mean and std, and the sample images.

    pip install scikit-learn && python train_digits.py

Reads scikit-learn's digits (1797 handwritten digits of 8 x 8 grey values from 0 to 16; the UCI set "Optical Recognition
of Handwritten Digits"). Draws each as an image of 32 x 32 pixels, blue ink on cream paper. Trains on 80 % of them and
saves 20 of the rest, chosen at random before anything is known about how they do, as `digits.npz` for client.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).parent
PAPER = np.array([250, 244, 226])
INK = np.array([24, 42, 112])
SCALE = 4
SEED = 20


def draw(digits: np.ndarray) -> np.ndarray:
    """Return images (n, 32, 32, 3), UINT8, of digits (n, 8, 8) with values from 0 to 16."""
    ink = digits[..., None] / 16
    pixels = np.rint(PAPER + (INK - PAPER) * ink).astype(np.uint8)
    return pixels.repeat(SCALE, axis=1).repeat(SCALE, axis=2)


def shrink(images: np.ndarray) -> np.ndarray:
    """Return (n, 8, 8, 3), the mean of each block of pixels, as the model `preprocess` does."""
    count, height, width, channels = images.shape
    blocks = images.reshape(count, height // SCALE, SCALE, width // SCALE, SCALE, channels)
    return blocks.mean(axis=(2, 4), dtype=np.float32)


def main() -> None:
    digits = load_digits()
    images, labels = draw(digits.images), digits.target
    train, rest, train_labels, rest_labels = train_test_split(
        images, labels, test_size=0.2, random_state=SEED, stratify=labels
    )
    chosen = np.random.default_rng(SEED).choice(len(rest), 20, replace=False)
    np.savez_compressed(HERE / "digits.npz", images=rest[chosen], labels=rest_labels[chosen].astype(np.uint8))

    pixels = shrink(train)
    mean = pixels.mean(axis=(0, 1, 2)).round(2)
    std = pixels.std(axis=(0, 1, 2)).round(2)
    print("preprocess/config.pbtxt: mean", ",".join(map(str, mean)), " std", ",".join(map(str, std)))

    def features(images: np.ndarray) -> np.ndarray:
        return ((shrink(images) - mean) / std).mean(axis=3).reshape(len(images), -1)

    perceptron = MLPClassifier((32,), alpha=0.05, max_iter=1000, random_state=SEED).fit(features(train), train_labels)
    linear = LogisticRegression(C=0.05, max_iter=1000).fit(features(train), train_labels)
    for name, model in (("digits_classifier", perceptron), ("digits_linear", linear)):
        print(f"{name}: {model.score(features(rest), rest_labels):.1%} of the {len(rest)} images it has not seen")

    weights = [array.astype(np.float32) for array in (*perceptron.coefs_, *perceptron.intercepts_)]
    names = ("hidden", "output", "hidden_bias", "output_bias")
    np.savez_compressed(HERE / "digits_classifier/1/weights.npz", **dict(zip(names, weights, strict=True)))
    np.savez_compressed(
        HERE / "digits_linear/1/weights.npz",
        output=linear.coef_.T.astype(np.float32),
        output_bias=linear.intercept_.astype(np.float32),
    )


if __name__ == "__main__":
    main()
