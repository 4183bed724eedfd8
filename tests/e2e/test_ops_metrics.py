"""What ops/ makes of the metrics page: alerts and the dashboard ask for series that a real page has, and promtool agrees."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .serving import ECHO, REPOSITORY, serving, wait_until, write_model

OPS = REPOSITORY.parent / "ops"
#: Of Prometheus itself, and of machines with GPUs.
NOT_HERE = re.compile(r"up\b|nv_gpu_")
SELECTOR = re.compile(r"\b(up|(?:nv|kernel)_\w+)(?:\{([^}]*)\})?")
ADDRESS = re.compile(r"Started Metrics Service at ([\d.:]+)")
PROMTOOL = shutil.which("promtool")

Series = list[tuple[str, dict[str, str]]]


def rules() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((OPS / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def dashboard() -> dict[str, Any]:
    found = json.loads((OPS / "dashboard.json").read_text())
    assert isinstance(found, dict)
    return found


def panels() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]


def variables() -> Iterator[tuple[str, str]]:
    for one in dashboard()["templating"]["list"]:
        if one["type"] == "query":
            yield one["name"], one["definition"]


def test_panels_do_not_overlap_and_have_a_source() -> None:
    taken: set[tuple[int, int]] = set()
    found = dashboard()["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """The series of a server whose models batch, and have a response cache."""
    folder = tmp_path_factory.mktemp("ops")
    more = "max_batch_size: 4\ndynamic_batching { }\nresponse_cache { enable: true }"
    write_model(folder / "models", "m", ECHO, more=more)
    with serving(folder, folder / "models", "--cache-config=local,size=1048576") as server:
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        assert server.request("POST", "/v2/models/m/infer", body)[0] == 200
        wait_until(lambda: re.search(ADDRESS, server.text()), 30.0)
        (address,) = re.findall(ADDRESS, server.text())
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    lines = re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE)
    return [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels))) for name, labels in lines]


def fits(labels: dict[str, str], matchers: str) -> bool:
    """Whether a series is what a selector asks for; Prometheus adds the label `instance`."""
    for name, how, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers):
        there = {"instance": "a:8002", **labels}.get(name)
        wanted = re.fullmatch(re.sub(r"\$\w+", ".*", value), there or "") is not None
        if there is None or wanted == (how == "!="):
            return False
    return True


ASKED = [*rules(), *panels(), *variables()]


@pytest.mark.parametrize("expression", [one for _, one in ASKED], ids=[what for what, _ in ASKED])
def test_the_page_has_what_is_asked_for(expression: str, page: Series) -> None:
    selectors = [(name, matchers) for name, matchers in SELECTOR.findall(expression) if not NOT_HERE.match(name)]
    found = [labels for name, matchers in selectors for one, labels in page if one == name and fits(labels, matchers)]
    for name, matchers in selectors:
        assert any(one == name and fits(labels, matchers) for one, labels in page), f"there is no {name}{{{matchers}}}"
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression)))) - {"instance"}
    assert grouped <= {label for labels in found for label in labels}
    assert found or NOT_HERE.search(expression)


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool (Debian's package prometheus)")
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")], ids=" ".join)
def test_promtool(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], cwd=OPS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_is_told_of_each_alert() -> None:
    told = yaml.safe_load((OPS / "alerts_test.yaml").read_text())["tests"]
    assert [rule["alertname"] for rule in told[1]["alert_rule_test"]] == [name for name, _ in rules()]


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool (Debian's package prometheus)")
def test_promtool_reads_the_panels(tmp_path: Path) -> None:
    def plain(expression: str) -> str:
        return re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "5m"))

    written = [{"record": f"panel:{number}", "expr": plain(one)} for number, (_, one) in enumerate(panels())]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": written}]}))
    done = subprocess.run([str(PROMTOOL), "check", "rules", tmp_path / "panels.yaml"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
