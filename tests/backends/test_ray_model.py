"""Placement `ray` without Ray: what a config says about it, what an actor's kernel is told, and what it serves."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import grpc
import pytest

from kernel import Code, ConfigError, Kernel, ServingError
from kernel.cli import main
from kernel.config import ConfigErrors, left_here, read_config
from kernel.rules import instance_specs
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_ray import files
from kernel_ray.actor import HEADER, KernelActor, Order
from kernel_ray.backend import RayBackend
from kernel_ray.cluster import cause_of, connected
from kernel_ray.loads import there
from kernel_ray.settings import read_settings

CONFIG = """
backend: "python"
max_batch_size: 8
dynamic_batching { max_queue_delay_microseconds: 1000 }
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
response_cache { enable: true }
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] reshape: { shape: [ 2, 2 ] } } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
MODEL = """
import triton_python_backend_utils as pb_utils
from helper import FACTOR

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * FACTOR)]) for r in requests]
"""


def parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}\n"


RAY = parameter("placement", "ray")


def write(folder: Path, text: str, model: str = MODEL) -> Path:
    (folder / "m/1").mkdir(parents=True)
    (folder / "m/2").mkdir()
    (folder / "m/config.pbtxt").write_text(text)
    (folder / "m/1/model.py").write_text(model)
    (folder / "m/1/helper.py").write_text("FACTOR = 3\n")
    (folder / "m/2/large").write_text("of another version")
    return folder / "m"


def backends() -> list[str]:
    return ["python", "ray"]


def test_a_config_keeps_what_it_says_and_little_is_done_here(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, CONFIG + RAY), backends=backends())
    assert config.served_by == "ray" and config.backend == "python" and config.is_elsewhere
    assert config.dynamic_batching is not None and config.inputs[0].reshape == (2, 2)
    here = left_here(config)
    assert here.dynamic_batching is None and here.inputs[0].reshape is None and here.max_batch_size == 8
    assert len(instance_specs(config)) == 1
    told = json.loads(there(config, 1))
    assert told["dynamic_batching"]["max_queue_delay_microseconds"] == 1000
    assert told["instance_group"][0]["kind"] == "KIND_GPU" and told["instance_group"][0]["gpus"] == [0]
    assert told["version_policy"] == {"specific": {"versions": [1]}}
    assert "response_cache" not in told and told["parameters"] == {}


def test_gpus_are_looked_for_where_the_model_is_executed(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="invalid or unsupported gpu id 0"):
        read_config(write(tmp_path / "here", CONFIG), backends=backends())
    assert read_config(write(tmp_path / "there", CONFIG + RAY), backends=backends()).instance_groups[0].gpus == (0,)


def test_what_one_actor_asks_for(tmp_path: Path) -> None:
    text = "".join(
        parameter(*one)
        for one in (
            ("placement", "ray"), ("ray_actors", "2-5"), ("ray_num_cpus", "0.5"), ("ray_num_gpus", "1"), ("ray_node", "10.0.0.7"),
            ("ray_memory", "1000"), ("ray_resources", '{"tpu": 2}'), ("ray_runtime_env", '{"env_vars": {"A": "1"}}'),
            ("ray_files", "ship"), ("ray_start_timeout", "7"), ("idempotent", "true"),
        )
    )  # fmt: skip
    settings = read_settings(read_config(write(tmp_path, CONFIG + text), backends=backends()))
    assert (settings.least, settings.most, settings.cpus, settings.gpus, settings.memory) == (2, 5, 0.5, 1.0, 1000)
    assert settings.shown == "CPU 0.5, GPU 1, memory 1000, tpu 2, node 10.0.0.7"
    assert settings.runtime_env == {"env_vars": {"A": "1"}} and settings.ship and settings.idempotent
    assert settings.start_timeout == 7.0


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("ray_actors", "0", "parameter 'ray_actors' of model 'm' is '0' — wanted a number from 1 to 1024, or the least"),
        ("ray_actors", "4-2", "is '4-2' — wanted"),
        ("ray_num_gpus", "one", "is 'one' — wanted a number of GPUs, such as 1 or 0.5"),
        ("ray_resources", "[1]", "is '[1]' — wanted a JSON object of numbers"),
        ("ray_resources", '{"a": "b"}', "wanted a JSON object of numbers"),
        ("ray_runtime_env", "{", "wanted a JSON object as Ray's runtime_env"),
        ("ray_files", "copy", "is 'copy' — wanted 'auto' or 'ship'"),
        ("ray_start_timeout", "0.5", "is '0.5' — wanted seconds, at least 1"),
        ("ray_gpus", "1", "parameter 'ray_gpus' of model 'm' — no parameter of placement 'ray'; there are"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, key: str, value: str, says: str) -> None:
    folder = write(tmp_path, CONFIG + RAY + parameter(key, value))
    with pytest.raises(ConfigError) as caught:
        RayBackend(Kernel()).validate(read_config(folder, backends=backends()), folder, (1,))
    assert says in caught.value.message and caught.value.message.startswith(f"{folder}/config.pbtxt:")


