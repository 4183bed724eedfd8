"""How log lines look: Triton's format, so that what reads its log reads ours.

`LMMDD hh:mm:ss.uuuuuu <pid> <file>:<line>] "<message>"`, with ISO8601 `YYYY-MM-DDThh:mm:ssZ L <pid> …`; times are UTC, messages
are JSON strings, so that no text from outside can forge a line. The form `json`, which the reference has not, is an object a
line, for programs. Decides what is printed and where, for a process whose log is its own (`kernel serve`); an app that embeds the
kernel configures `logging` as it likes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import gmtime, strftime
from typing import Any, ClassVar, TextIO

from kernel.errors import shortened

__all__ = ["FORMATS", "Formatter", "LogOptions", "ProcessLog", "set_up_log"]

#: How many lines a second are written of one place in the code, and the logger that is models'.
MOST_LINES = 500
MODELS = "kernel_python.model"

#: How many bytes of lines wait for who reads the log, and for how many milliseconds he is waited for at the end.
WAITING = 4 * 1024 * 1024
LAST_MOMENT = 1000

FORMATS = ("default", "ISO8601", "json")

#: What no line of the log may have in it, though JSON would: what ends lines for some readers, moves a terminal's cursor, turns
#: the direction of what follows, or can't be written at all.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """`file`: empty for the console. `verbose`: 0 for none."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose: int = 0
    format: str = "default"
    file: str = ""


class Formatter(logging.Formatter):
    """One record -> one line; below it its traceback and stack, and the table that came as its `table`, indented by nothing."""

    def __init__(self, format: str = "default") -> None:
        super().__init__()
        self._iso = format == "ISO8601"
        self._json = format == "json"

    def format(self, record: logging.LogRecord) -> str:
        if self._json:
            return _UNSEEN.sub(_escaped, json.dumps(self._members(record), ensure_ascii=False))
        letter = "E" if record.levelno >= logging.ERROR else "W" if record.levelno >= logging.WARNING else "I"
        when = gmtime(record.created)
        if self._iso:
            head = f"{strftime('%Y-%m-%dT%H:%M:%SZ', when)} {letter}"
        else:
            micros = int(record.created % 1 * 1_000_000)
            head = f"{letter}{strftime('%m%d %H:%M:%S', when)}.{micros:06}"
        message = json.dumps(shortened(record.getMessage()), ensure_ascii=False)
        line = f"{head} {record.process} {record.filename}:{record.lineno}] {message}"
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        for part in (trace, record.stack_info):
            # Indented, so that nothing an exception says can pass for a line of the log.
            line += "".join(f"\n    {text}" for text in shortened(part or "").splitlines())
        table = getattr(record, "table", None)
        return _UNSEEN.sub(_escaped, f"{line}\n{table}" if table else line)


    def _members(self, record: logging.LogRecord) -> dict[str, str | int | None]:
        """Return a record as the members of an object; what belongs below its line, as text, too."""
        when = gmtime(record.created)
        level = "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "info"
        members: dict[str, str | int | None] = {
            "time": f"{strftime('%Y-%m-%dT%H:%M:%S', when)}.{int(record.created % 1 * 1_000_000):06}Z",
            "level": "verbose" if record.levelno < logging.INFO else level,
            "process": record.process,
            "file": record.filename,
            "line": record.lineno,
            "logger": record.name,
            "message": shortened(record.getMessage()),
        }
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        below = {"traceback": trace, "stack": record.stack_info, "table": getattr(record, "table", None)}
        return members | {name: shortened(text) for name, text in below.items() if text}


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class _LevelFilter(logging.Filter):
    """Lets the levels through that are switched on, each by itself."""

    def __init__(self, options: LogOptions) -> None:
        super().__init__()
        self.options = options

    def filter(self, record: logging.LogRecord) -> bool:
        level, options = record.levelno, self.options
        if level >= logging.ERROR:
            return options.error
        if level >= logging.WARNING:
            return options.warning
        return options.info if level >= logging.INFO else options.verbose > 0


