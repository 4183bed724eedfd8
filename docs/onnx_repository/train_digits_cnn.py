"""Make `digits_cnn/1/model.onnx`: a small convolutional network that reads handwritten digits, as one ONNX file.

    pip install scikit-learn onnx onnxruntime && python docs/onnx_repository/train_digits_cnn.py

Uses the images of `../../repository/train_digits.py`, with the same division into those it trains on and the rest. The
convolutions are drawn at random and stay as they are; only the last layer is learnt, from what they make of the training
images. That is enough for digits, and it takes no training loop.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "repository"))
import train_digits  # noqa: E402

MODEL = HERE / "digits_cnn" / "1" / "model.onnx"
SIDE = 32

#: The convolutions, 3 x 3 each: how many channels they make, and whether the image is halved afterwards.
CONVOLUTIONS = ((16, False), (16, True), (32, False), (32, True), (64, True))


def layers(random: np.random.Generator) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Return the network up to its last layer: images as they are in files (n, 32, 32, 3) -> `features` (n, 1024)."""
    paper, ink = train_digits.PAPER, train_digits.INK
    weights = {
        "mean": ((paper + ink) / 2).astype(np.float32).reshape(1, 3, 1, 1),
        "spread": (np.abs(paper - ink) / 2).astype(np.float32).reshape(1, 3, 1, 1),
    }
    nodes = [
        helper.make_node("Cast", ["IMAGE"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Sub", ["planes", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "spread"], ["at0"]),
    ]
    channels, at = 3, "at0"
    for k, (more, halved) in enumerate(CONVOLUTIONS, 1):
        filters = random.normal(0, np.sqrt(2 / (9 * channels)), (more, channels, 3, 3))
        weights[f"filters{k}"] = filters.astype(np.float32)
        nodes.append(helper.make_node("Conv", [at, f"filters{k}"], [f"conv{k}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"conv{k}"], [f"relu{k}"]))
        channels, at = more, f"relu{k}"
        if halved:
            nodes.append(helper.make_node("MaxPool", [at], [f"at{k}"], kernel_shape=[2, 2], strides=[2, 2]))
            at = f"at{k}"
    nodes.append(helper.make_node("Flatten", [at], ["features"]))
    return nodes, weights


def last_layer(
    classifier: LogisticRegression, labels: list[str]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the learnt layer and the choice of a label: `features` -> SCORES (n, 10) and LABEL (n, 1)."""
    weights = [
        numpy_helper.from_array(classifier.coef_.astype(np.float32), "learnt"),
        numpy_helper.from_array(classifier.intercept_.astype(np.float32), "bias"),
        helper.make_tensor("labels", TensorProto.STRING, [len(labels)], [label.encode() for label in labels]),
    ]
    nodes = [
        helper.make_node("Gemm", ["features", "learnt", "bias"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["SCORES"]),
        helper.make_node("ArgMax", ["logits"], ["best"], axis=1),
        helper.make_node("Gather", ["labels", "best"], ["LABEL"]),
    ]
    return nodes, weights


def model(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], outputs: dict[str, tuple[int, list[int | str]]]
) -> onnx.ModelProto:
    """Return an ONNX model of the images."""
    graph = helper.make_graph(
        nodes,
        "digits_cnn",
        [helper.make_tensor_value_info("IMAGE", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])],
        [helper.make_tensor_value_info(name, *declared) for name, declared in outputs.items()],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    digits = load_digits()
    train, rest, train_labels, rest_labels = train_test_split(
        train_digits.draw(digits.images), digits.target,
        test_size=0.2, random_state=train_digits.SEED, stratify=digits.target,
    )  # fmt: skip
    nodes, arrays = layers(np.random.default_rng(train_digits.SEED))
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]

    head = model(nodes, weights, {"features": (TensorProto.FLOAT, ["batch", 1024])})
    session = onnxruntime.InferenceSession(head.SerializeToString(), providers=["CPUExecutionProvider"])
    (features,) = session.run(None, {"IMAGE": train})
    classifier = LogisticRegression(C=0.1, max_iter=2000).fit(features, train_labels)

    labels = (MODEL.parents[1] / "labels.txt").read_text().split()
    more_nodes, more_weights = last_layer(classifier, labels)
    outputs = {"SCORES": (TensorProto.FLOAT, ["batch", 10]), "LABEL": (TensorProto.STRING, ["batch", 1])}
    whole = model([*nodes, *more_nodes], [*weights, *more_weights], outputs)
    onnx.checker.check_model(whole)
    MODEL.write_bytes(whole.SerializeToString())

    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    scores, read = session.run(None, {"IMAGE": rest})
    right = np.mean(scores.argmax(axis=1) == rest_labels)
    assert [labels.index(label) for label in read[:, 0]] == scores.argmax(axis=1).tolist()
    print(f"digits_cnn: {right:.1%} of the {len(rest)} images it has not seen; {MODEL.stat().st_size} bytes")


if __name__ == "__main__":
    main()