def test_ray_is_no_backend_of_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path, CONFIG.replace('"python"', '"ray"').replace("kind: KIND_GPU gpus: [ 0 ]", ""))
    with pytest.raises(ConfigError, match="has backend 'ray', which is a placement — write the backend that executes it"):
        RayBackend(Kernel()).validate(read_config(folder, backends=backends()), folder, (1,))


def test_without_a_cluster_the_error_says_how_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    none = ModuleType("ray")
    none.__dict__.update(is_initialized=lambda: False, init=Mock(side_effect=ConnectionError("Could not find any instance")))
    monkeypatch.setitem(sys.modules, "ray", none)
    with pytest.raises(ServingError, match=r"no Ray cluster runs on this machine: `ray start --head` .* RAY_ADDRESS, --backend"):
        connected("auto", log=False)
    with pytest.raises(ServingError, match=r"cluster at '10.0.0.1:6379': Could not find any instance"):
        connected("10.0.0.1:6379", log=False)


def test_without_ray_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, CONFIG + RAY)
    monkeypatch.setitem(sys.modules, "ray", None)

    async def start() -> None:
        async with Kernel(tmp_path):
            raise AssertionError("it has started")

    with pytest.raises(ServingError, match=r"placement 'ray' needs the package ray.*pip install 'kernel-serve\[ray\]'"):
        asyncio.run(start())


def order(folder: Path, **more: object) -> Order:
    text = CONFIG.replace("kind: KIND_GPU gpus: [ 0 ]", "").replace("reshape: { shape: [ 2, 2 ] }", "")
    (folder / "config.pbtxt").write_text(text + RAY)
    told = there(read_config(folder, backends=backends()), 1)
    given = {"config": told, "files": files.listing(folder, 1), "ship": False, **more}
    return Order("m", 1, folder=str(folder), backends={}, secret="s3cret", limit=1 << 24, **given)  # type: ignore[arg-type]


def test_an_actor_serves_the_model_to_who_has_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files that were carried: they are written once, and without those of other versions."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    folder = write(tmp_path / "repository", "")
    asked = order(folder, ship=True)
    actor = KernelActor("127.0.0.1")
    assert actor.needs(asked) and not actor.needs(order(folder)) and sorted(asked.files) == [
        "1/helper.py", "1/model.py", "config.pbtxt"
    ]  # fmt: skip
    started = actor.start(asked, files.content(folder, asked.files))
    assert not started.problem and started.port
    try:
        with grpc.insecure_channel(f"127.0.0.1:{started.port}") as channel:
            infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            request = pb.ModelInferRequest(model_name="m")
            request.inputs.add(name="X", datatype="FP32", shape=[1, 4])
            request.raw_input_contents.append(bytes(16))
            answer = infer(request, metadata=[(f"triton-grpc-protocol-{HEADER}", "s3cret")], timeout=20)
            assert answer.raw_output_contents[0] == bytes(16)
            with pytest.raises(grpc.RpcError, match="restricted"):
                infer(request, timeout=20)
    finally:
        actor.stop(0.0)
    assert actor.wait() == ""
    (kept,) = (tmp_path / "tmp").glob("kernel_ray-*/*/m")
    assert not (kept / "2").exists()


def test_an_actor_tells_why_a_model_does_not_load(tmp_path: Path) -> None:
    folder = write(tmp_path, "", MODEL.replace('self.name = args["model_name"]', "raise ValueError('no weights')"))
    started = KernelActor("127.0.0.1").start(order(folder), None)
    assert "no weights" in started.problem and started.code == Code.INTERNAL.value


def test_files_that_nobody_uses_go_when_others_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    folder = write(tmp_path / "repository", "")
    listed = files.listing(folder, 1)
    first = files.keep("m", 1, listed, files.content(folder, listed))
    assert files.keep("m", 1, listed, files.content(folder, listed)) == first
    assert (first / "1/model.py").read_text() == MODEL and files.stamp_of(files.listing(first, 1)) == files.stamp_of(listed)
    unused = first.parents[1] / "abc"
    unused.mkdir()
    Path(f"{unused}.lock").touch()
    files.keep("other", 1, listed, files.content(folder, listed))
    assert first.exists() and not unused.exists()


def test_the_command_is_found_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["ray", "--help"])
    assert "usage: kernel ray" in capsys.readouterr().out
    assert main(["rai"]) == 2 and "did you mean 'ray'?" in capsys.readouterr().err
    assert main(["ray", "deploy", str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err == f"error: there is no folder '{tmp_path}/nothing'\n"
    for wrong in (["up"], ["deploy"], ["deploy", "models", "--servers", "0"], ["deploy", "models", "--runtime-env", "["]):
        with pytest.raises(SystemExit, match="2"):
            main(["ray", *wrong])


def test_what_ray_says_is_told_on_one_line() -> None:
    told = "The actor died unexpectedly.\n\tclass_name: KernelActor\n\tpid: 1\nIts node has died.\nNode Id: 7"
    assert cause_of(RuntimeError(told)) == "The actor died unexpectedly. Its node has died. Node Id: 7"
    assert cause_of(ValueError()) == "ValueError"
