"""Measure how the code is built: circles of imports, sizes of classes, branches of functions, lines on a request's path.

    python bench/structure.py [--check]

Parses `kernel/` and `plugins/`, runs none of it. Each figure has a limit, which stands in LIMITS below together with what is
wanted; `--check` exits with 1 where a figure is above its limit. A figure that has become smaller takes its limit along: put the
new value there. Generated files and what `kernel new` writes count nowhere.

What is counted, here and in no other place:

circle      modules that import one another on some way round; what stands under `if TYPE_CHECKING:` and inside functions counts
arrow       an import of a room by an earlier one, in the order that tests/core/test_imports.py gives
class       its lines, methods and attributes with those of all its bases in the project; a method that is overridden counts once;
            an attribute is what is assigned to `self` somewhere, a slot, or a name annotated in the class's body
branches    cyclomatic complexity: 1, and 1 for each if, elif, for, while, except, ternary, `and` or `or`, `if` of a
            comprehension, and case but one that takes everything; a function inside another counts for itself
code line   a line that is neither blank nor only a comment or part of a docstring; the names that open a room count nowhere
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: The rooms that a request comes through.
PATH = ("requests", "rules", "instances", "scheduling")
LEFT_OUT = {"templates", "plugin_template"}
SHOWN = 8  # of the largest

#: Figure -> (limit, wanted). None is wanted where the figure is only looked at.
LIMITS: dict[str, tuple[int, int | None]] = {
    "import circles in kernel/": (0, 0),
    "import circles in the plugins": (0, 0),
    "arrows against the order of rooms": (0, 0),
    "modules in kernel/ itself": (12, 12),
    "functions that start an execution": (1, 1),
    "functions that move a request to RELEASED": (1, 1),
    "functions that call respond(…, True)": (1, 1),
    "largest class, lines": (500, 500),
    # One more than wanted: InferenceRequest's `trail`, which is set for what comes from another server alone.
    "largest class, attributes": (26, 25),
    "most branches of a function": (20, 20),
    # 60 of them are on no request's path: rules/residency.py says which models are there, and the room is counted whole.
    # 72 more are own_loop.py's, which no request runs through: it says what a loop does whose descriptors a model has closed.
    # 118 are rules/autoscaling.py's: how many instances, replicas or actors there are to be; no request runs through it either.
    # 157 are rules/handover.py's and owners.py's, which are only asked where a server has several replicas.
    # 45 say why batches leave and for what requests wait, which is decided there and told by explanations.
    # 3 are for what a thread is handed, which simulations ask, too (RunLength).
    "code lines on a request's path": (4390, 3300),
    # 28 more than once, and less time: a `zip` for one request, a method that is an attribute, and a clock that is read
    # twice are few instructions and take long.
    "instructions of the core, loop": (571, 530),
    "instructions of the core, thread": (771, 720),
    "instructions of the core, batching": (771, 1000),
}

#: Figure -> the route of bench/path.json that has it.
ROUTES = {
    "instructions of the core, loop": "HTTP, loop, repeated",
    "instructions of the core, thread": "HTTP, thread",
    "instructions of the core, batching": "HTTP, thread, batching, alone",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef

# -- reading ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """One file: its name as it is imported, and its tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def imports(self) -> Iterator[tuple[str, str]]:
        """Yield (module, name) of each import, wherever it stands; the name is "" where the module itself is imported."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.module or "", alias.name) for alias in node.names)


def read(root: Path = ROOT) -> dict[str, Module]:
    """Return name -> module, of all our code."""
    found = {}
    for base, folder in ((root, root / "kernel"), (root / "plugins", root / "plugins")):
        for path in sorted(folder.rglob("*.py")):
            if LEFT_OUT.isdisjoint(path.parts) and not path.name.endswith("_pb2.py"):
                name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
                text = path.read_text()
                found[name] = Module(name, path, text, ast.parse(text))
    return found


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield (name with classes and outer functions, function) of all functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield what stands in a function, but not in the functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


# -- imports ---------------------------------------------------------------------------------------------------------------


def graph(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return name -> the modules of ours that it imports."""
    found = {}
    for name, module in modules.items():
        wanted = {f"{base}.{one}" if f"{base}.{one}" in modules else base for base, one in module.imports()}
        found[name] = (wanted & modules.keys()) - {name}
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of more than one module that can all be reached from one another."""
    reached = {name: _reach(arrows, name) for name in arrows}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in arrows}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reach(arrows: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in arrows[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def order_of_rooms(root: Path = ROOT) -> dict[str, int]:
    """Return room, as `kernel.rules` or `kernel_http.json` -> its place in its package, as the test of imports has them."""
    found: dict[str, Any] = {}
    for node in ast.parse((root / "tests/core/test_imports.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("ROOMS", "ROOMS_OF_PLUGIN"):
            found[node.targets[0].id] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
    orders = {"kernel": found["ROOMS"], **found["ROOMS_OF_PLUGIN"]}
    return {
        f"{package}.{room}".removesuffix(".__init__"): place
        for package, order in orders.items()
        for place, rooms in enumerate(order)
        for room in rooms.split()
    }


def against(arrows: dict[str, set[str]], places: dict[str, int]) -> list[str]:
    """Return the imports of a later room of the same package. What stands beside the rooms of a plugin has no place."""
    return [
        f"{name} -> {other}"
        for name in arrows
        for other in sorted(arrows[name])
        if name.split(".")[0] == other.split(".")[0]
        and (place := places.get(".".join(name.split(".")[:2]))) is not None
        and places.get(".".join(other.split(".")[:2]), 0) > place
    ]


# -- states ----------------------------------------------------------------------------------------------------------------


def moves_to(function: Function, state: str) -> bool:
    """Whether `something.state = state` stands in the function, or `= RequestState.state`."""
    return any(
        isinstance(node, ast.Assign)
        and (getattr(node.value, "id", None) == state or getattr(node.value, "attr", None) == state)
        and any(isinstance(target, ast.Attribute) and target.attr == "state" for target in node.targets)
        for node in own_nodes(function)
    )


def answers(function: Function) -> bool:
    """Whether `respond(…, True)` or `something.respond(…, True)` stands in the function."""
    return any(
        isinstance(node, ast.Call)
        and "respond" in (getattr(node.func, "id", None), getattr(node.func, "attr", None))
        and len(node.args) == 2
        and getattr(node.args[1], "value", None) is True
        for node in own_nodes(function)
    )


# -- classes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A class with all that it inherits within the project."""

    name: str
    lines: int
    methods: int
    attributes: int
    classes: int


