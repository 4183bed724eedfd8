"""Which ensembles depend on which models, and in what order they have to be loaded. Pure: looks at configs alone."""

from __future__ import annotations

from collections.abc import Mapping

from kernel.config import ModelConfig

__all__ = ["by_dependency", "ensembles_of"]


def ensembles_of(name: str, configs: Mapping[str, ModelConfig]) -> list[str]:
    """Return the ensembles among `configs` that have the model as a step, directly or through other ensembles."""
    direct = [
        other for other, config in configs.items() if any(step.model_name == name for step in config.ensemble or ())
    ]
    return [*direct, *(further for other in direct for further in ensembles_of(other, configs))]


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
