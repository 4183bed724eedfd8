"""`kernel check`, `kernel models`, `kernel infer`: as processes, on good and on broken repositories."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernel import __version__

from .serving import BROKEN, ECHO, REPOSITORY, command, run, serving, write_model

COUNT = sum((folder / "config.pbtxt").exists() for folder in REPOSITORY.iterdir())


def said(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of a check, but those that tell where models will run."""
    return [line for line in result.stdout.splitlines() if " runs in placement " not in line]


def test_version_and_help() -> None:
    assert run("--version").stdout == f"kernel {__version__}\n"
    for arguments in (["--help"], ["serve", "--help"], ["check", "-h"], ["doctor", "-h"], ["models", "-h"], ["infer", "-h"]):
        result = run(*arguments)
        assert result.returncode == 0
        assert result.stdout.startswith(f"usage: kernel {arguments[0] if len(arguments) > 1 else 'COMMAND'}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a command is wanted: serve, check, doctor, models, config, graph, infer"),
        (["chekc"], "unknown command 'chekc'; did you mean 'check'?"),
        (["record", "models/"], "unknown command 'record'; is it `kernel serve REPO --record FILE`?"),
        (["--model-repository=/models"], "is it `kernel serve --model-repository=/models …`?"),
    ],
)
def test_wrong_commands(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert words in result.stderr


# -- check -----------------------------------------------------------------------------------------------------------------


def test_check_sample_repository(tmp_path: Path) -> None:
    result = run("check", REPOSITORY, cwd=tmp_path)
    words = f"{COUNT} models are well, as far as can be seen without loading them; --load loads them, too"
    assert (result.returncode, said(result)) == (0, [words])


def test_check_tells_all_mistakes_of_all_models(tmp_path: Path) -> None:
    write_model(tmp_path, "good")
    write_model(tmp_path, "one", more="max_batchsize: 4\nmax_batch_size: -2")
    write_model(tmp_path, "two").joinpath("config.pbtxt").write_text('backend: "pyton"\n')
    write_model(tmp_path, "three").joinpath("config.pbtxt").write_text('backend: "python"\ninput { name: "X" data_type: FP32 }\n')
    (tmp_path / "empty").mkdir()
    result = run("check", tmp_path)
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    for place, words in {
        "one/config.pbtxt:4:1: ": "did you mean 'max_batch_size'?",
        "two/config.pbtxt:1:10: ": "did you mean 'python'?",
        "three/config.pbtxt:2:": "did you mean TYPE_FP32?",
        "empty": "",
    }.items():
        assert any(line.startswith(f"{tmp_path}/{place}") and words in line for line in lines), (place, lines)
    assert lines[-1] == "4 of 5 models can't be served"


def test_check_ensemble_against_its_steps(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    write_ensemble(tmp_path, "both", "ecko")
    result = run("check", tmp_path)
    assert result.returncode == 1
    assert f"{tmp_path}/both/config.pbtxt:4:" in result.stdout
    assert "echo" in result.stdout


def test_check_loads_only_when_asked(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "broken", BROKEN)
    model = folder / "1/model.py"
    model.write_text('open(__file__ + ".ran", "w").close()\n' + model.read_text())
    result = run("check", tmp_path)
    assert result.returncode == 0
    assert said(result) == ["1 model is well, as far as can be seen without loading it; --load loads it, too"]
    assert not (folder / "1/model.py.ran").exists()
    result = run("check", tmp_path, "--load")
    assert result.returncode == 1
    assert "no weights today" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 of 1 models can't be served"


def test_check_loads_the_others_where_some_have_mistakes(tmp_path: Path) -> None:
    """Mistakes that can be seen don't hide those that only a load finds; what needs a model with mistakes says so."""
    seen = write_model(tmp_path, "seen", ECHO) / "1/model.py"
    seen.write_text(seen.read_text() + "\n)\n")
    write_model(tmp_path, "broken", BROKEN)
    write_model(tmp_path, "well", ECHO)
    write_ensemble(tmp_path, "both", "seen")
    result = run("check", tmp_path, "--load")
    assert result.returncode == 1
    assert "SyntaxError: unmatched ')'" in result.stdout
    assert "no weights today" in result.stdout
    assert "model 'both' can't be loaded: it needs seen" in said(result)
    assert result.stdout.splitlines()[-1] == "3 of 4 models can't be served"


def write_ensemble(repository: Path, name: str, step: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        'platform: "ensemble"\n'
        'input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1\n'
        '  input_map { key: "X" value: "IN" } output_map { key: "Y" value: "OUT" } } }\n'
    )


def test_check_tells_all_that_is_behind_a_failed_load(tmp_path: Path) -> None:
    """Once: not again for what needs the model."""
    body = """\
    def initialize(self, args):
        try:
            {}["weights"]
        except KeyError as error:
            raise ValueError("no weights today") from error

""" + ECHO
    model = write_model(tmp_path, "m", body) / "1/model.py"
    write_ensemble(tmp_path, "both", "m")
    result = run("check", tmp_path, "--load")
    assert result.returncode == 1
    assert said(result) == [
        "model 'both' can't be loaded: it needs m",
        f"{model}:12:13: model 'm' can't be loaded: Internal: ValueError: no weights today",
        '                raise ValueError("no weights today") from error',
        "                ^",
        "  At:",
        f"    {model}(12): initialize",
        "  caused by KeyError: 'weights'",
        f"    {model}:10 in initialize",
        "2 of 2 models can't be served",
    ]


def test_check_sees_what_can_not_load_without_running_it(tmp_path: Path) -> None:
    good = write_model(tmp_path, "good")
    model = write_model(tmp_path, "bad") / "1/model.py"
    model.write_text("import numpy as np\n\nclass TritonPythonModel:\n    def execute(self, requests)\n        return []\n")
    result = run("check", tmp_path)
    assert result.returncode == 1
    assert said(result) == [
        f"{model}:4:32: SyntaxError: expected ':'",
        "        def execute(self, requests)",
        "                                   ^",
        "1 of 2 models can't be served",
    ]
    config = good / "config.pbtxt"
    model.write_text(model.read_text().replace("requests)", "requests):"))
    config.write_text(config.read_text().replace("X", "X\tä").replace("FP32", "FP33", 1))
    lines = said(run("check", tmp_path))
    assert lines[0].startswith(f"{config}:2:") and "TYPE_FP33" in lines[0]
    assert lines[2].index("^") == lines[1].index("TYPE_FP33")


def test_check_an_incomplete_config(tmp_path: Path) -> None:
    """It is a mistake where nobody would complete it, and none where the model may."""
    folder = write_model(tmp_path, "m")
    config = folder / "config.pbtxt"
    config.write_text('backend: "python"\ninput { name: "X" }\n')
    result = run("check", tmp_path)
    assert result.returncode == 1 and "must specify 'data_type'" in result.stdout, result.stdout
    model = folder / "1/model.py"
    model.write_text(model.read_text() + "\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n")
    result = run("check", tmp_path)
    assert (result.returncode, said(result)) == (
        0,
        [
            "1 model is well, as far as can be seen without loading it; what comes in and out of m is known only then; "
            "--load loads it, too"
        ],
    )


def test_check_says_whose_code_it_can_not_look_at(tmp_path: Path) -> None:
    """That for another environment, which may have modules, and a syntax, of its own."""
    more = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{sys.prefix}" }} }}'
    folder = write_model(tmp_path, "m", more=more)
    model = folder / "1/model.py"
    model.write_text("import no_such_module\n" + model.read_text())
    result = run("check", tmp_path)
    words = "1 model is well, as far as can be seen without loading it; the code of m was not looked at; --load loads it, too"
    assert (result.returncode, said(result)) == (0, [words])


def test_check_what_is_no_repository(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "clf")
    result = run("check", folder)
    assert result.returncode == 1
    words = f"'{folder}' holds a config.pbtxt, so it is a model itself; its repository is '{tmp_path}'"
    assert result.stdout.splitlines()[-2:] == [words, "1 of 1 models can't be served"]
    assert words in run("models", folder).stderr
    result = run("infer", folder, "clf", "--input=X=1")
    assert result.stderr.splitlines()[-1] == (
        f"error: Not found - Request for unknown model: 'clf' is not found; there are none: {words}"
    )
    result = run("infer", tmp_path / "none", "clf", "--input=X=1")
    assert result.stderr.splitlines()[-1] == f"error: Internal - failed to stat file {tmp_path}/none"
    above = tmp_path / "above"
    write_model(above / "models", "m")
    result = run("check", above)
    words = f"'{above}' holds no model, but '{above}/models' does, so that may be the repository"
    assert words in result.stdout.splitlines()
    (tmp_path / "empty").mkdir()
    result = run("check", tmp_path / "empty")
    words = f"warning: no models in {tmp_path}/empty; a model is a folder such as {tmp_path}/empty/my_model/1\n"
    assert (result.returncode, result.stdout) == (0, words)


def test_check_missing_repository() -> None:
    result = run("check", "/nowhere/at/all")
    assert (result.returncode, result.stderr) == (1, "failed to stat file /nowhere/at/all\n")
    assert run("check").returncode == 2


# -- models ----------------------------------------------------------------------------------------------------------------


def test_models(tmp_path: Path) -> None:
    result = run("models", REPOSITORY, cwd=tmp_path)
    assert result.returncode == 0
    paragraphs = {text.splitlines()[0]: text for text in result.stdout.strip().split("\n\n")}
    assert len(paragraphs) == COUNT
    assert paragraphs["dense"].splitlines() == [
        "dense",
        "  versions   1",
        "  backend    python",
        "  batching   dynamic, up to 32 rows",
        "  placement  thread: its code and what it imports are known to be safe to share",
        "  inputs     X  FP32  [-1, 256]",
        "  outputs    Y  FP32  [-1, 64]",
    ]
    assert "DELAY_MS  UINT32  [1]   optional" in paragraphs["repeat"]
    assert "steps     preprocess -> digits_classifier" in paragraphs["pipeline_ensemble"]


def test_models_as_json() -> None:
    models = {model["name"]: model for model in json.loads(run("models", REPOSITORY, "--json").stdout)}
    assert models["dense"]["versions"] == [1]
    assert models["dense"]["config"]["max_batch_size"] == 32
    assert models["dense"]["errors"] == []


def test_models_shows_mistakes(tmp_path: Path) -> None:
    write_model(tmp_path, "bad", more="max_batchsize: 4")
    write_model(tmp_path, "good")
    result = run("models", tmp_path)
    assert result.returncode == 1
    assert "did you mean 'max_batch_size'?" in result.stdout
    assert "good\n  versions   1\n" in result.stdout


# -- infer -----------------------------------------------------------------------------------------------------------------


def test_infer_json(tmp_path: Path) -> None:
    arguments = ["--input", "A=[1,2.5]", "--input", "B=[10,20]", "--id", "r1", "--explain"]
    result = run("infer", REPOSITORY, "add_sub", *arguments, cwd=tmp_path)
    assert result.stderr.startswith("request 'r1' of model 'add_sub' version 1, ") and "executed " in result.stderr
    assert result.returncode == 0
    assert json.loads(result.stdout) == {
        "id": "r1",
        "model_name": "add_sub",
        "model_version": "1",
        "outputs": [
            {"name": "SUM", "datatype": "FP32", "shape": [2], "data": [11.0, 22.5]},
            {"name": "DIFFERENCE", "datatype": "FP32", "shape": [2], "data": [-9.0, -17.5]},
        ],
    }
    assert len(result.stderr.splitlines()) == 1
    assert run("infer", REPOSITORY, "add_sub", *arguments[:-1], cwd=tmp_path).stderr == ""


def test_infer_files_and_table(tmp_path: Path) -> None:
    with np.load(REPOSITORY / "digits.npz") as digits:
        np.save(tmp_path / "digit.npy", digits["images"][0])
    for pipeline in ("pipeline_sync", "pipeline_async", "pipeline_ensemble"):
        flags = [f"--input=IMAGE=@{tmp_path}/digit.npy", "--batch", "--output=LABEL", "--format=table"]
        result = run("infer", REPOSITORY, pipeline, *flags)
        head, row = result.stdout.splitlines()
        assert head.split() == ["output", "datatype", "shape", "data"]
        assert row.startswith("LABEL")


def test_infer_strings(tmp_path: Path) -> None:
    (tmp_path / "texts.json").write_text('["ä", "b"]')
    (tmp_path / "plain.txt").write_text("from a file")
    for value, wanted in {
        f"@{tmp_path}/texts.json": ["Ä", "B"],
        f"@{tmp_path}/plain.txt": ["FROM A FILE"],
        "bare words": ["BARE WORDS"],
        '["x"]': ["X"],
    }.items():
        result = run("infer", REPOSITORY, "text_upper", "--input", f"TEXT={value}")
        assert json.loads(result.stdout)["outputs"][0]["data"] == wanted
    result = run("infer", REPOSITORY, "text_upper", "--input", "TEXT=@-", stdin='["piped"]')
    assert json.loads(result.stdout)["outputs"][0]["data"] == ["PIPED"]


def test_infer_decoupled() -> None:
    result = run("infer", REPOSITORY, "repeat", "--input=IN=[4,5,6]")
    responses = [json.loads(line) for line in result.stdout.splitlines()]
    assert [response["outputs"][0]["data"] for response in responses] == [[4], [5], [6]]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["add_sub"], 1, "expected 2 inputs but got 0 inputs for model 'add_sub'"),
        (["add_subb"], 1, "Request for unknown model: 'add_subb' is not found; did you mean add_sub?"),
        (["add_sub", "--version=7"], 1, "Request for unknown model: 'add_sub' version 7 is not found"),
        (["add_sub", "--input=C=1"], 1, "unexpected inference input 'C' for model 'add_sub'; it has A, B"),
        (["add_sub", "--input=A=[1,"], 1, "input 'A': not JSON: "),
        (["add_sub", '--input=A=["x"]'], 1, "input 'A': \"x\" is no FP32 (a number)"),
        (["add_sub", "--input=A=[[1],[2,3]]"], 1, "input 'A': the lists in it have different lengths or depths"),
        (["add_sub", "--input=A=@/nowhere.npy"], 1, "input 'A': can't read /nowhere.npy: No such file or directory"),
        (["repeat", "--input=IN=[2147483648]"], 1, "2147483648 is no INT32 (an integer from -2147483648 to 2147483647)"),
        (["add_sub", "--input=A=[1]", "--input=B=[1]", "--output=Z"], 1, "unexpected inference output 'Z' for model 'add_sub'"),
        (["add_sub", "--input=A"], 2, "--input 'A' is not of the form NAME=VALUE"),
        (["add_sub", "--inputs=A=1"], 2, "unexpected argument '--inputs=A=1'; did you mean --input"),
        ([], 2, "the following arguments are required: MODEL"),
    ],
)
def test_infer_mistakes(arguments: list[str], status: int, words: str) -> None:
    result = run("infer", REPOSITORY, *arguments)
    assert result.returncode == status
    assert words in result.stderr
    assert result.stdout == ""


