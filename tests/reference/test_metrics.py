"""Both servers' metrics pages after the same traffic: the same families, types, texts, series and, without a clock in it, values.

What ours has besides, and what it counts otherwise, is listed with its reason; each list holds both ways.
"""

from __future__ import annotations

import re
import time
import urllib.request

import pytest

from .comparing import SELF, told
from .conftest import Line, Pair, alive
from .pages import DETERMINISTIC, PAGES, PORT, TRAFFIC, Family, parse
from .servers import Server
from .wire import Answer, Case, exchange

pytestmark = pytest.mark.reference

#: The reference counts a request only after it has answered it.
SETTLE_LIMIT_S = 20.0

#: Families that ours has besides, with the reason.
MORE = {
    "kernel_.*": "what users miss in the reference; under a prefix of its own",
    "nv_model_load_duration_secs": "later releases of the reference have it",
    "nv_inference_first_response_histogram_ms": "later releases of the reference have it; this one takes the flag without effect",
}

#: Series that ours has besides: the reference has no such summary for models with a response cache, though its text says so.
MORE_SERIES = (r'nv_inference_request_summary_us(_count|_sum)?\{model="kept"',)

#: Families that models make: the reference mixes them with its own, by their kinds.
CUSTOM = "my_"

#: What the reference goes on showing of a model that was unloaded.
FAILURES = ("nv_inference_request_failure",)

#: Values that ours counts otherwise: (theirs, ours, why).
COUNTED = "a response that carries an error is a failure"
VALUES = {
    'nv_inference_request_success{model="tells",version="1"}': ("1", "0", COUNTED),
    'nv_inference_request_failure{model="tells",reason="BACKEND",version="1"}': ("0", "1", COUNTED),
    'nv_inference_count{model="tells",version="1"}': ("1", "0", COUNTED),
}


def page_of(server: Server) -> dict[str, Family]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30) as response:
        text: bytes = response.read()
    return parse(text.decode())


@pytest.fixture(scope="module")
def pages(measured: Pair) -> tuple[dict[str, Family], dict[str, Family]]:
    """Both pages after the traffic, once both have counted all of it."""
    for server in measured:
        with Line(server) as line:
            for case in TRAFFIC:
                line.ask(case)
    limit = time.monotonic() + SETTLE_LIMIT_S
    while True:
        both = alive(measured[0], lambda: page_of(measured[0])), page_of(measured[1])
        if not differing(*both) or time.monotonic() > limit:
            return both
        time.sleep(0.1)


def differing(theirs: dict[str, Family], ours: dict[str, Family]) -> dict[str, tuple[str | None, str | None]]:
    """Return the values that may be compared and are not the same, nor listed."""
    found = {}
    for name, family in theirs.items():
        if not DETERMINISTIC.fullmatch(name) or name not in ours:
            continue
        for series, value in family.samples.items():
            got = ours[name].samples.get(series)
            if got != wanted(series, value):
                found[series] = (value, got)
    return found


def wanted(series: str, value: str) -> str:
    if series not in VALUES or SELF:
        return value
    assert VALUES[series][0] == value, "listed otherwise"
    return VALUES[series][1]


def listed(name: str, patterns: dict[str, str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def names_with(label: str, page: dict[str, Family]) -> list[str]:
    """Return the families that have series with a label."""
    return [name for name, family in page.items() if any(label in series for series in family.samples)]


def test_families_in_their_order(pages: tuple[dict[str, Family], dict[str, Family]]) -> None:
    theirs, ours = pages
    built_in = [name for name in theirs if not name.startswith(CUSTOM)]
    assert [name for name in ours if SELF or not listed(name, {**MORE, f"{CUSTOM}.*": ""})] == built_in
    if not SELF:
        assert all(any(listed(name, {pattern: ""}) for name in ours) for pattern in MORE), "listed, and gone"


def test_types_and_texts(pages: tuple[dict[str, Family], dict[str, Family]]) -> None:
    theirs, ours = pages
    described = {name: (family.kind, family.help) for name, family in theirs.items()}
    assert {name: (ours[name].kind, ours[name].help) for name in theirs} == described


def test_series(pages: tuple[dict[str, Family], dict[str, Family]]) -> None:
    """The same series, each label written the same; the order of models is the reference's own."""
    theirs, ours = pages
    for name, family in theirs.items():
        more = [series for series in ours[name].samples if any(re.match(pattern, series) for pattern in MORE_SERIES)]
        assert bool(more) == (not SELF and name == "nv_inference_request_summary_us")
        assert sorted(set(ours[name].samples) - set(more)) == sorted(family.samples), name


def test_values(pages: tuple[dict[str, Family], dict[str, Family]]) -> None:
    assert differing(*pages) == {}


def test_summaries_have_counted(pages: tuple[dict[str, Family], dict[str, Family]]) -> None:
    theirs, ours = pages
    for name, family in theirs.items():
        if family.kind == "summary":
            for series, value in family.samples.items():
                if "_count{" in series and 'model="tells"' not in series:
                    assert ours[name].samples[series] == value, series
                if "quantile" in series and 'model="tells"' not in series and 'model="chain"' not in series:
                    assert (ours[name].samples[series] == "Nan") == (value == "Nan"), series


def test_the_series_of_a_model_go_with_it(
    measured: Pair, pages: tuple[dict[str, Family], dict[str, Family]]
) -> None:
    for server, page in zip(measured, pages):
        assert any('model="echo"' in series for family in page.values() for series in family.samples)
        assert not any('model="broken"' in series for family in page.values() for series in family.samples)
        exchange(server.port, Case("", "POST", "/v2/repository/models/many/unload", settle=True))
    limit = time.monotonic() + SETTLE_LIMIT_S
    for server, left in zip(measured, (FAILURES, FAILURES if SELF else ())):
        while (found := names_with('model="many"', page_of(server))) != list(left):
            assert time.monotonic() < limit, f"{server.name} still has the model in {found}"
            time.sleep(0.05)


def asked(measured: Pair, case: Case) -> tuple[Answer, Answer]:
    theirs, ours = measured
    return alive(theirs, lambda: exchange(theirs.metrics_port, case)), exchange(ours.metrics_port, case)


@pytest.mark.parametrize("case", PORT, ids=lambda case: case.name)
def test_the_port(case: Case, measured: Pair) -> None:
    theirs, ours = asked(measured, case)
    assert told(ours) == told(theirs)


@pytest.mark.parametrize("case", PAGES, ids=lambda case: case.name)
def test_the_page(case: Case, measured: Pair) -> None:
    theirs, ours = asked(measured, case)
    assert (ours.status, ours.version, ours.headers) == (theirs.status, theirs.version, theirs.headers)
    assert ours.lines[:2] == theirs.lines[:2]
