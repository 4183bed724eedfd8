"""What can be seen of a model's code without running it: its syntax, its class, the modules that it needs.

Reads the model's own files with `ast` and asks only whether a top-level module could be found; nothing is imported. Tells an
error only where a load could not end otherwise: where code may take another way (a condition, an except clause, a changed path)
it says nothing, and `kernel check` says that there is more to see.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel import ConfigError
from kernel_python.loading.finding import SERVED_BY_US
from kernel_python.loading.parsing import tree_of

__all__ = ["completes_config", "faults_of"]

CLASS = "TritonPythonModel"
#: Methods that run while a model is loaded -> how many arguments they get.
AT_LOAD = {"__init__": 0, "initialize": 1}
#: Methods that are called by us -> the same.
CALLED = {**AT_LOAD, "execute": 1}
#: Attributes of `sys` by which code changes where modules are found.
_PATHS = frozenset({"path", "modules", "meta_path", "path_hooks"})
_EXCUSES = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_SUFFIXES = tuple(importlib.machinery.all_suffixes())
_FILES = 200


def completes_config(file: Path) -> bool:
    """Return whether the model may have an `auto_complete_config`; in doubt it may."""
    try:
        source = file.read_bytes()
        if b"auto_complete_config" in source:
            return True
        tree = tree_of(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return not any(isinstance(node, ast.ClassDef) and node.name == CLASS and _is_simple(node) for node in tree.body)


def faults_of(file: Path, folders: Sequence[Path]) -> list[ConfigError]:
    """Return why the model file can't be loaded, each with its place; none where nothing is seen.

    `folders`: where the model's own modules lie, in the order in which they are looked for.
    """
    return list(_Files(file, folders).faults())


class _Files:
    """The model's file and its own modules, as they are reached from there."""

    def __init__(self, file: Path, folders: Sequence[Path]) -> None:
        self._main = file
        self._folders = folders
        self._pending = [file]
        self._seen = {file}
        self._missing: list[tuple[Path, ast.stmt, str]] = []
        self._moves = False  # some file changes where modules are found

    def faults(self) -> Iterator[ConfigError]:
        while self._pending:
            path = self._pending.pop(0)
            tree = _parsed(path)
            if isinstance(tree, ConfigError):
                yield tree
                continue
            self._moves = self._moves or _changes_paths(tree)
            if path == self._main:
                yield from _class_faults(tree, path)
            for statement in _imports(tree, main=path == self._main):
                self._follow(path, statement)
        if self._moves:
            return
        where = " nor ".join(str(folder) for folder in self._folders)
        for path, node, name in self._missing:
            words = f"ModuleNotFoundError: No module named '{name}'"
            yield _fault(path, node, words, f"it is neither installed nor in {where}")

    def _follow(self, path: Path, statement: ast.Import | ast.ImportFrom) -> None:
        """Look where the modules of an import statement are; those of the model's own are read, too."""
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif statement.level:
            return  # relative: the package's `__init__` may change where its modules are found
        else:
            names = [statement.module or ""]
        for name in names:
            top = name.partition(".")[0]
            if top in SERVED_BY_US:
                continue
            own = self._own(top)
            if own is None:
                if not _is_found(top):
                    self._missing.append((path, statement, top))
            elif own.suffix == ".py" and own not in self._seen and len(self._seen) < _FILES:
                self._seen.add(own)
                self._pending.append(own)

    def _own(self, top: str) -> Path | None:
        """Return the file of a module or package of the model's own, or its folder; None where there is none."""
        for folder in self._folders:
            package = folder / top
            if (package / "__init__.py").is_file():
                return package / "__init__.py"
            for suffix in _SUFFIXES:
                if (folder / f"{top}{suffix}").is_file():
                    return folder / f"{top}{suffix}"
            if package.is_dir():
                return package
        return None


def _fault(path: Path, node: ast.stmt | None, words: str, detail: str = "") -> ConfigError:
    if node is None:
        return ConfigError(words, detail, path=str(path))
    return ConfigError(words, detail, path=str(path), line=node.lineno, column=node.col_offset + 1)


def _parsed(path: Path) -> ast.Module | ConfigError:
    """Return the file's tree, or what is wrong with it."""
    try:
        source = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's warnings are no faults
            tree = tree_of(source, str(path))
            # Finds what is no matter of grammar, such as a `return` outside of a function.
            compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        words = f"{type(error).__name__}: {error.msg}"
        return ConfigError(words, path=str(path), line=error.lineno or None, column=error.offset or None)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return _fault(path, None, f"{type(error).__name__}: {error}")
    return tree


# -- the class ---------------------------------------------------------------------------------------------------------


def _class_faults(tree: ast.Module, path: Path) -> Iterator[ConfigError]:
    names = _names(tree)
    if names is None:
        return
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if CLASS not in names:
        shown = f"{path.parent.name}.{path.name.removesuffix('.py').replace('.', '_')}"
        words = f"AttributeError: module '{shown}' has no attribute '{CLASS}'"
        near = difflib.get_close_matches(CLASS, classes, n=1, cutoff=0.4) or (list(classes) if len(classes) == 1 else [])
        if near:
            yield _fault(path, classes[near[0]], words, f"there is a class '{near[0]}'")
        else:
            yield _fault(path, None, words, f"its classes are {', '.join(classes) or 'none'}")
        return
    made = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == CLASS]
    if len(made) == 1 and made[0] in tree.body and _is_simple(made[0]) and not _given_later(tree):
        yield from _method_faults(made[0], path)


