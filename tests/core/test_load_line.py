"""The last line of `kernel serve` on a terminal while models are being loaded."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kernel.cli.load_line import ERASE, LoadLine, load_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(name: str, phase: str = "initializes") -> Any:
    class Step(SimpleNamespace):
        __hash__ = object.__hash__
        __eq__ = object.__eq__

    return Step(name=name, version=1, phase=phase)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> LoadLine:
    monkeypatch.setattr("kernel.cli.load_line.DRAW_SECONDS", 0.001)
    made = LoadLine(Terminal(), lambda: moment[0])
    moment[0] = 100.0
    made._thread = SimpleNamespace()  # type: ignore[assignment]  # the test draws
    return made


moment = [100.0]


def test_what_lasts_is_shown_with_what_is_done_with_it_and_for_how_long(line: LoadLine) -> None:
    a, b, c, d, e = (step(name) for name in "abcde")
    line.show((a, b))
    assert line.text() == ""  # most loads are over before anybody would read it
    moment[0] = 112.0
    assert line.text() == "12 s: loading a:1 12 s (initializes), b:1 12 s (initializes)"
    b.phase = "warms up"
    line.show((b, c, d, e))
    assert line.text() == "12 s: 1 loaded, loading b:1 12 s (warms up), c:1 0 s (initializes), d:1 0 s (initializes), and 1 more"
    line.show(())
    assert line.text() == ""
    moment[0] = 200.0
    line.show((a,))  # another load, later: it begins anew
    moment[0] = 202.0
    assert line.text() == "2 s: loading a:1 2 s (initializes)"


def test_the_log_is_written_above_it_and_it_goes_when_all_is_loaded(line: LoadLine) -> None:
    line.show((step("a"),))
    moment[0] = 110.0
    assert line.draw()
    line.write("I0102 a line\n")
    line.draw()
    line.show(())
    assert not line.draw()
    written = line.getvalue()
    text = "10 s: loading a:1 10 s (initializes)"
    assert written == f"{ERASE}{text}{ERASE}I0102 a line\n{ERASE}{text}{ERASE}"
    line.write("more\n")
    assert line.getvalue() == f"{written}more\n"  # nothing is there that would have to go


def test_a_narrow_terminal_and_a_name_that_means_harm(line: LoadLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    line.show((step("a\x1b[2J\n" * 9),))
    moment[0] = 110.0
    line.draw()
    shown = line.getvalue().removeprefix(ERASE)
    assert len(shown) == 29 and shown.endswith("…") and "\x1b" not in shown and "\n" not in shown


def test_a_thread_draws_it_until_all_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.cli.load_line.DRAW_SECONDS", 0.001)
    monkeypatch.setattr("kernel.cli.load_line.PATIENCE", 0.0)
    made = LoadLine(Terminal())
    made.show((step("a"),))
    end = time.monotonic() + 30
    while "loading a:1" not in made.getvalue():
        assert time.monotonic() < end
        time.sleep(0.001)
    thread = made._thread
    made.show(())
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive() and made.getvalue().endswith(ERASE)


def test_only_terminals_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert load_line(None) is None and load_line(io.StringIO()) is None
    assert load_line(Terminal()) is not None
    monkeypatch.setenv("TERM", "dumb")
    assert load_line(Terminal()) is None


def test_a_terminal_that_has_gone_costs_nothing(line: LoadLine) -> None:
    line.show((step("a"),))
    moment[0] = 110.0
    line.draw()
    line._stream.close()
    line.show(())
