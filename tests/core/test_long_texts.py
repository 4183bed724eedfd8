"""What clients send reaches messages and the log cut at a length, on one line, and escaped."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from virtual import BASE, TestBackend, run, write_repository

from kernel import Code, Kernel, ServingError, Tensor
from kernel.errors import LONGEST, SHOWN, clipped, shortened
from kernel.observability.logs import Formatter
from kernel.requests.request import InferenceRequest, log_ids

LONG = "x" * 20_000_000

#: Ends a line for some reader, moves a cursor, turns text around, or can't be encoded.
UNSEEN = "\x00\x07\x1b[2J\x7f\x85\u2028\u2029\u202e\u2066\ud800\r\n\v\f"


def record(message: object, *arguments: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("kernel", logging.INFO, "a.py", 1, message, arguments, None)
    made.__dict__.update(more)
    return made


@pytest.mark.parametrize("format", ["default", "ISO8601", "json"])
def test_a_line_of_the_log_is_one_line_and_not_without_end(format: str) -> None:
    made = Formatter(format)
    line = made.format(record("model '%s'", UNSEEN))
    assert len(line.splitlines()) == 1 and line.replace("\n", "?").isprintable(), line
    line.encode()
    assert len(made.format(record(LONG))) < LONGEST + 300


def test_what_is_told_below_a_line_is_escaped_and_cut_too() -> None:
    try:
        raise ValueError(UNSEEN + LONG)
    except ValueError:
        text = Formatter().format(record("it failed", exc_info=sys.exc_info()))
    first, *rest = text.split("\n")
    assert first.endswith('"it failed"')
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert len(text) < 2 * LONGEST


def test_ids() -> None:
    request = InferenceRequest("m", {}, lambda response, final: None, id=f"a\u2028{LONG}")
    for text in (request.log_id, log_ids([request]), repr(request)):
        assert len(text) < SHOWN + 100 and text.isprintable() and "a\\u2028xxx" in text
    assert len(log_ids([request] * 1000)) < 20 * SHOWN
    plain = InferenceRequest("m", {}, lambda response, final: None, id="a-b 7")
    assert plain.log_id == "[request id: a-b 7] "


def test_messages() -> None:
    error = ServingError(Code.NOT_FOUND, f"Request for unknown model: '{LONG}' is not found")
    assert error.message == str(error) and len(error.message) < LONGEST + 100
    assert error.message.startswith("Request for unknown model: 'xxx") and error.message.endswith("' is not found")
    assert shortened("abc", 3) == "abc" and clipped("é 'x'") == "é 'x'"
    assert clipped("abcd", 3) == "abc… (4 characters)"


def test_a_request_of_a_long_id(tmp_path: Path) -> None:
    """To a model that nobody has, with an input that the model does not have: nothing of it comes back whole."""

    async def main() -> None:
        async with Kernel(write_repository(tmp_path, {"m": BASE}), plugins=[TestBackend({})]) as kernel:
            for model, name in ((LONG, "X"), ("m", LONG)):
                outcomes: list[ServingError | None] = []
                request = InferenceRequest(
                    model,
                    {name: Tensor(name, "FP32", np.ones((1, 1), np.float32))},
                    lambda response, final, outcomes=outcomes: outcomes.append(response and response.error),  # type: ignore[misc]
                    id=LONG,
                )
                kernel.submit(request)
                (error,) = outcomes
                assert error is not None and len(error.message) < LONGEST + 100

    run(main())
