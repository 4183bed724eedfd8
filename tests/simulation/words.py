"""Which errors a client may get, and what must have happened for each: an error that nothing explains is a violation."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.world import Ticket

__all__ = ["explain"]

Rule = tuple[str, str, "Callable[[Ticket], bool]"]


def _always(ticket: Ticket) -> bool:
    return True


def _committed(ticket: Ticket) -> bool:
    return any(ticket.world.committed[plan.name] for plan in ticket.plan.below)


def _below(name: str) -> Callable[[Ticket], bool]:
    return lambda ticket: any(getattr(plan, name) for plan in ticket.plan.below)


def _gone(ticket: Ticket) -> bool:
    """A model was unloaded, or failed to load, or the server stops."""
    world = ticket.world
    return world.stopping or any(world.unloads[plan.name] for plan in ticket.plan.below)


def _cancelled(ticket: Ticket) -> bool:
    return ticket.cancelled or ticket.plan.sequential or ticket.world.stopping


RULES: tuple[Rule, ...] = (
    ("planned", r"planned", _committed),
    ("garbage", r"its executor returned|where a response was wanted|responses for \d+ requests", _committed),
    ("cancelled execution", r"the execution of model '.*' was cancelled", _committed),
    ("deadline", r"deadline of the request to model '.*' passed after", lambda ticket: ticket.deadline),
    ("deadline on the wire", r"^Deadline Exceeded$", lambda ticket: ticket.deadline),
    ("memory", r"--memory-limit-\w+ allow|the largest that is taken has", lambda ticket: ticket.client is not None),
    ("shutting down", r"shutting down", lambda ticket: ticket.world.stopping),
    ("cancelled", r"Request cancelled", _cancelled),
    ("time-out", r"Request timeout expired", _below("times_out")),
    ("full", r"Exceeds maximum queue size", _below("bounded")),
    ("sequence", r"must specify the START flag|timeout of the corresponding sequence has been expired",
     lambda ticket: ticket.plan.sequential),
    ("gone", r"stopp|is not ready|unknown model|exiting|is not available|unloaded|has no available versions", _gone),
    ("circle", r"could only wait for itself", lambda ticket: bool(ticket.plan.calls)),
)  # fmt: skip
COMPILED = [(name, re.compile(pattern), holds) for name, pattern, holds in RULES]


def explain(words: str, ticket: Ticket) -> str:
    """Return by which rule the error is explained, "" for none."""
    for name, pattern, holds in COMPILED:
        if pattern.search(words) and holds(ticket):
            return name
    return ""
