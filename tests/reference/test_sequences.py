"""Both servers, asked the same about sequences, answer the same, but for the differences that are listed with their reasons."""

from __future__ import annotations

import pytest

from .cases_sequences import SEQUENCES
from .comparing import compare
from .conftest import Answers
from .differences_sequences import DIFFERENCES

pytestmark = pytest.mark.reference

NAMES = [case.name for case in SEQUENCES]


@pytest.mark.parametrize("name", NAMES)
def test_sequences(name: str, sequence_answers: Answers) -> None:
    compare(name, sequence_answers[name], DIFFERENCES)


def test_names_are_unique_and_differences_name_cases() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert set(DIFFERENCES) <= set(NAMES)
