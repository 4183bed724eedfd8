"""How many instances a model may have, where their number follows its load: what its config says, and what it can't say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from kernel.config.check_instances import MAX_INSTANCES
from kernel.config.elsewhere import elsewhere
from kernel.config.positions import Key
from kernel.config.report import Report
from kernel.config.seconds import read_seconds

__all__ = ["ROWS", "AutoscaleLimits", "autoscale_between", "autoscale_of", "check_autoscaling"]

LEAST, MOST = "autoscale_min", "autoscale_max"
TARGET, QUEUE_AGE, COOLDOWN = "autoscale_target", "autoscale_queue_age", "autoscale_cooldown"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text.lstrip("0")) < 10 and 1 <= int(text) <= MAX_INSTANCES):
        raise ValueError(f"'{text}' is no integer from 1 to {MAX_INSTANCES}")
    return int(text)


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and isfinite(value)):
        raise ValueError(f"'{text}' is no number above 0")
    return value


#: As rows of parameters.py.
ROWS = {
    LEAST: (_number, f"an integer from 1 to {MAX_INSTANCES}"),
    MOST: (_number, f"an integer from 1 to {MAX_INSTANCES}"),
    TARGET: (_positive, "a number of requests in flight for each instance, above 0"),
    QUEUE_AGE: (_positive, "a number of seconds, above 0"),
    COOLDOWN: (read_seconds, "a number of seconds"),
}


@dataclass(frozen=True, slots=True)
class AutoscaleLimits:
    """Between `least` and `most` instances. `target`: requests in flight that one is to have, None for seven tenths of what it
    takes. `queue_age`: seconds that a request may wait while all are busy. `cooldown`: seconds that fewer have to be enough.
    """

    least: int
    most: int
    target: float | None = None
    queue_age: float = 0.5
    cooldown: float = 60.0


def autoscale_of(parameters: Mapping[str, str]) -> AutoscaleLimits | None:
    """Return what a config that was checked says; None where the number of instances is what its groups say."""
    if MOST not in parameters:
        return None
    return autoscale_between(_number(parameters.get(LEAST, "1")), _number(parameters[MOST]), parameters)


def autoscale_between(least: int, most: int, parameters: Mapping[str, str]) -> AutoscaleLimits:
    """Return what a config that was checked says, where somebody else says how many there may be."""
    target = parameters.get(TARGET)
    return AutoscaleLimits(
        least,
        most,
        None if target is None else _positive(target),
        _positive(parameters.get(QUEUE_AGE, "0.5")),
        read_seconds(parameters.get(COOLDOWN, "60")),
    )


def check_autoscaling(report: Report) -> None:
    """Refuse parameters that make no sense together, or with the model. Each alone has been read."""
    parameters = {key: value.string_value for key, value in report.message.parameters.items()}
    there = [key for key in ROWS if key in parameters]
    if not there:
        return
    words = f"the number of instances of model '{report.name}' can't follow its load"
    if elsewhere(report.message):
        for key in (MOST, LEAST, QUEUE_AGE):
            if key in parameters:
                _fail(report, key, words, f"its instances are another server's; wanted '{TARGET}' and '{COOLDOWN}' alone")
                return
        return
    if MOST not in parameters:
        _fail(report, there[0], f"parameter '{there[0]}' of model '{report.name}' has no effect", f"wanted '{MOST}' beside it")
        return
    limits = autoscale_of(parameters)
    assert limits is not None
    if limits.least > limits.most:
        _fail(report, LEAST, words, f"'{LEAST}' is {limits.least}, and '{MOST}' is {limits.most}")
    elif report.message.platform == "ensemble" or report.message.HasField("ensemble_scheduling"):
        _fail(report, MOST, words, "an ensemble has no instances of its own: give the parameter to its models")
    else:
        _check_groups(report, words)


def _check_groups(report: Report, words: str) -> None:
    groups = report.message.instance_group
    if len(groups) > 1:
        detail = f"it has {len(groups)} instance groups, and which of them is to grow nobody says: wanted one"
    elif any(group.passive for group in groups):
        detail = "its instances are passive: they take no requests"
    elif any(len(group.gpus) > 1 for group in groups):
        detail = f"its instance group has {len(groups[0].gpus)} GPUs: wanted one, so that each is loaded alike"
    else:
        return
    _fail(report, MOST, words, detail)


def _fail(report: Report, key: str, words: str, detail: str) -> None:
    report.fail("B", ("parameters", Key(key), "value", "string_value"), words, detail)
