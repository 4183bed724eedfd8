"""Make docs/reference.md of the public names of `kernel` and their docstrings: `python3 dev.py reference` (`--check`: compare).

Reads the sources and imports nothing of them. The groups are those of `__all__` in kernel/__init__.py, each with the comment
above it, and at the end the names of kernel.testing. Two sentences of a class's docstring are heeded: "Made by …" says that
nobody else calls its constructor, which is then not shown, and "The core's own: `a`, `b`." which methods are for nobody else.
`problems` says which names lack what a reader needs; a test holds that there are none.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"

HEAD = """\
# The public names of `kernel`

Made from the code by `python3 dev.py reference`; edit the docstrings, not this page. Each name stands in the group of those who
need it first. Shapes are those of numpy arrays, the batch dimension included where nothing else is said; moments are seconds on
the kernel's clock (`Kernel.clock`), which is that of the event loop. For tests of models there is `kernel.testing`
([testing.md](testing.md)); how a plugin is written stands in [plugins.md](plugins.md).
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: Bases that say nothing to a reader, or are said otherwise.
BASES = ("Protocol", "enum.Enum", "enum.IntEnum", "Generic[C]", "Session")

#: Numbers that want a unit: all that may be no whole numbers, and whole ones that are called so, most of which are bytes.
AMOUNT = re.compile(r"(^|_)(size|bytes|limit|offset|used|largest|length|most)$")
#: Names that say their unit themselves, and numbers that have none.
SELF_SAID = re.compile(r"(^|_)(seconds|us|ms|ns|bytes|byte_size)$|^(value|bounds|rtol|atol)$")
#: What a unit is told by. A moment is one in seconds, by the head of the page.
UNIT = re.compile(
    r"(?i)\b((micro|milli|nano)?seconds?|moments?|clock|ms|bytes?|share"
    r"|rows?|strings|values|elements|characters|requests|connections|spans)\b"
)
#: Where the docstring of another function says it.
ELSEWHERE = re.compile(r"(?i)\bas (for )?`\w+`")

#: The sentence of a docstring that names what is for nobody else.
OWN = re.compile(r"\n*The core's own: ([^.]*)\.")


@dataclass
class Group:
    """Public names of a module and who needs them: `title`, and a sentence about it."""

    title: str
    about: str
    names: list[str]
    module: str = "kernel"


@dataclass
class Source:
    """A module: its tree, and its lines for the comments."""

    tree: ast.Module
    lines: list[str]

    def comment(self, node: ast.AST) -> str:
        """Return what the `#:` lines above say, or what stands behind the code on its line."""
        at = node.lineno - 2  # type: ignore[attr-defined]
        above: list[str] = []
        while at >= 0 and self.lines[at].lstrip().startswith("#:"):
            above.insert(0, self.lines[at].strip().removeprefix("#:").strip())
            at -= 1
        if above:
            return " ".join(above)
        return self.lines[node.end_lineno - 1][node.end_col_offset :].partition("#")[2].strip()  # type: ignore[attr-defined]


@dataclass
class Found:
    """Where a public name is made. `node` is None for a module."""

    source: Source
    node: ast.ClassDef | Function | ast.Assign | ast.AnnAssign | None


@cache
def source_of(module: str) -> Source | None:
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        return None
    text = path.read_text()
    return Source(ast.parse(text), text.splitlines())


def groups() -> list[Group]:
    """Return the groups of kernel/__init__.py, in their order."""
    source = source_of("kernel")
    assert source is not None
    found = []
    for node in source.tree.body:
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "__all__":
            title, _, about = source.lines[node.lineno - 2].removeprefix("# ").partition(": ")
            found.append(Group(title, about, ast.literal_eval(node.value)))
    return found


def testing() -> Group:
    """Return the names of kernel.testing."""
    source = source_of("kernel.testing")
    assert source is not None
    given = {ast.unparse(one.targets[0]): one.value for one in source.tree.body if isinstance(one, ast.Assign)}
    every = given["__all__"]
    return Group("Tests of models", doc(source.tree), ast.literal_eval(every), "kernel.testing")


def find(name: str, module: str) -> Found | None:
    """Return where a name that can be imported from `module` is made."""
    source = source_of(module)
    if source is None:
        return None
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return Found(source, node)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return Found(source, node)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module is not None:
                    inner = source_of(f"{node.module}.{alias.name}")
                    return find(alias.name, node.module) or (Found(inner, None) if inner is not None else None)
    return None


# -- what the page says of one name ------------------------------------------------------------------------------------


def page() -> str:
    parts = [HEAD]
    for group in (*groups(), testing()):
        parts.append(f"## {group.title}\n\n{group.about[:1].upper()}{group.about[1:]}\n")
        parts += [told(name, group.module) for name in group.names]
    return "\n".join(parts)


