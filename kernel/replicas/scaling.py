"""How many replicas there are to be, where that follows their load: what each has told of itself, and what the rule says to it.

Decides only (rules/autoscaling.py does); who starts and ends replicas is the supervisor. Told of each replica's load and asked
several times a second.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from kernel.replicas.messages import Load, Number
from kernel.rules import Autoscaler, ScaleLoad, ScaleRule

__all__ = ["LOOK_SECONDS", "GroupScaling"]

LOOK_SECONDS = 0.25


class GroupScaling:
    """Of one group, which begins with the fewest. `told`: what replicas are to know, as they were told it last."""

    def __init__(self, rule: ScaleRule, now: float) -> None:
        self._scaler = Autoscaler(rule, rule.least, now)
        self._loads: dict[Hashable, Load] = {}
        self.told = Number(rule.least, rule.least, rule.least, rule.most, self._scaler.decision.reason)

    def heard(self, replica: Hashable, load: Load) -> None:
        """A replica has told how much it has to do."""
        self._loads[replica] = load

    def look(self, serving: Collection[Hashable], now: float) -> int:
        """Return how many there are to be. `serving`: those that take requests, and stay."""
        self._loads = {replica: load for replica, load in self._loads.items() if replica in serving}
        shares = sum(load.share for load in self._loads.values())
        age = max((load.queue_age for load in self._loads.values()), default=0.0)
        decision = self._scaler.look(ScaleLoad(len(serving), shares, age), now)
        rule = self._scaler.rule
        self.told = Number(len(serving), decision.wanted, rule.least, rule.most, decision.reason)
        return decision.wanted
