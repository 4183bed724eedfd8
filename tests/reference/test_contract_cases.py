"""Both servers, asked what models and clients were found to rely on (cases_contract.py), answer the same; and they say the same
sentences about ensembles and flags that can't work.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from . import triton
from .cases_contract import CONTRACT, DIFFERENCES, FLAGS, PLACED
from .comparing import compare
from .conftest import MODELS, Answers, Pair, Pairs, ask
from .wire import Case, exchange

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def pair(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both servers on models/contract, with a copy of each model that is to run in several places."""
    repository = tmp_path_factory.mktemp("placed") / "models"
    shutil.copytree(MODELS / "contract", repository)
    for model, places in PLACED.items():
        for place in places:
            copy = repository / f"{model}_{place}"
            shutil.copytree(repository / model, copy)
            with (copy / "config.pbtxt").open("a") as config:
                config.write(f'parameters {{ key: "placement" value {{ string_value: "{place}" }} }}\n')
    return pairs.start("contract", repository, *FLAGS)


@pytest.fixture(scope="module")
def answers(pair: Pair) -> Answers:
    return ask(pair, CONTRACT)


@pytest.mark.parametrize("name", [case.name for case in CONTRACT])
def test_case(name: str, answers: Answers) -> None:
    compare(name, answers[name], DIFFERENCES)


def test_differences_name_cases() -> None:
    assert set(DIFFERENCES) <= {case.name for case in CONTRACT}


# --- IPv6


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("target", ["[::1]:{}", "ipv6:[::1]:{}", "ipv4:127.0.0.1:{}"])
def test_targets_of_either_family(target: str, pair: Pair) -> None:
    for server in pair:
        with grpc.insecure_channel(target.format(server.grpc_port)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live, server.name


# --- ensembles that can't work: the reference's sentence is the beginning of ours

TENSORS = 'input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}\n{outputs}ensemble_scheduling {{ step [ {steps} ] }}\n'
#: name: the outputs, and the steps, each `model X=A,O=B -> Y=C`: the model's name of a tensor, then the ensemble's.
GRAPHS = {
    "unwritten": ("YZ", ["m X=X -> Y=Y"]),
    "misnamed": ("Y", ["m X=X -> Y=M"]),
    "read_only": ("YZ", ["m2 A=X,B=Z -> Y=Y"]),
    "unconnected": ("Y", ["m2 A=X,B=U -> Y=Y"]),
    "far_unconnected": ("Y", ["m2 A=X,B=U -> Y=M", "m X=M -> Y=N", "m X=N -> Y=Y"]),
    "unused": ("Y", ["m X=X -> Y=Y,Z=U"]),
    "beside": ("Y", ["m X=X -> Y=Y", "m X=U -> Y=V"]),
    "circle": ("Y", ["m2 A=X,B=N -> Y=M", "m X=M -> Y=N", "m X=N -> Y=Y"]),
    "circle_of_output": ("Y", ["m2 A=X,B=Y -> Y=M", "m X=M -> Y=Y"]),
    "alone": ("Y", ["m2 A=X,B=Y -> Y=Y"]),
    "twice": ("Y", ["m X=X -> Y=Y", "m X=X -> Y=Y"]),
    "to_and_fro_a": ("Y", ["to_and_fro_b X=X -> Y=Y"]),
    "to_and_fro_b": ("Y", ["to_and_fro_a X=X -> Y=Y"]),
}


def maps(kind: str, pairs: str) -> str:
    texts = (pair.split("=") for pair in pairs.split(","))
    return " ".join(f'{kind}_map {{ key: "{key}" value: "{value}" }}' for key, value in texts)


def ensemble(outputs: str, steps: list[str]) -> str:
    parts = []
    for step in steps:
        model, reads, _, writes = step.split(" ")
        parts.append(f'{{ model_name: "{model}" model_version: -1 {maps("input", reads)} {maps("output", writes)} }}')
    declared = "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }}\n' for name in outputs)
    return 'platform: "ensemble"\n' + TENSORS.format(outputs=declared, steps=", ".join(parts))


@pytest.fixture(scope="module")
def sentences(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    """What the reference says of each ensemble, in its log, and ours, in the index."""
    repository = tmp_path_factory.mktemp("graphs")
    shutil.copytree(MODELS / "contract" / "echo", repository / "m")
    for name, graph in GRAPHS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(ensemble(*graph))
    theirs, ours = pairs.start("graphs", repository, "--exit-on-error=false", "--strict-readiness=false")
    log = theirs.log.read_text(errors="replace")
    said = dict(re.findall(r"Poll failed for model directory '(\w+)': (.*)\"$", log, re.MULTILINE))
    said |= {text.split(" ")[4]: text for text in re.findall(r'Invalid argument: (circular dependency .*)"$', log, re.MULTILINE)}
    rows = exchange(ours.port, Case("", "POST", "/v2/repository/index")).lines
    names = {row.partition("]")[0]: row.partition(" = ")[2].strip('"') for row in rows if ".name = " in row}
    reasons = {row.partition("]")[0]: row.partition(" = ")[2] for row in rows if ".reason = " in row}
    return said, {name: reasons.get(place, "") for place, name in names.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_an_ensemble_that_can_not_work(name: str, sentences: tuple[dict[str, str], dict[str, str]]) -> None:
    theirs, ours = sentences
    assert theirs[name] and theirs[name] in ours[name]


# --- flags that say what can't be

WRONG_FLAGS = [
    ["--http-restricted-api=foo:k=v"],
    ["--http-restricted-api=health:k=v", "--http-restricted-api=health:a=b"],
    ["--http-restricted-api=health"],
    ["--grpc-restricted-protocol=foo:k=v"],
    ["--grpc-restricted-protocol=health:k=v", "--grpc-restricted-protocol=health,metadata:a=b"],
    ["--rate-limit-resource=R"],
    ["--exit-on-error=maybe"],
    ["--log-verbose=x"],
    ["--cache-config=local"],
    ["--backend-config=python"],
    ["--trace-config=rate"],
    ["--model-control-mode=foo"],
]


@pytest.mark.parametrize("flags", WRONG_FLAGS, ids=" ".join)
def test_a_flag_that_can_not_be(flags: list[str], reference_installed: None, tmp_path: Path) -> None:
    found = triton.install()
    theirs = subprocess.run(found.command(tmp_path, flags), env=found.environment(), capture_output=True, text=True, timeout=60)
    lines = [line.strip() for line in (theirs.stdout + theirs.stderr).splitlines() if line.strip()]
    ours = subprocess.run(
        [sys.executable, "-m", "kernel", "serve", str(tmp_path), *flags], capture_output=True, text=True, timeout=60
    )
    assert (ours.returncode, theirs.returncode) == (1, 1)
    assert lines[-1] in ours.stderr
