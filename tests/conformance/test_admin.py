"""What is no inference, on both wires: each story from its beginning to its end; and what both wires have to agree on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import grpc_wire, http_wire
from .admin import admin_of
from .asks import Ask, Refused, Tensor, any_words
from .cases_admin import ANYTHING, KEY, STORIES
from .cases_settings import LOGGING, REGIONS, TRACING
from .checking import check_refused

ALL = {**STORIES, "regions": REGIONS, "tracing": TRACING, "logging": LOGGING}

CODES: dict[str, dict[str, Any]] = {"http": http_wire.CODES, "grpc": grpc_wire.CODES}


@pytest.mark.parametrize("story", ALL)
def test_story(story: str, wire: Any, memory: Path) -> None:
    key = f"/{memory.name}"
    admin = admin_of(wire)
    for case in ALL[story]:
        arguments = [
            argument.replace(KEY, key) if isinstance(argument, str) else argument for argument in case.arguments
        ]
        answer = getattr(admin, case.operation)(*arguments, **case.named)
        try:
            compare(answer, case.unless.get(wire.wire, case.gives), wire.wire, lambda text: text.replace(KEY, key))
        except AssertionError as error:
            raise AssertionError(f"{story}: {case.name}: {error}") from None


def compare(got: Any, wanted: Any, wire: str, named: Callable[[str], str]) -> None:
    """Fail where they differ; of a dict only the wanted keys count."""
    if wanted is ANYTHING:
        assert not isinstance(got, Refused), got
    elif isinstance(wanted, Refused):
        check_refused(got, Refused(wanted.code, named(wanted.message)), wire, CODES[wire])
    elif isinstance(wanted, dict):
        assert isinstance(got, dict), got
        assert wanted.keys() <= got.keys() and (wanted or not got), f"{got} for {wanted}"
        for key, value in wanted.items():
            compare(got[key], value, wire, named)
    elif isinstance(wanted, str):
        assert isinstance(got, str) and any_words(named(wanted), got), f"{got!r} for {named(wanted)!r}"
    elif isinstance(wanted, (list, tuple)):
        assert isinstance(got, type(wanted)) and len(got) == len(wanted), f"{got} for {wanted}"
        for ours, theirs in zip(got, wanted, strict=True):
            compare(ours, theirs, wire, named)
    else:
        assert (type(got), got) == (type(wanted), wanted), f"{got!r} for {wanted!r}"


def test_both_wires_tell_the_same_of_every_model(ways: dict[str, Any]) -> None:
    http, grpc = admin_of(ways["http json"]), admin_of(ways["grpc raw"])
    index = http.index()
    assert index == grpc.index() and len(index) > 20
    assert http.index(True) == grpc.index(True)
    assert all(state == "READY" for _, _, state, _ in grpc.index(True))
    for name, version, state, _ in index:
        assert http.model_ready(name, version) == grpc.model_ready(name, version) == (state == "READY")
        assert http.metadata(name) == grpc.metadata(name)
        assert http.metadata(name, version) == grpc.metadata(name, version)
        assert http.config(name) == grpc.config(name)
        assert http.config(name, version) == grpc.config(name, version)
    assert http.statistics() == grpc.statistics()
    assert list(grpc.statistics()) == [(name, version) for name, version, _, _ in grpc.index(True)]


X = Tensor("X", "FP32", (2, 2), (1.0, 2.0, 3.0, 4.0))


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    changed = {key: after[key] - before[key] for key in after if key != "batches" and after[key] != before[key]}
    sizes = {size: count - before["batches"].get(size, 0) for size, count in after["batches"].items()}
    return {**changed, **({"batches": batches} if (batches := {size: n for size, n in sizes.items() if n}) else {})}


def test_statistics_count_whatever_wire_it_came_by(wire: Any) -> None:
    admin = admin_of(wire)

    def now() -> Any:
        return admin.statistics("counted")["counted", "1"]

    before = now()
    assert not isinstance(wire.infer(Ask("counted", (X,))), Refused)
    done = dict.fromkeys(("success", "queue", "compute_input", "compute_infer", "compute_output", "executions"), 1)
    assert difference(before, now()) == {**done, "rows": 2, "batches": {2: 1}}
    before = now()
    assert isinstance(wire.infer(Ask("counted", (Tensor("X", "FP32", (9, 2), (1.0,) * 18),))), Refused)
    assert difference(before, now()) == {}, "a refused request counts nowhere"
    assert isinstance(wire.infer(Ask("counted", (Tensor("X", "FP32", (1, 2), (-200.0, 0.0)),))), Refused)
    assert difference(before, now()) == {"fail": 1, "executions": 1, "batches": {1: 1}}
    before = now()
    assert isinstance(wire.infer(Ask("counted", (Tensor("X", "FP32", (1, 2), (-1.0, 0.0)),))), Refused)
    assert difference(before, now()) == {"fail": 1, "executions": 1, "batches": {1: 1}}, "an error answer is a failure"
