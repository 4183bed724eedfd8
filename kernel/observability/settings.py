"""The settings that clients change while the server runs: of tracing, for all models and for single ones, and of the log.

Values arrive as a front end has decoded them and are checked here; an update is made whole or not at all. Each update makes a new
Sampler, which decides which requests are traced by these settings. (Contract: http_protocol, sections 9 and 10.)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel.errors import Code, ServingError, clipped
from kernel.observability.access_log import AccessLog
from kernel.observability.logs import FORMATS, LogOptions
from kernel.observability.sampling import Sampler

__all__ = ["LEVELS", "LOG_FORMATS", "OFF", "OPENTELEMETRY", "RANGES", "TRITON", "LogSettings", "TraceOptions", "TraceSettings"]

log = logging.getLogger("kernel")

#: What the setting `log_format` may be.
LOG_FORMATS: tuple[str, ...] = FORMATS

LEVELS = ("TIMESTAMPS", "TENSORS")
OFF = "OFF"
TRITON, OPENTELEMETRY = "triton", "opentelemetry"

#: The settings that are numbers: the smallest and the largest.
RANGES = {"trace_rate": (0, 2**32 - 1), "trace_count": (-1, 2**31 - 1), "log_frequency": (0, 2**32 - 1)}

_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,30}\s*", re.ASCII)

Shown = dict[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The global settings at start, to which one that is cleared returns.

    `level`: OFF, or TIMESTAMPS and TENSORS. `rate`: one of how many requests is traced; `count`: how many in all, -1 for no
    end; `log_frequency`: traces a file, 0 for all in one. `mode`: of which sink, "triton", "opentelemetry" or a plugin's own
    (hook `make_trace_sink`). `file`: where mode `triton` writes; without one nothing can be traced in it. The rest is for
    mode `opentelemetry`: `url` of the collector, attributes of the `resource`, and how spans are gathered:
    `bsp_max_queue_size` spans may wait, `bsp_schedule_delay` milliseconds lie between messages, and
    `bsp_max_export_batch_size` spans go in one message. `settings`: pairs of name and value, for the sink of a plugin's mode.
    """

    level: tuple[str, ...] = (OFF,)
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    mode: str = TRITON
    url: str = "http://localhost:4318/v1/traces"
    resource: tuple[tuple[str, str], ...] = ()
    bsp_max_queue_size: int = 2048
    bsp_schedule_delay: int = 5000
    bsp_max_export_batch_size: int = 512
    settings: tuple[tuple[str, str], ...] = ()


