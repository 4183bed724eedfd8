"""Tests of my_model: alone, with a fake in place of the model that it calls, and with the real one. Run: pytest"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel import Code, ServingError
from kernel.testing import FakeModel, LoadModel, assert_close

FOLDER = Path(__file__).parent
TARGET = FOLDER.parent / "my_model_double"


def test_what_it_does_with_the_answer(load_model: LoadModel, fake_model: FakeModel) -> None:
    target = fake_model("my_model_double", lambda X: {"Y": X * 10}, config=TARGET)  # held to the real one's config
    model = load_model(FOLDER)
    assert_close(model.infer(X=[1, 2]), {"Y": [11, 22]})
    assert_close(target.calls[0]["X"], [1, 2])


def test_an_error_is_passed_on(load_model: LoadModel, fake_model: FakeModel) -> None:
    fake_model("my_model_double", ServingError(Code.UNAVAILABLE, "gone for lunch"))
    model = load_model(FOLDER)
    with pytest.raises(ServingError, match="gone for lunch"):
        model.infer(X=[1])


def test_with_the_real_one(load_model: LoadModel) -> None:
    load_model(TARGET)
    model = load_model(FOLDER)
    assert_close(model.infer(X=[1, 2]), {"Y": [3, 6]})
