"""The rules about a config's `parameters`: which of them the server reads, and what each may say. The others are the model's own.

A parameter that the server is to read gets a row here, whoever reads it. The reference has none of them, hence no words for what
is wrong with one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from kernel.config import autoscaling, execution_limit, idle_limit, refuse_late, sequence_wait
from kernel.config.circuit_breaker import CIRCUIT_BREAKER, BreakerRule
from kernel.config.elsewhere import ELSEWHERE
from kernel.config.errors import did_you_mean, listed
from kernel.config.positions import Key
from kernel.config.report import Report
from kernel.config.seconds import read_seconds

__all__ = ["check_parameters"]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text.lstrip("0")) in range(1, 10)):
        raise ValueError(f"'{text}' is no integer of at least 1")
    return int(text)


def _replicate(text: str) -> str:
    if text not in ("all", "one"):
        raise ValueError(f"'{text}' is neither 'all' nor 'one'")
    return text


#: Of any model: what reads it, raising ValueError, and what was wanted where it did.
SERVER: Mapping[str, tuple[Callable[[str], object], str]] = {
    "max_inflight": (_count, "an integer of at least 1"),
    CIRCUIT_BREAKER: (BreakerRule.parse, "'<failures>' or '<failures>/<seconds>', such as 5/30"),
    refuse_late.KEY: (refuse_late.parse, "'on', 'off', or a headroom from 0 to below 1, such as 0.1"),
    sequence_wait.KEY: (sequence_wait.parse, "a number of seconds, 0 for any time"),
    execution_limit.KEY: (read_seconds, "a number of seconds, 0 for no limit"),
    idle_limit.KEY: (read_seconds, "a number of seconds, 0 for any time"),
    "replicate": (_replicate, "'all', or 'one' for a model that lives at one replica"),
    **autoscaling.ROWS,
}
#: Of models of the python backend, besides.
PYTHON: Mapping[str, tuple[Callable[[str], object], str]] = {"max_concurrency": (_count, "an integer of at least 1")}
#: Likewise: one of several words.
CHOICES = {"placement": ("auto", "loop", "thread", "process", *ELSEWHERE), "zero_copy": ("true", "false")}
#: Likewise: read by the backend, which says what is wrong with them.
FREE = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")


def check_parameters(report: Report) -> None:
    """Refuse what the server can't read, and warn of names that are nearly those that it reads."""
    parameters = {key: value.string_value for key, value in report.message.parameters.items()}
    python = report.message.backend == "python"
    rows = {**SERVER, **PYTHON} if python else SERVER
    before = len(report.errors)
    for key, (parse, wanted) in rows.items():
        if key in parameters:
            try:
                parse(parameters[key])
            except ValueError:
                _bad_parameter(report, key, parameters[key], wanted)
    if len(report.errors) == before:
        autoscaling.check_autoscaling(report)
    if python:
        _warn_of_near_names(report, parameters, (*rows, *CHOICES, *FREE))
        for key, allowed in CHOICES.items():
            if key in parameters and parameters[key].lower() not in allowed:
                hint = did_you_mean(parameters[key], allowed)
                _bad_parameter(report, key, parameters[key], f"one of {listed(allowed)}{hint}")


def _warn_of_near_names(report: Report, parameters: Mapping[str, str], known: tuple[str, ...]) -> None:
    """The other parameters are the model's own; where a name is nearly one of the server's, it may be meant so."""
    by_lower = {name.lower(): name for name in known}
    for key in parameters.keys() - set(known):
        for near in difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.85):
            if by_lower[near] not in parameters:
                words = f"the server does not read the parameter '{key}'; did you mean '{by_lower[near]}'?"
                report.warn(("parameters", Key(key)), words)


def _bad_parameter(report: Report, key: str, value: str, wanted: str) -> None:
    at = ("parameters", Key(key), "value", "string_value")
    report.fail("B", at, f"parameter '{key}' of model '{report.name}' is '{value}'", f"wanted {wanted}")
