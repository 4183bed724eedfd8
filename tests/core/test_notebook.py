"""What notebooks show of responses, tensors and models: tables, in which every text is a text."""

from __future__ import annotations

import html.parser
from pathlib import Path

import numpy as np
import pytest
from virtual import BASE, TestBackend, echo, run, write_repository

from kernel import Code, InferenceResponse, Kernel, Tensor

HOSTILE = "<script>alert(1)</script>\"&"


class Cells(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert attrs == ([("class", "tex2jax_ignore mathjax_ignore")] if tag == "table" else [])
        if tag in ("td", "th", "caption"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data


def shown(thing: object) -> list[str]:
    page = Cells(thing._repr_html_())  # type: ignore[attr-defined]
    assert page.tags <= {"table", "caption", "tr", "th", "td"}
    return page.cells


@pytest.mark.parametrize(
    ("array", "datatype", "values"),
    [
        (np.array([[1.5, 2.0]], np.float32), "FP32", "1.5, 2"),
        (np.arange(20), "INT64", "0, 1, 2, 3, 4, 5, 6, 7, …"),
        (np.array([b"a\xff", HOSTILE.encode()], np.object_), "BYTES", f"a\\xff, {HOSTILE}"),
        (np.array([b"x" * 10_000_000], np.object_), "BYTES", f"{'x' * 40}…"),
        (np.array([True]), "BOOL", "True"),
        (np.zeros((0, 3), np.float32), "FP32", ""),
        (np.float32(7), "FP32", "7"),
    ],
)
def test_tensors(array: np.ndarray, datatype: str, values: str) -> None:
    tensor = Tensor(HOSTILE, datatype, np.asarray(array))
    assert shown(tensor) == ["name", "datatype", "shape", "values", HOSTILE, datatype, str(list(np.shape(array))), values]


@pytest.mark.parametrize(
    "name",
    [
        "\udcff\ud800", "$\\href{javascript:alert(1)}{x}$", "\x00\x1b[31m", "</td></table><img src=x onerror=alert(1)>",
        "&lt;b&gt;", "\u202egnp.exe", "'\"`", "]]><!--", "a" * 10_000_000,
    ],
)  # fmt: skip
def test_hostile_names_are_texts_and_end(name: str) -> None:
    response = InferenceResponse([Tensor(name, "BYTES", np.array([name], np.object_))], model_name=name, model_version="3")
    for thing in (response, response.outputs[0], InferenceResponse.failure(Code.INTERNAL, name)):
        page = thing._repr_html_()  # type: ignore[attr-defined]
        assert len(page.encode()) < 30_000  # as it is sent to the browser
        cells = shown(thing)
        if len(name) < 100 and not any("\ud800" <= one <= "\udfff" for one in name):
            assert any(name.replace("\x00", "") in cell.replace("\x00", "") for cell in cells)


def test_responses() -> None:
    response = InferenceResponse([Tensor("Y", "INT32", np.array([1, 2], np.int32))], model_name=HOSTILE, model_version="3")
    assert shown(response) == [f"{HOSTILE} version 3", "name", "datatype", "shape", "values", "Y", "INT32", "[2]", "1, 2"]
    failed = InferenceResponse.failure(Code.INTERNAL, HOSTILE)
    assert shown(failed)[1:] == ["error", "", "Internal", HOSTILE]


def test_models(tmp_path: Path) -> None:
    write_repository(tmp_path, {"m": BASE.replace("max_batch_size: 0", "") + "\nmax_batch_size: 4"})

    async def main() -> list[str]:
        async with Kernel(tmp_path, plugins=[TestBackend({"m": echo})]) as kernel:
            return shown(kernel.model("m"))

    cells = run(main())
    assert cells[0].startswith("m version 1, ") and cells[0].endswith(", READY")
    assert ["input", "X", "FP32", "[-1, -1]", ""] == cells[6:11]
