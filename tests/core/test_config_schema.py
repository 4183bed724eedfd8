"""The schema module: its own descriptor pool, wire compatible, up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMITATION = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
def register():
    # What tritonclient.grpc does on import: a file and a message of the same names, in the process-wide pool.
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
    message = file.message_type.add(name="ModelConfig")
    message.field.add(name="name", number=1, type=9, label=1)
    return message_factory.GetMessageClass(
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString()).message_types_by_name["ModelConfig"]
    )
"""
USE = """
assert ModelConfig(name="a", max_batch_size=3).SerializeToString() == b"\\x0a\\x01a\\x20\\x03"
other = register()
assert other.FromString(ModelConfig(name="a").SerializeToString()).name == "a"
assert ModelConfig.DESCRIPTOR is not other.DESCRIPTOR
"""


@pytest.mark.parametrize("first", ["kernel", "other"])
def test_lives_beside_a_file_of_the_same_name(first):
    ours = "from kernel.config.model_config_pb2 import ModelConfig\n"
    code = IMITATION + (
        ours + USE if first == "kernel" else "other = register()\nregister = lambda: other\n" + ours + USE
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={"PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("kernel_first", [True, False])
def test_lives_beside_the_real_client(kernel_first):
    pytest.importorskip("tritonclient.grpc.model_config_pb2", exc_type=ImportError)
    lines = ["import kernel.config.model_config_pb2 as ours", "import tritonclient.grpc.model_config_pb2 as theirs"]
    code = "\n".join(lines if kernel_first else lines[::-1]) + "\nassert ours.ModelConfig is not theirs.ModelConfig"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={"PYTHONPATH": str(ROOT)})


def test_has_the_names_and_numbers_of_the_real_client():
    theirs = pytest.importorskip("tritonclient.grpc.model_config_pb2", exc_type=ImportError)
    from kernel.config import model_config_pb2 as ours

    def fields(message, prefix=""):
        found = {}
        for field in message.fields:
            found[f"{message.full_name}.{field.name}"] = (field.number, field.type)
        for enum in message.enum_types:
            found.update({f"{enum.full_name}.{value.name}": value.number for value in enum.values})
        for nested in message.nested_types:
            found.update(fields(nested))
        return found

    wanted = {}
    for message in theirs.DESCRIPTOR.message_types_by_name.values():
        wanted.update(fields(message))
    got = {}
    for message in ours.DESCRIPTOR.message_types_by_name.values():
        got.update(fields(message))
    assert {name: number for name, number in wanted.items() if got.get(name) != number} == {}


def test_generated_files_are_up_to_date():
    pytest.importorskip("grpc_tools")
    result = subprocess.run(
        [sys.executable, "scripts/proto.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
