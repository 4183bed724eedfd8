"""Pictures of numbers: bars of block characters for a terminal, and a page of them as SVG. Knows nothing of what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from kernel.cli.table import columns

__all__ = ["Chart", "bars", "spark", "svg"]

WIDTH = 40  # of the longest bar, in characters

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Chart:
    """Rows of a label, a number that is the length of its bar, and how that is written."""

    title: str
    rows: Sequence[tuple[str, float, str]]


def bars(chart: Chart) -> list[str]:
    """Return the chart as lines, each bar in eighths of a character."""
    most = max((value for _, value, _ in chart.rows), default=0.0) or 1.0
    lines = []
    for label, value, shown in chart.rows:
        eighths = round(value / most * WIDTH * 8)
        if value and not eighths:
            eighths = 1  # there is something
        bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
        lines.append((label, f"{bar:{WIDTH}}", shown))
    widest = max((len(label) for label, _, _ in lines), default=0)
    return [chart.title, *columns([(f"{label:>{widest}}", bar, shown) for label, bar, shown in lines], indent="  ")]


def spark(values: Sequence[float]) -> str:
    """Return numbers as one line, each a block whose height goes from 0 to the largest of them."""
    most = max(values, default=0.0) or 1.0
    return "".join(_HEIGHTS[min(7, int(max(0.0, value) / most * 7.999))] for value in values)


def svg(title: str, lines: Sequence[str], charts: Sequence[Chart]) -> str:
    """Return a page: a title, lines of text and the charts below one another."""
    parts = [_text(20, 30, title, size=18)]
    y = 52
    for line in lines:
        parts.append(_text(20, y, line))
        y += 17
    for chart in charts:
        y += 26
        parts.append(_text(20, y, chart.title, size=14))
        most = max((value for _, value, _ in chart.rows), default=0.0) or 1.0
        for label, value, shown in chart.rows:
            y += 17
            width = value / most * 480
            parts.append(_text(170, y, label, anchor="end"))
            parts.append(f'<rect x="180" y="{y - 11}" width="{width:.1f}" height="13" fill="#4878a8"/>')
            parts.append(_text(188 + width, y, shown))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{y + 24}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" xml:space="preserve">{escape(words)}</text>'
