"""The screen of `kernel top`, drawn by rich: knows what is shown where, and in which colour. Texts of servers are no markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernel.cli.live_state import ModelLine, ServerState
from kernel.cli.table import printable
from kernel.cli.top_text import COLUMNS, cells, ordered, summary, waiting

__all__ = ["Screen"]

#: The share of the lines that models have where requests wait, too.
SHARE = 0.6

#: How wide names may be shown, in characters.
WIDEST = 32

#: Which columns go first where a line has no room for all.
LEAVING = ("instances", "oldest", "batch", "failures", "queue", "inflight", "state", "latency", "requests")

COLOURS = {"READY": "green", "LOADING": "yellow", "UNLOADING": "yellow", "UNAVAILABLE": "red"}


class Screen:
    """Within a `with`: the terminal's other screen, which is gone afterwards. `console`: of rich, None for the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)

    def draw(self, state: ServerState, sort: str, turned: bool, paused: bool, trouble: str) -> None:
        """Draw what is known; `trouble`: why it is not known anew."""
        height = self._live.console.size.height - 5
        room = max(3, int(height * SHARE) if state.inflight else height)
        parts: list[RenderableType] = [Text(summary(state), style="bold")]
        if trouble:
            parts.append(Text(printable(trouble), style="bold red"))
        parts.append(_models(state, sort, turned, room, self._live.console.size.width))
        if state.inflight:
            parts.append(_inflight(state, max(1, height - room - 2)))
        parts += [Text(printable(f"not told: {words}"), style="dim") for words in state.untold]
        keys = f"s/S sort ({COLUMNS[sort][0]})  r reverse  p {'go on' if paused else 'pause'}  q quit"
        parts.append(Text(keys, style="reverse"))
        self._live.update(Group(*parts), refresh=True)


def _models(state: ServerState, sort: str, turned: bool, room: int, width: int) -> Table:
    table = Table(box=None, expand=True, pad_edge=False)
    lines = ordered(state.models, sort, turned)
    rows = [dict(zip(COLUMNS, cells(line))) for line in lines[:room]]
    shown = _fitting(rows, sort, width)
    for name, wide in shown.items():
        title, number = COLUMNS[name]
        mark = ("▼" if number != turned else "▲") if name == sort else ""
        justify: Literal["left", "right"] = "right" if number else "left"
        style = "bold" if name == sort else ""
        table.add_column(f"{title}{mark}", justify=justify, no_wrap=True, overflow="ellipsis", style=style, width=wide)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for line, row in zip(lines, rows):
        table.add_row(*(Text(printable(row[name]), style=_style(name, line)) for name in shown), _reason(line))
    if len(lines) > room:
        table.add_row(Text(f"and {len(lines) - room} more", style="dim"))
    return table


def _fitting(rows: Sequence[Mapping[str, str]], sort: str, width: int) -> dict[str, int]:
    """Return the columns that a line has room for, and how wide each is; that of the sorting always."""
    wide = {name: max(len(title) + 1, *(len(row[name]) for row in rows), 0) for name, (title, _) in COLUMNS.items()}
    wide["model"] = min(wide["model"], WIDEST)
    for name in LEAVING:
        if sum(wide.values()) + 2 * len(wide) > width and name != sort:
            del wide[name]
    return wide


def _style(name: str, line: ModelLine) -> str:
    return COLOURS.get(line.state, "dim") if name == "state" else ""


def _reason(line: ModelLine) -> Text:
    reason = line.reason.strip().splitlines()[0] if line.reason.strip() and line.state != "READY" else ""
    return Text(printable(reason), style="red")


def _inflight(state: ServerState, room: int) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, title=f"{len(state.inflight)} without an answer", title_justify="left")
    for title in ("AGE", "MODEL", "ID", "STATE"):
        table.add_column(title, no_wrap=True, max_width=WIDEST, overflow="ellipsis")
    table.add_column("WHY", no_wrap=True, overflow="ellipsis", ratio=1)
    for request in state.inflight[:room]:
        table.add_row(*(Text(printable(cell)) for cell in waiting(request)))
    return table
