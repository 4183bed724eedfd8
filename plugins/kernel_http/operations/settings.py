"""The settings that can be changed while the server runs: of tracing and of the log (docs/contract/http_protocol.md, 9 and 10).

Checks that members have the right JSON types, in the reference's words; what the values may be is the kernel's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_http.connection import replies
from kernel_http.connection.heads import Head
from kernel_http.json.errors import NON_ARRAY, NON_STRING, malformed
from kernel_http.json.members import flag_of, text_of, unsigned_of
from kernel_http.operations.operation import at_once, read_document

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_http.connection.routes import Handler

__all__ = ["Settings"]


def _text(value: Any, field: str) -> str:
    return text_of({field: value}, field)


#: The types of the log's settings; `log_file` is refused whatever it says.
LOG_TYPES: dict[str, Callable[[Any, str], bool | int | str]] = {
    "log_file": lambda value, field: str(value),
    "log_info": flag_of,
    "log_warning": flag_of,
    "log_error": flag_of,
    "log_verbose_level": unsigned_of,
    "log_format": _text,
}


class Settings:
    """The handlers; each route shows the settings, by POST after having changed some."""

    def __init__(self, kernel: Kernel) -> None:
        self._trace = kernel.trace_settings
        self._log = kernel.log_settings

    def handlers(self) -> dict[str, Handler]:
        """Return route name -> handler."""
        return {"trace": at_once(self.trace), "logging": at_once(self.logging)}

    def trace(self, head: Head, body: bytes) -> bytes:
        shown = self._trace.shown(head.model)
        if head.method == "POST":
            record = read_document(body)
            self._trace.update({field: _trace_value(field, value) for field, value in record.items()}, head.model)
            shown = self._trace.shown(head.model)
        return replies.json_reply(shown)

    def logging(self, head: Head, body: bytes) -> bytes:
        if head.method == "POST":
            record = read_document(body)
            self._log.update(
                {
                    field: None if record[field] is None else check(record[field], field)
                    for field, check in LOG_TYPES.items()
                    if field in record
                }
            )
        return replies.json_reply(self._log.shown())


def _trace_value(field: str, value: Any) -> list[str] | None:
    """Return the value of a trace setting as texts, of which the levels may be several; None clears it."""
    if value is None:
        return None
    if field == "trace_level":
        if type(value) is not list:
            raise malformed(field, NON_ARRAY)
        if any(type(level) is not str for level in value):
            raise malformed(field, NON_STRING)
        return list(value)
    if field in ("trace_rate", "trace_count", "log_frequency"):
        return [_text(value, field)]
    return []  # the kernel refuses it by its name