def told(name: str, module: str) -> str:
    found = find(name, module)
    assert found is not None, f"{module}.{name} is not to be found"
    node = found.node
    if node is None:
        items = [item(*each) for each in members(found.source)]
        return f"### `{name}`\n\n{doc(found.source.tree)}\n\n" + "".join(items)
    if isinstance(node, ast.ClassDef):
        return of_class(found.source, node)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        comment = found.source.comment(node)
        return f"### `{name}`\n\n{comment[:1].upper()}{comment[1:]}\n"
    return f"### `{name}`\n\n{fenced(signature(node))}\n{doc(node)}\n"


def members(source: Source) -> Iterator[tuple[str, str]]:
    """Yield what each public function, class and constant of a module is called, and what is said of it."""
    for one in source.tree.body:
        if isinstance(one, ast.FunctionDef) and one.name[0] != "_":
            yield signature(one), doc(one)
        elif isinstance(one, ast.ClassDef) and one.name[0] != "_":
            yield one.name, doc(one)
        elif isinstance(one, ast.AnnAssign) and source.comment(one):
            yield ast.unparse(one.target), source.comment(one)


def of_class(source: Source, node: ast.ClassDef) -> str:
    kind = kind_of(node)
    lines = [f"### `{node.name}`\n\n"]
    made = constructor(node)
    if made is not None:
        lines.append(fenced(signature(made, node.name)) + "\n")
    every = map(ast.unparse, node.bases)
    bases = [base for base in every if base[0] != "_" and base not in BASES]
    said = [{"protocol": "A protocol.", "enum": "An enum.", "record": "A frozen record."}.get(kind, "")]
    said += [f"A kind of {' and '.join(f'`{base}`' for base in bases)}."] if bases else []
    lines.append(" ".join(filter(None, [*said, OWN.sub("", doc(node))])) + "\n")
    items = [item(*field) for field in fields(source, node)]
    items += [item(signature(one), doc(one)) for one in methods(source, node)]
    return "".join(lines) + ("\n" + "".join(items) if items else "")


def kind_of(node: ast.ClassDef) -> str:
    """Return protocol, enum, record (which is frozen) or class."""
    bases = " ".join(map(ast.unparse, node.bases))
    if "Protocol" in bases:
        return "protocol"
    if "Enum" in bases:
        return "enum"
    return "record" if any("frozen=True" in ast.unparse(one) for one in node.decorator_list) else "class"


def constructor(node: ast.ClassDef) -> Function | None:
    """Return what says how a class is called, its `__init__`; None where nobody else calls it, or its fields say that."""
    if "Made by " in doc(node):
        return None
    return next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)