def sizes(modules: dict[str, Module]) -> list[Size]:
    """Return the classes, the longest first."""
    classes = {
        (module.name, node.name): node
        for module in modules.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for module, name in classes:
        line = [classes[one] for one in _line(modules, classes, module, name)]
        found.append(
            Size(
                f"{module}.{name}",
                sum((one.end_lineno or 0) - one.lineno + 1 for one in line),
                len({node.name for one in line for node in one.body if isinstance(node, Function)}),
                len({attribute for one in line for attribute in _attributes(one)}),
                len(line),
            )
        )
    return sorted(found, key=lambda size: -size.lines)


def _line(
    modules: dict[str, Module], classes: dict[tuple[str, str], ast.ClassDef], module: str, name: str
) -> dict[tuple[str, str], None]:
    """Return a class and its bases within the project, each once."""
    if (module, name) not in classes:  # imported there
        origin = _origin(modules[module], name) if module in modules else None
        return _line(modules, classes, *origin) if origin else {}
    found = {(module, name): None}
    for base in classes[module, name].bases:
        base = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(base, ast.Name):
            found |= _line(modules, classes, module, base.id)
        elif isinstance(base, ast.Attribute):
            found |= {one: None for one in classes if one[1] == base.attr}
    return found


def _origin(module: Module, name: str) -> tuple[str, str] | None:
    """Return the module that a name is imported from, and its name there; None where it is not imported."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return node.module or "", alias.name
    return None


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and getattr(inner.value, "id", "") == "self":
            yield inner.attr
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__slots__":
            slots = ast.literal_eval(statement.value)
            yield from (slots,) if isinstance(slots, str) else slots


# -- functions and lines ---------------------------------------------------------------------------------------------------


def branches(function: Function) -> int:
    """Return the cyclomatic complexity."""
    count = 1
    for node in own_nodes(function):
        match node:
            case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler():
                count += 1
            case ast.BoolOp():
                count += len(node.values) - 1
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                count += sum(len(one.ifs) for one in node.generators)
            case ast.match_case(pattern=pattern) if not (isinstance(pattern, ast.MatchAs) and pattern.pattern is None):
                count += 1
    return count


def code_lines(module: Module) -> int:
    """Return how many lines hold code."""
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


# -- telling ---------------------------------------------------------------------------------------------------------------


def measure(modules: dict[str, Module]) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return figure -> its value, and figure -> what it is made of."""
    arrows = graph(modules)
    rings = [(group[0].partition(".")[0], " ".join(group)) for group in circles(arrows)]
    core = [module for module in modules.values() if module.package == "kernel" and ".testing" not in module.name]
    in_core = [(f"{module.name}: {name}", function) for module in core for name, function in functions(module.tree)]
    classes = sizes(modules)
    by_attributes = sorted(classes, key=lambda size: -size.attributes)
    complexity = sorted(
        ((branches(function), f"{one.name}: {name}") for one in modules.values() for name, function in functions(one.tree)),
        reverse=True,
    )
    path = {one.name: code_lines(one) for one in core if len(parts := one.name.split(".")) > 2 and parts[1] in PATH}
    details = {
        "import circles in kernel/": [names for package, names in rings if package == "kernel"],
        "import circles in the plugins": [names for package, names in rings if package != "kernel"],
        "arrows against the order of rooms": against(arrows, order_of_rooms()),
        "modules in kernel/ itself": [one.path.name for one in core if one.path.parent == ROOT / "kernel"],
        "functions that start an execution": [name for name, one in in_core if moves_to(one, "EXECUTING")],
        "functions that move a request to RELEASED": [name for name, one in in_core if moves_to(one, "RELEASED")],
        "functions that call respond(…, True)": [name for name, one in in_core if answers(one)],
        "largest class, lines": [
            f"{one.lines} lines, {one.methods} methods, {one.attributes} attributes in {one.classes}: {one.name}"
            for one in classes[:SHOWN]
        ],
        "largest class, attributes": [f"{one.attributes}: {one.name}" for one in by_attributes[:SHOWN]],
        "most branches of a function": [f"{count}: {name}" for count, name in complexity[:SHOWN]],
        "code lines on a request's path": [
            f"{room} {sum(count for name, count in path.items() if name.split('.')[1] == room)}" for room in PATH
        ],
    }
    figures = {name: len(found) for name, found in details.items()}
    figures["largest class, lines"] = classes[0].lines
    figures["largest class, attributes"] = by_attributes[0].attributes
    figures["most branches of a function"] = complexity[0][0]
    figures["code lines on a request's path"] = sum(path.values())
    routes = json.loads((ROOT / "bench/path.json").read_text())["3.11"]
    return figures | {name: routes[route]["core"] for name, route in ROUTES.items()}, details


def above(figures: dict[str, int], limits: dict[str, tuple[int, int | None]]) -> list[str]:
    """Return a line for each figure that is above its limit."""
    return [f"{name}: {value}, where {limits[name][0]} is the most" for name, value in figures.items() if value > limits[name][0]]


def table(figures: dict[str, int]) -> str:
    lines = ["| figure | now | limit | wanted |", "| --- | ---: | ---: | ---: |"]
    for name, value in figures.items():
        limit, wanted = LIMITS[name]
        lines.append(f"| {name} | {value} | {limit} | {'–' if wanted is None else wanted} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a figure is above its limit")
    options = parser.parse_args(argv)
    figures, details = measure(read())
    print(table(figures))
    for name, lines in details.items():
        print(f"\n{name}:", *lines or ["none"], sep="\n  ")
    lines = above(figures, LIMITS) if options.check else []
    if lines:
        print("", *lines, sep="\n")
        print("Make it smaller, or, where it is worth that, raise the limit in bench/structure.py and say why.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
