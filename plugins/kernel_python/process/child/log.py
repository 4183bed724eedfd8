"""The log of a child is the server's: what any logger here takes in goes there, with its place, to be written or dropped."""

from __future__ import annotations

import logging
from typing import Any

from kernel_python.process import wire
from kernel_python.process.child.channel import Channel

__all__ = ["Forwarding"]


class Forwarding(logging.Handler):
    """The handler of the root logger."""

    def __init__(self, channel: Channel, level: int) -> None:
        super().__init__()
        self._channel = channel
        self._formatter = logging.Formatter()
        root = logging.getLogger()
        root.addHandler(self)
        root.setLevel(logging.INFO)  # other libraries' debugging is not wanted
        self.set_level(level)
        logging.captureWarnings(True)

    def set_level(self, level: int) -> None:
        """Pass on what models log from this level on."""
        logging.getLogger("kernel_python").setLevel(level)

    def stay(self) -> None:
        """This process is a fork, which has no server: what it logs goes to stderr, from where the server passes it on."""
        self.emit = logging.StreamHandler().emit  # type: ignore[method-assign]

    def emit(self, record: logging.LogRecord) -> None:
        try:
            trace = self._formatter.formatException(record.exc_info) if record.exc_info else record.exc_text
            instance: Any = getattr(record, "model_instance", None)
            self._channel.send(
                (
                    wire.LOG,
                    record.levelno,
                    record.name,
                    record.getMessage(),
                    record.pathname,
                    record.lineno,
                    record.funcName,
                    trace,
                    instance,
                )
            )
        except Exception:
            self.handleError(record)
