"""Which ensembles depend on which models, and in what order they have to be loaded. Pure: looks at configs alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernel.config import ModelConfig

__all__ = ["by_dependency", "related_to"]


def related_to(
    names: Iterable[str], configs: Sequence[Mapping[str, ModelConfig]], *, down: bool = True
) -> set[str]:
    """Return the names, what ensembles among them consist of, and the ensembles that have one of all these as a step,
    directly or through other ensembles.

    `configs`: what is known of each model; where several are known, each counts. `down`: without it only the ensembles above.
    """
    steps: dict[str, set[str]] = {}
    users: dict[str, set[str]] = {}
    for known in configs:
        for name, config in known.items():
            for step in config.ensemble or ():
                steps.setdefault(name, set()).add(step.model_name)
                users.setdefault(step.model_name, set()).add(name)
    found = set(names)
    if down:
        found = _closure(found, steps)
    return _closure(found, users)


def _closure(names: set[str], further: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(further.get(name, ()))
    return found


def by_dependency(ensembles: Mapping[str, ModelConfig]) -> list[str]:
    """Return the names so that an ensemble comes after the ensembles among its steps; cycles in any order."""
    order: dict[str, None] = {}
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for step in ensembles[name].ensemble or ():
            if step.model_name in ensembles:
                visit(step.model_name)
        order[name] = None

    for name in sorted(ensembles):
        visit(name)
    return list(order)
