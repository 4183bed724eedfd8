"""Both servers, asked what models and clients were found to rely on (cases_contract.py), answer the same; and they say the same
sentences about ensembles and flags that can't work.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from . import servers, triton
from .cases_contract import CONTRACT, DIFFERENCES, FLAGS, NAMESPACED, PLACED
from .comparing import compare
from .conftest import MODELS, Answers, Pair, Pairs, ask
from .messages_grpc import request, typed
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
    assert set(DIFFERENCES) <= {case.name for case in [*CONTRACT, *NAMESPACED]}


@pytest.fixture(scope="module")
def namespaced_answers(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Two repositories; what the models of the second answer is ten more."""
    folders = []
    for number, name in enumerate(("one", "two")):
        folder = tmp_path_factory.mktemp(name)
        for model in ("m", name):
            shutil.copytree(MODELS / "contract" / "echo", folder / model)
            file = folder / model / "1" / "model.py"
            file.write_text(file.read_text().replace("as_numpy()", f"as_numpy() + {10 * number}"))
        (folder / f"chain_{name}" / "1").mkdir(parents=True)
        (folder / f"chain_{name}" / "config.pbtxt").write_text(ensemble("Y", ["m X=X -> Y=Y"]))
        folders.append(folder)
    pair = pairs.start("namespaced", folders[0], f"--model-repository={folders[1]}", "--model-namespacing=true")
    for server in pair:
        servers_ready(server)
    return ask(pair, NAMESPACED)


def servers_ready(server: servers.Server) -> None:
    limit = time.monotonic() + servers.START_LIMIT_S
    while server.get("/v2/health/ready") != 200 and time.monotonic() < limit:
        time.sleep(0.05)


@pytest.mark.parametrize("name", [case.name for case in NAMESPACED])
def test_namespaces(name: str, namespaced_answers: Answers) -> None:
    compare(name, namespaced_answers[name], DIFFERENCES)


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


# --- models that can't work: the reference's sentence, ours around it

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


PLAIN = 'backend: "python"\n'
IO = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }\noutput { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }\n'
Y = IO.splitlines()[1] + "\n"


def reshaped(dims: str, shape: str) -> str:
    return f'{PLAIN}input {{ name: "X" data_type: TYPE_FP32 dims: [ {dims} ] reshape {{ shape: [ {shape} ] }} }}\n{Y}'


def batched(batching: str) -> str:
    return f"{PLAIN}max_batch_size: 4\n{IO}dynamic_batching {{ {batching} }}\n"


def sequenced(*controls: str) -> str:
    inputs = ", ".join(f'{{ name: "C{place}" control [ {{ {control} }} ] }}' for place, control in enumerate(controls))
    return f"{PLAIN}{IO}sequence_batching {{ control_input [ {inputs} ] }}\n"


