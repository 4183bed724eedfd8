"""bench/simulate_cluster.py in small: the same seed gives the same, every request is answered, and the page has the rows."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate_cluster", ROOT / "bench/simulate_cluster.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_same_seed_gives_the_same_and_all_is_answered(cluster: ModuleType) -> None:
    small = cluster.Scenario("small", 2e4, 3, 2, 0.05)
    one = cluster.simulate(small)
    assert one == cluster.simulate(small) != cluster.simulate(replace(small, seed=2))
    assert one.sent == one.answered > 900 and one.failed == 0
    # Twice through the network, through a balancer and through a server: nobody is faster, few wait for long.
    least = 2 * cluster.WAY + cluster.SERVER + cluster.BALANCER
    assert least < one.p50 < 1.6 * least and one.p99 < 4 * least
    assert 0.15 < one.mean < 0.25 and one.busiest < 0.3


def test_two_choices_are_better_than_chance_and_reports_help_where_one_is_slow(cluster: ModuleType) -> None:
    work = cluster.Scenario("batches", 2e4, 4, 2, 0.25, "batch", slow=1)
    chosen, blind, drawn = (cluster.simulate(replace(work, rule=rule)) for rule in ("choose", "blind", "random"))
    assert all(one.sent == one.answered and not one.failed for one in (chosen, blind, drawn))
    assert chosen.p99 < drawn.p99 and blind.p99 < drawn.p99
    assert chosen.busiest < drawn.busiest


def test_the_page_has_the_rows_that_there_are(cluster: ModuleType) -> None:
    page = (ROOT / "docs/scale.md").read_text()
    assert cluster.HEAD in page
    for scenario in cluster.SCENARIOS:
        assert f"| {scenario.name} | {scenario.rate:.0f} | {scenario.servers} | {scenario.balancers} |" in page, scenario.name
