"""The settings of tracing and of the log over gRPC: a request changes those it names and gets all of them back.

Here the types on the wire are checked, in the words of this wire; the kernel checks the values. (Contract: grpc_protocol,
section 2; http_protocol, sections 9 and 10.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel import LOG_FORMATS, Code, ServingError
from kernel_grpc.rpc.unary import unary
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.paths import triton

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_grpc.rpc.methods import Method

__all__ = ["Settings", "methods"]

#: Trace settings that have one value each; others are lists.
SINGLE = ("trace_rate", "trace_count", "log_frequency")

#: Log setting -> the field its value comes in, and what the reference calls that.
LOG_FIELDS = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def methods(kernel: Kernel) -> list[Method]:
    """Return the methods of the service that concern tracing and the log."""
    settings = Settings(kernel)
    return [
        unary(triton("TraceSetting"), "trace", pb.TraceSettingRequest, settings.trace),
        unary(triton("LogSettings"), "logging", pb.LogSettingsRequest, settings.log),
    ]


class Settings:
    """The operations on a kernel's settings."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def trace(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        trace = self.kernel.trace_settings
        if request.settings:
            trace.update(trace_changes(request), request.model_name)
        response = pb.TraceSettingResponse()
        for name, value in trace.shown(request.model_name).items():
            response.settings[name].value.extend([value] if isinstance(value, str) else value)
        return response

    def log(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        log = self.kernel.log_settings
        if request.settings:
            log.update(log_changes(request))
        response = pb.LogSettingsResponse()
        for name, value in log.shown().items():
            shown = response.settings[name]
            if isinstance(value, bool):
                shown.bool_param = value
            elif isinstance(value, int):
                shown.uint32_param = value
            else:
                shown.string_param = value
        return response


def trace_changes(request: pb.TraceSettingRequest) -> dict[str, list[str] | None]:
    """Return the changes that a request asks for; no value at all clears a setting. Raises ServingError."""
    changes: dict[str, list[str] | None] = {}
    for name, setting in sorted(request.settings.items()):
        values = list(setting.value)
        if len(values) > 1 and name in SINGLE:
            raise ServingError(Code.INVALID_ARG, f"expect only 1 value for '{name}'")
        changes[name] = values or None
    return changes


def log_changes(request: pb.LogSettingsRequest) -> dict[str, bool | int | str | None]:
    """Return the changes that a request asks for. Raises ServingError."""
    changes: dict[str, bool | int | str | None] = {}
    for name, setting in sorted(request.settings.items()):
        kind = setting.WhichOneof("parameter_choice")
        field, word = LOG_FIELDS.get(name, (kind, ""))
        if kind != field:
            raise ServingError(Code.INVALID_ARG, f"expect {word} for '{name}'")
        changes[name] = getattr(setting, kind) if kind is not None else ""
    if "log_format" in changes and changes["log_format"] not in LOG_FORMATS:
        raise ServingError(Code.INVALID_ARG, f"invalid argument for log_format, got: {changes['log_format']}")
    return changes
