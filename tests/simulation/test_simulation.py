"""A few hundred simulated lives of a server; `python bench/simulate.py` lives as many as there is time for."""

from __future__ import annotations

import pytest
from simulation.world import simulate

SEEDS = 150
SHARE = 25


@pytest.mark.parametrize("start", range(0, SEEDS, SHARE))
def test_no_law_is_broken(start: int) -> None:
    for seed in range(start, start + SHARE):
        violations = simulate(seed).violations
        assert not violations, f"seed {seed} (python bench/simulate.py --start {seed} --seeds 1): {violations}"


def test_a_seed_is_the_same_each_time() -> None:
    first, second = simulate(7), simulate(7)
    assert first == second and first.requests > 0
