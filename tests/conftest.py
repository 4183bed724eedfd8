"""What all tests share: a property test takes as long as it takes, and CI tries the same examples every time."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from comparisons import Count
from hypothesis import HealthCheck, settings

settings.register_profile(
    "kernel", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kernel")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # it would be a worker of pytest-xdist
        config.pluginmanager.register(Count(), "comparisons")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from shares import longest_first

        longest_first(items)


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist isn't installed nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from shares import ByFile

    return ByFile(config, log)


#: Loggers whose levels commands set for their process.
LEVELS = {log: log.level for log in (logging.getLogger(), logging.getLogger("kernel"))}


@pytest.fixture(autouse=True)
def _levels_of_the_log_stay() -> Iterator[None]:
    """Commands that are run within a test, or a fixture of a file, set them for their process, which goes on to other tests."""
    yield
    for log, level in LEVELS.items():
        log.setLevel(level)
