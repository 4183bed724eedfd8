"""`--trace-config` and its older forms: what is accepted means what it means to tritonserver, what isn't there is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel import TraceOptions
from kernel.cli.parser import Parser
from kernel.cli.trace_config import NUMBERS, OLD, SETTERS, add_trace_flags, trace_options

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "tracing.md"


def read(*arguments: str) -> TraceOptions:
    parser = Parser("kernel serve", "REPO", "")
    add_trace_flags(parser)
    return trace_options(parser.read(arguments))


def test_settings() -> None:
    assert read() == TraceOptions()
    assert read("--trace-config=rate=5", "--trace-config", "count=-1", "--trace-config=triton,log-frequency=9") == TraceOptions(
        rate=5, log_frequency=9
    )
    assert read("--trace-config=level=OFF", "--trace-config=mode=triton", "--trace-config=LEVEL=off") == TraceOptions()
    old = ("--trace-level=MAX", "--trace-rate=7", "--trace-count", "3", "--trace-log-frequency=2", "--trace-file=t.json")
    assert read(*old) == TraceOptions(level=("TIMESTAMPS",), rate=7, count=3, log_frequency=2, file="t.json")
    assert read("--trace-config=triton,file=a=b") == TraceOptions(file="a=b")


def test_levels_add_up() -> None:
    level = "--trace-config=level="
    assert read(f"{level}TENSORS", f"{level}timestamps").level == ("TIMESTAMPS", "TENSORS")
    assert read(f"{level}TENSORS", f"{level}OFF").level == ("OFF",)
    assert read(f"{level}OFF", f"{level}TENSORS").level == ("TENSORS",)


def test_opentelemetry() -> None:
    flags = ("mode=opentelemetry", "opentelemetry,url=http://host:1/v1/traces", "opentelemetry,resource=service.name=x",
             "opentelemetry,resource=a=b=c", "opentelemetry,bsp_max_queue_size=1", "opentelemetry,bsp_schedule_delay=2",
             "opentelemetry,bsp_max_export_batch_size=3")  # fmt: skip
    assert read(*(f"--trace-config={flag}" for flag in flags)) == TraceOptions(
        mode="opentelemetry",
        url="http://host:1/v1/traces",
        resource=(("service.name", "x"), ("a", "b=c")),
        bsp_max_queue_size=1,
        bsp_schedule_delay=2,
        bsp_max_export_batch_size=3,
    )


def test_settings_of_a_plugins_mode() -> None:
    """As the documentation says: behind the mode, for its sink to read."""
    flags = ("mode=log", "log,path=a", "log,Level=2", "log,path=b=c")
    options = read(*(f"--trace-config={flag}" for flag in flags))
    assert options == TraceOptions(mode="log", settings=(("level", "2"), ("path", "b=c")))
    assert "`--trace-config log,KEY=VALUE`" in DOCUMENTATION.read_text()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--trace-config=rate", "--trace-config option format is '<trace mode>,<setting>=<value>'. Got rate — "
         "--trace-config 'rate' is not of the form <setting>=<value> or <mode>,<setting>=<value>"),
        ("--trace-config=rate=x", "--trace-config 'rate=x': rate is an integer from 0 to 4294967295"),
        ("--trace-config=rate=-1", "--trace-config 'rate=-1': rate is an integer from 0 to 4294967295"),
        ("--trace-config=count=-2", "--trace-config 'count=-2': count is an integer from -1 to 2147483647"),
        ("--trace-rate=1.5", "--trace-rate '1.5': rate is an integer from 0 to 4294967295"),
        ("--trace-config=level=X", "--trace-config 'level=X': level is one of OFF, TIMESTAMPS, TENSORS"),
        ("--trace-level=X", "--trace-level 'X': level is one of OFF, TIMESTAMPS, TENSORS"),
        ("--trace-config=mode=", "--trace-config 'mode=': mode is triton, opentelemetry or that of a plugin's trace sink"),
        (
            "--trace-config=opentelemetry,url=host",
            "--trace-config 'opentelemetry,url=host': url is the whole address that spans are posted to, as in "
            "http://localhost:4318/v1/traces",
        ),
        (
            "--trace-config=opentelemetry,resource=a",
            "--trace-config 'opentelemetry,resource=a': resource is <key>=<value>",
        ),
        (
            "--trace-config=opentelemetry,bsp_schedule_delay=0",
            "--trace-config 'opentelemetry,bsp_schedule_delay=0': opentelemetry,bsp_schedule_delay is an integer from 1 to "
            "2147483647",
        ),
        (
            "--trace-config=nope=1",
            "--trace-config 'nope=1': there is no trace setting 'nope'; there are level, rate, count, mode, triton,file, "
            "triton,log-frequency, opentelemetry,url, opentelemetry,resource and opentelemetry,bsp_max_queue_size, "
            "…bsp_schedule_delay, …bsp_max_export_batch_size",
        ),
    ],
)
def test_refused(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(argument)
    assert f"Error: {message}\n" in capsys.readouterr().err


def test_all_settings_are_documented() -> None:
    text = DOCUMENTATION.read_text()
    for name in (*NUMBERS, *SETTERS):
        mode, _, setting = name.rpartition(",")
        assert f"`{setting}=" in text if mode == "opentelemetry" else f"`{name}=" in text
    for flag in OLD:
        assert f"`{flag}`" in text
