"""Gathering inputs and scattering outputs."""

from __future__ import annotations

import numpy as np
import pytest

from kernel.errors import Code, ServingError
from kernel.requests.request import Batch, InferenceRequest
from kernel.tensor import Tensor


def batch(*rows: int) -> Batch:
    requests = []
    for index, count in enumerate(rows):
        tensor = Tensor("X", "FP32", np.full((count, 2), index, np.float32))
        request = InferenceRequest("m", {"X": tensor}, lambda response, final: None, id=str(index))
        request.batch_size = count
        requests.append(request)
    return Batch(requests, sum(rows))


def test_gather_concatenates_in_order() -> None:
    gathered = batch(1, 3, 2).gather("X")
    assert gathered.shape == (6, 2)
    assert gathered[:, 0].tolist() == [0, 1, 1, 1, 2, 2]


def test_one_request_is_not_copied() -> None:
    one = batch(4)
    assert one.gather("X") is one.requests[0].inputs["X"].array


def test_scatter_gives_views_of_each_requests_rows() -> None:
    array = np.arange(6, dtype=np.float32)
    parts = batch(1, 3, 2).scatter("Y", "FP32", array)
    assert [part.array.tolist() for part in parts] == [[0], [1, 2, 3], [4, 5]]
    assert all(np.shares_memory(part.array, array) for part in parts)


def test_scatter_refuses_rows_that_are_not_the_batchs() -> None:
    with pytest.raises(ServingError, match="output 'Y' of model 'm' has 5 rows for a batch of 6"):
        batch(1, 3, 2).scatter("Y", "FP32", np.zeros(5, np.float32))


def test_gather_of_an_unknown_input_names_what_there_is() -> None:
    with pytest.raises(ServingError, match=r"no input 'Z' for model 'm' to gather; it has \['X'\]") as caught:
        batch(1, 1).gather("Z")
    assert caught.value.code is Code.INVALID_ARG
