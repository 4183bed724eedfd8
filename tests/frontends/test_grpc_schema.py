"""The schema of the service: every name, number and type of Triton's public one, in a pool of its own, up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from kernel_grpc.schemas import grpc_service_pb2 as ours

ROOT = Path(__file__).resolve().parents[2]
PATHS = {"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}


def described(file: Any) -> descriptor_pb2.FileDescriptorProto:
    result = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(result)
    return result


def facts(file: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    """All that decides what is on the wire and what code sees, by full name."""
    found: dict[str, Any] = {"package": file.package, "imports": list(file.dependency), "syntax": file.syntax}

    def enter(message: descriptor_pb2.DescriptorProto, prefix: str) -> None:
        name = f"{prefix}.{message.name}"
        found[name] = [one.name for one in message.oneof_decl], message.options.map_entry
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            found[f"{name}.{field.name}"] = field.number, field.type, field.type_name, field.label, oneof
        for enum in message.enum_type:
            found.update({f"{name}.{enum.name}.{value.name}": value.number for value in enum.value})
        for nested in message.nested_type:
            enter(nested, name)

    for message in file.message_type:
        enter(message, file.package)
    for service in file.service:
        for method in service.method:
            found[f"{file.package}.{service.name}/{method.name}"] = (
                method.input_type,
                method.output_type,
                method.client_streaming,
                method.server_streaming,
            )
    return found


def test_is_that_of_the_real_client() -> None:
    theirs = pytest.importorskip("tritonclient.grpc.service_pb2", exc_type=ImportError)
    wanted, got = facts(described(theirs.DESCRIPTOR)), facts(described(ours.DESCRIPTOR))
    assert len(wanted) > 200
    assert got == wanted


def test_messages_of_both_are_the_same_on_the_wire() -> None:
    theirs = pytest.importorskip("tritonclient.grpc.service_pb2", exc_type=ImportError)
    for module, other in ((ours, theirs), (theirs, ours)):
        message = module.ModelInferRequest(model_name="m", raw_input_contents=[b"\0"])
        message.inputs.add(name="X", datatype="FP32", shape=[1, -1]).parameters["p"].uint64_param = 2**64 - 1
        data = message.SerializeToString()
        assert other.ModelInferRequest.FromString(data).SerializeToString() == data
    config = ours.ModelConfigResponse()
    config.config.max_batch_size = 3
    assert theirs.ModelConfigResponse.FromString(config.SerializeToString()).config.max_batch_size == 3


@pytest.mark.parametrize("ours_first", [True, False])
def test_lives_beside_the_real_client_and_the_kernels_schema(ours_first: bool) -> None:
    pytest.importorskip("tritonclient.grpc", exc_type=ImportError)
    both = (
        "kernel.config.model_config_pb2, kernel_grpc.schemas.grpc_service_pb2 as ours",
        "tritonclient.grpc.service_pb2 as theirs",
    )
    lines = [f"import {names}" for names in (both if ours_first else both[::-1])]
    code = "\n".join([*lines, "assert ours.ModelInferRequest is not theirs.ModelInferRequest"])
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=PATHS)


def test_is_not_in_the_process_wide_pool() -> None:
    pool = ours.DESCRIPTOR.pool
    assert pool is not descriptor_pool.Default()
    config = ours.ModelConfigResponse.DESCRIPTOR.fields_by_name["config"].message_type
    assert pool.FindMessageTypeByName("inference.ModelConfig") is config


def test_generated_files_are_up_to_date_and_told_apart_when_not(tmp_path: Path) -> None:
    """`python3 dev.py proto` makes them; the check names what is stale, and writes nothing."""
    pytest.importorskip("grpc_tools")
    schemas = {path.relative_to(ROOT) for place in ("kernel", "plugins") for path in (ROOT / place).rglob("*.proto")}
    assert {path.stem for path in schemas} == {"model_config", "grpc_service", "health", "reflection"}
    for path in [Path("scripts/proto.py"), *schemas]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        for file in (ROOT / path).parent.glob(f"{path.stem}*.p*"):
            (tmp_path / path).with_name(file.name).write_bytes(file.read_bytes())
    check = [sys.executable, "scripts/proto.py", "--check"]
    assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
    [schema] = (path for path in schemas if path.stem == "grpc_service")
    stale = tmp_path / schema.with_name("grpc_service_pb2.pyi")
    stale.write_text("")
    result = subprocess.run(check, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert result.returncode == 1
    assert f"{stale} is not what {schema} gives: run `python3 dev.py proto`" in result.stderr
    assert stale.read_text() == ""
    assert subprocess.run(check[:-1], cwd=tmp_path, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert stale.read_bytes() == (ROOT / schema).with_name(stale.name).read_bytes()
