"""The pairs of servers that the suite compares, and what both answered: each started and asked once a session."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import comparisons
import pytest

from . import cases_grpc, servers, triton, wire_grpc
from .cases import EXPLICIT, PLAIN
from .cases_grpc_infer import INFERENCE
from .cases_grpc_rest import SETTINGS as GRPC_SETTINGS
from .cases_grpc_rest import SHARED_MEMORY as GRPC_SHARED_MEMORY
from .cases_grpc_stream import CANCELLATION, STREAMS
from .cases_rest import RESTRICTED, RESTRICTIONS, SETTINGS, SHARED_MEMORY
from .cases_sequences import SEQUENCES
from .wire import NO_ANSWER, Answer, Case, exchange

#: Of models/explicit, what is loaded at start.
CHOSEN = ("--model-control-mode=explicit", "--load-model=echo")

#: Of models/metrics, what is loaded at start, and what is to be seen of it.
LOADED = ("echo", "batches", "fails", "tells", "many", "chain", "chain_failing", "kept", "customs")
MEASURED = (
    "--model-control-mode=explicit",
    *(f"--load-model={name}" for name in LOADED),
    "--cache-config=local,size=1048576",
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001",
    "--metrics-config=histogram_latencies=true",
)

Pair = tuple[servers.Server, servers.Server]
Answers = dict[str, tuple[Answer, Answer]]
Told = TypeVar("Told")

MODELS = Path(__file__).parent / "models"
SETTLE_LIMIT_S = 20.0

#: What comes from a server that dies, and from one that means it: closed without an answer, UNAVAILABLE.
CUT_OFF = (("HTTP/1.1", 0), ("gRPC", 14))
LAST_BREATH_S = 0.1
#: All that is asked over gRPC of the servers that loaded models/plain.
GRPC_PLAIN = [
    *cases_grpc.ADMIN,
    *INFERENCE,
    *STREAMS,
    *CANCELLATION,
    *GRPC_SHARED_MEMORY,
    *GRPC_SETTINGS,
    *cases_grpc.STATISTICS,
]


@pytest.fixture(scope="session")
def reference_installed() -> None:
    """Skip what needs the real Triton where it can't be had."""
    try:
        triton.install()
    except triton.Unavailable as reason:
        pytest.skip(f"{comparisons.MISSING}{reason}")


