"""What the core's tests share: the two ways that an execution on the loop can go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from virtual import TestExecutor

import kernel.models.model


@pytest.fixture(scope="module", params=["alone", "checked"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a module's tests twice: executions on the loop without a greenlet and without a look at the answers, and with both.

    What clients, statistics and models see must be the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "alone":
            patch.setattr(TestExecutor, "may_wait", False)
            patch.setattr(kernel.models.model, "OutputCheck", lambda *_, **__: None)  # which looks at a model's first answers
        yield
