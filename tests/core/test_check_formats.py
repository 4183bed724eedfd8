"""`kernel check --format`: mistakes as editors, programs and code scanners read them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.check import check
from kernel.cli.mistakes import Mistake, mistake_of, warning_of, written
from kernel.errors import Code, ServingError

MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name, text, code in (
        ("config", 'backend: "python"\nmax_batchsize: 4\n', MODEL),
        ("code", 'backend: "python"\nmax_batch_size: 0\n', f"import no_such_name\n{MODEL}"),
        ("well", 'backend: "python"\ninput { name: "A" data_type: TYPE_FP32 dims: 1 }\n'
                 'output { name: "B" data_type: TYPE_FP32 dims: 1 }\n', MODEL),
    ):  # fmt: skip
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
        (tmp_path / name / "1/model.py").write_text(code)
    (tmp_path / "empty").mkdir()
    return tmp_path


def checked(folder: Path, form: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    status = check([str(folder), "--format", form, *more])
    return status, capsys.readouterr().out


def test_gcc_is_a_line_each_with_its_place(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = checked(models, "gcc", capsys)
    lines = said.splitlines()
    assert status == 1 and len(lines) == 3
    assert lines[0].startswith(f"{models}/code/1/model.py:1:1: error: ModuleNotFoundError: No module named 'no_such_name'")
    assert lines[0].endswith("[code]")
    assert lines[1].startswith(f"{models}/config/config.pbtxt:2:1: error: ") and "did you mean 'max_batch_size'?" in lines[1]
    assert lines[2].startswith(f"{models}/empty: error: ")


def test_json_has_the_parts_each_by_itself(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = checked(models, "json", capsys)
    document = json.loads(said)
    assert (status, document["models"]) == (1, 4)
    found = {one["model"]: one for one in document["mistakes"]}
    assert found.keys() == {"code", "config", "empty"}
    assert found["config"] | {"message": ""} == {
        "model": "config", "severity": "error", "path": f"{models}/config/config.pbtxt", "line": 2, "column": 1,
        "field": "max_batchsize", "message": "",
    }  # fmt: skip


def test_sarif_is_what_scanners_read(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = checked(models, "sarif", capsys)
    document = json.loads(said)
    (run,) = document["runs"]
    assert (status, document["version"], run["tool"]["driver"]["name"]) == (1, "2.1.0", "kernel check")
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    for result in run["results"]:
        assert result["ruleId"] in rules and result["level"] == "error" and result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].startswith("file:///")
        assert place.get("region", {"startLine": 1})["startLine"] >= 1
    assert run["results"][1]["locations"][0]["physicalLocation"]["region"] == {"startLine": 2, "startColumn": 1}


@pytest.mark.parametrize(("form", "said"), [("gcc", ""), ("json", '"mistakes": []'), ("sarif", '"results": []')])
def test_nothing_wrong_is_status_0(form: str, said: str, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config", "code", "empty"):
        shutil.rmtree(models / name)
    status, out = checked(models, form, capsys)
    assert status == 0 and said in out and (out == "" or form != "gcc")


def test_a_place_in_a_sentence_is_found_and_nothing_else_is_taken_for_one() -> None:
    error = ServingError(Code.INVALID_ARG, "/models/a/config.pbtxt:3:4: no: not that")
    found = mistake_of("a", "/models/a", error)
    assert (found.path, found.line, found.column, found.message) == ("/models/a/config.pbtxt", 3, 4, "no: not that")
    other = warning_of("a", "/models/a", "model 'a': 17: is large")
    assert (other.path, other.line, other.message, other.severity) == ("/models/a", None, "model 'a': 17: is large", "warning")


def test_a_name_with_a_line_end_makes_no_further_line() -> None:
    mistake = Mistake("a\n/x:1: error: forged", "error", "/models/a\n/x:1: error: forged", None, None, "", "no")
    assert len(written("gcc", [mistake], 1).splitlines()) == 1


#: What a reference to a file looks like (RFC 3986), and what no schema of SARIF lets pass otherwise.
URI = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})*")
HOSTILE = "a b/ü/%41/#?/\x00\n\u2028\udcff/<>\"'/[::1]/$(x)/\\..\\"


def located(path: str, line: int | None = None, column: int | None = None, message: str = "no", model: str = "m") -> Any:
    text = written("sarif", [Mistake(model, "error", path, line, column, "", message)], 1)
    text.encode()
    (result,) = json.loads(text)["runs"][0]["results"]
    json.dumps(result, ensure_ascii=False).encode()  # no half of a character
    (location,) = result["locations"]
    return location["physicalLocation"], result["message"]["text"]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/models/a b#c?d%e", "file:///models/a%20b%23c%3Fd%25e"),
        ("models/a", "models/a"),
        ("a:b/c", "a%3Ab/c"),  # no scheme
        ("s3://bucket/a b:c", "s3://bucket/a%20b%3Ac"),
        ("/models/\udcff", "file:///models/%FF"),
        ("models/\udcff", "models/%FF"),
        (f"/{HOSTILE}", None),
        (HOSTILE, None),
        ("javascript://x", "javascript://x"),
    ],
)
def test_sarif_of_hostile_paths(path: str, wanted: str | None) -> None:
    place, _ = located(path)
    uri = place["artifactLocation"]["uri"]
    assert URI.fullmatch(uri) and (wanted is None or uri == wanted)


def test_sarif_of_hostile_places_and_messages() -> None:
    assert "region" not in located("/m", 0, 0)[0] and located("/m", 3, 0)[0]["region"] == {"startLine": 3}
    assert "\\udcff" in located("/m", 1, 1, HOSTILE, HOSTILE)[1]
    json.loads(written("json", [Mistake(HOSTILE, "error", HOSTILE, 1, 1, HOSTILE, HOSTILE)], 1)).__repr__().encode()
    for sentence in (f"/models/a:{'9' * 5000}: no", "/models/a:\u0661: no", "/models/a:0:0: no", f"/models/a:1:{'1' * 9}: no"):
        found = mistake_of("a", "/models/a", ServingError(Code.INVALID_ARG, sentence))
        place, _ = located(found.path, found.line, found.column, found.message)
        assert all(value >= 1 for value in place.get("region", {}).values())


def test_an_unknown_format_is_a_mistake_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check(["models", "--format=xml"])
    assert ended.value.code == 2
    assert "invalid choice: 'xml'" in capsys.readouterr().err
