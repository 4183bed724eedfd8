"""Which models a simulated server has: drawn from a seed, of all kinds that the scheduler knows, with what each is to answer.

Knows configs only. A model adds a number of its own to X, so an answer says which models have seen the request; `total` is what
all on the way add together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from stateful import CONTROLS, STATE

__all__ = ["CACHED_VALUES", "Plan", "draw_models"]

#: Requests to models with a cache have one of so many values; all others have one of their own.
CACHED_VALUES = 9

STYLES = ("inline", "greenlet", "task", "remote")
HEAD = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


@dataclass
class Plan:
    """One model. `kind`: plain, batching, direct, oldest, caller or ensemble. `style`: where its instances execute.

    `rows`: max_batch_size. `calls`: the models that it calls, one after another. `fifo`: what it executes begins in the order of
    its arrival. `ordered`: its answers leave in that order, too.
    """

    name: str
    kind: str
    style: str
    add: int
    rows: int = 0
    instances: int = 1
    concurrency: int = 1
    decoupled: bool = False
    cached: bool = False
    calls: tuple[Plan, ...] = ()
    levels: int = 0
    times_out: bool = False
    bounded: bool = False
    fifo: bool = False
    ordered: bool = False
    slots: int = 0
    resources: str = ""
    rules: str = ""
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.add + sum(plan.total for plan in self.calls)

    @property
    def sequential(self) -> bool:
        return self.kind in ("direct", "oldest")

    @property
    def below(self) -> list[Plan]:
        """The model and all that it calls."""
        return [self, *(one for plan in self.calls for one in plan.below)]

    def text(self, instances: int = 0) -> str:
        """Return its config, perhaps with another number of instances."""
        rows = f"max_batch_size: {self.rows}\n"
        if self.kind == "ensemble":
            names = ["X", *(f"T{k}" for k in range(len(self.calls) - 1)), "Y"]
            steps = "".join(
                f'step {{ model_name: "{plan.name}" model_version: -1 input_map {{ key: "X" value: "{taken}" }} '
                f'output_map {{ key: "Y" value: "{given}" }} }}\n'
                for plan, taken, given in zip(self.calls, names, names[1:])
            )
            return f'platform: "ensemble"\n{HEAD}{rows}ensemble_scheduling {{ {steps} }}\n{self.rules}'
        group = f"{{ kind: KIND_CPU count: {instances or self.instances} {self.resources} }}"
        text = f'backend: "test"\n{HEAD}{rows}instance_group [ {group} ]\n{self.rules}'
        text += f'parameters {{ key: "max_concurrency" value {{ string_value: "{self.concurrency}" }} }}\n'
        if self.decoupled:
            text += "model_transaction_policy { decoupled: true }\n"
        if self.cached:
            text += "response_cache { enable: true }\n"
        return text


def draw_models(rng: Random, limited: bool) -> list[Plan]:
    """Draw the models of one server. `limited`: their executions need resources."""
    plans = [_base(rng, f"m{number}", 1 << number, limited) for number in range(rng.randint(2, 4))]
    callable_plans = [plan for plan in plans if not plan.sequential and not plan.decoupled]
    if callable_plans and rng.random() < 0.7:
        plans.append(_caller(rng, "caller", 64, callable_plans, limited))
        if rng.random() < 0.3:  # which calls what calls
            plans.append(_caller(rng, "outer", 128, [plans[-1], *callable_plans], limited))
    if callable_plans and rng.random() < 0.6:
        plans.append(_ensemble(rng, [plan for plan in plans if not plan.sequential and not plan.decoupled]))
    return plans


def _base(rng: Random, name: str, add: int, limited: bool) -> Plan:
    kind = rng.choice(("plain", "plain", "batching", "batching", "batching", "direct", "oldest"))
    plan = Plan(name, kind, rng.choice(STYLES), add, instances=rng.choice((1, 1, 2, 3)))
    if plan.style in ("task", "remote"):
        plan.concurrency = rng.randint(1, 3)
    if limited and rng.random() < 0.7:
        plan.resources = _resources(rng.randint(1, 2), rng.randint(0, 3))
    if kind in ("direct", "oldest"):
        _draw_sequences(rng, plan)
        return plan
    plan.rows = rng.choice((0, 1, 4)) if kind == "plain" else rng.randint(1, 8)
    if kind == "batching":
        _draw_batching(rng, plan)
    plan.decoupled = rng.random() < 0.2
    plan.cached = not plan.decoupled and rng.random() < 0.25
    plan.fifo = plan.style != "remote" and not plan.levels and not plan.times_out
    plan.ordered = plan.ordered and not plan.levels and not plan.times_out and not plan.decoupled
    return plan


def _resources(count: int, priority: int) -> str:
    return f'rate_limiter {{ resources [ {{ name: "R" count: {count} global: true }} ] priority: {priority} }}'


def _draw_batching(rng: Random, plan: Plan) -> None:
    delay = rng.choice((0, 0, 500, 20_000))
    rules = [f"max_queue_delay_microseconds: {delay}"]
    if rng.random() < 0.5:
        rules.append(f"preferred_batch_size: [ {rng.randint(1, plan.rows)} ]")
    if rng.random() < 0.4:
        plan.levels = rng.randint(1, 3)
        rules.append(f"priority_levels: {plan.levels} default_priority_level: {rng.randint(1, plan.levels)}")
    elif rng.random() < 0.4:
        plan.ordered = True
        rules.append("preserve_ordering: true")
    if rng.random() < 0.5:
        timeout, limit = rng.choice((0, 5_000 if delay < 5_000 else 30_000, 40_000)), rng.choice((0, 3, 12))
        action = "REJECT" if plan.ordered else rng.choice(("DELAY", "REJECT"))
        plan.bounded = limit > 0
        rules.append(
            f"default_queue_policy {{ default_timeout_microseconds: {timeout} max_queue_size: {limit} "
            f"timeout_action: {action} allow_timeout_override: true }}"
        )
        plan.times_out = True  # requests may have time-outs of their own
    plan.rules = "dynamic_batching { " + " ".join(rules) + " }\n"


def _draw_sequences(rng: Random, plan: Plan) -> None:
    plan.rows = rng.randint(1, 4)
    delay = rng.choice((0, 0, 10_000))
    if plan.kind == "direct":
        plan.slots = plan.rows
        how = f"direct {{ max_queue_delay_microseconds: {delay} minimum_slot_utilization: {rng.choice((0.0, 0.5, 1.0))} }}"
    else:
        plan.slots = rng.randint(1, 5)
        ordered = rng.choice(("true", "false"))
        how = (
            f"oldest {{ max_candidate_sequences: {plan.slots} max_queue_delay_microseconds: {delay} "
            f"preserve_ordering: {ordered} }}"
        )
    idle = rng.choice((30_000, 1_000_000))
    plan.rules = f"sequence_batching {{ {how} max_sequence_idle_microseconds: {idle} {CONTROLS} {STATE} }}\n"


def _caller(rng: Random, name: str, add: int, callees: list[Plan], limited: bool) -> Plan:
    calls = tuple(rng.choice(callees) for _ in range(rng.randint(1, 2)))
    plan = Plan(name, "caller", rng.choice(("greenlet", "task")), add, calls=calls, instances=rng.randint(1, 2))
    plan.fifo = True
    if plan.style == "task":
        plan.concurrency = rng.randint(1, 4)
    if limited and rng.random() < 0.5:
        plan.resources = _resources(1, 0)
    return plan


def _ensemble(rng: Random, callees: list[Plan]) -> Plan:
    first = rng.choice(callees)
    fitting = [plan for plan in callees if bool(plan.rows) == bool(first.rows)]
    calls = (first, *(rng.choice(fitting) for _ in range(rng.randint(0, 2))))
    return Plan("ensemble", "ensemble", "ensemble", 0, rows=min(plan.rows for plan in calls), calls=calls)
