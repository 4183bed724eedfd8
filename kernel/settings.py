"""The settings that clients change while the server runs: of tracing, for all models and for single ones, and of the log.

Values arrive as a wire's front end has decoded them and are checked here; an update is made whole or not at all. Records what is
set; acting on it is others' business. (Contract: http_protocol, sections 9 and 10.)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel.errors import Code, ServingError
from kernel.logs import FORMATS, LogOptions

__all__ = ["LOG_FORMATS", "RANGES", "LogSettings", "TraceOptions", "TraceSettings"]

log = logging.getLogger("kernel")

LOG_FORMATS: tuple[str, ...] = FORMATS

LEVELS = ("TIMESTAMPS", "TENSORS")
OFF = "OFF"

#: The settings that are numbers: the smallest and the largest.
RANGES = {"trace_rate": (0, 2**32 - 1), "trace_count": (-1, 2**31 - 1), "log_frequency": (0, 2**32 - 1)}

_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,30}\s*", re.ASCII)

Shown = dict[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The global settings at start, to which one that is cleared returns. `file`: without one nothing can be traced."""

    level: tuple[str, ...] = (OFF,)
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""


class TraceSettings:
    """What is traced. A model's own settings count before the global ones, field by field.

    `is_known`: whether a model can be asked for by that name.
    """

    def __init__(self, is_known: Callable[[str], bool], options: TraceOptions | None = None) -> None:
        self._is_known = is_known
        options = options or TraceOptions()
        self._defaults: Shown = {
            "trace_level": list(options.level),
            "trace_rate": str(options.rate),
            "trace_count": str(options.count),
            "log_frequency": str(options.log_frequency),
            "trace_file": options.file,
            "trace_mode": "triton",
        }
        self._global: Shown = {}
        self._models: dict[str, Shown] = {}

    def shown(self, model: str = "") -> Shown:
        """Return the settings that count for a model, or the global ones, in the reference's order. Raises ServingError."""
        self._check_model(model)
        return {**self._defaults, **self._global, **self._models.get(model, {})}

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> None:
        """Change settings for all models or for one; None clears a setting. Raises ServingError, and changes nothing then.

        A setting that isn't there is refused; the reference ignores it. Levels that aren't there are ignored, as observed, and
        where none is left the setting stays.
        """
        self._check_model(model)
        own = self._models.get(model, {}) if model else self._global
        changed = dict(own)
        for name, values in changes.items():
            if name == "trace_file":
                raise ServingError(Code.UNSUPPORTED, "trace file location can not be updated through network protocol")
            if name not in RANGES and name != "trace_level":
                there = ", ".join(["trace_level", *RANGES])
                raise _invalid(f"there is no trace setting '{name}' that can be updated; there are {there}")
            if values is None:
                changed.pop(name, None)
            elif name == "trace_level":
                changed.update(self._levels(values))
            else:
                changed[name] = _number(name, values)
        if model:
            self._models[model] = changed
        else:
            self._global = changed

    def _check_model(self, model: str) -> None:
        if model and not self._is_known(model):
            raise _invalid(f"Request for unknown model : {model}")

    def _levels(self, values: Sequence[str]) -> Shown:
        """Return the setting that names of levels mean; none where they mean nothing."""
        if OFF in values:
            if len(values) > 1:
                raise _invalid("Expect only one trace level 'OFF' is specified")
            return {"trace_level": [OFF]}
        unknown = [value for value in values if value not in LEVELS]
        if unknown:
            log.warning("there is no trace level %s; there are %s", ", ".join(map(repr, unknown)), ", ".join((OFF, *LEVELS)))
        levels = [level for level in LEVELS if level in values]
        if levels and not self._defaults["trace_file"]:
            raise _invalid("Attempting to set invalid trace setting :trace file name is not given")
        return {"trace_level": levels} if levels else {}


class LogSettings:
    """What is logged and how. `apply` is called with the new options after each update; None where the log is an app's own."""

    def __init__(self, options: LogOptions | None = None, apply: Callable[[LogOptions], None] | None = None) -> None:
        self.options = options or LogOptions()
        self._apply = apply

    def shown(self) -> dict[str, bool | int | str]:
        """Return the settings in the reference's order."""
        options = self.options
        return {
            "log_file": options.file,
            "log_info": options.info,
            "log_warning": options.warning,
            "log_error": options.error,
            "log_verbose_level": options.verbose,
            "log_format": options.format,
        }

    def update(self, changes: Mapping[str, bool | int | str | None]) -> None:
        """Change settings, at once and for the whole process; None leaves one as it is. Settings not known are ignored.

        Raises ServingError, and changes nothing then. The caller has checked the types.
        """
        options = self.options
        for name, value in changes.items():
            if value is None:
                continue
            match name, value:
                case "log_file", _:
                    raise ServingError(Code.UNSUPPORTED, "log file location can not be updated through network protocol")
                case "log_info", bool():
                    options = replace(options, info=value)
                case "log_warning", bool():
                    options = replace(options, warning=value)
                case "log_error", bool():
                    options = replace(options, error=value)
                case "log_verbose_level", int():
                    options = replace(options, verbose=value)
                case "log_format", str():
                    if value not in LOG_FORMATS:
                        raise ServingError(Code.UNAVAILABLE, f"invalid argument for --log_format, got: {value}")
                    options = replace(options, format=value)
        if self._apply is not None:
            self._apply(options)
        self.options = options


def _number(name: str, values: Sequence[str]) -> str:
    """Return the number that a setting is given as text."""
    text = values[0] if len(values) == 1 else ",".join(values)
    if len(values) != 1 or not _NUMBER.fullmatch(text):
        raise _invalid(f"Unable to parse '{name}', got: {text}")
    low, high = RANGES[name]
    number = int(text)
    if name == "trace_count" and -(2**31) <= number < low:
        raise _invalid(f"Unable to parse '{name}'. Expecting value >= {low}, got:{number}")
    if not low <= number <= high:
        raise _invalid(f"Unable to parse '{name}', value is out of range [ {low}, {high} ], got: {text}")
    return str(number)


def _invalid(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)
