"""Warmup, instance groups and resources: both servers load the same models, or refuse them with the same words, and have counted
the same by then.

The models are written here: they differ in their configs alone. What ours does otherwise is listed with its reason. Not asked is
what happens when a model itself fails in its warmup: every now and then that ends the reference. (Its words were read off when
it did not; tests/core/test_warmup.py has them.)
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from .cases import infer, post, stats, tensor
from .comparing import compare
from .conftest import Answers, Pairs, ask
from .differences import Difference
from .wire import Case

pytestmark = pytest.mark.reference

LIMITS = ("--rate-limit=execution_count", "--rate-limit-resource=R:2:0", "--rate-limit-resource=G:1")

#: Tells what its executions have been given: those before this one, and then its own.
MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.mode = config["parameters"].get("mode", {}).get("string_value", "")
        self.name = args["model_instance_name"]
        self.seen = []

    def told(self, request):
        inputs = {}
        for tensor in request.inputs():
            array = tensor.as_numpy()
            values = [value.decode() if isinstance(value, bytes) else float(value) for value in array.reshape(-1)]
            inputs[tensor.name()] = [str(array.dtype), list(array.shape), values]
        return [inputs, request.request_id(), request.parameters(), sorted(request.requested_output_names())]

    def execute(self, requests):
        self.seen.append([self.name, *map(self.told, requests)])
        if self.mode == "decoupled":
            for request in requests:
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        text = np.array([[json.dumps(self.seen, sort_keys=True)]], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", text)]) for _ in requests]
"""

FLOATS = 'name: "X" data_type: TYPE_FP32 dims: [ 2 ]'
STRINGS = 'name: "X" data_type: TYPE_STRING dims: [ 2 ]'


def given(kind: str = "zero_data: true", name: str = "X", datatype: str = "FP32", dims: str = "2") -> str:
    return f'inputs {{ key: "{name}" value {{ data_type: TYPE_{datatype} dims: [ {dims} ] {kind} }} }}'


def sample(inputs: str = "", name: str = "s", size: int = 1, count: int = 1) -> str:
    return f'model_warmup {{ name: "{name}" batch_size: {size} count: {count} {inputs or given()} }}\n'


def needs(name: str, count: int, shared: bool = False) -> str:
    return f'rate_limiter {{ resources [ {{ name: "{name}" count: {count} global: {str(shared).lower()} }} ] }}'


def groups(*each: str) -> str:
    return "instance_group [ " + ", ".join(f"{{ kind: KIND_CPU {one} }}" for one in each) + " ]\n"


FILE = 'input_data_file: "data"'

