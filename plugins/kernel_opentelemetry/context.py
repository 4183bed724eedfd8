"""Which trace a span belongs to and how that is told to others: the W3C header `traceparent`. Pure, but for chance."""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

__all__ = ["Ids", "below", "context_of", "continued", "first", "new_span"]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class Ids(NamedTuple):
    """`trace_id` of the whole tree; `root`, the span of the front end, which only the first of a tree has, else 0; `span`, the
    model's; `parent`: what the first of these is below, 0 for nothing; `is_remote`: that is a span of the client's.
    """

    trace_id: int
    root: int
    span: int
    parent: int
    is_remote: bool


def continued(traceparent: str) -> tuple[int, int] | None:
    """Return the ids of trace and span that the header names, None where it is none."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return (int(match[1], 16), int(match[2], 16)) if match is not None else None


def first(traceparent: str) -> Ids:
    """Return the ids of a tree's first spans."""
    chance = os.urandom(32)  # not `random`, which models may seed
    given = continued(traceparent)
    trace_id, parent = given or (int.from_bytes(chance[:16]) or 1, 0)
    return Ids(trace_id, int.from_bytes(chance[16:24]) or 1, int.from_bytes(chance[24:]) or 1, parent, given is not None)


def below(ids: Ids) -> Ids:
    """Return the ids of a call's span."""
    return Ids(ids.trace_id, 0, new_span(), ids.span, False)


def new_span() -> int:
    return int.from_bytes(os.urandom(8)) or 1


def context_of(ids: Ids) -> str:
    """Return what a model may pass on, as `request.trace().get_context()` does."""
    return json.dumps({"traceparent": f"00-{ids.trace_id:032x}-{ids.span:016x}-01"}, separators=(",", ":"))
