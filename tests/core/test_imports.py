"""The direction of imports: a room never imports a later one, in the core and in each plugin, and the core knows no plugin.

Parses every file. What is imported under `if TYPE_CHECKING:` counts, too: a type is known, even if it is not there at run time.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "kernel"
PLUGINS = ROOT / "plugins"

#: The rooms, and the modules that stand beside them, from the ground up. Each may import itself and what stands before it.
ROOMS = (
    "errors tensor forking",
    "requests",
    "config",
    "rules",
    "repository",
    "interfaces supplied",
    "instances",
    "circles",
    "observability",
    "options",
    "recording",
    "scheduling",
    "models",
    "registry",
    "frontends",
    "replicas",
    "hookspecs plugins",
    "server watchdog local __init__",
    "testing",
    "simulation",
    "loadtest",
    "shadow",
    "cli __main__",
)
PLACE_OF = {name: place for place, names in enumerate(ROOMS) for name in names.split()}

#: Imports that stand against the order, and are to be turned: none may come, and one that has gone is taken out here.
AGAINST: frozenset[str] = frozenset()

#: The rooms of each plugin that has some, from the ground up. What stands beside them needs no row: test_plugins_go_one_way.
ROOMS_OF_PLUGIN = {
    "kernel_grpc": ("schemas", "http2", "rpc", "inference", "services"),
    "kernel_http": ("json", "connection", "inference", "operations", "asgi"),
    "kernel_python": ("api", "loading", "process"),
}

#: What of a plugin another one may import: libraries that know nothing of who made them a plugin.
SHARED = {
    "kernel_remote": ("kernel_grpc.http2", "kernel_grpc.schemas"),
    "kernel_ray": ("kernel_remote.elastic",),  # who starts servers needs what sends requests to them, whoever they are
}

#: Where nobody waits, and time is an argument.
TIMELESS = ("errors", "tensor", "requests", "config", "rules", "repository", "supplied", "options")
WAITING = frozenset("asyncio concurrent datetime multiprocessing selectors signal socket threading time uvloop".split())

#: What no rule may know besides: what lies in files is an argument, too.
FILES = frozenset("io os pathlib".split())

TEMPLATES = {"templates", "plugin_template"}  # which hold no code of ours
MODULES = sorted(path for path in KERNEL.rglob("*.py") if TEMPLATES.isdisjoint(path.parts))
PLUGIN_FILES = sorted(path for path in PLUGINS.rglob("*.py") if "egg-info" not in str(path))
PLUGIN_PACKAGES = sorted(path.parent for path in PLUGINS.glob("*/__init__.py"))


def room_of(path: Path) -> str:
    """Return the room of a file within `kernel`, or the name of a module that stands in none."""
    return path.relative_to(KERNEL).parts[0].removesuffix(".py")


def place_of(room: str) -> int:
    assert room in PLACE_OF, f"kernel/{room} is no room of this test; put the module into one, or give the room its place"
    return PLACE_OF[room]


def shown(path: Path) -> str:
    return path.relative_to(KERNEL).with_suffix("").as_posix()


def imports(tree: ast.AST, types: bool = True) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (line, module, names) of each import, also those inside functions. `types`: also what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types:
            for other in node.orelse:
                yield from imports(ast.Module([other], []), types)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; names are written in full here"
            yield node.lineno, node.module or "", [alias.name for alias in node.names]
        else:
            yield from imports(node, types)


def imports_of(path: Path, types: bool = True) -> list[tuple[int, str, list[str]]]:
    return list(imports(ast.parse(path.read_text(), str(path)), types))


def of_kernel(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, room, what is imported, as `room/module`) for each import of `kernel` in the file."""
    for line, module, names in imports_of(path):
        if module == "kernel":
            rooms = [name for name in names if (KERNEL / name).is_dir() or (KERNEL / f"{name}.py").exists()]
            yield from ((line, name, name) for name in rooms or ["__init__"])
        elif module.startswith("kernel."):
            room, _, inner = module.removeprefix("kernel.").partition(".")
            yield line, room, f"{room}/{inner.replace('.', '/')}" if inner else room


