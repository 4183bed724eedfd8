"""Both servers, asked the same, answer the same over gRPC, but for the differences that are listed with their reasons."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .cases_grpc import CONTROL, RESTRICTED
from .comparing import compare
from .conftest import GRPC_PLAIN, Answers
from .differences_grpc import DIFFERENCES
from .wire_grpc import Call

pytestmark = pytest.mark.reference


def names(cases: Sequence[Call]) -> list[str]:
    return [case.name for case in cases]


EVERY = names([*GRPC_PLAIN, *CONTROL, *RESTRICTED])


@pytest.mark.parametrize("name", names(GRPC_PLAIN))
def test_plain(name: str, grpc_answers: Answers) -> None:
    compare(name, grpc_answers[name], DIFFERENCES)


@pytest.mark.parametrize("name", names(CONTROL))
def test_explicit(name: str, grpc_explicit_answers: Answers) -> None:
    compare(name, grpc_explicit_answers[name], DIFFERENCES)


@pytest.mark.parametrize("name", names(RESTRICTED))
def test_restricted(name: str, grpc_restricted_answers: Answers) -> None:
    compare(name, grpc_restricted_answers[name], DIFFERENCES)


def test_names_are_unique() -> None:
    assert len(EVERY) == len(set(EVERY)), sorted({name for name in EVERY if EVERY.count(name) > 1})


def test_differences_name_cases() -> None:
    assert set(DIFFERENCES) <= set(EVERY)
