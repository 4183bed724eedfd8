"""What is printed: log lines, tables, columns."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.table import columns, table
from kernel.observability.logs import MOST_LINES, WAITING, Formatter, LogOptions, set_up_log


def record(message: str, level: int = logging.INFO, created: float = 86400.25, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("kernel", level, "/where/ever/thing.py", 12, message, (), None)
    made.created = created
    made.__dict__.update(more)
    return made


@pytest.mark.parametrize(
    ("level", "letter"),
    [(logging.DEBUG, "I"), (logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E"), (logging.CRITICAL, "E")],
)
def test_line(level: int, letter: str) -> None:
    pid = os.getpid()
    assert Formatter().format(record("hello", level)) == f'{letter}0102 00:00:00.250000 {pid} thing.py:12] "hello"'
    assert Formatter("ISO8601").format(record("hello", level)) == f'1970-01-02T00:00:00Z {letter} {pid} thing.py:12] "hello"'


def test_a_message_is_one_line_whatever_it_says() -> None:
    line = Formatter().format(record('say "no"\nE0101 00:00:00.000000 1 fake.py:1] "forged" ä'))
    assert line.count("\n") == 0
    assert line.endswith(r'"say \"no\"\nE0101 00:00:00.000000 1 fake.py:1] \"forged\" ä"')


def test_a_traceback_is_indented() -> None:
    try:
        raise ValueError("x\nE0101 00:00:00.000000 1 fake.py:1] forged")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    first, *rest = Formatter().format(made).splitlines()
    assert first.endswith('] "failed"')
    assert rest and all(line.startswith("    ") for line in rest)
    assert "ValueError: x" in rest[-2]


def test_a_table_stands_below_its_line() -> None:
    assert Formatter().format(record("models:", table="+--+\n|  |")).endswith('"models:"\n+--+\n|  |')


def test_json_is_an_object_a_line_with_all_that_belongs_to_it() -> None:
    form = Formatter("json")
    said = json.loads(form.format(record('say "no"\n{"level": "error"}', logging.WARNING)))
    assert said == {
        "time": "1970-01-02T00:00:00.250000Z", "level": "warning", "process": os.getpid(), "file": "thing.py", "line": 12,
        "logger": "kernel", "message": 'say "no"\n{"level": "error"}',
    }  # fmt: skip
    try:
        raise ValueError("why\nnot\x1b[2J\u2028")
    except ValueError:
        made = record("failed", logging.ERROR, table="+--+\n|  |")
        made.exc_info = sys.exc_info()
    line = form.format(made)
    assert len(line.splitlines()) == 1 and "\x1b" not in line
    assert "why\nnot\x1b[2J\u2028" in json.loads(line)["traceback"] and json.loads(line)["table"] == "+--+\n|  |"
    levels = [json.loads(form.format(record("x", level)))["level"] for level in (logging.DEBUG, logging.INFO, logging.CRITICAL)]
    assert levels == ["verbose", "info", "error"]


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Give the test a `logging` of its own."""
    root = logging.getLogger()
    known = [logger for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    before = root.handlers[:], root.level, [logger.level for logger in known]
    yield
    for handler in set(root.handlers) - set(before[0]):
        handler.close()
    root.handlers[:], _, _ = before
    root.setLevel(before[1])
    for logger, level in zip(known, before[2], strict=True):
        logger.setLevel(level)
    logging.captureWarnings(False)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (LogOptions(), "IWE"),
        (LogOptions(verbose=1), "DIWE"),
        (LogOptions(info=False), "WE"),
        (LogOptions(warning=False), "IE"),
        (LogOptions(error=False), "IW"),
        (LogOptions(info=False, verbose=1), "DWE"),
    ],
)
def test_levels(options: LogOptions, wanted: str, own_logging: None, monkeypatch: pytest.MonkeyPatch) -> None:
    console = io.StringIO()
    monkeypatch.setattr("sys.stderr", console)
    set_up_log(options)
    log = logging.getLogger("kernel.test")
    for write, letter in ((log.debug, "D"), (log.info, "I"), (log.warning, "W"), (log.error, "E")):
        write(letter)
    assert "".join(re.findall(r'"(.)"', console.getvalue())) == wanted


