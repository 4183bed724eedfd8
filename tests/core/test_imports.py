"""The direction of imports: a lower row never imports a higher one, and the core knows none of its plugins.

Parses every file. What is imported under `if TYPE_CHECKING:` is not there at run time and may point anywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "kernel"
PLUGINS = ROOT / "plugins"

#: Each row may import itself and what stands below. What lies in a package stands where the package stands.
ROWS = (
    "errors fingerprint gpus tensor versions model_config_pb2",
    "request config interfaces contents values shared_memory restriction tls frontend_options addresses",
    "classification cache queueing batching sampling sequencing state batch deadlines deadlock dependents supplied "
    "places causes scaling rate_limiter warmup trace holding",
    "scheduler answering batchers sequence_scheduler limited warming cached claims strict turn inflight instance statistics "
    "custom_metrics readiness mailbox bell forking conduct "
    "worker remote handover telling thread trace_file",
    "registry arrivals catalog entries loading overrides plans polling progress reading repository rollout watching model",
    "server settings tracer metadata listening connections hookspecs plugins logs local watchdog __init__",
    "cli testing __main__",
)

ROW_OF = {name: row for row, names in enumerate(ROWS) for name in names.split()}

#: Rows 0 to 2 take time as an argument and know neither loop nor threads.
PURE = 2
IMPURE = {"asyncio", "concurrent", "datetime", "multiprocessing", "selectors", "signal", "threading", "time", "uvloop"}

TEMPLATES = {"templates", "plugin_template"}  # which hold no code of ours
MODULES = sorted(path for path in KERNEL.rglob("*.py") if TEMPLATES.isdisjoint(path.parts))
PLUGIN_FILES = sorted(path for path in PLUGINS.rglob("*.py") if "egg-info" not in str(path))


def name_of(path: Path) -> str:
    """Return the name of a file within `kernel`: `batch`, or for what lies in a package the package's, `config`."""
    return path.relative_to(KERNEL).parts[0].removesuffix(".py")


def row_of(module: str) -> int:
    """Return the row of a module or package of `kernel`."""
    assert module in ROW_OF, f"kernel/{module} stands in no row; give it one in this test and in the design"
    return ROW_OF[module]


def shown(path: Path) -> str:
    return path.relative_to(KERNEL).with_suffix("").as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (line, module, names) of each import that happens at run time, also those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from imports(ast.Module([other], []))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; names are written in full here"
            yield node.lineno, node.module or "", [alias.name for alias in node.names]
        else:
            yield from imports(node)


def imports_of(path: Path) -> list[tuple[int, str, list[str]]]:
    return list(imports(ast.parse(path.read_text(), str(path))))


def of_kernel(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for each module of `kernel` that the file imports."""
    for line, module, names in imports_of(path):
        if module == "kernel":
            modules = {name for name in names if (KERNEL / name).is_dir() or (KERNEL / f"{name}.py").exists()}
            yield from ((line, name) for name in modules or {"__init__"})
        elif module.startswith("kernel."):
            yield line, module.split(".")[1]


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_no_module_imports_a_higher_row(path: Path) -> None:
    row = row_of(name_of(path))
    wrong = [f"line {line}: {module} (row {row_of(module)})" for line, module in of_kernel(path) if row_of(module) > row]
    assert not wrong, f"{shown(path)} is in row {row} and imports {', '.join(wrong)}"


@pytest.mark.parametrize("path", MODULES, ids=shown)
def test_core_imports_no_plugin(path: Path) -> None:
    names = {folder.name for folder in PLUGINS.iterdir()} | {"plugins", "triton_python_backend_utils"}
    wrong = [f"line {line}: {module}" for line, module, _ in imports_of(path) if module.split(".")[0] in names]
    assert not wrong


@pytest.mark.parametrize("path", [path for path in MODULES if row_of(name_of(path)) <= PURE], ids=shown)
def test_lower_rows_are_pure(path: Path) -> None:
    wrong = [f"line {line}: {module}" for line, module, _ in imports_of(path) if module.split(".")[0] in IMPURE]
    assert not wrong, f"{shown(path)} is in row {row_of(name_of(path))}: time comes as an argument, waiting is the scheduler's"


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=lambda path: path.relative_to(PLUGINS).as_posix())
def test_plugins_import_public_names_and_not_one_another(path: Path) -> None:
    import kernel

    own = path.relative_to(PLUGINS).parts[0].removesuffix(".py")
    others = {folder.name.removesuffix(".py") for folder in PLUGINS.iterdir()} - {own}
    if own in ("kernel_python", "triton_python_backend_utils"):  # one plugin: the backend and what its models import
        others -= {"kernel_python", "triton_python_backend_utils"}
    wrong = []
    for line, module, names in imports_of(path):
        top, _, inner = module.partition(".")
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


def test_public_names_are_there() -> None:
    import kernel

    assert [name for name in kernel.__all__ if not hasattr(kernel, name)] == []
    assert kernel.__all__ == sorted(kernel.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_the_rules_can_fail(tmp_path: Path) -> None:
    """Guards the test itself: the kinds of import that it has to see, and the one that it has to overlook."""
    file = tmp_path / "x.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from kernel.server import Kernel\n"
        "else:\n    import time\n"
        "def f():\n    from kernel import scheduler\n    import kernel.registry\n"
    )
    assert list(of_kernel(file)) == [(7, "scheduler"), (8, "registry")]
    assert "time" in [module for _, module, _ in imports_of(file)]
    assert row_of(name_of(KERNEL / "config/read.py")) == row_of("config") == 1
    assert row_of("model_config_pb2") == 0
    with pytest.raises(AssertionError, match="stands in no row"):
        row_of("surprise")
