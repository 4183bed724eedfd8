"""Tests of the ensemble my_model: with its steps, and with a fake in place of one of them. Run: pytest"""

from __future__ import annotations

from pathlib import Path

from kernel.testing import FakeModel, LoadModel, assert_close

FOLDER = Path(__file__).parent


def test_the_whole_pipeline(load_model: LoadModel) -> None:
    model = load_model(FOLDER)  # its steps come along
    assert_close(model.infer(X=[[-1, 0.25, 3]]), {"Y": [[0, 0.5, 1]]})


def test_with_a_fake_step(load_model: LoadModel, fake_model: FakeModel) -> None:
    # A step needs a config, since the ensemble is checked against it.
    step = fake_model(
        "my_model_scale", lambda X: {"SCALED": X + 0.5}, config=FOLDER.parent / "my_model_scale"
    )
    model = load_model(FOLDER)
    assert_close(model.infer(X=[[0, 1]]), {"Y": [[0.5, 1]]})
    assert_close(step.calls[0]["X"], [[0, 1]])
