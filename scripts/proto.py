"""Make the *_pb2.py and *_pb2.pyi beside each .proto of core and plugins: `python3 dev.py proto` (`--check` only compares).

Needs grpcio-tools (extra `dev`) as the compiler, of any version: only the compiled descriptors are taken from it. The
modules are written here and not by the compiler for two reasons. Each keeps its schema, with the files it imports, in a
descriptor pool of its own, so that Triton's client, which registers messages of the same names in the process-wide
pool, can be imported beside it. And they use public calls of the protobuf runtime only, so that they carry no pin on a
runtime version.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from keyword import iskeyword
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: What there is to make, wherever it lies. A schema imports others by their bare names.
SCHEMAS = tuple(
    sorted(path.relative_to(ROOT).as_posix() for place in ("kernel", "plugins") for path in (ROOT / place).rglob("*.proto"))
)

MODULE = '''"""The messages of {proto}, in their own pool. Written by `python3 dev.py proto`; do not edit."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
{imports}
#: The schema's files, those that others import first.
_FILES = (
{files})

_POOL = descriptor_pool.DescriptorPool()
for _FILE in _FILES:
    _POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(_FILE))
DESCRIPTOR = _POOL.FindFileByName("{proto}")

'''

STUB = '''"""Types of {module}. Written by `python3 dev.py proto`; do not edit."""

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


def compile_proto(schema: Path) -> list[Any]:
    """Return the FileDescriptorProtos of a schema and what it imports, as protoc makes them; its own is the last."""
    from google.protobuf import descriptor_pb2

    places = [f"-I{(ROOT / other).parent}" for other in SCHEMAS]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", *places, f"--descriptor_set_out={target}"]
        if subprocess.run([*command, "--include_imports", schema.name], cwd=folder, check=False).returncode:
            sys.exit("the compiler failed; is grpcio-tools installed? (pip install 'kernel-serve[dev]')")
        files = list(descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file)
    pending = [message for file in files for message in file.message_type]
    while pending:  # names that follow from the field names: whether they are written depends on the compiler
        message = pending.pop()
        for field in message.field:
            field.ClearField("json_name")
        pending += message.nested_type
    return files


def module_text(files: list[Any]) -> str:
    file = files[-1]
    literals = []
    for each in files:
        data = each.SerializeToString(deterministic=True)
        literals += ["    (\n", *(f"        {data[at : at + 40]!r}\n" for at in range(0, len(data), 40)), "    ),\n"]
    imports = "from google.protobuf.internal import enum_type_wrapper\n" if file.enum_type else ""
    lines = [MODULE.format(imports=imports, files="".join(literals), proto=file.name)]
    for enum in file.enum_type:
        lines.append(f'{enum.name} = enum_type_wrapper.EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["{enum.name}"])\n')
        lines += [f"{value.name} = {value.number}\n" for value in enum.value]
    for message in file.message_type:
        descriptor = f'DESCRIPTOR.message_types_by_name["{message.name}"]'
        lines.append(f"{message.name} = message_factory.GetMessageClass({descriptor})\n")
    return "".join(lines)


def stub_text(file: Any, module: str) -> str:
    lines = [STUB.format(module=module)]
    for enum in file.enum_type:
        lines.append(f"\n{enum.name}: _Enum\n")
        lines += [f"{value.name}: int\n" for value in enum.value]
    prefix = f".{file.package}."
    own = {prefix + message.name for message in file.message_type}
    for message in file.message_type:
        lines += ["\n", *_class_lines(message, "", prefix, own)]
    return "".join(lines)


def _class_lines(message: Any, indent: str, prefix: str, own: set[str]) -> list[str]:
    inner = indent + "    "
    lines = [f"{indent}class {message.name}(Message):\n"]
    for enum in message.enum_type:
        lines.append(f"{inner}{enum.name}: _Enum\n")
        lines += [f"{inner}{value.name}: int\n" for value in enum.value]
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    for nested in message.nested_type:
        if nested.name not in entries:
            lines += _class_lines(nested, inner, prefix, own)
    fields = [field for field in message.field if not iskeyword(field.name)]
    lines += [f"{inner}{field.name}: {_type_name(field, entries, prefix, own)}\n" for field in fields]
    lines.append(f"{inner}def __init__(self, **fields: Any) -> None: ...\n")
    return lines


def _type_name(field: Any, entries: dict[str, Any], prefix: str, own: set[str]) -> str:
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = (_type_name(part, {}, prefix, own) for part in entry.field)
        return (
            f"_MessageMap[{key}, {value}]"
            if entry.field[1].type == field.TYPE_MESSAGE
            else f"MutableMapping[{key}, {value}]"
        )
    message = field.type == field.TYPE_MESSAGE
    scalars = {
        field.TYPE_STRING: "str",
        field.TYPE_BYTES: "bytes",
        field.TYPE_BOOL: "bool",
        field.TYPE_FLOAT: "float",
        field.TYPE_DOUBLE: "float",
    }
    name = scalars.get(field.type, "int")
    if message:
        within = field.type_name.removeprefix(prefix)
        name = within if prefix + within.partition(".")[0] in own else "Message"  # of another file
    if field.label != field.LABEL_REPEATED:
        return name
    return f"RepeatedCompositeFieldContainer[{name}]" if message else f"RepeatedScalarFieldContainer[{name}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not up to date")
    check = parser.parse_args().check
    stale = 0
    for schema in SCHEMAS:
        path = ROOT / schema
        files = compile_proto(path)
        module = path.with_name(f"{path.stem}_pb2.py")
        for target, text in ((module, module_text(files)), (module.with_suffix(".pyi"), stub_text(files[-1], module.stem))):
            if target.exists() and target.read_text() == text:
                continue
            stale = 1
            if check:
                print(f"{target} is not what {schema} gives: run `python3 dev.py proto`", file=sys.stderr)
            else:
                target.write_text(text)
                print(f"wrote {target}")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main())
