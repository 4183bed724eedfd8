"""What `kernel top` says, as text: its columns, their order, its rows. Texts of servers are made printable here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernel.cli.live_state import Inflight, ModelLine, ServerState
from kernel.cli.table import columns, printable

__all__ = ["COLUMNS", "cells", "ordered", "summary", "text", "waiting"]

#: Column -> its title, and whether the largest comes first.
COLUMNS = {
    "model": ("MODEL", False),
    "state": ("STATE", False),
    "instances": ("INST", True),
    "requests": ("REQ/S", True),
    "failures": ("FAIL/S", True),
    "batch": ("BATCH", True),
    "queue": ("QUEUE ms", True),
    "latency": ("LATENCY ms", True),
    "inflight": ("IN FLIGHT", True),
    "oldest": ("OLDEST s", True),
}

#: How many requests without an answer plain text tells of.
TOLD = 20


def text(state: ServerState, sort: str) -> Iterator[str]:
    """Yield the lines of what is said once."""
    yield summary(state)
    rows = [tuple(title for title, _ in COLUMNS.values())]
    rows += [cells(line) for line in ordered(state.models, sort, False)]
    yield from (printable(line) for line in columns(rows))
    for line in state.models:
        why = line.reason.strip()
        if why and line.state != "READY":
            yield printable(f"{named(line)}: {why.splitlines()[0]}")
    if state.inflight:
        yield "without an answer:"
        rows = [waiting(request) for request in state.inflight[:TOLD]]
        yield from (printable(line) for line in columns(rows, "  "))
        if len(state.inflight) > TOLD:
            yield f"  and {len(state.inflight) - TOLD} more"
    yield from (printable(f"not told: {words}") for words in state.untold)


def summary(state: ServerState) -> str:
    """Return the first line: all models together."""
    replicas = f", {state.replicas} replicas" if state.replicas is not None and state.replicas > 1 else ""
    ready = sum(line.state == "READY" for line in state.models)
    return printable(
        f"{state.url}: {ready} of {len(state.models)} ready{replicas}, {state.requests:.1f} requests/s, "
        f"{state.failures:.1f} failures/s, {len(state.inflight)} in flight"
    )


def named(line: ModelLine) -> str:
    """Return `add_sub:1`."""
    return f"{line.model}:{line.version}" if line.version else line.model


def cells(line: ModelLine) -> tuple[str, ...]:
    """Return a model's row, in the order of COLUMNS."""
    return (
        named(line),
        line.state,
        "" if line.instances is None else str(line.instances),
        f"{line.requests:.1f}",
        f"{line.failures:.1f}",
        "" if line.batch is None else f"{line.batch:.1f}",
        _milliseconds(line.queue),
        _milliseconds(line.latency),
        str(line.inflight),
        f"{line.oldest:.1f}" if line.inflight else "",
    )


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f}"


def waiting(request: Inflight) -> tuple[str, ...]:
    """Return the row of a request without an answer."""
    return (f"{request.age:.1f} s", f"{request.model}:{request.version}", request.id or "-", request.state, request.why)


def ordered(lines: Sequence[ModelLine], sort: str, turned: bool) -> list[ModelLine]:
    """Return the lines by a column, what has no value there last; equal ones by name."""
    largest_first = COLUMNS[sort][1] != turned
    known = [line for line in lines if getattr(line, sort) is not None]
    known.sort(key=lambda line: (line.model, line.version))
    known.sort(key=lambda line: getattr(line, sort), reverse=largest_first)
    return known + [line for line in lines if getattr(line, sort) is None]


