"""Tests of my_model. Run: pytest"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel import ServingError
from kernel.testing import LoadModel, assert_close

pytest.importorskip("onnxruntime", reason="pip install 'kernel-serve[onnx]'")

FOLDER = Path(__file__).parent


def test_probabilities(load_model: LoadModel) -> None:
    model = load_model(FOLDER)
    y = model.infer(X=[[1, 0, 0, 0], [0, 0, 0, 9]])["Y"]
    assert_close(y.sum(axis=1), np.ones(2), rtol=1e-5)
    assert y.argmax(axis=1).tolist() == [0, 2]


def test_a_wrong_shape_never_reaches_it(load_model: LoadModel) -> None:
    model = load_model(FOLDER)
    with pytest.raises(ServingError, match="unexpected shape for input 'X'"):
        model.infer(X=[[1, 2, 3]])
