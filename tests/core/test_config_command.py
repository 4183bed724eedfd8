"""`kernel config show`: the config as the server has it, and of each value where it comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernel.cli.config import config

CODE = """\
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(made):
        made.set_max_batch_size(8)
        made.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        return made

    def execute(self, requests): ...
"""
CONFIG = """\
backend: "python"
input {
  name: "X"
  data_type: TYPE_FP32
  dims: [ 2 ]
}
parameters { key: "placement" value { string_value: "loop" } }
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "one/1").mkdir(parents=True)
    (tmp_path / "one/config.pbtxt").write_text(CONFIG)
    (tmp_path / "one/1/model.py").write_text(CODE)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, tuple[str, str]]:
    """Return field -> value and origin."""
    assert config(["show", *map(str, arguments), "--origin"]) == 0
    rows = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    return {field: (value, origin) for field, value, origin in rows}


def test_each_value_says_where_it_comes_from(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, models, "one")
    file = models / "one/config.pbtxt"
    assert found["backend"] == ('"python"', f"{file}:1")
    assert found["input[0].dims"] == ("[2]", f"{file}:5")
    assert found['parameters["placement"].string_value'] == ('"loop"', f"{file}:7")
    assert found["max_batch_size"] == ("0", "default")
    only = said(capsys, models, "one", "--set")
    assert only.keys() < found.keys() and not [field for field, (_, origin) in only.items() if origin == "default"]


def test_what_the_model_itself_has_set_is_known_when_it_is_loaded(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, models, "one", "--load")
    assert found["max_batch_size"] == ("8", "auto-complete") and found["output[0].name"] == ('"Y"', "auto-complete")
    assert found["input[0].name"][1].endswith("config.pbtxt:3")


def test_an_override_stands_for_the_file(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    override = {"backend": "python", "max_batch_size": 4, "input": [{"name": "X", "data_type": "TYPE_INT8", "dims": [1]}]}
    found = said(capsys, models, "one", "--override", json.dumps(override))
    assert found["max_batch_size"] == ("4", "override")
    assert not [origin for _, origin in found.values() if "config.pbtxt" in origin]
    (tmp_path / "override.json").write_text(json.dumps(override))
    assert said(capsys, models, "one", "--override", f"@{tmp_path / 'override.json'}") == found


def test_json_and_text(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config(["show", str(models), "one"]) == 0
    assert 'name: "one"\n' in capsys.readouterr().out
    assert config(["show", str(models), "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["input"][0]["dims"] == [2]
    assert config(["show", str(models), "one", "--json", "--origin"]) == 0
    rows = {row["field"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["input[0].name"] == {
        "field": "input[0].name", "value": "X", "origin": "file", "line": 3, "file": f"{models}/one/config.pbtxt"
    }  # fmt: skip
    assert rows["max_batch_size"]["line"] is None and rows["max_batch_size"]["file"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["show", "{}", "noe"], 1, "no model 'noe' in {}; did you mean 'one'?"),
        (["show", "{}/nowhere", "one"], 1, "error: "),
        (["show", "{}", "one", "--override", '{"max_batchsize": 1}'], 1, "did you mean 'max_batch_size'?"),
        (["show", "{}", "one", "--override", "{"], 1, "not JSON"),
        (["show", "{}", "one", "--override=@{}/none.json"], 1, "--override @{}/none.json can't be read: "),
        (["show", "{}", "one", "--set"], 2, "--set is about origins"),
        (["list", "{}", "one"], 2, "invalid choice: 'list'"),
        (["show", "{}"], 2, "required: MODEL"),
    ],
)
def test_mistakes(arguments: list[str], status: int, words: str, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert config([one.replace("{}", str(models)) for one in arguments]) == status
    except SystemExit as ended:
        assert ended.code == status
    assert words.replace("{}", str(models)) in capsys.readouterr().err


def test_a_config_with_mistakes_tells_them(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "one/config.pbtxt").write_text(f"{CONFIG}max_batchsize: 3\n")
    assert config(["show", str(models), "one"]) == 1
    assert "one/config.pbtxt:8:1: " in capsys.readouterr().err