#: name -> (what its config has besides, its input, its mode)
MODELS: dict[str, tuple[str, str, str]] = {
    "plain": (sample(size=2, count=3), FLOATS, ""),
    "counts": (sample(count=0) + sample(name="t", size=3) + sample(name="u", size=0), FLOATS, ""),
    "batcher": (sample(size=3) + "dynamic_batching { max_queue_delay_microseconds: 100000 }\n", FLOATS, ""),
    "queued": (sample(size=2) + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n", FLOATS, ""),
    "reshaped": (sample(), FLOATS + " reshape { shape: [ 1, 2 ] }", ""),
    "surplus": (sample(given() + given(name="Q")), FLOATS, ""),
    "zeros_not_asked": (sample(given("zero_data: false")), FLOATS, ""),
    "file": (sample(given(FILE), size=2), FLOATS, ""),
    "file_long": (sample(given(FILE, dims="1")), FLOATS.replace("[ 2 ]", "[ 1 ]"), ""),
    "file_short": (sample(given(FILE, dims="3")), FLOATS.replace("[ 2 ]", "[ 3 ]"), ""),
    "file_missing": (sample(given('input_data_file: "nope"')), FLOATS, ""),
    "strings": (sample(given(datatype="STRING")), STRINGS, ""),
    "strings_random": (sample(given("random_data: true", datatype="STRING")), STRINGS, ""),
    "strings_file": (sample(given('input_data_file: "strings"', datatype="STRING")), STRINGS, ""),
    "strings_short": (
        sample(given('input_data_file: "strings"', datatype="STRING", dims="3")), STRINGS.replace("[ 2 ]", "[ 3 ]"), "",
    ),
    "strings_long": (
        sample(given('input_data_file: "strings"', datatype="STRING", dims="1")), STRINGS.replace("[ 2 ]", "[ 1 ]"), "",
    ),
    "decoupled": (sample(size=2, count=2) + "model_transaction_policy { decoupled: true }\n", FLOATS, "decoupled"),
    "unknown": (sample(given(name="Q")), FLOATS, ""),
    "wrong_dims": (sample(given(dims="3")), FLOATS, ""),
    "wrong_type": (sample(given(datatype="INT32")), FLOATS, ""),
    "variable": (sample(given(dims="-1")), FLOATS.replace("[ 2 ]", "[ -1 ]"), ""),
    "no_kind": (sample(given("")), FLOATS, ""),
    "two_groups": (sample() + groups("count: 2", 'name: "g"'), FLOATS, ""),
    "passive": (sample() + groups("passive: true", 'host_policy: "h"'), FLOATS, ""),
    "only_passive": (sample() + groups("passive: true"), FLOATS, ""),
    "fits": (groups(needs("R", 2)), FLOATS, ""),
    "priorities": (groups(needs("R", 1) + " count: 2", "rate_limiter { priority: 3 }"), FLOATS, ""),
    "too_much": (groups(needs("R", 3)), FLOATS, ""),
    "shared": (groups(needs("G", 1, shared=True)), FLOATS, ""),
    "shared_too_much": (groups(needs("G", 2, shared=True)), FLOATS, ""),
    "both": (groups(needs("R", 1), needs("R", 1, shared=True)), FLOATS, ""),
    "contradicts": (groups(needs("R", 1, shared=True)), FLOATS, ""),
    "not_limited": (groups(needs("N", 1)), FLOATS, ""),
}

#: Those that are loaded where the rate is limited, in this order.
LIMITED = ("fits", "priorities", "too_much", "shared", "shared_too_much", "both", "contradicts", "not_limited")

#: Those that are asked once they are there, for what they have seen.
ASKED = (
    "plain", "counts", "batcher", "reshaped", "surplus", "zeros_not_asked", "file", "strings", "strings_random", "strings_file",
    "passive", "fits", "shared",
)  # fmt: skip


def question(name: str) -> Case:
    if name.startswith("strings"):
        return infer(f"{name}: seen", name, [tensor("X", "BYTES", [1, 2], ["a", "b"])])
    return infer(f"{name}: seen", name, [tensor("X", "FP32", [1, 2], [1, 2])])


def cases(names: list[str], unload: bool) -> list[Case]:
    found: list[Case] = []
    for name in names:
        found.append(post(f"{name}: load", f"/v2/repository/models/{name}/load"))
        if unload:
            found.append(stats(f"{name}: statistics", f"/v2/models/{name}/stats"))
        if name in ASKED:
            found.append(question(name))
        if unload:
            found.append(replace(post(f"{name}: unload", f"/v2/repository/models/{name}/unload"), settle=True))
    return found


#: The reference does not survive it when models go while it limits others: there they stay.
WARMED = cases([name for name in MODELS if name not in LIMITED], True)
LIMITING = cases(list(LIMITED), False)

PLACED = "a mistake in a config has its place behind it, and the way out"


def placed(code: str, words: str) -> str:
    """Return the pattern of why a load failed, with a place in the config."""
    return rf"load failed for model '\w+': version 1 is at UNAVAILABLE state: {code}: {words} \(\S+config\.pbtxt:\d+:\d+\);\n"


DIFFERENCES = {
    "not_limited: load": Difference(
        "a resource of which the server was told nothing has what its instances need, as documented",
        status=200,
        headers=("Content-Type: application/json",),
        body=(),
    ),
    "file_missing: load": Difference(
        PLACED, message=placed("Internal", r"failed to open text file for read \S+: No such file or directory")
    ),
    "no_kind: load": Difference(
        PLACED,
        message=placed(
            "Invalid argument",
            r"\[request id: <id_unknown>\] warmup setting expects input 'X' to have input_data_type set — set one of "
            "'zero_data', 'random_data', 'input_data_file'",
        ),
    ),
}


def write(folder: Path) -> None:
    for name, (more, shown, mode) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL)
        (folder / name / "warmup").mkdir()
        (folder / name / "warmup" / "data").write_bytes(struct.pack("<2f", 1, 2))
        (folder / name / "warmup" / "strings").write_bytes(b"\1\0\0\0a\2\0\0\0bc")
        parts = [
            'backend: "python" max_batch_size: 4',
            f"input {{ {shown} }}",
            'output { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }',
            f'parameters {{ key: "mode" value {{ string_value: "{mode}" }} }}',
            "" if "instance_group" in more else groups("count: 1"),
            more,
        ]
        (folder / name / "config.pbtxt").write_text("\n".join(parts))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warmup") / "models"
    write(folder)
    return folder


@pytest.fixture(scope="module")
def warmed(pairs: Pairs, repository: Path) -> Answers:
    return ask(pairs.start("warmed", repository, "--model-control-mode=explicit"), WARMED)


@pytest.fixture(scope="module")
def limited(pairs: Pairs, repository: Path) -> Answers:
    return ask(pairs.start("limited", repository, "--model-control-mode=explicit", *LIMITS), LIMITING)


@pytest.mark.parametrize("name", [case.name for case in WARMED])
def test_warmed_up(name: str, warmed: Answers) -> None:
    compare(name, warmed[name], DIFFERENCES)


@pytest.mark.parametrize("name", [case.name for case in LIMITING])
def test_limited(name: str, limited: Answers) -> None:
    compare(name, limited[name], DIFFERENCES)


def test_differences_name_cases() -> None:
    assert set(DIFFERENCES) <= {case.name for case in [*WARMED, *LIMITING]}
