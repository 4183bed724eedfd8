"""Both servers, asked the same, answer the same over HTTP, but for the differences that are listed with their reasons."""

from __future__ import annotations

import pytest

from .cases import EXPLICIT, PLAIN
from .cases_rest import RESTRICTED, SETTINGS, SHARED_MEMORY
from .comparing import compare
from .conftest import Answers
from .differences import DIFFERENCES
from .wire import Case

pytestmark = pytest.mark.reference

REST = [*SHARED_MEMORY, *SETTINGS]


def names(cases: list[Case]) -> list[str]:
    return [case.name for case in cases]


EVERY = names([*PLAIN, *EXPLICIT, *REST, *RESTRICTED])


@pytest.mark.parametrize("name", names(PLAIN))
def test_plain(name: str, plain_answers: Answers) -> None:
    compare(name, plain_answers[name], DIFFERENCES)


@pytest.mark.parametrize("name", names(EXPLICIT))
def test_explicit(name: str, explicit_answers: Answers) -> None:
    compare(name, explicit_answers[name], DIFFERENCES)


@pytest.mark.parametrize("name", names(REST))
def test_rest(name: str, rest_answers: Answers) -> None:
    compare(name, rest_answers[name], DIFFERENCES)


@pytest.mark.parametrize("name", names(RESTRICTED))
def test_restricted(name: str, restricted_answers: Answers) -> None:
    compare(name, restricted_answers[name], DIFFERENCES)


def test_names_are_unique() -> None:
    assert len(EVERY) == len(set(EVERY)), sorted({name for name in EVERY if EVERY.count(name) > 1})


def test_differences_name_cases() -> None:
    assert set(DIFFERENCES) <= set(EVERY)
