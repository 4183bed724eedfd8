"""Pictures of numbers: bars of block characters for a terminal, and a page of them as SVG or PNG. Knows not what they show."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kernel.cli.table import columns
from kernel.errors import Code, ServingError, how_to_install

__all__ = ["Chart", "bars", "look_for_pillow", "spark", "svg", "write_png"]

WIDTH = 40  # of the longest bar, in characters
COLOUR = "#4878a8"  # of bars
SCALE = 2  # pixels of a PNG for each of the picture's

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


@dataclass(frozen=True)
class Words:
    """Words of a picture. `anchor`: "start" where they begin at `x`, "end" where they end there; `y`: of their line."""

    x: float
    y: int
    text: str
    size: int = 12
    anchor: str = "start"


@dataclass(frozen=True)
class Bar:
    """A bar of a picture, from its upper left corner."""

    x: float
    y: int
    width: float


PICTURE = 780  # pixels across
BAR = 13  # and the height of a bar


def picture(title: str, lines: Sequence[str], charts: Sequence[Chart]) -> tuple[int, list[Words | Bar]]:
    """Return height and parts of a page: a title, lines of text and the charts below one another."""
    parts: list[Words | Bar] = [Words(20, 30, title, size=18)]
    y = 52
    for line in lines:
        parts.append(Words(20, y, line))
        y += 17
    for chart in charts:
        y += 26
        parts.append(Words(20, y, chart.title, size=14))
        most = max((value for _, value, _ in chart.rows), default=0.0) or 1.0
        for label, value, shown in chart.rows:
            y += 17
            width = value / most * 480
            parts += [Words(170, y, label, anchor="end"), Bar(180, y - 11, width), Words(188 + width, y, shown)]
    return y + 24, parts


def svg(title: str, lines: Sequence[str], charts: Sequence[Chart]) -> str:
    """Return the page as SVG."""
    height, parts = picture(title, lines, charts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{PICTURE}" height="{height}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *map(_svg, parts), "</svg>", ""])


def _svg(part: Words | Bar) -> str:
    if isinstance(part, Bar):
        return f'<rect x="{part.x:.0f}" y="{part.y}" width="{part.width:.1f}" height="{BAR}" fill="{COLOUR}"/>'
    place = f'x="{part.x:.1f}" y="{part.y}" font-size="{part.size}" text-anchor="{part.anchor}"'
    return f'<text {place} xml:space="preserve">{escape(part.text)}</text>'


def look_for_pillow() -> None:
    """Raise ServingError where Pillow is not installed."""
    if importlib.util.find_spec("PIL") is None:
        words = f"a picture as PNG needs Pillow, which is not installed: {how_to_install('png')}"
        raise ServingError(Code.UNAVAILABLE, words)


def write_png(path: Path, title: str, lines: Sequence[str], charts: Sequence[Chart]) -> None:
    """Write the page as PNG, for which Pillow has to be there. Raises OSError where the file can't be written."""
    from PIL import Image, ImageDraw, ImageFont

    height, parts = picture(title, lines, charts)
    image = Image.new("RGB", (PICTURE * SCALE, height * SCALE), "white")
    draw = ImageDraw.Draw(image)
    for part in parts:
        x, y = part.x * SCALE, part.y * SCALE
        if isinstance(part, Bar):
            draw.rectangle((x, y, x + part.width * SCALE, y + BAR * SCALE), fill=COLOUR)
        else:
            font = ImageFont.load_default(part.size * SCALE)
            draw.text((x, y), part.text, fill="black", font=font, anchor="ls" if part.anchor == "start" else "rs")
    image.save(path, format="PNG")