def _is_simple(node: ast.ClassDef) -> bool:
    """Whether all that the class has is what its body says."""
    bases = all(isinstance(base, ast.Name) and base.id == "object" for base in node.bases)
    return bases and not node.keywords and not node.decorator_list


def _given_later(tree: ast.Module) -> bool:
    """Whether something gets a method `execute` by an assignment to its attribute."""
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == "execute"
        for node in ast.walk(tree)
    )


def _method_faults(node: ast.ClassDef, path: Path) -> Iterator[ConfigError]:
    names = _names(node)
    if names is not None and "execute" not in names:
        near = difflib.get_close_matches("execute", names, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(sorted(names)) or 'no methods'}"
        yield _fault(path, node, f"Python model {path} does not implement `execute` method.", hint)
    for name, arguments in CALLED.items():
        yield from _call_faults(node, name, arguments, path)
    for method in node.body:
        if isinstance(method, ast.AsyncFunctionDef) and method.name == "initialize" and not method.decorator_list:
            words = f"initialize of {path} is `async def`, which nobody awaits; it has to be a plain `def`"
            yield _fault(path, method, words)


def _call_faults(node: ast.ClassDef, name: str, arguments: int, path: Path) -> Iterator[ConfigError]:
    """Tell where a method can't be called with so many arguments, in the words of who would call it.

    A method with the same parameters is called instead, with no annotations, None for each default and nothing in it.
    """
    bound = [inner for inner in ast.walk(node) if _binds(inner, name)]
    method = bound[0] if len(bound) == 1 else None
    if not isinstance(method, ast.FunctionDef) or method not in node.body or method.decorator_list:
        return
    old = method.args
    own = [[ast.arg(one.arg) for one in each] for each in (old.posonlyargs, old.args, old.kwonlyargs)]
    rest = [None if one is None else ast.arg(one.arg) for one in (old.vararg, old.kwarg)]
    none = ast.Constant(None)
    stand_in: Any = ast.parse(f"class {CLASS}:\n    def called(): pass")
    stand_in.body[0].body[0].args = ast.arguments(
        own[0], own[1], rest[0], own[2], [none if one else None for one in old.kw_defaults], rest[1],
        [none for _ in old.defaults],
    )  # fmt: skip
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(stand_in), str(path), "exec"), scope)
    try:
        scope[CLASS]().called(*[None] * arguments)
    except TypeError as error:
        yield _fault(path, method, f"TypeError: {error}".replace(".called()", f".{name}()"))


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a name or an attribute is assigned to here."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Name | ast.Attribute):
        return isinstance(node.ctx, ast.Store) and name == (node.id if isinstance(node, ast.Name) else node.attr)
    return False


def _names(scope: ast.Module | ast.ClassDef) -> set[str] | None:
    """Return the names that a module or a class has when it has run, or may have; None where that can't be told."""
    names: set[str] = set()
    pending: list[ast.AST] = list(scope.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            pending += node.decorator_list
            if any(isinstance(inner, ast.Global) for inner in ast.walk(node)):
                return None
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    return None
                names.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif node.id in ("globals", "vars", "locals", "exec", "eval", "setattr"):
                return None
        elif _is_of_sys(node):
            return None  # a module may put another one there
        pending += ast.iter_child_nodes(node)
    return None if "__getattr__" in names and isinstance(scope, ast.Module) else names


# -- the imports -------------------------------------------------------------------------------------------------------


def _imports(tree: ast.Module, main: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the import statements that every load executes: not those in functions or under a condition."""
    yield from _certain(tree.body)
    for node in tree.body if main else ():
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in AT_LOAD:
                    yield from _certain(method.body)


def _certain(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _certain(node.body)
        elif isinstance(node, ast.Try):  # but no `with`: its manager may swallow the error, as `suppress` does
            if not any(_excuses(handler) for handler in node.handlers):
                yield from _certain(node.body)
            yield from _certain(node.finalbody)
        if _may_leave(node):
            return  # what follows may never be executed


def _may_leave(node: ast.AST) -> bool:
    """Whether a statement may end the function that it stands in, or the module."""
    if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return False
    return any(_may_leave(inner) for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.Raise))


def _excuses(handler: ast.ExceptHandler) -> bool:
    """Whether an except clause may catch that a module is missing, and go on; in doubt it may."""
    if isinstance(handler.body[-1], ast.Raise) and not any(_may_leave(node) for node in handler.body[:-1]):
        return False  # it raises again, in other words
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = [getattr(kind, "id", getattr(kind, "attr", "Exception")) for kind in kinds]
    return bool(_EXCUSES & set(names)) or not all(hasattr(builtins, name) for name in names)


def _changes_paths(tree: ast.Module) -> bool:
    """Whether the code may change where modules are found, or installs some."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # as docstrings
    for node in ast.walk(tree):
        if _is_of_sys(node):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "sys" and _PATHS & {alias.name for alias in node.names}:
            return True
        if isinstance(node, ast.Attribute | ast.Name) and getattr(node, "attr", getattr(node, "id", "")) == "addsitedir":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            if "pip" in node.value.split():
                return True
    return False


def _is_of_sys(node: ast.AST) -> bool:
    """Whether this is `sys.path`, `sys.modules` or the like."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in _PATHS
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    )


def _is_found(top: str) -> bool:
    """Whether a top-level module is there. Looks for it; runs nothing of it."""
    if not top or sys.modules.get(top) is not None:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        return False
