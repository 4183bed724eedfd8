"""How many comparisons with the real Triton a run was to make, and how many it made: told at its end, and judged there.

Where the reference can be installed, a run that made fewer than 98 % of them has failed, whatever else it says: a suite that
skips proves nothing. Where it can't, nothing is judged, and the end says so. A comparison is a test that asks the reference. What
is noted of it travels with its report, so all is the same whether tests run in one process or in several (pytest-xdist).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["MISSING", "Count", "note"]

#: How a skip begins whose cause is that the reference can't be had here.
MISSING = "no reference: "
ENOUGH = 0.98


def note(report: pytest.TestReport, deaths: int) -> None:
    """Note in the report of a test that asks the reference what it has come to, and how often the reference died meanwhile."""
    skipped = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    noted = {
        "wanted": report.when == "setup",
        "made": report.when == "call" and not report.skipped,
        "deaths": deaths,
        "reason": skipped.removeprefix(MISSING) if skipped.startswith(MISSING) else "",
    }
    report.comparison = noted  # type: ignore[attr-defined]


@dataclass(eq=False)
class Count:
    """A plugin of the process that tells the end of a run: adds up what was noted."""

    wanted: int = 0
    made: int = 0
    deaths: int = 0
    reason: str = ""  # why there is no reference

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        noted: dict[str, Any] | None = getattr(report, "comparison", None)
        if noted is not None:
            self.wanted += noted["wanted"]
            self.made += noted["made"]
            self.deaths += noted["deaths"]
            self.reason = self.reason or noted["reason"]

    @property
    def too_few(self) -> bool:
        return not self.reason and self.made < ENOUGH * self.wanted

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_few and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.wanted:
            terminalreporter.ensure_newline()
            terminalreporter.write_line(self.told(), **({"red": True} if self.too_few else {}))

    def told(self) -> str:
        """Return the line about it."""
        if self.reason:
            return f"comparisons with the real Triton: none of {self.wanted} was made, since {self.reason}"
        line = f"comparisons with the real Triton: {self.made} of {self.wanted} were made"
        if self.deaths:
            line += f"; it died {self.deaths} time{'s' if self.deaths > 1 else ''} and was asked again"
        return f"{line}; the run has failed, since {ENOUGH:.0%} are wanted" if self.too_few else line
