"""`kernel new`: writes a model folder to start from, with a test that passes. Never touches what is there already.

What is written are copies of kernel/templates/<template>, which are working model repositories themselves; only the name of the
model is replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from kernel.cli.parser import Parser

__all__ = ["TEMPLATES", "new", "write_model"]

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
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")

DESCRIPTION = """\
Write a new model into a model repository: config, code and a test that passes.

templates:
""" + "".join(f"  {name:<10} {what}\n" for name, (what, _) in TEMPLATES.items())  # fmt: skip

EPILOG = """\
examples:
  kernel new model my_model --template python
  kernel new model chat --template decoupled --repository models/

Exit status: 0 if the model was written, 1 if not, 2 if the command line is wrong.
"""


def new(arguments: Sequence[str]) -> int:
    """Run `kernel new`; return the exit status."""
    parser = Parser(
        "kernel new", "model NAME --template TEMPLATE [--repository REPO]", DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("what", choices=("model",), help="what to write: a model")
    parser.add_argument("name", metavar="NAME", help="name of the model, and of its folder")
    parser.add_argument("--template", choices=tuple(TEMPLATES), required=True, help="what kind of model, see above")
    parser.add_argument(
        "--repository", type=Path, default=Path("repository"), metavar="REPO",
        help="folder of the model repository, made where there is none (default: repository)",
    )  # fmt: skip
    options = parser.read(arguments)
    if not NAME.fullmatch(options.name):
        parser.error(
            f"'{options.name}' can't be the name of a model; wanted letters, digits, '_', '-' and '.', with a letter in front"
        )
    try:
        written = write_model(options.name, options.template, options.repository)
    except OSError as error:
        print(f"error: {error.strerror}: {error.filename}" if error.filename else f"error: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(path)
    repository = options.repository
    print("next:")
    print(f"  pytest {repository / options.name}")
    print(f"  kernel serve {repository}")
    print(f"  kernel infer {repository} {options.name} --input '{TEMPLATES[options.template][1]}'")
    return 0


def write_model(name: str, template: str, repository: Path) -> list[Path]:
    """Write the files of a template under the model's name; return their paths. Raises FileExistsError before it writes any."""
    source = FOLDER / template
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    targets = {path: repository / _named(path.relative_to(source), name) for path in files}
    for folder in sorted({repository / target.relative_to(repository).parts[0] for target in targets.values()}):
        if folder.exists() or folder.is_symlink():
            raise FileExistsError(f"{folder} is there already; nothing was written")
    for path, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".onnx":
            target.write_bytes(path.read_bytes())
        else:
            target.write_text(path.read_text().replace(PLACEHOLDER, name))
    return list(targets.values())


def _named(path: Path, name: str) -> Path:
    """Return where a template's file goes. Tests are modules, so their names have to be such."""
    *folders, file = path.parts
    if file.endswith(".py"):
        file = file.replace(PLACEHOLDER, re.sub(r"[.-]", "_", name))
    return Path(*(folder.replace(PLACEHOLDER, name) for folder in folders), file)