class Pairs:
    """Starts pairs of servers and ends them all together: the reference takes its time."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._running: list[servers.Server] = []

    def start(self, name: str, models: Path, *flags: str) -> Pair:
        """Start both servers on one copy of `models`, so that paths in messages are the same."""
        folder = self._folders.mktemp(name)
        repository = folder / "models"
        shutil.copytree(models, repository)
        pair = (
            servers.reference(repository, folder / "reference.log", flags),
            servers.ours(repository, folder / "ours.log", flags),
        )
        self._running += pair
        for server in pair:
            server.wait_live()
        return pair

    def stop(self) -> None:
        for server in self._running:
            server.end()
        for server in self._running:
            server.stop()


@pytest.fixture(scope="session")
def pairs(reference_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    pairs = Pairs(tmp_path_factory)
    yield pairs
    pairs.stop()


@pytest.fixture(scope="session")
def plain(pairs: Pairs) -> Pair:
    """Both servers, all of models/plain loaded at start."""
    return pairs.start("plain", MODELS / "plain")


@pytest.fixture(scope="session")
def explicit(pairs: Pairs) -> Pair:
    """Both servers in explicit mode on models/explicit, only `echo` loaded at start."""
    return pairs.start("explicit", MODELS / "explicit", *CHOSEN)


@pytest.fixture(scope="session")
def restricted(pairs: Pairs) -> Pair:
    """Both servers with restricted APIs and protocols, on models/explicit with `echo` and `tells` loaded."""
    flags = (*CHOSEN, "--load-model=tells", *RESTRICTIONS, *cases_grpc.RESTRICTIONS)
    return pairs.start("restricted", MODELS / "explicit", *flags)


@pytest.fixture(scope="session")
def measured(pairs: Pairs) -> Pair:
    """Both servers in explicit mode on models/metrics, all that can be loaded, with summaries."""
    return pairs.start("measured", MODELS / "metrics", *MEASURED)


@pytest.fixture(scope="session")
def sequences(pairs: Pairs) -> Pair:
    """Both servers, all of models/sequences loaded at start."""
    return pairs.start("sequences", MODELS / "sequences")


@pytest.fixture(scope="session")
def sequence_answers(sequences: Pair) -> Answers:
    return ask(sequences, SEQUENCES)


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


# What is told over gRPC goes on from what was told over HTTP: some of it counts.


@pytest.fixture(scope="session")
def grpc_answers(plain: Pair, plain_answers: Answers, rest_answers: Answers) -> Answers:
    return ask(plain, GRPC_PLAIN)


@pytest.fixture(scope="session")
def grpc_explicit_answers(explicit: Pair, explicit_answers: Answers) -> Answers:
    return ask(explicit, cases_grpc.CONTROL)


@pytest.fixture(scope="session")
def grpc_restricted_answers(restricted: Pair) -> Answers:
    return ask(restricted, cases_grpc.RESTRICTED)


def ask(pair: Pair, cases: Sequence[Case | wire_grpc.Call]) -> Answers:
    """Send all cases in order to both servers, side by side."""

    def all_of_them(server: servers.Server) -> list[Answer]:
        with Line(server) as line:
            return [line.ask(case) for case in cases]

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(all_of_them, pair))
    return {case.name: (theirs, ours) for case, theirs, ours in zip(cases, *both, strict=True)}


#: What the reference answers where a process of a model has died of itself, or by a lock that nobody opens.
UNHEALTHY = re.compile(r"Stub process .* is not healthy")


class Line:
    """What asks a server, over both wires. One that dies is started again, told all that it was told before, and asked again."""

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self._open()

    def _open(self) -> None:
        self._channel = wire_grpc.channel(self.server.grpc_port)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, case: Case | wire_grpc.Call) -> Answer:
        self.server.told.append(case)
        answer = self._once(case)
        # It hangs, or has died of what came before; or one of its processes has, which it starts by itself, but says so.
        lost = answer.status == NO_ANSWER or UNHEALTHY.search(answer.error or "") is not None
        if lost and self.server.may_restart():
            answer = self.tell_again()
        while self.server.has_died() and self.server.may_restart():
            answer = self.tell_again()
        return answer

    def tell_again(self) -> Answer:
        """Start the server again and tell it what it was told, until it dies of it again; return its last answer."""
        self._channel.close()
        self.server.restart()
        self._open()
        answer = Answer(NO_ANSWER)
        for case in self.server.told:
            answer = self._once(case)
            if self.server.has_died():
                break
        return answer

    def _once(self, case: Any) -> Answer:
        time.sleep(case.wait_s)
        try:
            if isinstance(case, Case):
                result = exchange(self.server.port, case, self.server.memory.key)
            else:
                result = wire_grpc.call(self._channel, case, self.server.memory.key)
            if case.settle:
                settle(self.server)
        except OSError as error:
            result = Answer(NO_ANSWER, f"no answer: {error!r}")
        if result.status == NO_ANSWER or (result.version, result.status) in CUT_OFF:
            self.server.dies_within(LAST_BREATH_S)
        return result


def alive(server: servers.Server, story: Callable[[], Told]) -> Told:
    """Return what `story` does with the server. One that died of it is started again, as by a Line, to be told it anew."""
    while True:
        try:
            result = story()
        except Exception:
            server.dies_within(LAST_BREATH_S)
            if not server.has_died():
                raise
        else:
            if not server.has_died():
                return result
        if not server.may_restart():
            pytest.skip(f"{server.name} dies of it")
        with Line(server) as line:
            line.tell_again()


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
    for name in ("plain", "explicit", "restricted", "measured", "sequences"):
        if name in request.fixturenames:
            for server in request.getfixturevalue(name):
                report.sections.append((f"log of {server.name}", server.tail()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.reference_report = report  # type: ignore[attr-defined]
    if "reference_installed" in item.fixturenames:  # type: ignore[attr-defined]
        comparisons.note(report, servers.deaths_since())
    return report
