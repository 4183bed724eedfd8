"""What goes on, on the standard error: a bar where `rich` is installed and somebody looks, else a line for each step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """Give out what is told of each step: its words, and which part of all is done."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            pass
        else:
            columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
            with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task("", total=1.0)
                yield lambda words, part: bar.update(task, description=words, completed=part)
            return
    last = ""

    def plain(words: str, part: float) -> None:
        nonlocal last
        if words != last:
            last = words
            print(f"{part:4.0%} {words}", file=sys.stderr, flush=True)

    yield plain