class _PlaceFilter(logging.Filter):
    """Lets no more than MOST_LINES a second through of one place in the server's code: clients may be what makes it log. Lines of
    models are theirs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], tuple[int, int]] = {}  # in which second the last came, and how many in it

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("kernel") or record.name == MODELS:
            return True
        place, second = (record.pathname, record.lineno), int(record.created)
        since, count = self._places.get(place, (second, 0))
        if since != second:
            if count > MOST_LINES:
                record.msg = f"{record.getMessage()} ({count - MOST_LINES} more from here were left out before)"
                record.args = None
            count = 0
        self._places[place] = second, count + 1
        return count < MOST_LINES


class ProcessLog:
    """The log of this process, with options that may change."""

    def __init__(self, handler: logging.Handler, options: LogOptions) -> None:
        self._handler = handler
        self._filter = _LevelFilter(options)
        handler.addFilter(self._filter)
        handler.addFilter(_PlaceFilter())
        self.apply(options)

    def apply(self, options: LogOptions) -> None:
        """Log by `options` from now on; the file, or the console, stays the same."""
        self._handler.setFormatter(Formatter(options.format))
        self._filter.options = options
        # Other libraries' debugging is not wanted; `--log-verbose` is about the kernel, its plugins and their models.
        for name in {"kernel", *(name.partition(".")[0] for name in logging.root.manager.loggerDict)}:
            if name.startswith("kernel"):
                logging.Logger.setLevel(logging.getLogger(name), logging.DEBUG if options.verbose else logging.INFO)

    def reopen(self) -> None:
        """Go on in a new file of the same name, where the old one was moved away. Keeps the old one where that fails."""
        handler = self._handler
        if not isinstance(handler, logging.FileHandler):
            return
        handler.acquire()
        try:
            old, handler.stream = handler.stream, handler._open()
            if old is not None:
                old.close()
        except OSError as error:
            logging.getLogger("kernel").error("the log file can't be opened anew, the old one goes on: %s", error)
        finally:
            handler.release()

    def flush(self) -> None:
        """Write what has waited for who reads the log, as far as he takes it now."""
        self._handler.flush()

    def protect(self) -> None:
        """Log what the server says whatever is done to `logging` from now on. Call it again for loggers that were made since."""
        _OwnLogger.home = self._handler
        root = logging.getLogger()
        if self._handler in root.handlers:
            root.removeHandler(self._handler)
            root.addHandler(_Shared(self._handler))
        for name, logger in list(logging.root.manager.loggerDict.items()):
            if name.startswith("kernel") and type(logger) is logging.Logger:
                logger.__class__ = _OwnLogger

    def release(self) -> None:
        """Make the server's loggers ordinary ones again. The root keeps the handlers that it has now."""
        _OwnLogger.home = None
        for logger in logging.root.manager.loggerDict.values():
            if type(logger) is _OwnLogger:
                logger.__class__ = logging.Logger  # type: ignore[assignment]


class _OwnLogger(logging.Logger):
    """What a logger of the server's own becomes: code of models, which shares the process, can't silence it.

    `logging.config`, `logging.disable`, `basicConfig(force=True)` and the like are a model's own affair in the reference, where
    it has a process of its own. What they do to other loggers stays as it is.
    """

    home: ClassVar[logging.Handler | None] = None

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        """Do nothing: `logging.config` disables every logger that its config does not name."""

    def setLevel(self, level: int | str) -> None:
        """Do nothing: the level of the server's log is set by its flags alone."""

    def isEnabledFor(self, level: int) -> bool:
        return level >= self.getEffectiveLevel()  # whatever `logging.disable` says

    def callHandlers(self, record: logging.LogRecord) -> None:
        if self.home is not None:
            self.home.handle(record)
            record.__dict__[_TOLD] = True
        super().callHandlers(record)


_TOLD = "kernel_told"  # an attribute of records that the process's handler has written


class _Shared(logging.Handler):
    """Stands in the root logger's list for the process's handler, so that code which clears or closes the root's spares it."""

    def __init__(self, home: logging.Handler) -> None:
        super().__init__()
        self._home = home

    def emit(self, record: logging.LogRecord) -> None:
        if _TOLD not in record.__dict__:
            self._home.handle(record)


class _Unfailing(logging.Handler):
    """A handler whose failures are nobody else's, also where there is no stderr to tell of them."""

    def handleError(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            super().handleError(record)


class _ToStream(_Unfailing, logging.StreamHandler[TextIO]):
    """Writes to a stream, and waits for nobody who does not read it: whoever logs may be the loop.

    What can't be written waits, up to WAITING bytes; further lines are lost, and counted.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waiting = bytearray()
        self._lost = 0
        self._room: Callable[[int], Any] | None = None
        with contextlib.suppress(OSError, ValueError):  # it may be no file
            self._file = stream.fileno()
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                room = select.poll()
                room.register(self._file, select.POLLOUT)
                self._room = room.poll

    def emit(self, record: logging.LogRecord) -> None:
        if self._room is None:
            super().emit(record)
            return
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
            if len(self._waiting) + len(line) <= WAITING:
                self._waiting += line
            else:
                self._lost += 1
            self._write()
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        if self._room is None:
            super().flush()
            return
        with self.lock or contextlib.nullcontext():
            self._write()

    def close(self) -> None:
        """Give who reads the log a moment to take the rest."""
        if self._waiting and self._room is not None:
            self._write(LAST_MOMENT)
        super().close()

    def _write(self, moment: int = 0) -> None:
        """Write what waits, as far as there is room; wait for that so many milliseconds."""
        assert self._room is not None
        waiting = self._waiting
        while waiting and self._room(moment):
            try:
                del waiting[: os.write(self._file, waiting[: select.PIPE_BUF])]  # for as much there is room, if for any
            except OSError:  # nobody will ever read it
                waiting.clear()
        if self._lost and len(waiting) <= WAITING // 2:
            words = f"{self._lost} lines of the log are lost, as nobody has read it"
            record = logging.LogRecord("kernel", logging.WARNING, __file__, 0, words, None, None)
            self._lost = 0
            waiting += f"{self.format(record)}\n".encode()
            self._write(moment)


class _ToFile(_Unfailing, logging.FileHandler):
    """Writes to a file."""


def set_up_log(options: LogOptions, console: TextIO | None = None) -> ProcessLog:
    """Send everything that is logged in this process to the console or the file. Raises OSError for the file.

    `console`: None for stderr.
    """
    handler: logging.Handler
    handler = _ToFile(options.file, encoding="utf-8") if options.file else _ToStream(console or sys.stderr)
    process_log = ProcessLog(handler, options)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    return process_log