def fields(source: Source, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield what each field of a class is called, and what is said of it."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id[0] != "_":
            yield ast.unparse(one).partition(" = field(")[0], source.comment(one)
        elif isinstance(one, ast.Assign) and kind_of(node) == "enum":
            yield ast.unparse(one), source.comment(one)


def methods(source: Source, node: ast.ClassDef) -> list[Function]:
    """Return the public methods and properties, and those special ones that have something to say; also of private bases."""
    found = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = OWN.search(doc(node))
    hidden = set(re.findall(r"\w+", own.group(1))) if own else set()
    told = kind_of(node) == "protocol"
    own_ones = [
        one for one in found if (one.name[0] != "_" and one.name not in hidden) or (is_special(one) and (told or doc(one)))
    ]
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    private = [one for one in source.tree.body if isinstance(one, ast.ClassDef) and one.name in bases and one.name[0] == "_"]
    return [*own_ones, *(method for base in private for method in methods(source, base))]


def is_special(node: Function) -> bool:
    return node.name in ("__getitem__", "__call__", "__str__", "__contains__")


def signature(node: Function, name: str = "") -> str:
    """Return how a function is called, without `self`, on several lines where it is long. `name`: of the class that it makes."""
    decorators = {ast.unparse(one) for one in node.decorator_list}
    arguments = [*node.args.posonlyargs, *node.args.args]
    own = arguments[0].arg if arguments and arguments[0].arg in ("self", "cls") else ""
    text = ast.unparse(node.args)
    if own:
        text = re.sub(rf"^{own}(, )?", "", text)
    returns = "" if name or node.returns is None else f" -> {ast.unparse(node.returns)}"
    if decorators & {"property", "functools.cached_property"}:
        return f"{node.name}: {returns.removeprefix(' -> ')}"
    front = "async " if isinstance(node, ast.AsyncFunctionDef) else "classmethod " if "classmethod" in decorators else ""
    line = f"{front}{name or node.name}({text}){returns}"
    if len(line) <= 120:
        return line
    inner = ",\n".join(f"    {part}" for part in split(text))
    return f"{front}{name or node.name}(\n{inner},\n){returns}"


def split(text: str) -> list[str]:
    """Split parameters at the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def doc(node: ast.Module | ast.ClassDef | Function) -> str:
    return ast.get_docstring(node) or ""


def fenced(text: str) -> str:
    return f"```text\n{text}\n```\n"


def item(what: str, said: str) -> str:
    """Return one entry of the list of what a class has."""
    what = " ".join(what.split()).replace("( ", "(").replace(", )", ")")
    rest = said.replace("\n", "\n  ").replace("\n  \n", "\n\n")
    return f"- `{what}`{': ' if said else ''}{rest}\n"


# -- what is missing ----------------------------------------------------------------------------------------------------


def problems() -> list[str]:
    """Return what a reader would miss: a group without a sentence, a name, method or field of which nothing is said."""
    found = []
    for group in (*groups(), testing()):
        if not group.about:
            found.append(f"the group '{group.title}' has no `# Title: sentence` above it")
        for name in group.names:
            found += missing(name, group.module)
    return found


def missing(name: str, module: str) -> Iterator[str]:
    made = find(name, module)
    if made is None:
        yield f"{module}.{name} is not to be found"
    elif isinstance(made.node, ast.Assign | ast.AnnAssign):
        if not made.source.comment(made.node):
            yield f"{module}.{name} has no `#:` comment"
    elif made.node is not None:
        if not doc(made.node):
            yield f"{module}.{name} has no docstring"
        yield from without_unit(made.source, made.node, f"{module}.{name}")
        if isinstance(made.node, ast.ClassDef):
            yield from missing_of_class(made.source, made.node, f"{module}.{name}")
    else:
        silent = (what.partition("(")[0] for what, said in members(made.source) if not said)
        yield from (f"{module}.{name}.{what} has no docstring" for what in silent)


def missing_of_class(source: Source, node: ast.ClassDef, name: str) -> Iterator[str]:
    """Its methods are told of by docstrings, what it is made of and its fields by the class's, or by comments."""
    said = doc(node)
    yield from (f"{name}.{one.name} has no docstring" for one in methods(source, node) if not doc(one))
    made = constructor(node)
    parameters = [] if made is None else [one.arg for one in (*made.args.args[1:], *made.args.kwonlyargs)]
    bare = [] if kind_of(node) == "enum" else [what.partition(":")[0] for what, about in fields(source, node) if not about]
    for one in (*parameters, *bare):
        if f"`{one}`" not in said:
            yield f"nothing is said of `{one}` in the docstring of {name}"
    own = OWN.search(said)
    there = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    for one in set(re.findall(r"\w+", own.group(1))) - there if own else ():
        yield f"{name} has no method {one}, which its docstring calls the core's own"


def without_unit(source: Source, node: ast.ClassDef | Function, name: str) -> Iterator[str]:
    """Yield the numbers of a class or function, and of its methods, of which nothing says in what they are counted."""
    if isinstance(node, ast.ClassDef):
        made = constructor(node)
        numbers = [] if made is None else [(one, doc(node)) for one in arguments_of(made)]
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_":
                about = source.comment(field)
                numbers.append((ast.arg(field.target.id, field.annotation), about or doc(node)))
        for method in methods(source, node):
            yield from without_unit(source, method, f"{name}.{method.name}")
    else:
        numbers = [(one, doc(node)) for one in arguments_of(node)]
        if node.returns is not None and is_amount("", ast.unparse(node.returns)):
            numbers.append((ast.arg(node.name, node.returns), doc(node)))
    for one, said in numbers:
        kind = "" if one.annotation is None else ast.unparse(one.annotation)
        told = SELF_SAID.search(one.arg) or UNIT.search(passage(one.arg, said)) or ELSEWHERE.search(said)
        if is_amount(one.arg, kind) and not told:
            yield f"{name}: nothing says in what `{one.arg}` is counted"


def arguments_of(node: Function) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def is_amount(name: str, annotation: str) -> bool:
    return "float" in annotation or ("int" in annotation and AMOUNT.search(name) is not None)


def passage(name: str, said: str) -> str:
    """Return what is said of a name: its sentence, up to the next name that is spoken of; all, where it isn't mentioned."""
    before, there, rest = said.partition(f"`{name}`")
    return before.rpartition(". ")[2] + re.split(r"(?<=[.;:]) `\w+`(?:, `\w+`)*:", rest)[0] if there else said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not up to date")
    check = parser.parse_args().check
    for problem in problems():
        print(problem, file=sys.stderr)
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if check:
        print(f"{PAGE} is not what the code gives: run `python3 dev.py reference`", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
