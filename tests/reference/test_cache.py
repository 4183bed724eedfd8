"""Both servers' response caches, asked the same: what is found, what is counted."""

from __future__ import annotations

import pytest

from .cases_cache import CACHE_DIFFERENCES, CACHE_FLAGS, CACHED
from .comparing import compare
from .conftest import MODELS, Answers, Pairs, ask

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def answers(pairs: Pairs) -> Answers:
    return ask(pairs.start("cached", MODELS / "cached", *CACHE_FLAGS), CACHED)


@pytest.mark.parametrize("name", [case.name for case in CACHED])
def test_cache(name: str, answers: Answers) -> None:
    compare(name, answers[name], CACHE_DIFFERENCES)


def test_differences_name_cases() -> None:
    names = [case.name for case in CACHED]
    assert len(set(names)) == len(names)
    assert set(CACHE_DIFFERENCES) <= set(names)
