"""`kernel explain`: asks a running server why requests took as long as they did, and prints its words, or a trace to look at."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

import msgspec

from kernel.cli.asking import ask, headers_of
from kernel.cli.parser import Parser
from kernel.cli.perfetto import trace_of
from kernel.errors import Code, ServingError
from kernel.observability import Explanation

__all__ = ["explain"]

DESCRIPTION = """\
Ask a server why requests took as long as they did.

URL is where its HTTP port is, such as localhost:8000. Known are the requests that have no answer yet, the
newest 8192 of all models, and of the last hour the slowest 100 and those that failed.
"""

EPILOG = """\
examples:
  kernel explain localhost:8000
  kernel explain localhost:8000 --id 42
  kernel explain localhost:8000 --failed 20
  kernel explain localhost:8000 --slowest 100 --perfetto trace.json

Exit status: 0 if the server has told of a request, 1 if it knows of none or can't be asked, 2 if the command
line is wrong.
"""


class _Lines(TypedDict):
    lines: list[str]


def explain(arguments: Sequence[str]) -> int:
    """Run `kernel explain`; return the exit status."""
    parser = Parser("kernel explain", "[FLAG ...] URL [--id ID | --slowest N | --failed N]", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("url", metavar="URL", help="the server's HTTP port")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--id", default="", help="requests of this id")
    which.add_argument("--slowest", type=int, default=0, metavar="N", help="the slowest that succeeded (default: 10)")
    which.add_argument("--failed", type=int, default=0, metavar="N", help="those that failed last")
    parser.add_argument("--json", action="store_true", help="print what the server says, as JSON")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write a trace that Perfetto and speedscope open")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="send this, such as a key")
    options = parser.read(arguments)
    for count in (options.slowest, options.failed):
        if not 0 <= count <= 100:
            parser.error(f"{count} requests are asked for, wanted are 1 to 100")
    try:
        requests = _ask(options)
        if options.perfetto is not None:
            options.perfetto.write_text(json.dumps(trace_of(requests)))
    except ServingError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {options.perfetto} can't be written: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(requests))
    else:
        for request in requests:
            print("\n".join(request["lines"]))
        if not requests:
            print("no such request is known", file=sys.stderr)
    return 0 if requests else 1


def _ask(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the explanations that are asked for. Raises ServingError."""
    path = f"slowest/{options.slowest or 10}"
    if options.id:
        path = f"id/{quote(options.id, safe='', errors='surrogateescape')}"
    elif options.failed:
        path = f"failed/{options.failed}"
    url = options.url if "://" in options.url else f"http://{options.url}"
    status, reason, told = ask(url, f"/v2/kernel/explain/{path}", headers_of(options.header))
    if status != 200 or not isinstance(told, dict) or "requests" not in told:
        why = told.get("error", "") if isinstance(told, dict) else ""
        raise ServingError(Code.UNAVAILABLE, f"{url} answers {status} {reason}{': ' if why else ''}{why}")
    requests: list[dict[str, Any]] = told["requests"]
    try:
        msgspec.convert(requests, list[Explanation])
        msgspec.convert(requests, list[_Lines])
    except (msgspec.ValidationError, RecursionError) as error:
        words = f"{url} answers with what is no explanation: {error}; it may be another server, or of another release"
        raise ServingError(Code.UNAVAILABLE, words) from None
    return requests
