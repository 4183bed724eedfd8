"""Both servers, asked the same, answer the same over HTTP, but for the differences that are listed with their reasons."""

from __future__ import annotations

import os

import pytest

from .cases import EXPLICIT, PLAIN
from .cases_rest import RESTRICTED, SETTINGS, SHARED_MEMORY
from .conftest import Answers
from .differences import DIFFERENCES
from .wire import Answer, Case

pytestmark = pytest.mark.reference

SELF = bool(os.environ.get("KERNEL_REFERENCE_SELF"))


REST = [*SHARED_MEMORY, *SETTINGS]


def names(cases: list[Case]) -> list[str]:
    return [case.name for case in cases]


@pytest.mark.parametrize("name", names(PLAIN))
def test_plain(name: str, plain_answers: Answers) -> None:
    compare(name, *plain_answers[name])


@pytest.mark.parametrize("name", names(EXPLICIT))
def test_explicit(name: str, explicit_answers: Answers) -> None:
    compare(name, *explicit_answers[name])


@pytest.mark.parametrize("name", names(REST))
def test_rest(name: str, rest_answers: Answers) -> None:
    compare(name, *rest_answers[name])


@pytest.mark.parametrize("name", names(RESTRICTED))
def test_restricted(name: str, restricted_answers: Answers) -> None:
    compare(name, *restricted_answers[name])


def compare(name: str, theirs: Answer, ours: Answer) -> None:
    """Fail on a difference that isn't listed, on one that is listed and gone, and on any other than the one listed."""
    assert theirs.status >= 0, f"the reference gave {theirs.phrase}"
    difference = None if SELF else DIFFERENCES.get(name)
    if difference is None:
        assert told(ours) == told(theirs)
    else:
        assert told(ours) != told(theirs), f"listed, but there is no difference any more: {difference.reason}"
        assert told(difference.hide(theirs, ours)) == told(difference.expected(theirs)), difference.reason


def told(answer: Answer) -> list[str]:
    return [f"{answer.version} {answer.status} {answer.phrase}", *answer.headers, *answer.lines]


def test_names_are_unique() -> None:
    every = names([*PLAIN, *EXPLICIT, *REST, *RESTRICTED])
    assert len(every) == len(set(every)), sorted({name for name in every if every.count(name) > 1})


def test_differences_name_cases() -> None:
    assert set(DIFFERENCES) <= set(names([*PLAIN, *EXPLICIT, *REST, *RESTRICTED]))