class TraceSettings:
    """What is traced (`Kernel.trace_settings`). A model's own settings count before the global ones, field by field.

    `options`: the global ones at start. `is_known`: whether a model can be asked for by that name. `on_change` is called
    after each update, `on_retire` with each Sampler that another one has taken over from.

    The core's own: `sampler`.
    """

    def __init__(self, is_known: Callable[[str], bool], options: TraceOptions | None = None) -> None:
        self._is_known = is_known
        self.options = options = options or TraceOptions()
        self.on_change: Callable[[], None] = lambda: None
        self.on_retire: Callable[[Sampler], None] = lambda sampler: None
        self._defaults: Shown = {
            "trace_level": list(options.level),
            "trace_rate": str(options.rate),
            "trace_count": str(options.count),
            "log_frequency": str(options.log_frequency),
            "trace_file": options.file,
            "trace_mode": options.mode,
        }
        if options.mode == OPENTELEMETRY:
            del self._defaults["log_frequency"], self._defaults["trace_file"]
            self._defaults.update(
                url=options.url,
                resource=",".join("=".join(pair) for pair in options.resource),
                bsp_schedule_delay=str(options.bsp_schedule_delay),
                bsp_max_export_batch_size=str(options.bsp_max_export_batch_size),
                bsp_max_queue_size=str(options.bsp_max_queue_size),
            )
        self._global: Shown = {}
        self._models: dict[str, Shown] = {}
        self._samplers: dict[str, Sampler] = {"": self._sampler(self._effective(""))}

    def shown(self, model: str = "") -> Shown:
        """Return the settings that count for a model, or the global ones, in the reference's order. Raises ServingError.

        The count is what is left of it, less by one for each request that was traced.
        """
        self._check_model(model)
        return {**self._effective(model), "trace_count": str(self._at_work(model).left)}

    def sampler(self, model: str) -> Sampler | None:
        """Return what decides which requests to a model are traced, None while none is."""
        sampler = self._at_work(model)
        if not (sampler.times or sampler.tensors) or _problem(self._effective(model)) is not None:
            return None
        return sampler

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> None:
        """Change settings for all models or for one; None clears a setting.

        Raises ServingError (INVALID_ARG, or UNSUPPORTED for the file), and changes nothing then.

        A setting that isn't there is refused; the reference ignores it. Levels that aren't there are ignored, as observed, and
        where none is left the setting stays. Whatever is updated, the count begins anew.
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
                changed.update(_levels(values))
            elif name in self._defaults:
                changed[name] = _number(name, values)
        below = self._defaults | self._global if model else self._defaults
        if (problem := _problem(below | changed)) is not None:
            raise _invalid(f"Attempting to set invalid trace setting :{problem}")
        if model:
            self._models[model] = changed
        else:
            self._global = changed
        self._take_over(model)
        self.on_change()

    def _effective(self, model: str) -> Shown:
        return {**self._defaults, **self._global, **self._models.get(model, {})}

    def _at_work(self, model: str) -> Sampler:
        return self._samplers.get(model) or self._samplers[""]

    def _take_over(self, model: str) -> None:
        """Make a new Sampler, for one model; or for the global settings, and each model that has only some of its own."""
        for name in (model,) if model else ("", *self._models):
            own = self._models.get(name, {})
            if name and not model and own.keys() >= {"trace_level", *RANGES}:
                continue
            old = self._samplers.pop(name, None)
            if not name or own:
                self._samplers[name] = self._sampler(self._effective(name))
            if old is not None:
                old.retired = True
                self.on_retire(old)

    def _sampler(self, settings: Shown) -> Sampler:
        levels = settings["trace_level"]
        rate, count, frequency = (int(str(settings.get(name, 0))) for name in RANGES)
        tensors = "TENSORS" in levels and self.options.mode != OPENTELEMETRY
        return Sampler(rate, count, frequency, times="TIMESTAMPS" in levels, tensors=tensors)

    def _check_model(self, model: str) -> None:
        if model and not self._is_known(model):
            raise _invalid(f"Request for unknown model : {clipped(model)}")


class LogSettings:
    """What is logged and how. `options`: those at start. `apply` is called with the new options at each
    update; None where the log is an app's own. `access`: what has a line for each request, None for nothing.

    `on_change` is called after each update.
    """

    def __init__(
        self,
        options: LogOptions | None = None,
        apply: Callable[[LogOptions], None] | None = None,
        access: AccessLog | None = None,
    ) -> None:
        self.options = options or LogOptions()
        self._apply = apply
        self.access = access
        self.on_change: Callable[[], None] = lambda: None

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

        Raises ServingError (UNSUPPORTED for the file, UNAVAILABLE for a format that there is not), and changes nothing then. The
        caller has checked the types.
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
        self.on_change()


def _levels(values: Sequence[str]) -> Shown:
    """Return the setting that names of levels mean; none where they mean nothing."""
    if OFF in values:
        if len(values) > 1:
            raise _invalid("Expect only one trace level 'OFF' is specified")
        return {"trace_level": [OFF]}
    unknown = [value for value in values if value not in LEVELS]
    if unknown:
        log.warning("there is no trace level %s; there are %s", ", ".join(map(repr, unknown)), ", ".join((OFF, *LEVELS)))
    levels = [level for level in LEVELS if level in values]
    return {"trace_level": levels} if levels else {}


def _problem(settings: Shown) -> str | None:
    """Return why nothing can be traced although it is to be, in the reference's words; None where it can, or isn't to be.

    For a count of 0 the reference has no words.
    """
    if settings["trace_level"] == [OFF]:
        return None
    if settings["trace_mode"] == TRITON:
        if int(str(settings["trace_rate"])) == 0:
            return "sample rate must be non-zero"
        if not settings["trace_file"]:
            return "trace file name is not given"
    return "" if int(str(settings["trace_count"])) == 0 else None


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
