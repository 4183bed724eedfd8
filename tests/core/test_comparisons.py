"""A run that compares too little with the real Triton fails, one that can't compare says so; with the closing line as it was."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

#: `wanted` tests that ask a reference, of which it answers the first `made`.
TESTS = """
import pytest

@pytest.fixture(scope="session")
def reference_installed():
    {installed}

@pytest.mark.parametrize("number", range({made}))
def test_made(number, reference_installed):
    pass

def test_of_another_kind():
    pass
"""
LOST = """
@pytest.mark.parametrize("number", range({made}, {wanted}))
def test_lost(number, reference_installed):
    pytest.skip("it gave no answer")
"""
CONFTEST = """
import comparisons, pytest

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(comparisons.Count(), "comparisons")

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if "reference_installed" in item.fixturenames:
        comparisons.note(report, int(report.when == "setup" and "{died}[0]" in item.name))
    return report
"""


def last_lines(
    pytester: pytest.Pytester, made: int, wanted: int = 50, installed: str = "pass", died: str = "", flags: tuple[str, ...] = ()
) -> tuple[int, list[str]]:
    """Run such tests; return the exit status and the last two lines."""
    pytester.makeconftest(CONFTEST.format(died=died or "none"))
    tests = TESTS + (LOST if made < wanted else "")
    pytester.makepyfile(tests.format(made=made, wanted=wanted, installed=installed))
    result = pytester.runpytest_inprocess("-q", *flags)
    return int(result.ret), result.outlines[-2:]


def test_all_are_made(pytester: pytest.Pytester) -> None:
    status, (told, closing) = last_lines(pytester, 50)
    assert (status, told) == (0, "comparisons with the real Triton: 50 of 50 were made")
    assert closing.startswith("51 passed in ")


def test_enough_are_made(pytester: pytest.Pytester) -> None:
    status, (told, closing) = last_lines(pytester, 49, died="test_made")
    assert status == 0
    assert told == "comparisons with the real Triton: 49 of 50 were made; it died 1 time and was asked again"
    assert closing.startswith("50 passed, 1 skipped in ")


def test_too_few_are_made(pytester: pytest.Pytester) -> None:
    status, (told, closing) = last_lines(pytester, 48)
    assert status == 1
    assert told == "comparisons with the real Triton: 48 of 50 were made; the run has failed, since 98% are wanted"
    assert closing.startswith("49 passed, 2 skipped in ")


def test_none_can_be_made(pytester: pytest.Pytester) -> None:
    skip = "pytest.skip('no reference: it runs on Linux x86-64 only, and this is darwin arm64')"
    status, (told, closing) = last_lines(pytester, 3, 4, skip)
    assert status == 0
    reason = "it runs on Linux x86-64 only, and this is darwin arm64"
    assert told == f"comparisons with the real Triton: none of 4 was made, since {reason}"
    assert closing.startswith("1 passed, 4 skipped in ")


def test_none_are_wanted(pytester: pytest.Pytester) -> None:
    status, (progress, closing) = last_lines(pytester, 3, 4, flags=("-k", "kind"))
    assert (status, progress.split()) == (0, [".", "[100%]"])
    assert closing.startswith("1 passed, 4 deselected in ")


def test_in_several_processes(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    status, (told, closing) = last_lines(pytester, 48, died="test_made", flags=("-n", "2", "-p", "xdist"))
    assert status == 1
    assert told == (
        "comparisons with the real Triton: 48 of 50 were made; it died 1 time and was asked again; the run has failed, since "
        "98% are wanted"
    )
    assert closing.startswith("49 passed, 2 skipped in ")
