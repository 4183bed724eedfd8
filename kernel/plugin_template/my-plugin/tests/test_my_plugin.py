"""Tests of the backend `my_plugin`, which has to be installed: pip install -e '.[test]'"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernel import ServingError
from kernel.testing import LoadModel, assert_close

MODELS = Path(__file__).parent / "models"


def test_it_multiplies(load_model: LoadModel) -> None:
    model = load_model(MODELS / "halved")
    assert_close(model.infer(X=[1, 2, 3]), {"Y": [0.5, 1, 1.5]})


def test_a_factor_that_is_none(load_model: LoadModel, tmp_path: Path) -> None:
    folder = shutil.copytree(MODELS / "halved", tmp_path / "halved")
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("0.5", "half"))
    with pytest.raises(ServingError, match=r"is 'half', wanted a number \(.*config.pbtxt:4:"):
        load_model(folder)
