"""Inference: each case in every way to say it, on both wires."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from . import grpc_wire, http_wire
from .asks import Answered, Ask, Case, Part, Refused, Tensor, unpacked
from .cases_requests import REQUEST_CASES
from .cases_tensors import MEMORY_CASES, TENSOR_CASES
from .checking import check_answered, check_refused, same_tensor
from .clients import sayable
from .conftest import WAYS

CASES = [*TENSOR_CASES, *REQUEST_CASES]

CODES: dict[str, dict[str, Any]] = {"http": http_wire.CODES, "grpc": grpc_wire.CODES}


def wanted(case: Case, way: Any) -> Any:
    """What comes of a case in one way: the most special word counts. A string: it isn't asked."""
    return case.unless.get(way.way, case.unless.get(way.wire, case.gives))


def asked(cases: list[Case]) -> Any:
    """Each case in each way in which it can be asked."""
    pairs = []
    for case in cases:
        for way in WAYS:
            if isinstance(case.unless.get(way, case.unless.get(way.split()[0])), str):
                continue
            if way.endswith("client") and not sayable(case.ask):
                continue
            pairs.append(pytest.param(way, case, id=f"{case.name}-{way}"))
    return pytest.mark.parametrize(("name", "case"), pairs)


@asked(CASES)
def test_inference(name: str, case: Case, ways: dict[str, Any]) -> None:
    way = ways[name]
    for _ in range(2):  # what is known from the first time must not change the second
        check(way.infer(case.ask), case, way)


def check(outcome: Any, case: Case, way: Any) -> None:
    comes = wanted(case, way)
    if isinstance(comes, Refused):
        check_refused(outcome, comes, way.wire, CODES[way.wire])
    elif case.ask.model == "curious" and isinstance(outcome, Answered):
        told = json.loads(outcome.outputs[0].values[0])  # type: ignore[index]
        told["parameters"] = json.loads(told["parameters"])
        told["parameters"].pop("binary_data_output", None)  # a way of asking in itself
        usual = json.loads(comes[0].values[0])
        assert {key: told[key] for key in usual} == usual
        assert {key: type(value) for key, value in told["parameters"].items()} == {
            key: type(value) for key, value in usual["parameters"].items()
        }
    else:
        check_answered(outcome, comes, id=case.ask.id, model=case.ask.model, version=case.version)


@asked(MEMORY_CASES)
def test_shared_memory(name: str, case: Case, ways: dict[str, Any], memory: Path) -> None:
    way, admin = ways[name], ways["grpc raw" if name.startswith("http") else "http json"]
    registered(admin, memory, True)  # by the other wire: a region belongs to the server
    try:
        for tensor in case.ask.inputs:
            if tensor.part is not None and tensor.values is not None:
                write(memory, tensor.part, tensor.bytes)
        outcome = way.infer(case.ask)
        check(outcome, case, way)
        if not isinstance(case.gives, Refused):
            for tensor in case.gives:
                if tensor.part is not None:
                    part = tensor.part
                    data = memory.read_bytes()[part.offset : part.offset + part.size]
                    got = unpacked(tensor.name, tensor.datatype, tensor.shape, data)
                    same_tensor(got, Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.values))
    finally:
        registered(admin, memory, False)


def write(memory: Path, part: Part, data: bytes) -> None:
    with memory.open("r+b") as file:
        file.seek(part.offset)
        file.write(data)


def registered(wire: Any, memory: Path, yes: bool) -> None:
    if wire.wire == "http":
        body = {"key": f"/{memory.name}", "byte_size": 256}
        what = "register" if yes else "unregister"
        assert wire.request("POST", f"/v2/systemsharedmemory/region/memory/{what}", body).status == 200
    else:
        pb = grpc_wire.pb
        if yes:
            message = pb.SystemSharedMemoryRegisterRequest(name="memory", key=f"/{memory.name}", byte_size=256)
            assert not isinstance(wire.call("SystemSharedMemoryRegister", message), Refused)
        else:
            message = pb.SystemSharedMemoryUnregisterRequest(name="memory")
            assert not isinstance(wire.call("SystemSharedMemoryUnregister", message), Refused)


def test_case_names_are_unique() -> None:
    names = [case.name for case in [*CASES, *MEMORY_CASES]]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def test_what_a_model_is_given_is_the_requests_own(wire: Any, memory: Path) -> None:
    """A region may be used again once the answer is there, and the answer doesn't change."""
    registered(wire, memory, True)
    try:
        write(memory, Part(8), Tensor("X", "FP32", (1, 2), (1.0, 2.0)).bytes)
        outcome = wire.infer(Ask("batch8", (Tensor("X", "FP32", (1, 2), None, Part(8)),)))
        write(memory, Part(8), b"\xff" * 8)
        assert outcome.outputs[0].values == (1.0, 2.0)
    finally:
        registered(wire, memory, False)
