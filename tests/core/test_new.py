"""`kernel new`: what it writes passes `kernel check`, serves, and passes its own tests; what is there is never touched."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernel.cli import main
from kernel.cli.check import installed_backends
from kernel.cli.new import FOLDER, PLUGIN_FOLDER, TEMPLATES, write_model, write_plugin
from kernel.testing import Kit

pytest_plugins = ["pytester"]

@pytest.fixture(params=TEMPLATES)
def template(request: pytest.FixtureRequest) -> str:
    if request.param == "onnx" and not (importlib.util.find_spec("onnxruntime") and "onnxruntime" in installed_backends()):
        pytest.skip("needs onnxruntime")
    return str(request.param)


def test_every_template_is_there() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(TEMPLATES)


@pytest.mark.parametrize("name", ["hello", "my-own.model"])
def test_a_new_model(
    template: str,
    name: str,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Does what it says is next: test, (check and) serve, infer."""
    assert main(["new", "model", name, "--template", template, "--repository", "models"]) == 0
    *written, title, test, serve, infer = capsys.readouterr().out.splitlines()
    assert title == "next:" and all(Path(path).is_file() for path in written)
    assert f"models/{name}/config.pbtxt" in written
    assert not [path for path in written if "my_model" in path or "my_model" in Path(path).read_text(errors="replace")]

    assert main(["check", "models"]) == 0, capsys.readouterr().out
    assert serve == "  kernel serve models"
    with Kit() as kit:
        assert name in kit.load_repository("models")

    assert test == f"  pytest models/{name}"
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    capsys.readouterr()
    result = pytester.runpytest("-p", "kernel_pytest", "-p", "no:cacheprovider", "-W", "error", f"models/{name}")
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed"} and outcomes["passed"] >= 2

    command, *arguments = shlex.split(infer)
    assert command == "kernel"
    if name == "hello":
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        process = subprocess.run(
            [sys.executable, "-m", "kernel", *arguments], env=environment, capture_output=True, text=True, timeout=60
        )
        assert process.returncode == 0, process.stderr
        assert {json.loads(line)["model_name"] for line in process.stdout.splitlines()} == {name}


def test_nothing_is_overwritten(template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted((FOLDER / template).iterdir()):
        repository = tmp_path / path.name
        (repository / path.name.replace("my_model", "m")).mkdir(parents=True)
        assert main(["new", "model", "m", "--template", template, "--repository", str(repository)]) == 1
        error = capsys.readouterr().err
        assert error == f"error: {repository / path.name.replace('my_model', 'm')} is there already; nothing was written\n"
        assert [one.name for one in repository.rglob("*")] == [path.name.replace("my_model", "m")]


def test_a_folder_that_can_not_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["new", "model", "m", "--template", "python", "--repository", str(tmp_path / "file")]) == 1
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "a b", "--template", "python"], "'a b' can't be the name of a model; wanted letters, digits, '_', '-' and"),
        (["model", "../m", "--template", "python"], "'../m' can't be the name of a model"),
        (["model", "1", "--template", "python"], "'1' can't be the name of a model"),
        (["model", "m"], "the following arguments are required: --template"),
        (["model", "m", "--template", "pyton"], "invalid choice: 'pyton'"),
        (["modell", "m", "--template", "python"], "invalid choice: 'modell'"),
        (["model", "m", "--template", "python", "--folder", "x"], "--folder is for plugins; where a model goes is said by"),
        (["plugin", "p"], "--template and --repository are for models; where a plugin goes is said by --folder"),
    ],
)
def test_mistakes(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["new", *arguments, "--repository", str(tmp_path)])
    assert caught.value.code == 2 and words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_templates_are_repositories_themselves(template: str, tmp_path: Path) -> None:
    """So that they are examples which can be read, and changed, where they stand."""
    written = write_model("my_model", template, tmp_path)
    for path in written:
        assert path.read_bytes() == (FOLDER / template / path.relative_to(tmp_path)).read_bytes()


def test_a_new_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a distribution of its own it is found, passes its tests, and serves its model."""
    assert main(["new", "plugin", "fast-scale", "--folder", str(tmp_path)]) == 0
    *written, title, install, test, serve = capsys.readouterr().out.splitlines()
    folder = tmp_path / "fast-scale"
    assert title == "next:" and all(Path(path).is_file() for path in written)
    assert {f"{folder}/pyproject.toml", f"{folder}/fast_scale.py", f"{folder}/tests/test_fast_scale.py"} < set(written)
    assert not [path for path in written if re.search("my.plugin", path + Path(path).read_text())]
    assert (install, test) == (f"  pip install -e '{folder}[test]'", f"  pytest {folder}")
    assert serve == f"  kernel serve {folder}/tests/models"

    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", site, folder], check=True, capture_output=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *map(os.path.abspath, sys.path)])}

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *map(str, arguments)], env=environment, cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "2 passed" in run("pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert run("kernel", "check", "tests/models", "--load") == "1 model is well\n"
    answer = json.loads(run("kernel", "infer", "tests/models", "halved", "--input", "X=[1,2,3]"))
    assert answer["outputs"][0]["data"] == [0.5, 1.0, 1.5]


def test_a_plugin_is_not_overwritten(tmp_path: Path) -> None:
    written = write_plugin("my-plugin", tmp_path)
    for path in written:
        assert path.read_bytes() == (PLUGIN_FOLDER / path.relative_to(tmp_path)).read_bytes()
    with pytest.raises(FileExistsError, match="my-plugin is there already; nothing was written"):
        write_plugin("my-plugin", tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Fast", "'Fast' can't be the name of a plugin; wanted small letters, digits, '_' and '-', with a letter in front"),
        ("json", "'json' can't be the name of a plugin: Python has a module or a keyword 'json' already"),
        ("class", "'class' can't be the name of a plugin: Python has a module or a keyword 'class' already"),
    ],
)
def test_names_of_plugins(name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["new", "plugin", name, "--folder", str(tmp_path)])
    assert caught.value.code == 2 and words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
