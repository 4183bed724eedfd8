"""`kernel serve --watch` as its user sees it: what came of each save, on the console, in a form made for reading.

A mistake is told once for each change, with its place as `file:line:column` and the line itself; then that the model is served
again. The log has its own form and is not for this.
"""

from __future__ import annotations

import time
from typing import TextIO

from kernel.registry import Reload

__all__ = ["Console"]


class Console:
    """Writes reports to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failing: set[str] = set()

    def __call__(self, reload: Reload) -> None:
        print("\n".join(self._lines(reload)), file=self._stream, flush=True)

    def _lines(self, reload: Reload) -> list[str]:
        name, changed = reload.name, _listed(reload.changed)
        head = f"{time.strftime('%H:%M:%S')} {name}:"
        versions = f"version {', '.join(map(str, reload.versions))}"
        if reload.gone:
            what = f"{versions}, as it was, goes on serving" if reload.versions else "it is unloaded"
            return [f"{head} its folder is gone: {what}"]
        if not reload.problem:
            again = " again" if name in self._failing else ""
            self._failing.discard(name)
            return [f"{head} {changed}: {versions} is served{again}, after {reload.seconds:.2f} s"]
        self._failing.add(name)
        serving = f"{versions}, as it was, goes on serving" if reload.versions else "nothing is served until it is mended"
        lines = [f"{head} {changed}: NOT LOADED, {serving}"]
        place = reload.place
        if place is not None:
            lines.append(f"  {place}")
            lines += [f"      {line}" for line in place.source.splitlines()]
        told = [line for line in reload.problem.strip().splitlines() if line.strip()]
        return lines + [f"  {line}" for line in (*told, *reload.causes)]


def _listed(files: tuple[str, ...]) -> str:
    if not files:
        return "at the start"
    shown = ", ".join(file or "the folder" for file in files[:3])
    return f"{shown} and {len(files) - 3} more changed" if len(files) > 3 else f"{shown} changed"
