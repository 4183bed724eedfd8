"""Compares what came of a request with what should have come of it, and says where they differ."""

from __future__ import annotations

from math import isnan
from typing import Any

from .asks import Answered, Refused, Tensor, any_words

__all__ = ["check_answered", "check_refused", "same_tensor"]


def check_refused(outcome: Any, wanted: Refused, wire: str, codes: dict[str, Any]) -> None:
    assert isinstance(outcome, Refused), f"wanted a refusal, got {outcome}"
    assert any_words(wanted.message, outcome.message), f"wanted the words\n{wanted.message!r}, got\n{outcome.message!r}"
    assert outcome.code in (wanted.code, str(codes[wanted.code])), f"{wire}: {outcome} for {wanted.code}"


def check_answered(outcome: Any, gives: tuple[Tensor, ...], *, id: str, model: str, version: str) -> None:
    assert isinstance(outcome, Answered), f"wanted an answer, got {outcome}"
    assert (outcome.model, outcome.version, outcome.id) == (model, version, id)
    assert [each.name for each in outcome.outputs] == [each.name for each in gives]
    for got, wanted in zip(outcome.outputs, gives, strict=True):
        same_tensor(got, wanted)


def same_tensor(got: Tensor, wanted: Tensor) -> None:
    assert (got.datatype, got.shape) == (wanted.datatype, wanted.shape), f"{got} for {wanted}"
    if wanted.part is not None:
        assert got.values is None or got.values == (), f"{got} ought to be in shared memory"
        return
    assert got.values is not None and wanted.values is not None
    assert len(got.values) == len(wanted.values)
    for ours, theirs in zip(got.values, wanted.values, strict=True):
        assert same(ours, theirs), f"output '{got.name}': {got.values} for {wanted.values}"


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, bytes) and isinstance(ours, bytes):
        return any_words(theirs.decode("latin-1"), ours.decode("latin-1"))
    if isinstance(theirs, float) and isnan(theirs):
        return isnan(ours)
    return type(ours) is type(theirs) and ours == theirs
