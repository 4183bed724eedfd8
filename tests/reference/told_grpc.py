"""A protobuf message in lines of text, one per value, so that two messages differ where a reader sees it.

In the order of its fields; members of a map by their keys. A field that the messages' schema doesn't know shows, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from tritonclient.grpc import service_pb2 as pb

__all__ = ["walk"]

#: More bytes than these are told by their number and digest.
LONG = 4096


def walk(path: str, message: Message) -> Iterator[str]:
    """Tell the fields that are set; of a duration all, since it's a matter of chance whether one is 0 ns."""
    if isinstance(message, pb.StatisticDuration):
        yield from (f"{path}.count = {message.count}", f"{path}.ns = {message.ns}")
        return
    for field, value in message.ListFields():
        at = f"{path}.{field.name}" if path else field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for name in sorted(value):
                yield from told(f"{at}[{name}]", field.message_type.fields_by_name["value"], value[name])
        elif field.is_repeated:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for index, item in enumerate(value):
                    yield from told(f"{at}[{label(index, item)}]", field, item)
            elif field.type == FieldDescriptor.TYPE_BYTES:
                for index, item in enumerate(value):
                    yield f"{at}[{index}] = {literal(item)}"
            else:
                yield f"{at} = {json.dumps(list(value), ensure_ascii=False)}"
        else:
            yield from told(at, field, value)
    unknown = UnknownFieldSet(message)
    if len(unknown):
        yield f"{path} unknown fields = {[each.field_number for each in unknown]}"


def label(index: int, item: Any) -> str:
    """Tell what an index or statistics lists by name, so that one more doesn't change the others' lines."""
    if isinstance(item, (pb.RepositoryIndexResponse.ModelIndex, pb.ModelStatistics)):
        return f"{item.name}:{item.version}" if item.version else item.name
    return str(index)


def told(at: str, field: FieldDescriptor, value: Any) -> Iterator[str]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        lines = list(walk(at, value))
        yield from lines or [f"{at} = {{}}"]
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield f"{at} = {literal(value)}"
    elif field.type == FieldDescriptor.TYPE_ENUM:
        yield f"{at} = {field.enum_type.values_by_number[value].name}"
    else:
        yield f"{at} = {json.dumps(value, ensure_ascii=False)}"


def literal(data: bytes) -> str:
    """Tell bytes as text where most of them are, else by their digits."""
    if len(data) > LONG:
        return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()}"
    return repr(data) if 2 * sum(32 <= byte < 127 for byte in data) > len(data) else data.hex(" ", 4)
