"""The JSON form of a config, as the config endpoint shows it and `initialize` gets it (contract: model_config, section 13).

Differs from protobuf's own JSON in two points: 64-bit integers are numbers, and scalars and lists are there also when
empty.
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["as_json"]

#: Fields that the reference's config JSON does not have; shown only where they say something.
_NEWER = frozenset({"max_inflight_requests"})

#: (name, kind, whether repeated, whether in a oneof, enum names) of each field of a message type, in the schema's
#: order.
_Plan = list[tuple[str, str, bool, bool, dict[int, str]]]
_plans: dict[str, _Plan] = {}


def as_json(message: Any) -> dict[str, Any]:
    """Return the message as JSON values, fields in the order of the schema; messages and members of a oneof only where
    set.
    """
    result: dict[str, Any] = {}
    for name, kind, repeated, in_oneof, names in _plan(message.DESCRIPTOR):
        value = getattr(message, name)
        if kind == "map":
            result[name] = {_key(key): _value(value[key], names) for key in sorted(value)}
        elif repeated:
            result[name] = [_element(item, kind, names) for item in value]
        elif (kind == "message" or in_oneof) and not message.HasField(name):
            continue
        elif name in _NEWER and not value:
            continue
        else:
            result[name] = _element(value, kind, names)
    return result


def _plan(descriptor: Any) -> _Plan:
    plan = _plans.get(descriptor.full_name)
    if plan is None:
        plan = []
        for field in descriptor.fields:
            inner = field.message_type
            is_map = inner is not None and inner.GetOptions().map_entry
            kind = (
                "map"
                if is_map
                else "message"
                if inner is not None
                else "enum"
                if field.enum_type is not None
                else "scalar"
            )
            kind = "float" if field.type == field.TYPE_FLOAT else kind
            names = (
                {number: value.name for number, value in field.enum_type.values_by_number.items()}
                if field.enum_type
                else {}
            )
            repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
            plan.append((field.name, kind, bool(repeated), field.containing_oneof is not None, names))
        _plans[descriptor.full_name] = plan
    return plan


def _element(value: Any, kind: str, names: dict[int, str]) -> Any:
    if kind == "message":
        return as_json(value)
    if kind == "enum":
        return names.get(value, value)
    return _shortest(value) if kind == "float" else value


def _value(value: Any, names: dict[int, str]) -> Any:
    return as_json(value) if hasattr(value, "DESCRIPTOR") else names.get(value, value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _shortest(value: float) -> float:
    """A 32-bit float with the fewest digits that still give the same 32 bits; whole numbers without a point."""
    if value.is_integer():
        return int(value)
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if abs(short) < 3.4e38 and struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value
