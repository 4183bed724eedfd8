"""Each fuzz target with its corpus, and with a few hundred inputs more that are the same each time; `make fuzz` has more time."""

from __future__ import annotations

import logging
from random import Random

import pytest
from fuzz.run import failure, kept, mutated
from fuzz.targets import TARGETS

INPUTS = 100


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_law(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    target, rng = TARGETS[name], Random(name)
    pool = [*target.seeds, *kept(name)]
    for data in (*pool, *(mutated(rng, target, pool) for _ in range(INPUTS))):
        problem = failure(target, data)
        assert not problem, f"{data!r}: {problem}"
