"""Make model_config_pb2.py and its .pyi from model_config.proto: `python kernel/regenerate.py` (`--check` only
compares).

Needs grpcio-tools (extra `dev`) as the compiler, of any version: only the compiled descriptor is taken from it. The
module is written here and not by the compiler for two reasons. It keeps the schema in a descriptor pool of its own, so
that Triton's client, which registers messages of the same names in the process-wide pool, can be imported beside it.
And it uses public calls of the protobuf runtime only, so that it carries no pin on a runtime version.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from keyword import iskeyword
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PROTO = "model_config.proto"

MODULE = '''"""The messages of model_config.proto, in their own pool. Written by kernel/regenerate.py; do not edit."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_SERIALIZED = (
{literal}
)

_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(_SERIALIZED))
DESCRIPTOR = _POOL.FindFileByName("{proto}")

'''

STUB = '''"""Types of model_config_pb2. Written by kernel/regenerate.py; do not edit."""

from collections.abc import Iterator, MutableMapping
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.message import Message

_K = TypeVar("_K")
_V = TypeVar("_V")

class _MessageMap(MutableMapping[_K, _V], Generic[_K, _V]):
    def __getitem__(self, key: _K) -> _V: ...
    def __setitem__(self, key: _K, value: _V) -> None: ...
    def __delitem__(self, key: _K) -> None: ...
    def __iter__(self) -> Iterator[_K]: ...
    def __len__(self) -> int: ...

class _Enum:
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...

DESCRIPTOR: FileDescriptor
'''


def compile_proto() -> Any:
    """Return the FileDescriptorProto of the schema, as protoc makes it."""
    from google.protobuf import descriptor_pb2

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", f"--descriptor_set_out={target}", PROTO]
        if subprocess.run(command, cwd=FOLDER, check=False).returncode:
            sys.exit("the compiler failed; is grpcio-tools installed? (pip install 'kernel-serve[dev]')")
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file
    pending = list(file.message_type)
    while pending:  # names that follow from the field names: whether they are written depends on the compiler
        message = pending.pop()
        for field in message.field:
            field.ClearField("json_name")
        pending += message.nested_type
    return file


def module_text(file: Any) -> str:
    data = file.SerializeToString(deterministic=True)
    literal = "\n".join(f"    {data[at : at + 40]!r}" for at in range(0, len(data), 40))
    lines = [MODULE.format(literal=literal, proto=PROTO)]
    for enum in file.enum_type:
        lines.append(f'{enum.name} = enum_type_wrapper.EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["{enum.name}"])\n')
        lines += [f"{value.name} = {value.number}\n" for value in enum.value]
    for message in file.message_type:
        descriptor = f'DESCRIPTOR.message_types_by_name["{message.name}"]'
        lines.append(f"{message.name} = message_factory.GetMessageClass({descriptor})\n")
    return "".join(lines)


def stub_text(file: Any) -> str:
    lines = [STUB]
    for enum in file.enum_type:
        lines.append(f"\n{enum.name}: _Enum\n")
        lines += [f"{value.name}: int\n" for value in enum.value]
    for message in file.message_type:
        lines += ["\n", *_class_lines(message, "")]
    return "".join(lines)


def _class_lines(message: Any, indent: str) -> list[str]:
    inner = indent + "    "
    lines = [f"{indent}class {message.name}(Message):\n"]
    for enum in message.enum_type:
        lines.append(f"{inner}{enum.name}: _Enum\n")
        lines += [f"{inner}{value.name}: int\n" for value in enum.value]
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    for nested in message.nested_type:
        if nested.name not in entries:
            lines += _class_lines(nested, inner)
    fields = [field for field in message.field if not iskeyword(field.name)]
    lines += [f"{inner}{field.name}: {_type_name(field, entries)}\n" for field in fields]
    lines.append(f"{inner}def __init__(self, **fields: Any) -> None: ...\n")
    return lines


def _type_name(field: Any, entries: dict[str, Any]) -> str:
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = (_type_name(part, {}) for part in entry.field)
        return (
            f"_MessageMap[{key}, {value}]"
            if entry.field[1].type == field.TYPE_MESSAGE
            else f"MutableMapping[{key}, {value}]"
        )
    message = field.type == field.TYPE_MESSAGE
    scalars = {field.TYPE_STRING: "str", field.TYPE_BOOL: "bool", field.TYPE_FLOAT: "float", field.TYPE_DOUBLE: "float"}
    name = field.type_name.removeprefix(".inference.") if message else scalars.get(field.type, "int")
    if field.label != field.LABEL_REPEATED:
        return str(name)
    return f"RepeatedCompositeFieldContainer[{name}]" if message else f"RepeatedScalarFieldContainer[{name}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not up to date")
    check = parser.parse_args().check
    file = compile_proto()
    stale = 0
    for name, text in (("model_config_pb2.py", module_text(file)), ("model_config_pb2.pyi", stub_text(file))):
        path = FOLDER / name
        if path.exists() and path.read_text() == text:
            continue
        stale = 1
        if check:
            print(f"{path} is not what {PROTO} gives: run `python kernel/regenerate.py`", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"wrote {path}")
    return stale if check else 0


if __name__ == "__main__":
    # The folder of a script is the first place of `import`, and kernel/ holds names (queueing, registry …) that nobody
    # should find there.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != FOLDER]
    sys.exit(main())