def arrows() -> dict[str, str]:
    """Return the imports that stand against the order -> where they stand."""
    found = {}
    for path in MODULES:
        place = place_of(room_of(path))
        for line, room, imported in of_kernel(path):
            if place_of(room) > place:
                found[f"{shown(path)} -> {imported}"] = f"{shown(path)}.py:{line}"
    return found


def test_no_room_imports_a_later_one() -> None:
    found = arrows()
    new = [f"{where}: {arrow}" for arrow, where in found.items() if arrow not in AGAINST]
    assert not new, "against the order of the rooms: " + ", ".join(new)
    gone = AGAINST - found.keys()
    assert not gone, f"turned by now: take {sorted(gone)} out of AGAINST"


Graph = dict[str, set[str]]


def graph(package: Path, paths: Iterable[Path]) -> Graph:
    """Return module -> the modules of the same package that it imports, those for type checkers included.

    A module is named by its path in the package; the `__init__` of a room by the room.
    """
    files = {path.relative_to(package).with_suffix("").as_posix().removesuffix("/__init__"): path for path in paths}
    found: Graph = {}
    for name, path in files.items():
        wanted = found[name] = set()
        for _, module, names in imports_of(path):
            top, _, base = module.partition(".")
            if top == package.name:
                base = base.replace(".", "/")
                inner = {f"{base}/{one}".lstrip("/") for one in names} & files.keys()
                wanted |= inner if names and len(inner) == len(names) else inner | {base or "__init__"}
        wanted.discard(name)
    return found


def circle_in(found: Graph) -> str:
    """Return a circle as `a -> b -> a`, or "" where there is none."""
    try:
        graphlib.TopologicalSorter(found).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def test_there_are_no_circles() -> None:
    circle = circle_in(graph(KERNEL, MODULES))
    assert not circle, f"modules that import one another: {circle}"


def graph_of_plugin(plugin: Path) -> Graph:
    return graph(plugin, [path for path in PLUGIN_FILES if path.is_relative_to(plugin)])


def folders_in(modules: Iterable[str]) -> Iterator[str]:
    """Yield the package itself, as "", and the folders in it, as `room/` or `room/inner/`."""
    yield ""
    yield from sorted({f"{parent}/" for name in modules for parent in Path(name).parents if parent != Path()})


def seen_from(folder: str, found: Graph) -> Graph:
    """Return who imports whom among what stands in a folder: each module in it, and each room in it as a whole."""
    shrunk: Graph = {}
    for name, wanted in found.items():
        if name.startswith(folder):
            part = name.removeprefix(folder).partition("/")[0]
            others = {other.removeprefix(folder).partition("/")[0] for other in wanted if other.startswith(folder)}
            shrunk.setdefault(part, set()).update(others - {part})
    return shrunk


@pytest.mark.parametrize("plugin", PLUGIN_PACKAGES, ids=lambda path: path.name)
def test_plugins_go_one_way(plugin: Path) -> None:
    """Neither modules nor, taken as wholes, the rooms and modules beside them import one another in a circle."""
    found = graph_of_plugin(plugin)
    circles = {folder: circle_in(seen_from(folder, found)) for folder in folders_in(found)}
    said = [f"in {plugin.name}/{folder}: {circle}" for folder, circle in circles.items() if circle]
    if circle := circle_in(found):
        said.append(f"modules: {circle}")
    assert not said, "what imports one another: " + ", ".join(said)


