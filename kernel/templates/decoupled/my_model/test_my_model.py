"""Tests of my_model, on virtual time: what it sleeps takes no time, and is exact. Run: pytest"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.testing import LoadModel, VirtualTime, assert_close

FOLDER = Path(__file__).parent


def test_word_by_word(load_model: LoadModel, virtual_time: VirtualTime) -> None:
    model = load_model(FOLDER)
    began = virtual_time.now
    responses = list(model.stream(TEXT=["one two three"]))
    for response, word in zip(responses, ("one", "two", "three"), strict=True):
        assert_close(response["WORD"], [word])
    assert virtual_time.now - began == pytest.approx(0.3)


def test_nothing_to_say(load_model: LoadModel, virtual_time: VirtualTime) -> None:
    model = load_model(FOLDER)
    assert list(model.stream(TEXT=[""])) == []


def test_it_stops_when_nobody_listens(load_model: LoadModel, virtual_time: VirtualTime) -> None:
    model = load_model(FOLDER)
    call = model.submit(TEXT=["word " * 1000])
    virtual_time.advance(0.55)
    call.cancel()
    virtual_time.advance(10)
    assert len([response for response in call.responses if response.outputs]) == 5
