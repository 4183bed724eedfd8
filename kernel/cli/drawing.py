"""Graphs as text that Mermaid draws, and as SVG. Knows nothing of what they show; names in them are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Graph", "GraphEdge", "GraphNode", "mermaid", "svg"]


@dataclass(frozen=True)
class GraphNode:
    """`kind`: "end" (where something comes in or out), "group" (that has a graph of its own) or "plain"."""

    key: str
    label: str
    kind: str = "plain"


@dataclass(frozen=True)
class GraphEdge:
    """`dashed`: seen, not said by a config."""

    source: str
    target: str
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Graph:
    """Edges name their nodes by key. There may be circles."""

    title: str
    nodes: Sequence[GraphNode]
    edges: Sequence[GraphEdge]


# --- Mermaid

_SHAPES = {"end": ('(["', '"])'), "group": ('[["', '"]]'), "plain": ('["', '"]')}


def mermaid(graphs: Sequence[Graph]) -> str:
    """Return one flowchart, a box for each graph."""
    return "\n".join(["flowchart LR", *(line for k, graph in enumerate(graphs) for line in _box(f"g{k}", graph))])


def _box(prefix: str, graph: Graph) -> Iterator[str]:
    keys = {node.key: f"{prefix}n{k}" for k, node in enumerate(graph.nodes)}
    yield f'  subgraph {prefix}["{_coded(graph.title)}"]'
    yield "    direction LR"
    for node in graph.nodes:
        before, behind = _SHAPES[node.kind]
        yield f"    {keys[node.key]}{before}{_coded(node.label)}{behind}"
    for edge in graph.edges:
        arrow = "-.->" if edge.dashed else "-->"
        label = f'|"{_coded(edge.label)}"|' if edge.label else ""
        yield f"    {keys[edge.source]} {arrow}{label} {keys[edge.target]}"
    yield "  end"


def _coded(text: str) -> str:
    """Return a text in which Mermaid finds nothing to obey; other characters are codes, which it shows as what they mean."""
    return re.sub(r"[^\w .,:/()+-]", lambda found: f"#{ord(found[0])};", text)


# --- SVG

WIDTH, HEIGHT = 150, 34  # of a node, in pixels
ACROSS, DOWN = 260, 56  # from one to the next
MARGIN = 24
SHOWN = 20  # characters of a label

_STYLE = (
    "<style>text{font:12px sans-serif;fill:#222}.t{font-size:15px}.l{font-size:10px;fill:#555}"
    ".n{fill:#eef3f8;stroke:#4878a8}.end{fill:#f4f4f4;stroke:#999}.group{fill:#e4ecd8;stroke:#6a8f3c}"
    ".e{fill:none;stroke:#777}.d{stroke-dasharray:5 4;stroke:#b0612a}</style>"
    '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>'
)


def svg(graphs: Sequence[Graph]) -> str:
    """Return a picture, the graphs below one another."""
    parts: list[str] = []
    wide, high = 200, MARGIN
    for graph in graphs:
        places = _places(graph)
        parts.append(_text(MARGIN, high + 14, graph.title, "t"))
        top = high + 34
        for edge in graph.edges:
            parts += _arrow(places[edge.source], places[edge.target], edge, top)
        for node in graph.nodes:
            column, row = places[node.key]
            x, y = MARGIN + column * ACROSS, top + row * DOWN
            kind = "n" if node.kind == "plain" else node.kind
            round = HEIGHT // 2 if node.kind == "end" else 4
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="{round}"/>')
            parts.append(_text(x + WIDTH // 2, y + 21, node.label, anchor="middle"))
            wide = max(wide, x + WIDTH + MARGIN)
        high = top + DOWN * (1 + max((row for _, row in places.values()), default=0)) + MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">'
    return "\n".join([head, _STYLE, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return column and row of each node: behind all that lead to it, as far as there is no circle."""
    column = dict.fromkeys((node.key for node in graph.nodes), 0)
    for _ in range(min(len(column), 64)):  # where that does not end it, there is a circle
        moved = False
        for edge in graph.edges:
            if edge.source != edge.target and column[edge.target] <= column[edge.source] < len(column) - 1:
                column[edge.target] = column[edge.source] + 1
                moved = True
        if not moved:
            break
    used = {at: k for k, at in enumerate(sorted(set(column.values())))}
    rows: dict[int, int] = {}
    places = {}
    for key, at in column.items():
        rows[at] = rows.get(at, -1) + 1
        places[key] = (used[at], rows[at])
    return places


def _arrow(source: tuple[int, int], target: tuple[int, int], edge: GraphEdge, top: int) -> Iterator[str]:
    x1, y1 = MARGIN + source[0] * ACROSS + WIDTH, top + source[1] * DOWN + HEIGHT // 2
    x2, y2 = MARGIN + target[0] * ACROSS, top + target[1] * DOWN + HEIGHT // 2
    bend = 50 if x2 > x1 else 90
    kind = "e d" if edge.dashed else "e"
    yield f'<path class="{kind}" marker-end="url(#a)" d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"/>'
    if edge.label:
        yield _text((x1 + x2) // 2, (y1 + y2) // 2 - 4, edge.label, "l", anchor="middle")


def _text(x: int, y: int, words: str, kind: str = "", *, anchor: str = "start") -> str:
    shown = words if len(words) <= SHOWN or kind == "t" else f"{words[: SHOWN - 1]}…"
    title = "" if shown == words else f"<title>{_clean(words)}</title>"
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x}" y="{y}" text-anchor="{anchor}">{_clean(shown)}{title}</text>'


def _clean(text: str) -> str:
    """Return a text as XML may have it: it has no control characters, not even escaped, and no lone surrogates."""
    return escape(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text))
