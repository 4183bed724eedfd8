"""`kernel new`: writes a model or a plugin to start from, with a test that passes. Never touches what is there already.

What is written are copies of kernel/templates/<template>, which are working model repositories themselves, or of
kernel/plugin_template, a distribution; only the name is replaced.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel.cli.parser import Parser

__all__ = ["TEMPLATES", "new", "write_model", "write_plugin"]

#: Template -> what it is, and the inputs of a first request.
TEMPLATES = {
    "python": ("a model in Python, with batching", "X=[[1,2,3]]"),
    "bls": ("a model in Python that calls another one, which comes along", "X=[1,2,3]"),
    "decoupled": ("a model in Python that streams its responses", 'TEXT=["one two three"]'),
    "ensemble": ("a pipeline of two models, which come along, without code", "X=[[0.2,3]]"),
    "onnx": ("an ONNX model, run by onnxruntime", "X=[[1,0,0,0]]"),
}

FOLDER = Path(__file__).parent.parent / "templates"
PLACEHOLDER = "my_model"
PLUGIN_FOLDER = FOLDER.parent / "plugin_template"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
PLUGIN = re.compile(r"[a-z][a-z0-9_-]*")

DESCRIPTION = """\
Write something new to start from, with a test that passes: a model (config and code) into a model
repository, or a plugin (a backend as a distribution of its own).

templates of models:
""" + "".join(f"  {name:<10} {what}\n" for name, (what, _) in TEMPLATES.items())  # fmt: skip

EPILOG = """\
examples:
  kernel new model my_model --template python
  kernel new model chat --template decoupled --repository models/
  kernel new plugin my-backend

Exit status: 0 if it was written, 1 if not, 2 if the command line is wrong.
"""


def new(arguments: Sequence[str]) -> int:
    """Run `kernel new`; return the exit status."""
    usage = "model NAME --template TEMPLATE [--repository REPO] | plugin NAME [--folder FOLDER]"
    parser = Parser("kernel new", usage, DESCRIPTION, epilog=EPILOG)
    parser.add_argument("what", choices=("model", "plugin"), help="what to write")
    parser.add_argument("name", metavar="NAME", help="name of the model or plugin, and of its folder")
    parser.add_argument("--template", choices=tuple(TEMPLATES), help="what kind of model, see above")
    parser.add_argument(
        "--repository", type=Path, metavar="REPO",
        help="folder of the model repository, made where there is none (default: repository)",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="where the plugin's folder goes (default: here)")
    options = parser.read(arguments)
    try:
        written, then = _plugin(parser, options) if options.what == "plugin" else _model(parser, options)
    except OSError as error:
        print(f"error: {error.strerror}: {error.filename}" if error.filename else f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(map(str, written)))
    print("next:")
    for line in then:
        print(f"  {line}")
    return 0


def _model(parser: Parser, options: argparse.Namespace) -> tuple[list[Path], list[str]]:
    """Write a model; return the files and what to do next."""
    if options.template is None:
        parser.error("the following arguments are required: --template")
    if options.folder is not None:
        parser.error("--folder is for plugins; where a model goes is said by --repository")
    if not NAME.fullmatch(options.name):
        parser.error(
            f"'{options.name}' can't be the name of a model; wanted letters, digits, '_', '-' and '.', with a letter in front"
        )
    repository = options.repository or Path("repository")
    then = [
        f"pytest {repository / options.name}",
        f"kernel serve {repository}",
        f"kernel infer {repository} {options.name} --input '{TEMPLATES[options.template][1]}'",
    ]
    return write_model(options.name, options.template, repository), then


def _plugin(parser: Parser, options: argparse.Namespace) -> tuple[list[Path], list[str]]:
    """Write a plugin; return the files and what to do next."""
    if options.template is not None or options.repository is not None:
        parser.error("--template and --repository are for models; where a plugin goes is said by --folder")
    if not PLUGIN.fullmatch(options.name):
        parser.error(
            f"'{options.name}' can't be the name of a plugin; wanted small letters, digits, '_' and '-', with a letter in front"
        )
    module = options.name.replace("-", "_")
    if keyword.iskeyword(module) or importlib.util.find_spec(module) is not None:
        parser.error(f"'{options.name}' can't be the name of a plugin: Python has a module or a keyword '{module}' already")
    folder = (options.folder or Path()) / options.name
    then = [f"pip install -e '{folder}[test]'", f"pytest {folder}", f"kernel serve {folder}/tests/models"]
    return write_plugin(options.name, options.folder or Path()), then


def write_plugin(name: str, folder: Path) -> list[Path]:
    """Write the files of a plugin into `folder`/`name`; return their paths. Raises FileExistsError before it writes any."""
    return _write(PLUGIN_FOLDER, folder, {"my-plugin": name, "my_plugin": name.replace("-", "_")})


def write_model(name: str, template: str, repository: Path) -> list[Path]:
    """Write the files of a template under the model's name; return their paths. Raises FileExistsError before it writes any."""
    return _write(FOLDER / template, repository, {PLACEHOLDER: name})


def _write(source: Path, folder: Path, names: Mapping[str, str]) -> list[Path]:
    """Write the files of `source` into `folder`, with other names in their paths and texts."""
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    targets = {path: folder / _named(path.relative_to(source), names) for path in files}
    for top in sorted({folder / target.relative_to(folder).parts[0] for target in targets.values()}):
        if top.exists() or top.is_symlink():
            raise FileExistsError(f"{top} is there already; nothing was written")
    for path, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".onnx":
            target.write_bytes(path.read_bytes())
        else:
            target.write_text(_replaced(path.read_text(), names))
    return list(targets.values())


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for old, name in names.items():
        text = text.replace(old, name)
    return text


def _named(path: Path, names: Mapping[str, str]) -> Path:
    """Return where a template's file goes. Tests are modules, so their names have to be such."""
    *folders, file = path.parts
    if file.endswith(".py"):
        file = _replaced(file, {old: re.sub(r"[.-]", "_", name) for old, name in names.items()})
    return Path(*(_replaced(folder, names) for folder in folders), file)
