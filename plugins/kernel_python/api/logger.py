"""pb_utils.Logger: what models write into the server's log, with the model's file and line (contract: python_backend, 1.9)."""

from __future__ import annotations

import logging
from typing import Any

from kernel_python.calling import calling_site
from kernel_python.faults import PybindEnum, incompatible

__all__ = ["Logger"]

_log = logging.getLogger("kernel_python.model")


class LogLevel(PybindEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


LogLevel.__module__ = "c_python_backend_utils"
_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}
_SIGNATURE = "(message: str, level: c_python_backend_utils.Logger.LogLevel = <LogLevel.INFO: 0>) -> None"


class Logger:
    """Static functions that log a message at a level."""

    __module__ = "c_python_backend_utils"

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: PybindEnum = LogLevel.INFO) -> None:
        if not isinstance(message, (str, bytes)) or not isinstance(level, LogLevel):
            given = (message,) if level is LogLevel.INFO else (message, level)
            raise incompatible("log", _SIGNATURE, given)
        _write(message, _LEVELS[level])

    @staticmethod
    def log_info(message: str) -> None:
        _checked("log_info", message, logging.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        _checked("log_warn", message, logging.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        _checked("log_error", message, logging.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        _checked("log_verbose", message, logging.DEBUG)


def _checked(function: str, message: Any, level: int) -> None:
    if not isinstance(message, (str, bytes)):
        raise incompatible(function, "(message: str) -> None", (message,))
    _write(message, level, 4)


def _write(message: str | bytes, level: int, depth: int = 3) -> None:
    if not _log.isEnabledFor(level):
        return
    site = calling_site()
    text = message if isinstance(message, str) else message.decode(errors="replace")
    # The level below us is Logger's function, the next the model's: its place is what the line shows.
    _log.log(level, "%s", text, stacklevel=depth, extra={"model_instance": site[0].name if site else ""})
