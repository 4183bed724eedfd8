"""No path of a config leads out of the model's folder: by its own words, or by a link (kernel/config/paths.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel.config import ConfigErrors, read_config
from kernel.config.paths import is_inside

OUTPUT = "output { name: 'Y' data_type: TYPE_FP32 dims: 1 label_filename: '%' }"
STATE = (
    "sequence_batching { state { input_name: 'S' output_name: 'T' data_type: TYPE_FP32 dims: 1 initial_state { name: 'i' "
    "data_type: TYPE_FP32 dims: 1 data_file: '%' } } }"
)
WARMUP = (
    "model_warmup { name: 'w' batch_size: 1 inputs { key: 'X' value { data_type: TYPE_FP32 dims: 1 input_data_file: '%' } } }"
)
MODEL = "default_model_filename: '%'"

#: Field -> its text, and the folder in the model's that it is about.
FIELDS = {
    "label_filename": (OUTPUT, ""),
    "data_file": (STATE, "initial_state"),
    "input_data_file": (WARMUP, "warmup"),
    "default_model_filename": (MODEL, "1"),
}


def write(tmp_path: Path, field: str, name: str) -> Path:
    folder = tmp_path / "m"
    for inner in ("1", "initial_state", "warmup", "deep/er"):
        (folder / inner).mkdir(parents=True)
    (tmp_path / "secret").write_text("root:x:0:0\n")
    (folder / "1/model.py").touch()
    text = FIELDS[field][0].replace("%", name)
    (folder / "config.pbtxt").write_text(f"backend: 'python'\ninput {{ name: 'X' data_type: TYPE_FP32 dims: 1 }}\n{text}\n")
    return folder


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "//etc/passwd", "../../m/../secret", "x\\000y", "../../../.."])
def test_a_name_that_leads_out_is_refused_with_its_place(tmp_path: Path, field: str, name: str) -> None:
    folder = write(tmp_path, field, name)
    with pytest.raises(ConfigErrors) as caught:
        read_config(folder)
    (error,) = caught.value.errors
    told = name.replace("\\000", "\\x00")
    assert f"'{field}' of model 'm' is '{told}', which must stay within model directory — write a path inside of" in error.message
    assert error.message.startswith(f"{folder}/config.pbtxt:3:")
    column = (folder / "config.pbtxt").read_text().splitlines()[2].index(field) + 1
    assert error.line == 3 and error.column is not None and error.column >= column
    with pytest.raises(ConfigErrors, match="must stay within model directory"):
        read_config(folder, override=_json(field, name))


def _json(field: str, name: str) -> str:
    import json

    name = name.replace("\\000", "\0")
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    parts: dict[str, object] = {
        "label_filename": {"output": [{"name": "Y", **tensor, "label_filename": name}]},
        "data_file": {
            "sequence_batching": {
                "state": [{"input_name": "S", "output_name": "T", **tensor,
                           "initial_state": [{"name": "i", **tensor, "data_file": name}]}]
            }
        },
        "input_data_file": {
            "model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"X": {**tensor, "input_data_file": name}}}]
        },
        "default_model_filename": {"default_model_filename": name},
    }  # fmt: skip
    return json.dumps({"backend": "python", "input": [{"name": "X", **tensor}], **parts[field]})  # type: ignore[dict-item]


def link_file(folder: Path, inner: str) -> None:
    (folder / inner / "x").symlink_to(folder.parent / "secret")


def link_folder(folder: Path, inner: str) -> None:
    (folder / inner / "x").symlink_to(folder.parent)


def circle(folder: Path, inner: str) -> None:
    (folder / inner / "x").symlink_to("x")


def pipe(folder: Path, inner: str) -> None:
    os.mkfifo(folder / inner / "x")  # to open it would wait for ever


@pytest.mark.parametrize("field", ["label_filename", "data_file", "input_data_file"])
@pytest.mark.parametrize(("make", "name"), [(link_file, "x"), (link_folder, "x/secret"), (circle, "x"), (pipe, "x")])
def test_data_behind_a_link_that_leads_out(
    tmp_path: Path, field: str, make: Callable[[Path, str], None], name: str
) -> None:
    folder = write(tmp_path, field, name)
    make(folder, FIELDS[field][1])
    with pytest.raises(ConfigErrors, match="must stay within model directory — a link leads out of it, or to something"):
        read_config(folder)


def test_what_stays_inside_is_as_before(tmp_path: Path) -> None:
    """Also by dots and links, as Kubernetes mounts the keys of a ConfigMap; and in a model's folder that is a link itself."""
    folder = write(tmp_path, "label_filename", "deep/er/../labels")
    (folder / "..data").mkdir()
    (folder / "..data/labels").write_text("a\nb\n")
    (folder / "deep/labels").symlink_to("../..data/labels")
    read_config(folder)
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/m").symlink_to(folder)
    read_config(tmp_path / "repository/m")
    assert is_inside(tmp_path / "repository/m", tmp_path / "repository/m/deep/labels")


def test_the_models_own_file_may_be_a_link(tmp_path: Path) -> None:
    """Weights lie in stores of their own, and whoever writes into the repository runs code anyway."""
    folder = write(tmp_path, "default_model_filename", "weights.py")
    (folder / "1/weights.py").symlink_to(tmp_path / "secret")
    read_config(folder)
