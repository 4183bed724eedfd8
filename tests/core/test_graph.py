"""`kernel graph`: ensembles and seen calls as Mermaid and SVG, whatever models are called."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from kernel.cli import graph as module
from kernel.cli.drawing import Graph, mermaid, svg
from kernel.cli.drawing import GraphEdge as Edge
from kernel.cli.drawing import GraphNode as Node
from kernel.cli.graph import graph

STEP = """
step {{ model_name: "{model}" model_version: -1
input_map {{ key: "X" value: "{came}" }} output_map {{ key: "Y" value: "{made}" }} }}
"""
HOSTILE = '"] --> x; </text><script>alert(1)</script>\n\x1b[2J&'


def write(folder: Path, name: str, text: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(text)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    ends = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    plain = ends.replace('"IN"', '"X"').replace('"OUT"', '"Y"')
    for name in ("first", "second"):
        write(tmp_path, name, f'backend: "python" {plain}')
        (tmp_path / name / "1/model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): ...\n")
    chain = STEP.format(model="first", came="IN", made="mid") + STEP.format(model="second", came="mid", made="OUT")
    write(tmp_path, "chain", f'platform: "ensemble" {ends} ensemble_scheduling {{ {chain} }}')
    outer = STEP.format(model="chain", came="IN", made="OUT").replace('"X"', '"IN"').replace('"Y"', '"OUT"')
    write(tmp_path, "outer", f'platform: "ensemble" {ends} ensemble_scheduling {{ {outer} }}')
    return tmp_path


def test_mermaid_of_ensembles(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert graph([str(models)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "flowchart LR"
    for line in (
        'subgraph g0["ensemble chain"]', 'g0n1["first"]', 'g0n0 -->|"IN"| g0n1', 'g0n1 -->|"mid"| g0n2', 'g0n2 -->|"OUT"| g0n3',
        'subgraph g1["ensemble outer"]', 'g1n1[["chain"]]',
    ):  # fmt: skip
        assert line in lines, line
    assert graph([str(models), "--model", "outer", "--format", "json"]) == 0
    assert [one["title"] for one in json.loads(capsys.readouterr().out)] == ["ensemble outer"]


def test_svg_goes_to_a_file(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.svg"
    assert graph([str(models), "--format=svg", "--output", str(file)]) == 0
    root = xml.etree.ElementTree.fromstring(file.read_text())
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"ensemble chain", "first", "second", "mid"} <= set(texts)
    assert capsys.readouterr().out == ""
    assert graph([str(models), "--output", str(tmp_path / "no" / "such")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_told(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(models, "wrong", 'platfrom: "ensemble"')
    assert graph([str(models)]) == 1
    said = capsys.readouterr()
    assert 'subgraph g0["ensemble chain"]' in said.out and "wrong/config.pbtxt:1:1" in said.err
    assert graph([str(models), "--model", "chian"]) == 1
    assert "there is no model 'chian'" in capsys.readouterr().err
    for name in ("wrong", "outer", "chain"):
        (models / name / "config.pbtxt").unlink()
        (models / name / "1").rmdir()
        (models / name).rmdir()
    assert graph([str(models)]) == 0
    said = capsys.readouterr()
    assert 'subgraph g0["models"]' in said.out and '["first"]' in said.out and "-->" not in said.out
    assert said.err == "there is no ensemble, so the models are drawn alone; --calls URL adds calls that were seen\n"
    assert graph([str(models), "--model", "first", "--format=json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)
    assert [one["label"] for one in alone["nodes"]] == ["first"] and alone["edges"] == []
    empty = models / "none"
    empty.mkdir()
    assert graph([str(empty)]) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("there is no model, so nothing is drawn")


def test_calls_that_a_server_has_seen(models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def call(caller: str, model: str, count: int) -> dict[str, Any]:
        return {"caller": caller, "model": model, "count": count}

    told: Any = {"calls": [call("first", "second", 2), call("first", "deep", 1), call("deep", "second", 7)]}
    asked: list[tuple[str, str]] = []

    def ask(url: str, path: str) -> tuple[int, str, Any]:
        asked.append((url, path))
        return 200, "OK", told

    monkeypatch.setattr(module, "ask", ask)
    assert graph([str(models), "--calls", "host:8000", "--model", "first", "--format=json"]) == 0
    (seen,) = json.loads(capsys.readouterr().out)
    assert {(one["source"], one["target"], one["label"]) for one in seen["edges"]} == {
        ("first", "second", "2 calls"), ("first", "deep", "1 call"),
    }  # fmt: skip
    assert asked == [("http://host:8000", "/v2/kernel/calls")]
    told = {"calls": ["something else"]}
    assert graph([str(models), "--calls", "host:8000"]) == 1
    assert "it may be another server" in capsys.readouterr().err


def test_names_are_escaped_in_both() -> None:
    made = Graph(HOSTILE, [Node("a", HOSTILE), Node(HOSTILE, "\udcff", "end")], [Edge("a", HOSTILE, HOSTILE, dashed=True)])
    text = mermaid([made])
    assert all(re.fullmatch(r'[\w .,:/()+#;"\[\]<>|-]*', line) for line in text.splitlines())
    assert "script" not in re.sub(r'"[^"]*"', "", text) and '"]' not in re.sub(r'(\["[^"]*"\]|\(\["[^"]*"\]\))', "", text)
    root = xml.etree.ElementTree.fromstring(svg([made]))
    assert not [one for one in root.iter() if one.tag.endswith("script")]
    assert mermaid([]) == "flowchart LR" and xml.etree.ElementTree.fromstring(svg([])) is not None


def test_a_circle_is_drawn_all_the_same() -> None:
    nodes = [Node(name, name) for name in "abc"]
    made = Graph("calls", nodes, [Edge("a", "b"), Edge("b", "c"), Edge("c", "a"), Edge("a", "a", "itself")])
    xml.etree.ElementTree.fromstring(svg([made]))
    many = Graph("many", [Node(str(k), str(k)) for k in range(300)], [Edge(str(k), str((k + 1) % 300)) for k in range(300)])
    xml.etree.ElementTree.fromstring(svg([many]))
