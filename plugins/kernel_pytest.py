"""The pytest plugin of kernel.testing: fixtures that load models in process. Costs nothing where no test asks for one of them.

Only names and settings; what they do is in `kernel.testing`, which is imported by the first test that needs it. There are no
assertions in here: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kernel.testing import Kit, VirtualTime


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("kernel_strict_outputs", "outputs that differ from a model's config are errors", "bool", True)
    parser.addini("kernel_check_leaks", "threads, tasks and modules that a model leaves behind fail its test", "bool", True)
    parser.addini("kernel_limit", "real seconds that a test waits for an answer", "string", "30")


@pytest.fixture
def kernel_kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """The kernel.testing.Kit of the test, which the other fixtures belong to."""
    from kernel.testing.fixtures import kit_for

    yield from kit_for(request)


@pytest.fixture
def load_model(kernel_kit: Kit) -> Any:
    """Load a model folder: `model = load_model("repository/add_sub")`; in async tests it is awaited."""
    return kernel_kit.load_model


@pytest.fixture
def load_repository(kernel_kit: Kit) -> Any:
    """Load all models of a repository: `models = load_repository("repository")`; in async tests it is awaited."""
    return kernel_kit.load_repository


@pytest.fixture
def fake_model(kernel_kit: Kit) -> Any:
    """Let a function stand in for a model that others call: `fake_model("other", lambda X: {"Y": 2 * X})`."""
    return kernel_kit.fake_model


@pytest.fixture
def virtual_time(kernel_kit: Kit) -> VirtualTime:
    """Put the test on virtual time, which passes only while nothing is at work: `virtual_time.advance(3600)`."""
    from kernel.testing import VirtualTime

    return VirtualTime(kernel_kit)
