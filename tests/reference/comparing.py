"""Two answers to one request, and whether they may differ. Holds both ways: none is unlisted, and none is listed that is gone."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

import pytest

from .differences import Difference
from .wire import NO_ANSWER, Answer

__all__ = ["compare"]

#: With the reference standing in for ours the suite tests itself: then nothing may differ.
SELF = bool(os.environ.get("KERNEL_REFERENCE_SELF"))


def compare(name: str, answers: tuple[Answer, Answer], differences: Mapping[str, Difference]) -> None:
    """Fail on a difference that isn't listed, on one that is listed and gone, and on any other than the one listed.

    Where the reference has never answered there is nothing to compare: the test is skipped, and counted as such (comparisons.py).
    """
    theirs, ours = answers
    if theirs.status == NO_ANSWER:
        pytest.skip(f"the reference gave {theirs.phrase or 'no answer'}, however often it was asked")
    difference = None if SELF else differences.get(name)
    if difference is None:
        assert told(ours) == told(theirs), changes(theirs, ours)
    else:
        assert told(ours) != told(theirs), f"listed, but there is no difference any more: {difference.reason}"
        wanted, got = difference.expected(theirs), difference.hide(theirs, ours)
        assert told(got) == told(wanted), f"{difference.reason}\n{changes(wanted, got)}"


def changes(wanted: Answer, got: Answer) -> str:
    """Tell the lines that came otherwise, those around them too."""
    return "\n".join(difflib.unified_diff(told(wanted), told(got), "wanted", "ours", lineterm=""))


def told(answer: Answer) -> list[str]:
    return [f"{answer.version} {answer.status} {answer.phrase}", *answer.headers, *answer.lines]