def test_options_that_change(own_logging: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the loggers of plugins, but not for what other libraries say when they are debugged."""
    console = io.StringIO()
    monkeypatch.setattr("sys.stderr", console)
    loggers = [logging.getLogger(name) for name in ("kernel.test", "kernel_test.models", "somebody.else")]
    process_log = set_up_log(LogOptions())

    def logged() -> str:
        console.seek(0)
        console.truncate()
        for letter, log in zip("abc", loggers):
            log.info(letter)
            log.debug(letter.upper())
        return "".join(re.findall(r'"(.)"', console.getvalue()))

    assert logged() == "abc"
    process_log.apply(LogOptions(verbose=1))
    assert logged() == "aAbBc"
    process_log.apply(LogOptions(info=False, format="ISO8601"))
    assert logged() == ""
    loggers[0].warning("x")
    assert re.match(r"\d{4}-\d\d-\d\dT", console.getvalue())
    process_log.apply(LogOptions())
    assert logged() == "abc"


def test_file(tmp_path: Path, own_logging: None) -> None:
    set_up_log(LogOptions(file=str(tmp_path / "log")))
    logging.getLogger("somebody.else").warning("hello")
    assert (tmp_path / "log").read_text().endswith('"hello"\n')
    with pytest.raises(OSError, match="No such file or directory"):
        set_up_log(LogOptions(file=str(tmp_path / "none" / "log")))


@pytest.fixture
def unread(own_logging: None) -> Iterator[tuple[Any, Any]]:
    """A process's log, and the other end of the pipe that it is written to."""
    there, here = os.pipe()
    with open(there, "rb", buffering=0) as reader, open(here, "w") as console:
        process_log = set_up_log(LogOptions(), console)
        yield process_log, reader
        logging.getLogger().handlers[0].close()


def test_nobody_waits_for_who_does_not_read_the_log(unread: tuple[Any, Any]) -> None:
    """One line more than the pipe takes held the loop until somebody read it."""
    process_log, reader = unread
    count = 3 * WAITING // 10_000
    for number in range(count):
        logging.getLogger("somebody.else").warning("%d %s", number, "x" * 10_000)
    os.set_blocking(reader.fileno(), False)
    got = b""
    while piece := reader.read(1 << 20):
        got += piece
        process_log.flush()
    lines = got.decode().splitlines()
    numbers = [int(line.partition('"')[2].split()[0]) for line in lines[:-1]]
    assert numbers == list(range(len(numbers))) and WAITING <= len(got) <= WAITING + (1 << 20)
    assert lines[-1].endswith(f'"{count - len(numbers)} lines of the log are lost, as nobody has read it"')
    logging.getLogger("somebody.else").warning("again")
    assert reader.read(1 << 20).endswith(b'"again"\n')


def test_nobody_waits_for_who_has_gone(unread: tuple[Any, Any]) -> None:
    _, reader = unread
    reader.close()
    for _ in range(1000):
        logging.getLogger("somebody.else").warning("x" * 10_000)


def test_one_place_logs_so_many_lines_a_second_and_says_how_many_are_left_out(own_logging: None) -> None:
    """Clients may be what makes it log. Lines of models are theirs."""
    console = io.StringIO()
    set_up_log(LogOptions(), console)  # type: ignore[arg-type]

    def say(name: str, second: float, *lines: int) -> None:
        for line in lines:
            record = logging.LogRecord(name, logging.WARNING, "registry.py", line, "no %s", ("x",), None)
            record.created = second
            logging.getLogger(name).handle(record)

    say("kernel.registry", 10.1, *[7] * (MOST_LINES + 3), 8)
    say("kernel_python.model", 10.2, *[9] * (MOST_LINES + 3))
    say("kernel.registry", 11.0, 7, 7, 8)
    texts = [line.partition("] ")[2] for line in console.getvalue().splitlines()]
    assert texts == ['"no x"'] * (2 * MOST_LINES + 4) + ['"no x (3 more from here were left out before)"', '"no x"', '"no x"']


def configure() -> None:
    logging.config.dictConfig({"version": 1, "root": {"level": "CRITICAL", "handlers": []}})


def disable() -> None:
    logging.disable(logging.CRITICAL)


def force() -> None:
    logging.basicConfig(force=True, stream=io.StringIO(), level=logging.CRITICAL)


def clear() -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        handler.setLevel(logging.CRITICAL)
        handler.close()
        root.removeHandler(handler)


def quieten() -> None:
    for name in ("kernel", "kernel.test", "somebody.else"):
        logger = logging.getLogger(name)
        logger.disabled, logger.propagate = True, False
        logger.setLevel(logging.CRITICAL)


@pytest.mark.parametrize("silence", [configure, disable, force, clear, quieten])
@pytest.mark.parametrize("to_file", [False, True])
def test_a_model_cannot_silence_the_server(
    silence: Callable[[], None], to_file: bool, tmp_path: Path, own_logging: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process that they share; and afterwards everything is as it was."""
    console = io.StringIO()
    monkeypatch.setattr("sys.stderr", console)
    log, other = logging.getLogger("kernel.test"), logging.getLogger("somebody.else")
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    before = [(logger, logger.propagate, logger.disabled, logger.level) for logger in loggers]
    process_log = set_up_log(LogOptions(file=str(tmp_path / "log") if to_file else ""))
    try:
        process_log.protect()
        log.info("a")
        other.info("b")
        silence()
        log.info("c")
        other.info("d")
        logging.getLogger("kernel_test.late").warning("e")
        process_log.protect()
        logging.getLogger("kernel_test.late").warning("f")
        process_log.apply(LogOptions(info=False))
        log.info("g")
        process_log.apply(LogOptions(verbose=1))
        log.debug("h")
    finally:
        process_log.release()
        process_log._handler.close()
        logging.disable(logging.NOTSET)
        for logger, propagate, disabled, level in before:
            logger.propagate, logger.disabled = propagate, disabled
            logger.setLevel(level)
    told = "".join(re.findall(r'"(.)"', (tmp_path / "log").read_text() if to_file else console.getvalue()))
    assert told.replace("e", "") == "abcfh"
    assert type(log) is logging.Logger


def test_table() -> None:
    assert table(("Model", "V"), [("a", "1"), ("longer", "2")]).splitlines() == [
        "+--------+---+",
        "| Model  | V |",
        "+--------+---+",
        "| a      | 1 |",
        "| longer | 2 |",
        "+--------+---+",
    ]
    assert table(("Model",), []).splitlines() == ["+-------+", "| Model |", "+-------+"]


def test_table_wraps_long_reasons() -> None:
    text = table(("Model", "Status"), [("a", "UNAVAILABLE: " + "word " * 40 + "\nsecond line"), ("b", "READY")])
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) < 120
    assert [line.split("|")[1].strip() for line in lines[3:-1]] == ["a", "", "", "", "b"]
    assert "second line" in lines[-3]


def test_columns() -> None:
    assert columns([("a", "bb", ""), ("aaa", "b", "c")], indent="  ") == ["  a    bb", "  aaa  b   c"]
