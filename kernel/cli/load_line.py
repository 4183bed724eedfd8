"""What is being loaded, on the terminal of `kernel serve`: a last line below the log, drawn anew while a load lasts long.

A thread draws it, so that it goes on while the loop is held. Only for terminals: a file has the log, which tells the same now and
then (kernel/registry/progress.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TextIO

from kernel.cli.table import printable

__all__ = ["LoadLine", "load_line"]

#: How long a load lasts before it is shown, and how often it is drawn then; seconds.
PATIENCE = 1.0
DRAW_SECONDS = 0.2

#: How many are named.
NAMED = 3

ERASE = "\r\x1b[K"


class Step(Protocol):
    """A version that is being loaded; LoadStep says what each is."""

    name: str
    version: int
    phase: str


class LoadLine:
    """Stands for a terminal's stream: what is written goes above the line. `show` is called on the loop."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._lock = threading.Lock()
        self._steps: Sequence[Step] = ()
        self._since: dict[Step, float] = {}
        self._began = 0.0
        self._loaded = 0
        self._drawn = False
        self._thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write above the line."""
        with self._lock:
            self._erase()
            return self._stream.write(text)

    def show(self, steps: Sequence[Step]) -> None:
        """These are being loaded from now on."""
        with self._lock:
            now = self._now()
            if not self._steps:
                self._began, self._loaded = now, 0
            self._loaded += sum(step not in steps for step in self._steps)
            self._since = {step: self._since.get(step, now) for step in steps}
            self._steps = steps
            if not steps:
                with contextlib.suppress(OSError, ValueError):  # the terminal has gone
                    self._erase()
                    self._stream.flush()
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kernel-load-line", daemon=True)
                self._thread.start()

    def text(self) -> str:
        """Return the line; "" where nothing is to be shown yet."""
        now = self._now()
        if not self._steps or now - self._began < PATIENCE:
            return ""
        named = [
            f"{printable(step.name)}:{step.version} {now - self._since[step]:.0f} s ({step.phase})"
            for step in self._steps[:NAMED]
        ]
        more = f", and {len(self._steps) - NAMED} more" if len(self._steps) > NAMED else ""
        done = f"{self._loaded} loaded, " if self._loaded else ""
        return f"{now - self._began:.0f} s: {done}loading {', '.join(named)}{more}"

    def draw(self) -> bool:
        """Draw the line where there is one; return whether anything is still being loaded."""
        with self._lock:
            if not self._steps:
                self._thread = None
                return False
            text = self.text()
            if text:
                width = shutil.get_terminal_size().columns - 1
                self._stream.write(f"{ERASE}{text if len(text) <= width else f'{text[: width - 1]}…'}")
                self._stream.flush()
                self._drawn = True
            return True

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(ERASE)
            self._drawn = False

    def _run(self) -> None:
        try:
            while self.draw():
                time.sleep(DRAW_SECONDS)
        except (OSError, ValueError):  # the terminal has gone
            self._steps = ()


def load_line(stream: TextIO | None) -> LoadLine | None:
    """Return what shows loads on a stream, None where it is no terminal that could show it."""
    if stream is None or os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        return LoadLine(stream) if stream.isatty() else None
    except (OSError, ValueError):
        return None