@pytest.mark.parametrize("plugin", PLUGIN_PACKAGES, ids=lambda path: path.name)
def test_rooms_of_a_plugin_have_an_order_and_a_law(plugin: Path) -> None:
    order = ROOMS_OF_PLUGIN.get(plugin.name, ())
    rooms = {path.relative_to(plugin).parts[0] for path in PLUGIN_FILES if path.parent.is_relative_to(plugin)}
    rooms = {room for room in rooms if (plugin / room).is_dir()}
    assert rooms == set(order), f"the rooms of {plugin.name} are not those that stand in ROOMS_OF_PLUGIN"
    for room in rooms:
        opening = plugin / room / "__init__.py"
        assert opening.exists() and ast.get_docstring(ast.parse(opening.read_text())), f"{plugin.name}/{room} says no law"
    found = seen_from("", graph_of_plugin(plugin))
    wrong = [f"{room} -> {later}" for place, room in enumerate(order) for later in order[place + 1 :] if later in found[room]]
    assert not wrong, f"against the order of the rooms of {plugin.name}: " + ", ".join(wrong)


def test_few_modules_stand_in_no_room() -> None:
    assert len([path for path in MODULES if path.parent == KERNEL]) <= 12


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_core_imports_no_plugin(path: Path) -> None:
    names = {folder.name for folder in PLUGINS.iterdir()} | {"plugins", "triton_python_backend_utils"}
    wrong = [f"line {line}: {module}" for line, module, _ in imports_of(path) if module.split(".")[0] in names]
    assert not wrong


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) in TIMELESS], ids=shown)
def test_lower_rooms_are_told_the_time(path: Path) -> None:
    wrong = impure(path, WAITING)
    assert not wrong, f"{shown(path)}: time comes as an argument there, waiting is the scheduler's"


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) == "rules" or path.name == "deadlock.py"], ids=shown)
def test_rules_are_pure(path: Path) -> None:
    wrong = impure(path, WAITING | FILES)
    assert not wrong, f"{shown(path)} is a rule: time and what lies in files come as arguments, waiting is the scheduler's"


def impure(path: Path, modules: frozenset[str]) -> list[str]:
    """Return the imports of any of these modules."""
    found = imports_of(path, types=False)
    return [f"line {line}: {module}" for line, module, _ in found if module.split(".")[0] in modules]


#: Who asks in which greenlet he is: whoever switches between them, and `may_leave`, which says whether that one may be left.
GREENLETS = {"kernel/instances/instance.py", "kernel/server/waiting.py", "plugins/kernel_python/waiting.py"}


def test_who_may_wait_is_answered_in_one_file() -> None:
    """By kernel/server/waiting.py; the others switch."""
    found = {
        path.relative_to(KERNEL.parent).as_posix()
        for path in (*MODULES, *PLUGIN_FILES)
        if any(module == "greenlet" and "getcurrent" in names for _, module, names in imports_of(path))
    }
    assert found == GREENLETS
    asking = [shown(path) for path in MODULES if "turn.cant_wait:" in path.read_text()]
    assert asking == ["server/waiting"], "whether an execution runs without a greenlet is for `may_leave` to ask"


#: The files that open a room, of the core and of the plugins; what opens a whole package has names of its own, and hooks.
OPENINGS = [
    path for path in (*MODULES, *PLUGIN_FILES) if path.name == "__init__.py" and path.parent not in (KERNEL, *PLUGIN_PACKAGES)
]

#: Rooms whose names are imported from their modules; each says why where it opens.
DEEP = {"circles"}


