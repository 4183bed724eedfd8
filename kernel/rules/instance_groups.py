"""Which instances of a model go on, which go and which are new when its instance groups change. Pure.

An instance goes on where the new config asks for one of the same kind on the same device; names and counts don't matter to it.
(Contract: lifecycle, section 4.7.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kernel.config import ModelConfig

__all__ = ["InstanceSpec", "instance_specs", "rearranged"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What one instance is to be: what it is called, where it runs, and all else that its group says about it."""

    name: str  # `<group>_<k>`
    kind: str
    device_id: int
    group: bytes
    passive: bool = False  # it is there, and takes no requests
    resources: tuple[tuple[str, bool, int], ...] = ()  # what its executions hold under a rate limiter
    priority: int = 0

    @property
    def likeness(self) -> tuple[str, int, bytes]:
        """Equal where an instance of one may go on as one of the other."""
        return self.kind, self.device_id, self.group


def instance_specs(config: ModelConfig, number: int | None = None) -> list[InstanceSpec]:
    """Return the instances that the config asks for, in its order: `count` on each GPU of a group.

    `number`: how many there are to be of its one group instead. An ensemble has one, and a model that is elsewhere: what passes
    its requests on.
    """
    if config.is_ensemble or config.is_elsewhere:
        return [InstanceSpec(config.name, "CPU", 0, b"")]
    specs = []
    for group, message in zip(config.instance_groups, config.message.instance_group):
        rest = type(message)()
        rest.CopyFrom(message)
        for field in ("name", "count", "gpus"):
            rest.ClearField(field)
        likeness = rest.SerializeToString(deterministic=True)
        devices = [device for _ in range(number or group.count) for device in group.gpus or (0,)]
        specs += [
            InstanceSpec(f"{group.name}_{index}", group.kind, device, likeness, group.passive, group.resources, group.priority)
            for index, device in enumerate(devices)
        ]
    return specs


def rearranged(running: Mapping[T, InstanceSpec], wanted: Sequence[InstanceSpec]) -> tuple[list[T], list[InstanceSpec]]:
    """Return the running instances that go, and the specs that need a new one, each with a name of its own.

    Those that keep their name go on rather than others that are like them.
    """
    missing = list(wanted)
    going = dict(running)
    for by_name in (True, False):
        for instance, spec in list(going.items()):
            alike = (want for want in missing if want.likeness == spec.likeness and (want.name == spec.name or not by_name))
            found = next(alike, None)
            if found is not None:
                missing.remove(found)
                del going[instance]
    taken = {spec.name for spec in running.values()}
    return list(going), [_renamed(spec, taken) for spec in missing]


def _renamed(spec: InstanceSpec, taken: set[str]) -> InstanceSpec:
    """Return the spec under its own name, or under the group's next free one; the name is taken then."""
    name, number = spec.name, 0
    group = spec.name.rpartition("_")[0]
    while name in taken:
        name = f"{group}_{number}"
        number += 1
    taken.add(name)
    return replace(spec, name=name)
