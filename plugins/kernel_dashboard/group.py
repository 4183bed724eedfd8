"""What several replicas see of a version, as one: sums of their figures, and a state that holds for all. Pure.

Counts, and what waits and is executed, are added up; of how long the oldest has waited the longest counts. A version is READY
where it is that everywhere, else the first that is not says why, with its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernel_dashboard.figures import AGE, Figures
from kernel_dashboard.looking import Seen

__all__ = ["merged", "merged_details", "summed"]


def summed(each: Sequence[Figures]) -> Figures:
    """Return the figures of all."""
    if len(each) == 1:
        return each[0]
    return (*(sum(column) for column in zip(*(one[:AGE] for one in each))), max(one[AGE] for one in each))


def merged(parts: Mapping[int, Seen], replicas: int) -> tuple[str, str, Figures | None]:
    """Return state, reason and figures of a version. `parts`: by replica, those that know it; `replicas`: how many there are."""
    figures = [seen.figures for seen in parts.values() if seen.figures is not None]
    state, reason = "READY", ""
    for number, seen in sorted(parts.items()):
        if seen.state != "READY":
            state = seen.state
            reason = f"replica {number}: {seen.reason}" if seen.reason and seen.reason != "unloaded" else seen.reason
            break
    else:
        if len(parts) < replicas:
            state, reason = "UNAVAILABLE", "it is not loaded at every replica"
    return state, reason, summed(figures) if figures else None


def merged_details(each: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Return what `details` says of a model, of all replicas that know it. `each`: by replica, the own one first."""
    first, *others = each.values()
    if not others:
        return first
    versions: dict[str, dict[str, Any]] = {}
    for number, one in each.items():
        for version in one["versions"]:
            instances = [{**row, "name": f"{row['name']} of replica {number}"} for row in version["instances"]]
            named = {**version, "instances": instances}
            known = versions.get(version["version"])
            versions[version["version"]] = named if known is None else _both(known, named)
    failures = [one["failure"] for one in each.values() if one["failure"] is not None]
    return {**first, "failure": failures[0] if failures else None, "versions": list(versions.values())}


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    batches = {rows: figures for rows, *figures in one["batches"]}
    for rows, *figures in other["batches"]:
        batches[rows] = [a + b for a, b in zip(batches.get(rows, [0] * len(figures)), figures)]
    return {
        **one,
        "load_seconds": max(one["load_seconds"], other["load_seconds"]),
        "instances": [*one["instances"], *other["instances"]],
        "batches": [[rows, *figures] for rows, figures in sorted(batches.items())],
        "spent": _added(one["spent"], other["spent"]),
        "success": one["success"] + other["success"],
        "hits": one["hits"] + other["hits"],
        "failures": _added(one["failures"], other["failures"]),
    }


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