def is_law_or_name(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    return isinstance(node, ast.ImportFrom) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


@pytest.mark.parametrize("path", OPENINGS, ids=lambda path: path.relative_to(ROOT).parent.as_posix())
def test_a_room_opens_with_its_law_and_its_names_alone(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no opening words"
    wrong = [f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}" for node in tree.body if not is_law_or_name(node)]
    assert not wrong, "move it to a module of the room"


def test_rooms_import_the_public_names_of_other_rooms() -> None:
    """Those that stand where the room opens; what its modules have besides is the room's own."""
    wrong = [
        f"{shown(path)}.py:{line}: kernel.{imported.replace('/', '.')}"
        for path in MODULES
        for line, room, imported in of_kernel(path)
        if room != room_of(path) and "/" in imported and room not in DEEP
    ]
    assert not wrong, "name it in `__all__` of its room, and import it from there: " + ", ".join(wrong)


@pytest.mark.parametrize("room", sorted(DEEP))
def test_a_room_without_names_lists_them(room: str) -> None:
    opening = ast.get_docstring(ast.parse((KERNEL / room / "__init__.py").read_text())) or ""
    used = {
        f"{module.removeprefix(f'kernel.{room}.')}.{name}"
        for path in MODULES
        if room_of(path) != room
        for _, module, names in imports_of(path)
        if module.startswith(f"kernel.{room}.")
        for name in names
    }
    missing = [name for name in sorted(used) if f"`{name}`" not in opening]
    assert used and not missing


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=lambda path: path.relative_to(PLUGINS).as_posix())
def test_plugins_import_public_names_and_not_one_another(path: Path) -> None:
    import kernel

    own = path.relative_to(PLUGINS).parts[0].removesuffix(".py")
    others = {folder.name.removesuffix(".py") for folder in PLUGINS.iterdir()} - {own}
    if own in ("kernel_python", "triton_python_backend_utils", "c_python_backend_utils"):
        others -= {"kernel_python", "triton_python_backend_utils", "c_python_backend_utils"}  # one plugin, and what models import
    wrong = []
    for line, module, names in imports_of(path, types=False):
        top, _, inner = module.partition(".")
        if module.startswith(SHARED.get(own, ())):
            continue
        if top in others:
            wrong.append(f"line {line}: {module} is another plugin")
        elif inner.startswith("testing") and own == "kernel_pytest":
            continue  # the public kit, for which this plugin has the names
        elif top == "kernel" and inner:
            wrong.append(f"line {line}: {module} is not public; import from `kernel`")
        elif top == "kernel":
            public = {*kernel.__all__, "__version__"}
            wrong += [f"line {line}: kernel.{name} is not public" for name in names if name not in public]
    assert not wrong


def test_the_rules_can_fail(tmp_path: Path) -> None:
    """Guards the test itself: the kinds of import that it has to see."""
    file = tmp_path / "x.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from kernel.server import Kernel\n"
        "else:\n    import time\n"
        "def f():\n    from kernel import scheduling\n    import kernel.registry.catalog\n"
    )
    found = [(3, "server", "server"), (7, "scheduling", "scheduling"), (8, "registry", "registry/catalog")]
    assert list(of_kernel(file)) == found
    assert impure(file, WAITING) == ["line 5: time"] and not impure(file, FILES)
    assert [module for _, module, _ in imports_of(file, types=False)][:2] == ["typing", "time"]
    assert place_of(room_of(KERNEL / "config/read.py")) == place_of("config") == 2
    with pytest.raises(AssertionError, match="is no room of this test"):
        place_of("nowhere")


def test_the_rules_for_plugins_can_fail(tmp_path: Path) -> None:
    """Guards the test itself: a circle of modules, one of rooms that is none of modules, and one in an inner folder."""
    plugin = tmp_path / "plug"
    texts = {
        "__init__.py": "from plug import door\n",
        "door.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from plug.high.one import One\n",
        "low/one.py": "def f():\n    import plug.high.two\n",
        "high/one.py": "from plug.low import one\n",
        "high/two.py": "",
        "high/left/a.py": "from plug.high.right.a import A\n",
        "high/left/b.py": "",
        "high/right/a.py": "",
        "high/right/b.py": "from plug.high.left import b\n",
    }
    for name, text in texts.items():
        (plugin / name).parent.mkdir(parents=True, exist_ok=True)
        (plugin / name).write_text(text)
    found = graph(plugin, sorted(plugin.rglob("*.py")))
    assert circle_in(found) == ""
    assert seen_from("", found) == {"__init__": {"door"}, "door": {"high"}, "low": {"high"}, "high": {"low"}}
    assert sorted(folders_in(found)) == ["", "high/", "high/left/", "high/right/", "low/"]
    assert [bool(circle_in(seen_from(folder, found))) for folder in ("", "high/", "low/")] == [True, True, False]
    found["high/two"].add("low/one")
    assert circle_in(found) in ("low/one -> high/two -> low/one", "high/two -> low/one -> high/two")
