"""What the page asks for of one model, and of calls between models: as values that become JSON. Looks only."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kernel import Code, ServingError, clipped, model_metadata
from kernel_dashboard.figures import sendable

if TYPE_CHECKING:
    from kernel import Failure, FieldOrigin, Kernel, Model, ObservedCalls

__all__ = ["details", "graph"]

#: What the time of requests went to.
SPENT = ("success_time", "queue_time", "compute_input", "compute_infer", "compute_output")


def details(kernel: Kernel, name: str) -> dict[str, Any]:
    """Return what is known of a model and each of its versions that is READY. Raises ServingError for an unknown one."""
    lines = kernel.states(name)
    versions = [model for model in kernel.models() if model.name == name]
    failure = kernel.failures().get(name)
    if not versions and failure is None and not any(line.state for line in lines):
        raise ServingError(Code.NOT_FOUND, f"the server knows no model '{clipped(name)}'")
    return {
        "name": name,
        "states": [[line.version, line.state, sendable(line.reason)] for line in lines],
        "failure": None if failure is None else _failure(failure),
        "versions": [_version(kernel, model) for model in versions],
    }


def _failure(failure: Failure) -> dict[str, Any]:
    place = failure.place
    return {
        "message": sendable(failure.message),
        "place": "" if place is None else sendable(str(place)),
        "line": None if place is None else place.line,
        "source": "" if place is None else sendable(place.source),
        "causes": [sendable(cause) for cause in failure.causes],
    }


def _version(kernel: Kernel, model: Model) -> dict[str, Any]:
    scheduler, config = model.scheduler, model.config
    counter = scheduler.statistics
    counter.settle()
    metadata = model_metadata(kernel, model.name, str(model.version))
    choice = model.placement_choice
    optional = {spec.name for spec in config.inputs if spec.optional}
    return {
        "version": str(model.version),
        "platform": config.metadata_platform,
        "backend": config.served_by,
        "max_batch_size": config.max_batch_size,
        "decoupled": model.decoupled,
        "sequences": config.sequence_batching is not None,
        "load_seconds": round(model.load_seconds, 4),
        "placement": None if choice is None else {"where": choice.where, "reason": sendable(choice.reason)},
        "inputs": [{**asdict(one), "optional": one.name in optional} for one in metadata.inputs],
        "outputs": [asdict(one) for one in metadata.outputs],
        "instances": [
            {"name": one.name, "running": sum(len(batch.requests) for batch in one.running), "healthy": one.healthy}
            for one in scheduler.instances
        ],
        "batches": [
            [rows, int(count), *(round(seconds * 1e3, 4) for seconds in times)]
            for rows, (count, *times) in sorted(counter.batches.items())
        ],
        "spent": {name: round(getattr(counter, name) * 1e3, 4) for name in SPENT},
        "success": counter.success,
        "hits": counter.hits,
        "failures": {reason.value: count for reason, count in counter.failures.items() if count},
        "source": {"kind": config.source.kind, "path": sendable(config.source.path)},
        "config": [_value(one) for one in config.origins()],
        "warnings": [sendable(one) for one in config.warnings],
    }


def _value(one: FieldOrigin) -> list[Any]:
    return [one.field, one.value, one.origin, one.line]


def graph(kernel: Kernel) -> dict[str, Any]:
    """Return which models call which: by their configs, as steps of ensembles, and as it was seen among the newest requests."""
    models = {model.name: model for model in kernel.models()}
    edges: dict[tuple[str, str], dict[str, Any]] = {}

    def edge(caller: str, model: str) -> dict[str, Any]:
        return edges.setdefault((caller, model), {"from": caller, "to": model, "step": False, "calls": 0})

    for name, model in models.items():
        for step in model.config.ensemble or ():
            edge(name, step.model_name)["step"] = True
    calls: ObservedCalls
    for calls in kernel.observed_calls():
        edge(calls.caller, calls.model)["calls"] = calls.count
    named = sorted({name for pair in edges for name in pair})
    nodes = [
        {"name": name, "ready": name in models, "ensemble": name in models and models[name].config.is_ensemble} for name in named
    ]
    return {"nodes": nodes, "edges": list(edges.values())}