START = "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"
#: Models that can't work, by their configs; and those that may, on machines with GPUs, or since nobody minds.
MAY_WORK = ("gpu", "gpu_of_an_id", "pair_that_may_be")
CONFIGS = {
    "platform": f'platform: "foo"\n{IO}',
    "pair": f'platform: "tensorrt_plan"\nbackend: "onnxruntime"\n{IO}',
    "unknown_backend": f'backend: "foo"\n{IO}',
    "unknown_runtime": f'{PLAIN}runtime: "foo"\n{IO}',
    "pair_that_may_be": f'platform: "tensorrt_plan"\n{PLAIN}{IO}',
    "both": f'platform: "ensemble"\n{PLAIN}{IO}ensemble_scheduling {{ step [ ] }}',
    "other_name": f'name: "x"\n{PLAIN}{IO}',
    "gpu": f"{PLAIN}{IO}instance_group [ {{ kind: KIND_GPU }} ]\n",
    "gpu_of_an_id": f"{PLAIN}{IO}instance_group [ {{ kind: KIND_GPU gpus: [ 0 ] }} ]\n",
    "gpus_of_a_cpu": f"{PLAIN}{IO}instance_group [ {{ kind: KIND_CPU gpus: [ 0 ] }} ]\n",
    "gpus_of_a_model": f"{PLAIN}{IO}instance_group [ {{ kind: KIND_MODEL gpus: [ 0 ] }} ]\n",
    "reshape_of_variable_sizes": reshaped("-1, 4", "-1, -1"),
    "reshape_between_variable_sizes": reshaped("2, 4, -1, 6", "6, -1, 8"),
    "reshape_of_another_size": reshaped("2, 4", "6"),
    "reshape_to_nothing": reshaped("1", ""),
    "size_0": f'{PLAIN}input {{ name: "X" data_type: TYPE_FP32 dims: [ 0 ] }}\n{Y}',
    "no_dims": f'{PLAIN}input {{ name: "X" data_type: TYPE_FP32 }}\n{Y}',
    "no_type": f'{PLAIN}input {{ name: "X" dims: [ -1 ] }}\n{Y}',
    "no_name": f"{PLAIN}input {{ data_type: TYPE_FP32 dims: [ -1 ] }}\n{Y}",
    "negative_batch": f"{PLAIN}max_batch_size: -1\n{IO}",
    "preferred_too_large": batched("preferred_batch_size: [ 8 ]"),
    "preferred_0": batched("preferred_batch_size: [ 0 ]"),
    "default_level": batched("priority_levels: 2 default_priority_level: 3"),
    "level_of_a_policy": batched("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 5 value { } }"),
    "levels_in_order": batched("preserve_ordering: true priority_levels: 2 default_priority_level: 1"),
    "delay_in_order": batched(
        "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }"
    ),
    "cached_sequences": f"{PLAIN}{IO}sequence_batching {{ }}\nresponse_cache {{ enable: true }}\n",
    "cached_and_decoupled": f"{PLAIN}{IO}model_transaction_policy {{ decoupled: true }}\nresponse_cache {{ enable: true }}\n",
    "two_starts": sequenced(START, START),
    "no_value_of_a_control": sequenced("kind: CONTROL_SEQUENCE_START"),
    "type_of_an_id": sequenced("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
    "slots": f"{PLAIN}{IO}sequence_batching {{ direct {{ minimum_slot_utilization: 2 }} }}\n",
    "syntax": f'backend "python"\n{IO}',
    "unknown_field": f'bakend: "python"\n{IO}',
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
    """What each server says of each model that can't work: the reference in its log and the index, ours in the index."""
    repository = tmp_path_factory.mktemp("wrong")
    texts = {name: ensemble(*graph) for name, graph in GRAPHS.items()} | CONFIGS
    for name, text in texts.items():
        shutil.copytree(MODELS / "contract" / "echo", repository / name)
        (repository / name / "config.pbtxt").write_text(text)
    shutil.copytree(MODELS / "contract" / "echo", repository / "m")
    flags = ("--exit-on-error=false", "--strict-readiness=false", "--disable-auto-complete-config")
    pair = pairs.start("wrong", repository, *flags)
    theirs, ours = (reasons(server) for server in pair)
    log = pair[0].log.read_text(errors="replace")
    theirs |= dict(re.findall(r"Poll failed for model directory '(\w+)': (.*)\"$", log, re.MULTILINE))
    for text in re.findall(r'Invalid argument: (circular dependency .*)"$', log, re.MULTILINE):
        theirs[text.split(" ")[4]] = text
    return theirs, ours


def reasons(server: servers.Server) -> dict[str, str]:
    """Return why models are not ready, by name, without the kind of error."""
    lines = exchange(server.port, Case("", "POST", "/v2/repository/index")).lines
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        place, _, value = line.partition(" = ")
        row, _, field = place.rpartition(".")
        rows.setdefault(row, {})[field] = json.loads(value)
    return {row["name"]: row.get("reason", "").removeprefix("Invalid argument: ") for row in rows.values()}


@pytest.mark.parametrize("name", [*GRAPHS, *CONFIGS])
def test_a_model_that_can_not_work(name: str, sentences: tuple[dict[str, str], dict[str, str]]) -> None:
    """The reference's sentence stands in ours, but for the folders where it has looked."""
    theirs, ours = sentences
    assert theirs[name] or name in MAY_WORK
    assert theirs[name].partition(", searched: ")[0] in ours[name] and bool(ours[name]) is bool(theirs[name])


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


# --- a server without its repository


def test_an_absent_repository(reference_installed: None, tmp_path: Path) -> None:
    """Without exit-on-error both run, and say what they are."""
    flags = ("--exit-on-error=false",)
    pair = [
        start(tmp_path / "nowhere", tmp_path / f"{start.__name__}.log", flags) for start in (servers.reference, servers.ours)
    ]
    try:
        for server in pair:
            wait_open(server)
        told = [[server.get(path) for path in ("/v2/health/live", "/v2/health/ready", "/v2")] for server in pair]
        assert told[1] == told[0]
    finally:
        for server in pair:
            server.stop()


def wait_open(server: servers.Server) -> None:
    """Return once the server answers anything."""
    limit = time.monotonic() + servers.START_LIMIT_S
    while time.monotonic() < limit and server.process.poll() is None:
        with contextlib.suppress(OSError):
            server.get("/v2/health/live")
            return
        time.sleep(0.05)
    raise AssertionError(f"{server.name} doesn't answer:\n{server.tail()}")


# --- the rate limiter

SLEEPER = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.01 * len(requests))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""


class Asking:
    """A client that has eight requests for its model in flight until somebody has sent eighty, and then sends one more."""

    def __init__(self, stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, over: threading.Event) -> None:
        self.sent = 0
        self._answered = threading.Semaphore(8)
        self._over = over
        self._ask = lambda: stub.ModelInfer.future(request(model, [typed("X", "FP32", [1], [1])]), timeout=60)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        asked = []
        while not self._over.is_set():
            self._answered.acquire()
            asked.append(self._ask())
            asked[-1].add_done_callback(lambda _: self._answered.release())
            self.sent += 1
            if self.sent == 80:
                self._over.set()
        for each in asked:
            each.result()


def test_shares_of_what_is_scarce(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two models that need the same resource, with priorities 1 and 2, execute 2 to 1, whichever is asked first."""
    repository = tmp_path_factory.mktemp("scarce")
    for priority, name in enumerate("ab", 1):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(SLEEPER)
        limits = f'rate_limiter {{ resources [ {{ name: "R" count: 4 }} ] priority: {priority} }}'
        config = f"{PLAIN}{IO}instance_group [ {{ kind: KIND_CPU count: 1 {limits} }} ]\n"
        (repository / name / "config.pbtxt").write_text(config)
    pair = pairs.start("scarce", repository, "--rate-limit=execution_count", "--rate-limit-resource=R:4")
    for server in pair:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            over = threading.Event()
            first, second = (Asking(stub, name, over) for name in "ab")
            for asking in (first, second):
                asking.thread.join()
        least = 1.8 if server.name == "ours" else 1.5  # the reference's clients may be late on a machine short of time
        assert first.sent == 80 and least < first.sent / second.sent <= 2.3, f"{server.name}: {first.sent} to {second.sent}"
