"""`kernel top`: rates between two looks, what is shown of them and in which order, and texts of servers that mean harm."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from kernel.cli import live_state
from kernel.cli import top as module
from kernel.cli.live_state import Look, Scale, ServerState, compared, look
from kernel.cli.top import top
from kernel.cli.top_screen import Screen
from kernel.cli.top_text import COLUMNS, ordered, text
from kernel.errors import Code, ServingError


def statistics(name: str, requests: int, executions: int, *, failed: int = 0, queue_ms: int = 0, ms: int = 0) -> Any:
    def counted(count: int, each: int) -> live_state.Counted:
        return live_state.Counted(count, count * each * 1_000_000)

    durations = live_state.Durations(counted(requests, ms), counted(failed, 1), counted(requests, queue_ms))
    return live_state.Statistics(name, "1", requests, executions, durations)


def seen(moment: float, *lines: Any, inflight: Any = (), index: Any = (), scale: Any = None, untold: Any = ()) -> Look:
    return Look(moment, lines, index, inflight, scale, untold)


def waits(model: str, age: float, why: str = "all instances are busy", id: str = "7") -> live_state.Inflight:
    return live_state.Inflight(model, 1, id, "PENDING", age, why)


def test_rates_are_of_the_time_between_two_looks() -> None:
    before = seen(10.0, statistics("a", 100, 100, queue_ms=50, ms=60), statistics("b", 5, 5))
    scale = Scale([live_state.Instances("a", 1, 4, 4)], {"current": 2})
    after = seen(
        12.0, statistics("a", 120, 105, failed=3, queue_ms=50, ms=60), statistics("b", 5, 5), statistics("c", 8, 2),
        inflight=[waits("a", 0.5), waits("a", 2.5)], scale=scale,
        index=[live_state.IndexLine("d", "", "UNAVAILABLE", "no weights")],
    )  # fmt: skip
    state = compared("u", before, after)
    a, b, c, d = state.models
    assert (a.requests, a.failures, a.batch, a.inflight, a.oldest, a.instances) == (10.0, 1.5, 4.0, 2, 2.5, 4)
    assert a.queue == pytest.approx(0.05) and a.latency == pytest.approx(0.06)
    assert (b.requests, b.batch, b.queue, b.latency) == (0.0, None, None, None)
    assert (c.requests, c.batch) == (4.0, 4.0)  # it has come since
    assert (d.model, d.state, d.reason, d.instances) == ("d", "UNAVAILABLE", "no weights", None)
    assert (state.requests, state.failures, state.replicas) == (14.0, 1.5, 2)
    assert [one.age for one in state.inflight] == [2.5, 0.5]
    assert compared("u", None, after).models[0].requests == 0.0  # one look has no rates


def test_a_server_that_has_begun_anew_has_no_rates_below_nothing() -> None:
    state = compared("u", seen(0.0, statistics("a", 100, 100, ms=5)), seen(1.0, statistics("a", 2, 1, ms=5)))
    assert state.models[0].requests == 2.0 and state.models[0].latency == pytest.approx(0.005)


def test_columns_sort_with_what_has_none_last() -> None:
    state = compared(
        "u", seen(0.0), seen(1.0, statistics("a", 1, 1), statistics("b", 9, 1), statistics("c", 0, 0), statistics("d", 9, 9))
    )
    names = {sort: "".join(line.model for line in ordered(state.models, sort, False)) for sort in COLUMNS}
    assert (names["model"], names["requests"], names["batch"]) == ("abcd", "bdac", "badc")
    assert "".join(line.model for line in ordered(state.models, "requests", True)) == "cabd"
    assert set(names) == set(COLUMNS) and all(sorted(name) == list("abcd") for name in names.values())


HOSTILE = "\x1b[2Jbold[/bold][red]x\n\u202e"


def state_of_harm() -> ServerState:
    index = [live_state.IndexLine(HOSTILE, "1", "UNAVAILABLE", f"{HOSTILE}\nmore")]
    return compared(
        "http://h:1", None, seen(1.0, statistics("a", 1, 1), inflight=[waits("a", 61.0, HOSTILE, HOSTILE)] * 30, index=index,
                                 untold=[f"no {HOSTILE}"]),
    )  # fmt: skip


def test_text_is_one_line_each_without_what_moves_a_cursor() -> None:
    lines = list(text(state_of_harm(), "model"))
    assert lines[0] == "http://h:1: 1 of 2 ready, 0.0 requests/s, 0.0 failures/s, 30 in flight"
    assert not [line for line in lines if any(character in line for character in "\x1b\n\u202e")]
    assert lines[-2] == "  and 10 more" and lines[-1].startswith("not told: no \\u001b[2J")
    assert any("UNAVAILABLE" in line for line in lines) and sum("61.0 s" in line for line in lines) == 20


def test_a_reason_of_blanks_is_none() -> None:
    index = [live_state.IndexLine("m", "1", "UNAVAILABLE", " \n")]
    assert len(list(text(compared("http://h:1", None, seen(1.0, index=index)), "model"))) == 3


@pytest.mark.parametrize("size", [(150, 30), (40, 8), (10, 2)])
def test_the_screen_is_drawn_at_any_size(size: tuple[int, int]) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=size[0], height=size[1], color_system="standard", legacy_windows=False)
    with Screen(console) as screen:
        screen.draw(state_of_harm(), "requests", False, False, "it can't be asked: \x1b[5m")
        screen.draw(state_of_harm(), "model", True, True, "")
    shown = out.getvalue()
    assert "\x1b[2Jbold" not in shown and "\u202e" not in shown and "\x1b[5m" not in shown
    if size[0] == 40:
        assert "MODEL" in shown and "REQ/S▼" in shown and "INST" not in shown
    if size[0] == 150:
        assert "REQ/S▼" in shown and "MODEL▼" in shown and "[/bold][red]x" in shown and "q quit" in shown


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=True, width=150, height=30)) as screen:
        screen.draw(state_of_harm(), "model", False, False, "")
    assert "UNAVAILABLE" in out.getvalue()
    assert not [code for code in ("\x1b[31m", "\x1b[32m", "\x1b[1;31m") if code in out.getvalue()]


Answers = dict[str, tuple[int, str, Any]]
STATISTICS = {"model_stats": [{"name": "a", "version": "1", "inference_count": 3, "other": [1]}]}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    told: Answers = {
        "/v2/models/stats": (200, "OK", STATISTICS),
        "/v2/repository/index": (200, "OK", [{"name": "a", "version": "1", "state": "READY"}]),
        "/v2/inflight": (403, "Forbidden", {"error": "for clients of this machine alone"}),
        "/v2/kernel/scale": (200, "OK", {"server": {"current": 1}, "models": []}),
    }
    monkeypatch.setattr(live_state, "ask", lambda url, path, headers, body=None: told[path])
    return told


def test_what_a_server_does_not_tell_is_said(answers: Answers) -> None:
    now = look("http://h:1", {})
    assert now.statistics[0].inference_count == 3 and now.inflight == []
    assert now.untold == ("http://h:1 answers /v2/inflight with 403 Forbidden: for clients of this machine alone",)
    del answers["/v2/kernel/scale"], answers["/v2/repository/index"]
    answers["/v2/kernel/scale"] = answers["/v2/repository/index"] = (404, "Not Found", {"error": "Not Found"})
    assert len(look("http://h:1", {}).untold) == 3  # Triton itself: its statistics are enough
    answers["/v2/models/stats"] = (200, "OK", {"model_stats": 5})
    with pytest.raises(ServingError, match="it may be another one, or of another release"):
        look("http://h:1", {})


@pytest.mark.parametrize("count", [10**400, -1])
def test_counts_that_no_server_has_are_what_is_not_of_one(answers: Answers, count: int) -> None:
    statistics = {"name": "a", "version": "1", "inference_stats": {"success": {"count": 1, "ns": count}}}
    answers["/v2/models/stats"] = (200, "OK", {"model_stats": [statistics]})
    with pytest.raises(ServingError, match="it may be another one, or of another release"):
        look("http://h:1", {})


def test_once_where_there_is_no_terminal(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    assert top(["h:1", "--interval=0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("http://h:1: 1 of 1 ready") and lines[2].startswith("a:1    READY")
    assert top(["h:1", "--interval=0.1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["models"][0]["model"] == "a" and document["inflight"] == [] and document["requests"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "the following arguments are required: URL"),
        (["h:1", "--interval=0"], 2, "'0' is no number of seconds from 0.1 to 3600"),
        (["h:1", "--interval=nan"], 2, "'nan' is no number of seconds"),
        (["h:1", "--sort=size"], 2, "invalid choice: 'size'"),
        (["h:1", "--header=x"], 1, "--header 'x' is not of the form NAME: VALUE"),
        (["h:x"], 1, "'http://h:x' is no address"),
        (["ftp://h"], 1, "'ftp://h' is no address"),
    ],
)
def test_mistakes(arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert top(arguments) == status
    except SystemExit as ended:
        assert ended.code == status
    assert words in capsys.readouterr().err


def test_without_rich_a_terminal_is_told_how_to_get_it(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    always: Callable[[], bool] = lambda: True  # noqa: E731
    monkeypatch.setattr(module.sys.stdout, "isatty", always)
    monkeypatch.setattr(module.sys.stdin, "isatty", always)
    monkeypatch.setitem(__import__("sys").modules, "kernel.cli.top_screen", None)
    assert top(["h:1"]) == 1
    assert "pip install 'kernel-serve[top]', or in a checkout pip install -e '.[top]'" in capsys.readouterr().err


def test_a_server_that_goes_away_is_said_and_asked_again(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    troubles: list[str] = []

    class Seen:
        def __enter__(self) -> Seen:
            return self

        def __exit__(self, *gone: object) -> None: ...

        def draw(self, state: ServerState, sort: str, turned: bool, paused: bool, trouble: str) -> None:
            troubles.append(trouble)

    class Keys:
        pressed = iter(["", "", "s", "q"])

        def __enter__(self) -> Callable[[float], str]:
            return lambda seconds: next(self.pressed)

        def __exit__(self, *gone: object) -> None: ...

    times = iter([0.0, 0.0, 5.0, 5.0, 5.0, 9.0, 9.0, 9.0, 9.5, 9.5, 9.5])
    monkeypatch.setattr(module, "_keys", Keys)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    first = Look(0.0, (), (), (), None)
    looks: list[Look | ServingError] = [ServingError(Code.UNAVAILABLE, "gone"), Look(9.0, (), (), (), None)]

    def asked(url: str, headers: Any) -> Look:
        now = looks.pop(0)
        if isinstance(now, ServingError):
            raise now
        return now

    monkeypatch.setattr(module, "look", asked)
    options = module.argparse.Namespace(sort="model", interval=2.0)
    assert module._live("u", {}, first, options, Seen) == 0
    assert troubles == ["", "gone", "", ""] and not looks
