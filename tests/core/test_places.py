"""Where in a model's own files a mistake is: syntax, exceptions, configs, and errors that came as text."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from kernel import ConfigErrors, ServingError
from kernel.config import read_config, words_first
from kernel.errors import Code
from kernel.repository.places import SourcePlace, place_of


def raised(folder: Path, text: str) -> SourcePlace | None:
    """Run a file of the text and return the place of what it raises, wrapped as a backend does."""
    file = folder / "model.py"
    file.write_text(text)
    try:
        try:
            runpy.run_path(str(file))
        except Exception as problem:
            raise ServingError(Code.INTERNAL, "it failed") from problem
    except ServingError as error:
        return place_of(error, folder)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("text", "line", "column", "source"),
    [
        ("a = 1\nb = (2,\n", 2, 5, "b = (2,\n    ^"),
        ("x = [1]\n\n\ny = x[0] + x[7]\n", 4, 12, "y = x[0] + x[7]\n           ^"),
        ("def f(n):\n\treturn 1 / n\n\nf(0)\n", 2, 9, " return 1 / n\n        ^"),
        ("é = {}\nü = é; (é['ß'])\n", 2, 9, "ü = é; (é['ß'])\n        ^"),
        ("import json\njson.loads('{')\n", 2, 1, "json.loads('{')\n^"),
        ("raise ValueError\n", 1, 1, "raise ValueError\n^"),
    ],
)
def test_python(tmp_path: Path, text: str, line: int, column: int, source: str) -> None:
    place = raised(tmp_path, text)
    assert place is not None
    assert str(place) == f"{tmp_path}/model.py:{line}:{column}"
    assert place.source == source


def test_the_innermost_place_in_the_folder(tmp_path: Path) -> None:
    """Also of an exception that was replaced by another one."""
    (tmp_path / "model").mkdir()
    place = raised(tmp_path / "model", "def f():\n    {}['x']\n\n\ntry:\n    f()\nexcept KeyError:\n    raise ValueError\n")
    assert place is not None and (place.line, place.column) == (8, 5)
    assert raised(tmp_path, "pass\nassert False") is not None
    (tmp_path / "model.py").write_text("assert False")
    try:
        runpy.run_path(str(tmp_path / "model.py"))
    except AssertionError as error:
        assert place_of(error, tmp_path / "model") is None


def test_configs(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text('backend: "x"\n  max_batch_sizes: 2\n')
    with pytest.raises(ConfigErrors) as caught:
        read_config(tmp_path)
    place = place_of(caught.value, tmp_path)
    assert place == SourcePlace(f"{tmp_path}/config.pbtxt", 2, 3, "  max_batch_sizes: 2\n  ^")
    assert place_of(caught.value, tmp_path / "other") is None
    with pytest.raises(ConfigErrors) as caught:
        read_config(tmp_path, override="{")
    assert place_of(caught.value, tmp_path) is None


def test_text_from_a_process(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("a\nb\nc\n")
    frames = f"  /usr/lib/x.py(7): inner\n  {tmp_path}/model.py(2): initialize\n  {tmp_path}/model.py(3): x\n"
    text = f"ValueError: no\n\nAt:\n{frames}"
    assert place_of(ServingError(Code.INTERNAL, text), tmp_path) == SourcePlace(f"{tmp_path}/model.py", 2, None, "b")
    assert str(place_of(ServingError(Code.INTERNAL, text), tmp_path)) == f"{tmp_path}/model.py:2"


def test_what_scripts_search_comes_first(tmp_path: Path) -> None:
    """The reference's words, then ours, then the place; people get the place first."""
    (tmp_path / "config.pbtxt").write_text('backend: "x"\nmax_batch_size: -1\nname: "other"\n')
    with pytest.raises(ConfigErrors) as caught:
        read_config(tmp_path, backends=["x"], model_name="m")
    file = tmp_path / "config.pbtxt"
    size = "'max_batch_size' must be non-negative value for other — got -1"
    assert words_first(caught.value).splitlines()[0] == f"{size} ({file}:2:17)"
    assert caught.value.message.splitlines()[0] == f"{file}:2:17: {size}"
    assert words_first(ServingError(Code.INTERNAL, "as it is")) == "as it is"


def test_a_file_that_has_gone(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import pathlib\npathlib.Path(__file__).unlink()\nraise ValueError\n")
    place = None
    try:
        runpy.run_path(str(file))
    except ValueError as error:
        place = place_of(error, tmp_path)
    assert place is not None and str(place).startswith(f"{file}:3")
