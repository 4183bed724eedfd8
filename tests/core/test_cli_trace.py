"""`--trace-config` and its older forms: settings are accepted, what would trace something is refused."""

from __future__ import annotations

import pytest

from kernel import TraceOptions
from kernel.cli.parser import Parser
from kernel.cli.trace import add_trace_flags, trace_options


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
    old = ("--trace-level=OFF", "--trace-rate=7", "--trace-count", "3", "--trace-log-frequency=2")
    assert read(*old) == TraceOptions(rate=7, count=3, log_frequency=2)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--trace-config=rate", "--trace-config 'rate' is not of the form <setting>=<value> or <mode>,<setting>=<value>"),
        ("--trace-config=rate=x", "--trace-config 'rate=x': rate is an integer from 0 to 4294967295"),
        ("--trace-config=rate=-1", "--trace-config 'rate=-1': rate is an integer from 0 to 4294967295"),
        ("--trace-config=count=-2", "--trace-config 'count=-2': count is an integer from -1 to 2147483647"),
        ("--trace-rate=1.5", "--trace-rate '1.5': rate is an integer from 0 to 4294967295"),
        *(
            (
                f"{flag}{value}",
                f"tritonserver's {flag.rstrip('=')} {value} is not implemented in this version; there are level=OFF, "
                "mode=triton, rate, count and triton,log-frequency",
            )
            for flag, value in (
                ("--trace-config=", "level=TIMESTAMPS"),
                ("--trace-config=", "mode=opentelemetry"),
                ("--trace-config=", "triton,file=trace.json"),
                ("--trace-config=", "opentelemetry,url=localhost"),
                ("--trace-level=", "TIMESTAMPS"),
            )
        ),
    ],
)
def test_refused(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(argument)
    assert f"Error: {message}\n" in capsys.readouterr().err
