"""Settings that clients change: of tracing, with models' own before the global ones, and of the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kernel import LOG_FORMATS, Code, LogSettings, ServingError, TraceOptions, TraceSettings
from kernel.observability.logs import LogOptions

DEFAULT = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}


def settings(**options: Any) -> TraceSettings:
    return TraceSettings(lambda name: name in ("m", "n"), TraceOptions(**options))


def refused(trace: TraceSettings, changes: Mapping[str, Sequence[str] | None], model: str = "") -> tuple[Code, str]:
    """Return the refusal of an update, which must not have changed anything."""
    before = trace.shown(), trace.shown("m")
    with pytest.raises(ServingError) as caught:
        trace.update(changes, model)
    assert (trace.shown(), trace.shown("m")) == before
    return caught.value.code, caught.value.message


def test_trace_settings_at_start() -> None:
    trace = settings()
    assert trace.shown() == trace.shown("m") == DEFAULT
    assert list(trace.shown()) == list(DEFAULT)
    configured = settings(file="f", level=("TIMESTAMPS",), rate=5, count=7, log_frequency=9).shown()
    assert list(configured.values()) == [["TIMESTAMPS"], "5", "7", "9", "f", "triton"]


def test_what_is_shown_can_t_be_changed_from_outside() -> None:
    trace = settings()
    trace.shown()["trace_rate"] = "1"
    assert trace.shown() == DEFAULT


def test_a_model_s_own_settings_count_before_the_global_ones() -> None:
    trace = settings()
    trace.update({"trace_rate": ["77"], "trace_count": ["3"]}, "m")
    assert trace.shown() == trace.shown("n") == DEFAULT
    trace.update({"trace_rate": ["55"], "log_frequency": ["9"]})
    assert trace.shown("m") == {**DEFAULT, "trace_rate": "77", "trace_count": "3", "log_frequency": "9"}
    assert trace.shown("n") == {**DEFAULT, "trace_rate": "55", "log_frequency": "9"}
    trace.update({"trace_rate": None}, "m")
    assert trace.shown("m")["trace_rate"] == "55"
    trace.update({"trace_rate": None, "log_frequency": None})
    assert trace.shown() == DEFAULT
    assert trace.shown("m") == {**DEFAULT, "trace_count": "3"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("trace_rate", "x", "Unable to parse 'trace_rate', got: x"),
        ("trace_rate", "", "Unable to parse 'trace_rate', got: "),
        ("trace_rate", "5x", "Unable to parse 'trace_rate', got: 5x"),
        ("trace_rate", "1.5", "Unable to parse 'trace_rate', got: 1.5"),
        ("trace_rate", "-1", "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1"),
        ("trace_rate", "4294967296", "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296"),
        ("trace_count", "x", "Unable to parse 'trace_count', got: x"),
        ("trace_count", "-2", "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        ("trace_count", "2147483648", "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648"),
        ("log_frequency", "x", "Unable to parse 'log_frequency', got: x"),
        ("log_frequency", "-1", "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -1"),
    ],
)
def test_numbers_that_are_none(name: str, text: str, words: str) -> None:
    for model in ("", "m"):
        assert refused(settings(), {"trace_rate": ["9"], name: [text]}, model) == (Code.INVALID_ARG, words)


def test_numbers() -> None:
    trace = settings()
    trace.update({"trace_rate": [" +007 "], "trace_count": ["-1"], "log_frequency": ["4294967295"]})
    assert trace.shown() == {**DEFAULT, "trace_rate": "7", "log_frequency": "4294967295"}
    assert refused(trace, {"trace_rate": ["1", "2"]}) == (Code.INVALID_ARG, "Unable to parse 'trace_rate', got: 1,2")
    assert refused(trace, {"trace_rate": []}) == (Code.INVALID_ARG, "Unable to parse 'trace_rate', got: ")


def test_levels() -> None:
    trace = settings()
    trace.update({"trace_level": ["OFF"]})
    assert refused(trace, {"trace_level": ["TIMESTAMPS"]}) == (
        Code.INVALID_ARG,
        "Attempting to set invalid trace setting :trace file name is not given",
    )
    assert refused(trace, {"trace_level": ["OFF", "TIMESTAMPS"]}) == (
        Code.INVALID_ARG,
        "Expect only one trace level 'OFF' is specified",
    )
    trace = settings(file="traces")
    trace.update({"trace_level": ["TENSORS", "TIMESTAMPS"]}, "m")
    assert trace.shown("m")["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    assert trace.shown()["trace_level"] == ["OFF"]
    trace.update({"trace_level": []}, "m")
    assert trace.shown("m")["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    trace.update({"trace_level": ["OFF"]}, "m")
    assert trace.shown("m")["trace_level"] == ["OFF"]


def test_settings_that_mean_nothing_are_refused_while_something_is_traced() -> None:
    """In the words of the reference, which has none for a count of 0."""
    trace = settings(file="traces", level=("TIMESTAMPS",))
    prefix = "Attempting to set invalid trace setting :"
    assert refused(trace, {"trace_rate": ["0"]}) == (Code.INVALID_ARG, f"{prefix}sample rate must be non-zero")
    assert refused(trace, {"trace_count": ["0"]}, "m") == (Code.INVALID_ARG, prefix)
    trace.update({"trace_level": ["OFF"], "trace_rate": ["0"], "trace_count": ["0"]})
    assert refused(trace, {"trace_level": ["TENSORS"]}) == (Code.INVALID_ARG, f"{prefix}sample rate must be non-zero")


def test_mode_opentelemetry() -> None:
    trace = settings(mode="opentelemetry", level=("TIMESTAMPS",), rate=0, resource=(("a", "b"), ("c", "d")))
    assert list(trace.shown().items()) == [
        ("trace_level", ["TIMESTAMPS"]),
        ("trace_rate", "0"),  # only what the client traces
        ("trace_count", "-1"),
        ("trace_mode", "opentelemetry"),
        ("url", "http://localhost:4318/v1/traces"),
        ("resource", "a=b,c=d"),
        ("bsp_schedule_delay", "5000"),
        ("bsp_max_export_batch_size", "512"),
        ("bsp_max_queue_size", "2048"),
    ]
    trace.update({"trace_rate": ["7"], "log_frequency": ["3"]}, "m")  # of which there is no use in this mode
    assert trace.shown("m") == {**trace.shown(), "trace_rate": "7"}
    sampler = trace.sampler("m")
    assert sampler is not None and sampler.times and not sampler.tensors
    trace.update({"trace_level": ["TENSORS"]}, "m")
    assert trace.sampler("m") is None


def test_who_decides_what_is_traced() -> None:
    trace = settings(file="traces", rate=3, count=9, log_frequency=2)
    retired: list[Any] = []
    trace.on_retire = retired.append
    assert trace.sampler("m") is None
    trace.update({"trace_level": ["TIMESTAMPS"]})
    both = trace.sampler("m")
    assert both is not None and both is trace.sampler("n") and len(retired) == 1
    assert (both.rate, both.left, both.log_frequency, both.times, both.tensors) == (3, 9, 2, True, False)
    trace.update({"trace_rate": ["5"]}, "m")
    own = trace.sampler("m")
    assert own is not None and own.rate == 5 and trace.sampler("n") is both and len(retired) == 1
    trace.update({"trace_count": ["4"]})
    assert retired[1:] == [both, own] and both.retired
    changed = trace.sampler("m")
    assert changed is not None and (changed.rate, changed.left) == (5, 4)
    trace.update({"trace_rate": None}, "m")
    assert trace.sampler("m") is trace.sampler("n")


def test_a_level_that_is_not_there_is_ignored_but_not_silently(caplog: pytest.LogCaptureFixture) -> None:
    trace = settings(file="traces")
    with caplog.at_level(logging.WARNING, "kernel"):
        trace.update({"trace_level": ["X", "TENSORS"]})
        trace.update({"trace_level": ["timestamps"]})
    assert trace.shown()["trace_level"] == ["TENSORS"]
    assert caplog.messages == [
        f"there is no trace level '{name}'; there are OFF, TIMESTAMPS, TENSORS" for name in ("X", "timestamps")
    ]


@pytest.mark.parametrize("name", ["nope", "trace_mode", "trace_rates", ""])
def test_settings_that_are_not_there(name: str) -> None:
    words = (
        f"there is no trace setting '{name}' that can be updated; there are trace_level, trace_rate, trace_count, log_frequency"
    )
    assert refused(settings(), {"trace_rate": ["9"], name: ["1"]}) == (Code.INVALID_ARG, words)
    assert refused(settings(), {name: None}) == (Code.INVALID_ARG, words)


def test_the_file_stays() -> None:
    words = "trace file location can not be updated through network protocol"
    for value in (["x"], None):
        assert refused(settings(), {"trace_rate": ["9"], "trace_file": value}) == (Code.UNSUPPORTED, words)


def test_unknown_models() -> None:
    trace = settings()
    assert refused(trace, {"trace_rate": ["9"]}, "nobody") == (Code.INVALID_ARG, "Request for unknown model : nobody")
    with pytest.raises(ServingError, match=r"^Request for unknown model : nobody$"):
        trace.shown("nobody")


# --- the log


def test_log_settings_are_shown_in_order() -> None:
    shown = LogSettings(LogOptions(info=False, verbose=2, format="ISO8601", file="f")).shown()
    assert list(shown.items()) == [
        ("log_file", "f"),
        ("log_info", False),
        ("log_warning", True),
        ("log_error", True),
        ("log_verbose_level", 2),
        ("log_format", "ISO8601"),
    ]


def test_log_settings_are_applied_whole() -> None:
    applied: list[LogOptions] = []
    log = LogSettings(LogOptions(), applied.append)
    log.update({"log_info": False, "log_verbose_level": 3, "log_format": "ISO8601", "log_file": None, "nope": 1})
    assert applied == [LogOptions(info=False, verbose=3, format="ISO8601")] == [log.options]
    log.update({"log_info": True, "log_warning": False, "log_error": False, "log_format": None})
    assert log.options == LogOptions(warning=False, error=False, verbose=3, format="ISO8601")


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"log_format": "x"}, Code.UNAVAILABLE, "invalid argument for --log_format, got: x"),
        ({"log_format": "iso8601"}, Code.UNAVAILABLE, "invalid argument for --log_format, got: iso8601"),
        ({"log_file": "x"}, Code.UNSUPPORTED, "log file location can not be updated through network protocol"),
    ],
)
def test_log_settings_that_can_t_be(changes: dict[str, Any], code: Code, words: str) -> None:
    applied: list[LogOptions] = []
    log = LogSettings(LogOptions(), applied.append)
    with pytest.raises(ServingError) as caught:
        log.update({"log_info": False, **changes})
    assert (caught.value.code, caught.value.message) == (code, words)
    assert log.options == LogOptions()
    assert not applied


def test_log_formats() -> None:
    assert LOG_FORMATS == ("default", "ISO8601", "json")
