"""`kernel doctor`: what is made of a line of tritonserver's, and what is told of models, each with its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.doctor import doctor
from kernel.cli.doctor_flags import read_line

SAMPLES = Path(__file__).parents[2] / "repository"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

IO = """
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def model(repository: Path, name: str, config: str, code: str | None = PLAIN) -> Path:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config + IO)
    if code is not None:
        (repository / name / "1" / "model.py").write_text(code)
    return repository / name


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, Any]:
    status = doctor([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def rules(document: Any, name: str) -> list[tuple[str, str, str]]:
    """Return (severity, rule, file:line) of each finding of a model."""
    found = document["models"][name]["findings"]
    return [(one["severity"], one["rule"], ":".join(Path(one["place"]).name.split(":")[:2])) for one in found]


# -- flags -----------------------------------------------------------------------------------------------------------------

FLAGS = [
    ("--http-port=9000", "same here", ["--http-port=9000"]),
    ("--http-port 9000", "same here", ["--http-port", "9000"]),
    ("--log-verbose=$LEVEL", "same here", ["--log-verbose=$LEVEL"]),
    ("--allow-metrics false", "same here", ["--allow-metrics", "false"]),
    ("--strict-model-config=true", "other name", ["--disable-auto-complete-config"]),
    ("--strict-model-config=false", "other name", []),
    ("--trace-rate=5", "other name", ["--trace-config=rate=5"]),
    ("--response-cache-byte-size=1048576", "other name", ["--cache-config=local,size=1048576"]),
    ("--buffer-manager-thread-count=4", "no effect", []),
    ("--http-thread-count=4", "no effect", []),
    ("--backend-config=tensorflow,version=2", "no effect", []),
    ("--backend-config=python,shm-default-byte-size=16777216", "no effect", []),
    ("--backend-config=python,default-placement=process", "same here", ["--backend-config=python,default-placement=process"]),
    ("--backend-config=python,default-placement=moon", "refused", []),
    ("--cache-config=redis,host=cache", "refused", []),
    ("--cache-config=local,size=1048576", "same here", ["--cache-config=local,size=1048576"]),
    ("--allow-sagemaker true", "refused", []),
    ("--grpc-port=many", "refused", []),
    ("models", "refused", []),
]


@pytest.mark.parametrize(("text", "verdict", "instead"), FLAGS, ids=[text for text, _, _ in FLAGS])
def test_a_flag_of_tritonserver(text: str, verdict: str, instead: list[str]) -> None:
    line = read_line(f"tritonserver {text}", ["here"])
    assert [(flag.text, flag.verdict) for flag in line.flags] == [(text, verdict)]
    assert line.serve == ("kernel", "serve", "here", *instead)
    assert verdict == "same here" or (line.flags[0].what and line.flags[0].remedy)


def test_the_line_may_be_a_script() -> None:
    line = read_line(
        "docker run --rm -p8000:8000 nvcr.io/nvidia/tritonserver:24.10-py3 /opt/tritonserver/bin/tritonserver \\\n"
        " --model-repository=/models --log-verbose=$V && echo done",
        ["my models"],
    )
    assert [flag.verdict for flag in line.flags] == ["same here"] * 2
    assert line.shown() == "kernel serve 'my models' \"--log-verbose=$V\""


def test_flags_that_do_not_go_together() -> None:
    line = read_line("tritonserver --load-model=a", ["here"])
    assert line.flags[-1].verdict == "refused"
    assert "--model-control-mode=explicit" in line.flags[-1].what


def test_settings_of_a_backend_are_judged_together() -> None:
    """One has an effect by another, which may stand behind it."""
    threads = "--backend-config=onnxruntime,intra_op_thread_count=2"
    pool = "--backend-config=onnxruntime,enable-global-threadpool=1"
    assert [flag.verdict for flag in read_line(threads, ["here"]).flags] == ["no effect"]
    assert [flag.verdict for flag in read_line(f"{threads} {pool}", ["here"]).flags] == ["same here"] * 2


@pytest.mark.parametrize("line", ["nginx -g x", "tritonserver 'open"])
def test_what_is_no_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor([str(tmp_path), "--from", line])
    assert ended.value.code == 2
    assert "argument --from: " in capsys.readouterr().err


# -- models ----------------------------------------------------------------------------------------------------------------


def test_the_sample_repository_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    status, document = told(capsys, SAMPLES)
    assert status == 0
    severities = {one["severity"] for found in document["models"].values() for one in found["findings"]}
    assert severities <= {"differs", "costs"}


def test_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(tmp_path, "well", 'backend: "python"\nmax_batch_size: 4\ndynamic_batching { }')
    assert doctor([str(tmp_path)]) == 0
    words = "1 model looked at, as far as can be seen without loading; nothing is refused, differs or costs\n"
    assert capsys.readouterr().out == words


def test_backends_that_are_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(tmp_path, "plan", '\nplatform: "tensorrt_plan"', None)
    native = model(tmp_path, "native", '\nbackend: "mine"', None)
    (native / "1" / "libtriton_mine.so").touch()
    (tmp_path / "saved" / "1" / "model.savedmodel").mkdir(parents=True)
    status, document = told(capsys, tmp_path)
    assert status == 1
    assert rules(document, "saved") == [("refused", "backend", "model.savedmodel")]
    assert rules(document, "plan") == [("refused", "backend", "config.pbtxt:2")]
    assert "onnx" in document["models"]["plan"]["findings"][0]["remedy"].lower()
    library = ("differs", "native-backend", "libtriton_mine.so")
    assert rules(document, "native") == [("refused", "backend", "config.pbtxt:2"), library]


def test_every_mistake_of_a_check_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(tmp_path, "wrong", 'backend: "python"\nmax_batch_size: -1\ninstance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]')
    status, document = told(capsys, tmp_path)
    assert status == 1
    assert rules(document, "wrong") == [("refused", "check", "config.pbtxt:2"), ("refused", "check", "config.pbtxt:3")]


def test_a_module_that_is_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(tmp_path, "lacks", 'backend: "python"', f"import not_installed_anywhere\n{PLAIN}")
    status, document = told(capsys, tmp_path)
    assert status == 1
    assert rules(document, "lacks")[0] == ("refused", "check", "model.py:1")
    assert document["models"]["lacks"]["findings"][0]["remedy"].startswith("install it, or give the model an environment")


def test_fields_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = """
optimization { graph { level: 1 } cuda { graphs: true } }
model_repository_agents { agents [ { name: "checksum" } ] }
instance_group [ { kind: KIND_CPU host_policy: "node0" } ]
parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "/x.so" } }"""
    model(tmp_path, "python", f'backend: "python"{settings}')
    found = rules(told(capsys, tmp_path)[1], "python")
    places = sorted(place for _, rule, place in found if rule == "without-effect")
    assert places == [f"config.pbtxt:{line}" for line in (2, 2, 3, 4)]
    assert ("differs", "batch-strategy", "config.pbtxt:5") in found


def test_what_onnxruntime_heeds_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    groups = f"instance_group [ {{ kind: KIND_CPU count: {2 * CORES} }} ]"
    optimization = "optimization { graph { level: 1 } priority: PRIORITY_MAX }"
    where = model(tmp_path, "onnx", f'backend: "onnxruntime"\n{optimization}\n{groups}', None)
    (where / "1" / "model.onnx").touch()
    found = rules(told(capsys, tmp_path)[1], "onnx")
    assert found == [("differs", "without-effect", "config.pbtxt:2"), ("costs", "oversubscribed", "config.pbtxt:3")]
    line = "tritonserver --backend-config=onnxruntime,enable-global-threadpool=1"
    assert len(rules(told(capsys, tmp_path, "--from", line)[1], "onnx")) == 1, "the pools are shared by all"


def test_batching(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(tmp_path, "alone", 'backend: "python"\nmax_batch_size: 8')
    free = model(tmp_path, "free", 'backend: "python"')
    (free / "config.pbtxt").write_text('backend: "python"' + IO.replace("[ 4 ]", "[ -1, 3 ]"))
    model(tmp_path, "fixed", 'backend: "python"')
    document = told(capsys, tmp_path)[1]
    assert rules(document, "alone") == [("costs", "no-batching", "config.pbtxt:2")]
    assert rules(document, "free") == [("costs", "no-batching", "config.pbtxt:2")]
    assert rules(document, "fixed") == []


def test_a_cache_that_nobody_has_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(tmp_path, "cached", 'backend: "python"\nresponse_cache { enable: true }')
    assert rules(told(capsys, tmp_path)[1], "cached") == []
    assert rules(told(capsys, tmp_path, "--from", "tritonserver")[1], "cached") == [("costs", "no-cache", "config.pbtxt:2")]
    assert rules(told(capsys, tmp_path, "--from", "tritonserver --cache-config=local,size=9999")[1], "cached") == []


LOOP = """
import time as t
from urllib.request import urlopen as get
import asyncio
import helper

class TritonPythonModel:
    def initialize(self, args):
        t.sleep(1)

    async def execute(self, requests):
        t.sleep(1)
        await asyncio.sleep(1)
        get("http://here").read()
        await asyncio.to_thread(t.sleep, 1)
        return await helper.more(requests)
"""
HELPER = "import subprocess\n\nasync def more(requests):\n    subprocess.run(['true'])\n    return []\n"


def test_what_holds_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = model(tmp_path, "loop", 'backend: "python"\ninstance_group [ { count: 2 } ]', LOOP)
    (where / "1" / "helper.py").write_text(HELPER)
    asked = 'backend: "python"\nparameters { key: "placement" value { string_value: "%s" } }'
    waits = PLAIN.replace("class", "import time\nclass").replace("return", "time.sleep(1)\n        return")
    model(tmp_path, "asked", asked % "loop", waits)
    model(tmp_path, "thread", asked % "thread", waits)
    document = told(capsys, tmp_path)[1]
    assert rules(document, "loop") == [
        ("differs", "one-process", "config.pbtxt:2"),
        ("costs", "blocks-loop", "model.py:12"),
        ("costs", "blocks-loop", "model.py:14"),
        ("costs", "blocks-loop", "helper.py:4"),
    ]
    assert rules(document, "asked") == [("costs", "blocks-loop", "model.py:5")]
    assert rules(document, "thread") == []


def test_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"try:\n    import torch\nexcept ImportError:\n    torch = None\n{PLAIN}"
    config = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 2 } ]'
    model(tmp_path, "many", config, code)
    model(tmp_path, "told", config, code.replace("return", "torch.set_num_threads(1)\n        return"))
    model(tmp_path, "unsafe", 'backend: "python"', f"import pickle\n{PLAIN}")
    document = told(capsys, tmp_path)[1]
    assert "shared-modules" not in document["models"]["unsafe"]["findings"][0]["remedy"]
    hop = ("costs", "process", "model.py:2")
    assert rules(document, "many") == [hop, ("costs", "oversubscribed", "config.pbtxt:2")]
    assert rules(document, "told") == [hop]
    shared = told(capsys, tmp_path, "--from", "tritonserver --backend-config=python,shared-modules=torch")[1]
    assert rules(shared, "many") == [("differs", "one-process", "config.pbtxt:2")]


def test_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = model(tmp_path, "alone", 'backend: "python"\nmax_batch_size: 8')
    assert doctor([str(tmp_path), "--from", "tritonserver --http-thread-count=3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "flags:",
        "  no effect  --http-thread-count=3  taken, but there is nothing here that it could act on -> leave it out",
        "use this line:",
        f"  kernel serve {tmp_path}",
        "model 'alone':",
        f"  costs     {where}/config.pbtxt:2:17: it takes 8 rows at a time, and each request is an execution of its own",
        "            -> add dynamic_batching { } (docs/batching.md)",
        "1 model looked at, as far as can be seen without loading; costs: 1",
    ]
