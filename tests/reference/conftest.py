"""The pairs of servers that the suite compares, and what both answered: each started and asked once a session."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import servers
from .cases import EXPLICIT, PLAIN
from .cases_rest import RESTRICTED, RESTRICTIONS, SETTINGS, SHARED_MEMORY
from .wire import Answer, Case, exchange

Pair = tuple[servers.Server, servers.Server]
Answers = dict[str, tuple[Answer, Answer]]

MODELS = Path(__file__).parent / "models"
SETTLE_LIMIT_S = 20.0
INSTALL = "import runpy, sys; runpy.run_path(sys.argv[1])['install']()"


@pytest.fixture(scope="session")
def reference_installed() -> None:
    """Skip what needs the real Triton where it can't be had."""
    script = servers.reference_script()
    if not script.exists():
        pytest.skip(f"no reference: {script} doesn't exist (set KERNEL_REFERENCE to the script that starts it)")
    result = subprocess.run([sys.executable, "-c", INSTALL, script], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"the reference can't be installed: {(result.stderr.strip() or 'no reason').splitlines()[-1]}")


def start(models: Path, folder: Path, flags: Sequence[str]) -> Iterator[Pair]:
    """Start both servers on one copy of `models`, so that paths in messages are the same, and stop both at the end."""
    repository = folder / "models"
    shutil.copytree(models, repository)
    pair: list[servers.Server] = []
    try:
        pair.append(servers.reference(repository, folder / "reference.log", flags))
        pair.append(servers.ours(repository, folder / "ours.log", flags))
        for server in pair:
            server.wait_live()
        yield pair[0], pair[1]
    finally:
        for server in pair:
            server.stop()


@pytest.fixture(scope="session")
def plain(reference_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers, all of models/plain loaded at start."""
    yield from start(MODELS / "plain", tmp_path_factory.mktemp("plain"), [])


@pytest.fixture(scope="session")
def explicit(reference_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers in explicit mode on models/explicit, only `echo` loaded at start."""
    flags = ["--model-control-mode=explicit", "--load-model=echo"]
    yield from start(MODELS / "explicit", tmp_path_factory.mktemp("explicit"), flags)


@pytest.fixture(scope="session")
def restricted(reference_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers with restricted APIs, on models/explicit with `echo` loaded."""
    flags = ["--model-control-mode=explicit", "--load-model=echo", *RESTRICTIONS]
    yield from start(MODELS / "explicit", tmp_path_factory.mktemp("restricted"), flags)


@pytest.fixture(scope="session")
def plain_answers(plain: Pair) -> Answers:
    return ask(plain, PLAIN)


@pytest.fixture(scope="session")
def rest_answers(plain: Pair) -> Answers:
    return ask(plain, [*SHARED_MEMORY, *SETTINGS])


@pytest.fixture(scope="session")
def restricted_answers(restricted: Pair) -> Answers:
    return ask(restricted, RESTRICTED)


@pytest.fixture(scope="session")
def explicit_answers(explicit: Pair) -> Answers:
    return ask(explicit, EXPLICIT)


def ask(pair: Pair, cases: Sequence[Case]) -> Answers:
    """Send all cases in order to both servers, side by side."""
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda server: [answer(server, case) for case in cases], pair))
    return {case.name: (theirs, ours) for case, theirs, ours in zip(cases, *both, strict=True)}


def answer(server: servers.Server, case: Case) -> Answer:
    time.sleep(case.wait_s)
    try:
        result = exchange(server.port, case, server.memory.key)
        if case.settle:
            settle(server)
    except OSError as error:
        return Answer(-1, f"no answer: {error!r}")
    return result


def settle(server: servers.Server) -> None:
    """Wait until `server` is neither loading nor unloading anything."""
    limit = time.monotonic() + SETTLE_LIMIT_S
    while time.monotonic() < limit:
        lines = exchange(server.port, Case("", "POST", "/v2/repository/index")).lines
        if not any(line.endswith(json.dumps(state)) for line in lines for state in ("LOADING", "UNLOADING")):
            return
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def logs_on_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put the end of both servers' logs into the report of a failed test."""
    yield
    report = getattr(request.node, "reference_report", None)
    if report is None or not report.failed:
        return
    for name in ("plain", "explicit", "restricted"):
        if name in request.fixturenames:
            for server in request.getfixturevalue(name):
                report.sections.append((f"log of {server.name}", server.tail()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.reference_report = report  # type: ignore[attr-defined]
    return report
