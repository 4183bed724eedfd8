"""Which instances of a model go on, which go and which are new when its instance groups change. Pure.

An instance goes on where the new config asks for one of the same kind on the same device; names and counts don't matter to it.
(Contract: lifecycle, section 4.7.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kernel.config import ModelConfig

__all__ = ["Slot", "rearranged", "slots_of"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one instance: what it is called, where it runs, and all else that its group says about it."""

    name: str  # `<group>_<k>`
    kind: str
    device_id: int
    group: bytes
    passive: bool = False  # it is there, and takes no requests
    resources: tuple[tuple[str, bool, int], ...] = ()  # what its executions hold under a rate limiter
    priority: int = 0

    @property
    def likeness(self) -> tuple[str, int, bytes]:
        return self.kind, self.device_id, self.group


def slots_of(config: ModelConfig) -> list[Slot]:
    """Return the slots that the config asks for, in its order: `count` on each GPU of a group. An ensemble has one."""
    if config.is_ensemble:
        return [Slot(config.name, "CPU", 0, b"")]
    slots = []
    for group, message in zip(config.instance_groups, config.message.instance_group):
        rest = type(message)()
        rest.CopyFrom(message)
        for field in ("name", "count", "gpus"):
            rest.ClearField(field)
        likeness = rest.SerializeToString(deterministic=True)
        devices = [device for _ in range(group.count) for device in group.gpus or (0,)]
        slots += [
            Slot(f"{group.name}_{index}", group.kind, device, likeness, group.passive, group.resources, group.priority)
            for index, device in enumerate(devices)
        ]
    return slots


def rearranged(running: Mapping[T, Slot], wanted: Sequence[Slot]) -> tuple[list[T], list[Slot]]:
    """Return the running instances that go, and the slots that need a new one, each with a name of its own.

    Those that keep their name go on rather than others that are like them.
    """
    missing = list(wanted)
    going = dict(running)
    for by_name in (True, False):
        for instance, slot in list(going.items()):
            alike = (want for want in missing if want.likeness == slot.likeness and (want.name == slot.name or not by_name))
            found = next(alike, None)
            if found is not None:
                missing.remove(found)
                del going[instance]
    taken = {slot.name for slot in running.values()}
    return list(going), [_renamed(slot, taken) for slot in missing]


def _renamed(slot: Slot, taken: set[str]) -> Slot:
    """Return the slot under its own name, or under the group's next free one; the name is taken then."""
    name, number = slot.name, 0
    group = slot.name.rpartition("_")[0]
    while name in taken:
        name = f"{group}_{number}"
        number += 1
    taken.add(name)
    return replace(slot, name=name)