TALKS = """\
    def initialize(self, args):
        import os, subprocess
        print("from python")
        os.write(1, b"from C\\n")
        subprocess.run(["echo", "from a child"])

""" + ECHO


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_what_a_model_prints_is_no_answer(tmp_path: Path, placement: str) -> None:
    more = f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}'
    write_model(tmp_path, "talks", TALKS, more=more)
    result = run("infer", tmp_path, "talks", "--input=X=[1]")
    assert [json.loads(line)["model_name"] for line in result.stdout.splitlines()] == ["talks"]
    assert sorted(result.stderr.split("\n")) == ["", "from C", "from a child", "from python"]
    result = run("check", tmp_path, "--load")
    assert said(result) == ["1 model is well"]


def test_the_reader_of_answers_has_had_enough() -> None:
    command = [sys.executable, "-m", "kernel", "infer", str(REPOSITORY), "repeat", "--input=IN=[4,5,6]"]
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_infer_says_why_a_model_is_not_ready(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", BROKEN)
    result = run("infer", tmp_path, "broken", "--input=X=1")
    assert result.returncode == 1
    assert "error: Not found - Request for unknown model: 'broken'" in result.stderr
    assert "no weights today" in result.stderr.partition("error: Not found")[2]


# -- top -------------------------------------------------------------------------------------------------------------------


def test_top_on_a_terminal_and_off_it(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    with serving(tmp_path, tmp_path / "models") as server:
        said = run("top", server.url, "--interval", "0.2")
        assert said.returncode == 0 and "echo:1  READY" in said.stdout and "\x1b" not in said.stdout
        mine, its = pty.openpty()
        line = command("top", server.url, "--interval", "0.2")
        process = subprocess.Popen(line, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm"})
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # what reading the end of a terminal is on Linux
            while b"q quit" not in shown:
                shown += os.read(mine, 65536)
            os.write(mine, b"s")
            while b"(STATE)" not in shown:
                shown += os.read(mine, 65536)
            os.write(mine, b"q")
            while part := os.read(mine, 65536):
                shown += part
        assert process.wait(30) == 0
        os.close(mine)
    assert b"echo:1" in shown and b"READY" in shown
    assert shown.rstrip().endswith(b"\x1b[?1049l")  # the terminal is as it was
    result = run("top", server.url)
    assert result.returncode == 1 and f"error: http://{server.url} can't be asked: " in result.stderr
