"""`kernel top`: what a running server does, as it does it: models, rates, waiting, and what has no answer and why.

On a terminal it is drawn anew by rich, and keys sort and end it; elsewhere it is said once, as text or as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from kernel.cli.asking import headers_of
from kernel.cli.live_state import Look, compared, look
from kernel.cli.parser import Parser
from kernel.cli.top_text import COLUMNS, text
from kernel.errors import ServingError, how_to_install

__all__ = ["top"]

DESCRIPTION = """\
Show what a server does, as it does it: its models and their states, requests and failures a second, batch
sizes, how long requests wait and take, and which have no answer yet, and why.

URL is where its HTTP port is, such as localhost:8000. Keys: s and S sort by the next or previous column,
r turns the order round, p pauses, q ends. Where the standard output is no terminal it is said once.
"""

EPILOG = """\
examples:
  kernel top localhost:8000
  kernel top localhost:8000 --interval 0.5 --sort queue
  kernel top localhost:8000 --json

Exit status: 0 if the server has told, 1 if it can't be asked, 2 if the command line is wrong.
"""

def interval(text: str) -> float:
    """Read a number of seconds between looks."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds from 0.1 to 3600")
    return seconds


def top(arguments: Sequence[str]) -> int:
    """Run `kernel top`; return the exit status."""
    parser = Parser("kernel top", "[FLAG ...] URL", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("url", metavar="URL", help="the server's HTTP port")
    parser.add_argument("--interval", type=interval, default=2.0, metavar="SECONDS", help="between two looks (default: 2)")
    parser.add_argument("--sort", choices=tuple(COLUMNS), default="model", help="by which column (default: model)")
    parser.add_argument("--plain", action="store_true", help="say it once as text, also on a terminal")
    parser.add_argument("--json", action="store_true", help="say it once as JSON")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="send this, such as a key")
    options = parser.read(arguments)
    url = options.url if "://" in options.url else f"http://{options.url}"
    try:
        headers = headers_of(options.header)
        first = look(url, headers)
        if options.json or options.plain or not (sys.stdout.isatty() and sys.stdin.isatty()):
            return _once(url, headers, first, options)
        try:
            from kernel.cli.top_screen import Screen
        except ImportError:
            words = f"kernel top needs rich on a terminal: {how_to_install('top')}"
            print(f"error: {words}; --plain and --json need nothing", file=sys.stderr)
            return 1
        return _live(url, headers, first, options, Screen)
    except ServingError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1


def _once(url: str, headers: Mapping[str, str], first: Look, options: argparse.Namespace) -> int:
    time.sleep(options.interval)
    state = compared(url, first, look(url, headers))
    if options.json:
        document = asdict(state) | {"inflight": [msgspec.to_builtins(one) for one in state.inflight]}
        print(json.dumps(document | {"requests": state.requests, "failures": state.failures}))
    else:
        print("\n".join(text(state, options.sort)))
    return 0


# --- on a terminal


def _live(url: str, headers: Mapping[str, str], first: Look, options: argparse.Namespace, screen_of: Any) -> int:
    """Draw until somebody has had enough. A server that can't be asked for a while is asked again."""
    names, at, turned, paused, trouble = list(COLUMNS), list(COLUMNS).index(options.sort), False, False, ""
    before, state = first, compared(url, None, first)
    due = time.monotonic() + min(1.0, options.interval)
    with _keys() as key, screen_of() as screen:
        while True:
            screen.draw(state, names[at], turned, paused, trouble)
            pressed = key(max(0.0, due - time.monotonic()))
            if pressed in ("q", "Q", "\x03", "\x04"):
                return 0
            at = (at + {"s": 1, "S": -1}.get(pressed, 0)) % len(names)
            turned ^= pressed == "r"
            paused ^= pressed == "p"
            if time.monotonic() < due:
                continue
            due = time.monotonic() + options.interval
            if paused:
                continue
            try:
                now = look(url, headers)
                state, before, trouble = compared(url, before, now), now, ""
            except ServingError as error:
                trouble = error.message


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Have keys as they are pressed, without their being shown; `key(seconds)` returns "" where none is."""
    import termios
    import tty

    number = sys.stdin.fileno()
    kept = termios.tcgetattr(number)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([number], [], [], seconds)
        if not ready:
            return ""
        return os.read(number, 1).decode("latin-1") or "q"  # the terminal has gone

    try:
        tty.setcbreak(number)
        yield key
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, kept)
