"""Tests of my_model, loaded in process as it would be served. Run: pytest"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel import ServingError
from kernel.testing import LoadModel, assert_close

FOLDER = Path(__file__).parent


def test_it_multiplies(load_model: LoadModel) -> None:
    model = load_model(FOLDER)
    response = model.infer(X=[[1, 2, 3]])  # lists become what the config declares
    assert_close(response, {"Y": [[2, 4, 6]]})


def test_requests_that_wait_together_are_one_batch(load_model: LoadModel) -> None:
    model = load_model(FOLDER)
    calls = [model.submit(X=[[k]]) for k in range(4)]
    assert [call.result()["Y"].tolist() for call in calls] == [[[0]], [[2]], [[4]], [[6]]]
    assert model.statistics.execution_count == 1


def test_its_own_error(load_model: LoadModel) -> None:
    model = load_model(FOLDER)
    with pytest.raises(ServingError, match="no numbers"):
        model.infer(X=[[1, np.nan]])


def test_a_wrong_datatype_never_reaches_it(load_model: LoadModel) -> None:
    model = load_model(FOLDER)
    with pytest.raises(ServingError, match="data-type is 'INT64'"):
        model.infer(X=np.array([[1]], np.int64))  # arrays are sent as they are
