"""Which settings of a model are looked at, in which order, and what would be without each of those that were chosen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel.config import FieldPath, ModelConfig

__all__ = ["Expected", "Settings", "choose", "reasons", "settings_of"]

DELAYS = (0, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)  # microseconds

#: A simulation may be this much better than what is live, and is to meet the goal all the same.
MARGIN = 0.8
BETTER = 0.9  # part of the p99 from which on a further line is worth it


@dataclass(frozen=True)
class Settings:
    """What is tuned. `delay`: microseconds, None without dynamic batching; `most`: max_batch_size; `placement`: "" as it is."""

    most: int = 0
    delay: int | None = None
    preferred: tuple[int, ...] = ()
    count: int = 1
    placement: str = ""

    def changes(self, before: Settings) -> dict[FieldPath, str]:
        """Return the fields that are other than `before`, as a config has them."""
        found: dict[FieldPath, str] = {}
        if self.most != before.most:
            found["max_batch_size",] = str(self.most)
        if self.delay is not None and self.delay != before.delay:
            found["dynamic_batching", "max_queue_delay_microseconds"] = str(self.delay)
        if self.delay is not None and self.preferred != before.preferred:
            found["dynamic_batching", "preferred_batch_size"] = f"[ {', '.join(map(str, self.preferred))} ]"
        if self.count != before.count:
            found["instance_group", "count"] = str(self.count)
        if self.placement != before.placement:
            found["parameters=placement", "value", "string_value"] = f'"{self.placement}"'
        return found


@dataclass(frozen=True)
class Expected:
    """What became of requests. `p99` in seconds; `lost`: how many had no answer; `busy`: part of the instances' time, 0 to 1."""

    p99: float
    lost: int = 0
    busy: float = 0.0

    def meets(self, goal: float) -> bool:
        """Whether all are answered, and p99 is within `goal` seconds."""
        return not self.lost and self.p99 <= goal


#: Says what would become of requests.
Look = Callable[[Settings], Expected]


def settings_of(config: ModelConfig) -> Settings:
    """Return what a config says."""
    batching = config.message.dynamic_batching if config.message.HasField("dynamic_batching") else None
    groups = config.message.instance_group
    return Settings(
        config.max_batch_size,
        None if batching is None else batching.max_queue_delay_microseconds,
        () if batching is None else tuple(batching.preferred_batch_size),
        max(1, groups[0].count) if groups else 1,
        config.message.parameters["placement"].string_value if "placement" in config.message.parameters else "",
    )


def choose(before: Settings, goal: float, counts: Sequence[int], look: Look) -> list[tuple[Settings, Expected]]:
    """Return what is worth trying live, the least that is likely to do first; where nothing is, the nearest first.

    `goal`: seconds of p99; `counts`: numbers of instances.
    """
    as_it_is = before, look(before)
    best = [_best(replace(before, count=count), goal, look) for count in counts]
    best = [as_it_is, *(one for one in best if one != as_it_is)]
    enough = [one for one in best if one[1].meets(MARGIN * goal)] or [one for one in best if one[1].meets(goal)]
    rest = sorted((one for one in best if one not in enough), key=_by_outcome)
    return [*enough, *rest]


def _best(start: Settings, goal: float, look: Look) -> tuple[Settings, Expected]:
    """Return the best delay, then preferred size, then largest batch, each only where it is worth a line."""
    found = start, look(start)
    if not start.most:
        return found
    sizes = [2**k for k in range(1, start.most.bit_length()) if 2**k <= start.most]
    found = _better(found, [replace(start, delay=one, preferred=()) for one in DELAYS if one / 1e6 < goal / 2], look)
    if found[0].delay is not None:
        found = _better(found, [replace(found[0], preferred=(size,)) for size in sizes], look)
    return _better(found, [replace(found[0], most=size, preferred=()) for size in sizes[:-1]], look)


def _better(found: tuple[Settings, Expected], others: Sequence[Settings], look: Look) -> tuple[Settings, Expected]:
    tried = sorted(((one, look(one)) for one in others if one != found[0]), key=_by_outcome)
    if tried and (tried[0][1].lost, tried[0][1].p99) < (found[1].lost, BETTER * found[1].p99):
        return tried[0]
    return found


def _by_outcome(one: tuple[Settings, Expected]) -> tuple[int, float]:
    return one[1].lost, one[1].p99


def reasons(before: Settings, chosen: Settings, look: Look) -> Mapping[FieldPath, Expected]:
    """Return for each field that was changed what would become of requests without that change."""
    without: dict[FieldPath, Expected] = {}
    for path in chosen.changes(before):
        one = {
            "max_batch_size": replace(chosen, most=before.most),
            "max_queue_delay_microseconds": replace(chosen, delay=before.delay),
            "preferred_batch_size": replace(chosen, preferred=before.preferred),
            "count": replace(chosen, count=before.count),
        }.get(path[-1], replace(chosen, placement=before.placement))
        without[path] = look(one)
    return without
