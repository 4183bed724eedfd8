"""The servers that several tests share: the sample repository, served by the command and embedded in an app."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .serving import REPOSITORY, embedded, serving


@pytest.fixture(scope="session", params=["command", "asyncio", "uvloop"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server of repository/: `python -m kernel serve`, or an app of either loop."""
    if request.param == "command":
        with serving(tmp_path_factory.mktemp("command"), REPOSITORY) as server:
            yield server.url
    else:
        with embedded(request.param) as address:
            yield address
