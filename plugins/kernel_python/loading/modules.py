"""Modules of a model are private: each instance imports its own copies, under names that nobody else uses.

An instance's files live in a package `kernel_model_<serial>` whose path is the version folder, then the model folder. Every
module in it is executed with builtins of its own, whose `__import__` looks there first; so `import helper` finds the model's
own helper, at load or later, on any thread. So does what the model finds in folders that it has put into `sys.path`, where
another module of that name is in the process already. Nothing is cached on disk, and `remove` takes everything out of
sys.modules again.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import importlib.util
import itertools
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_python.faults import describe, public_names
from kernel_python.loading.finding import SERVED_BY_US, exists, find, spec_of
from kernel_python.loading.views import ModelPath, views_of

__all__ = ["PrivateModules"]

log = logging.getLogger("kernel_python")

PREFIX = "kernel_model_"

_HIDDEN = (
    "\n'{0}' is a module of the model's own, which libraries don't find by its name in the server; in a process of its own they "
    'do: parameters {{ key: "placement" value {{ string_value: "process" }} }}\n'
)

_serials = itertools.count(1)
_lock = threading.Lock()
_packages: dict[str, PrivateModules] = {}


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles from source each time (a reload sees changes whatever the clock says) and gives the module private builtins."""

    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._package = _packages[fullname.partition(".")[0]]

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        self._package.seen(code)
        return code

    def exec_module(self, module: types.ModuleType) -> None:
        space = module.__dict__
        space["__builtins__"] = self._package.builtins
        space["__kernel_instance__"] = self._package.instance
        exec(self.get_code(module.__name__), space)


class _Finder:
    """The one entry in sys.meta_path, there as long as any model has private modules. Answers for their prefix only."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(PREFIX) or path is None:
            return None
        return _find(fullname, path)

    @staticmethod
    def invalidate_caches() -> None:
        """Nothing is cached."""


def _find(fullname: str, folders: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    """Look for a private module in `folders`, each time anew: files may have come or gone a moment ago."""
    return find(fullname, folders, _finder)


def _finder(folder: str) -> importlib.machinery.FileFinder:
    return importlib.machinery.FileFinder(
        folder,
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_Loader, importlib.machinery.SOURCE_SUFFIXES),
        (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
    )


class PrivateModules:
    """The modules of one model instance.

    `instance` becomes the global `__kernel_instance__` of each of them. `names`: all names and string constants that the code
    of those seen so far mentions. Call `remove` when the instance goes, also after a failed load. Any thread.
    """

    def __init__(self, version_folder: Path, model_folder: Path, instance: object) -> None:
        self.package = f"{PREFIX}{next(_serials)}"
        self.instance = instance
        self.names: set[str] = set()
        self.main = ""
        self.shown = ""
        self._version = version_folder.name
        self._folders = [os.path.abspath(version_folder), os.path.abspath(model_folder)]
        self._foreign: set[str] = set()  # top-level names that are no modules of the model
        self._expected: dict[str, str] = {}  # of these, those that an import should find on the model's `sys.path` -> their file
        self._import = builtins.__import__
        self.builtins: dict[str, Any] = dict(vars(builtins))
        self.builtins["__import__"] = self.private_import
        self._path = ModelPath(self._folders)
        self._views = views_of(self, self._path)
        root = types.ModuleType(self.package)
        root.__path__ = list(self._folders)
        with _lock:
            if _Finder not in sys.meta_path:  # it may be missing though models are there: somebody has restored an older list
                sys.meta_path.insert(0, _Finder)
            _packages[self.package] = self
            sys.modules[self.package] = root

    def load_main(self, file: Path) -> types.ModuleType:
        """Import the model's own file. Raises what it raises."""
        stem = file.name.removesuffix(".py").replace(".", "_")
        self.main = f"{self.package}.{stem}"
        self.shown = f"{self._version}.{stem}"
        spec = importlib.util.spec_from_file_location(self.main, file, loader=_Loader(self.main, str(file)))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.main] = module
        spec.loader.exec_module(module)
        return sys.modules.get(self.main, module)

    def seen(self, code: types.CodeType) -> None:
        """Note the names that `code` and the functions in it mention."""
        self.names.update(code.co_names)
        for constant in _flat(code.co_consts):
            if isinstance(constant, types.CodeType):
                self.seen(constant)
            elif isinstance(constant, str):
                self.names.add(constant)

    def remove(self) -> None:
        """Take everything of the model out of sys.modules; the finder goes with the last model. May be called twice."""
        self._path.leave()
        with _lock:
            _packages.pop(self.package, None)
            dotted = self.package + "."
            for name in [name for name in list(sys.modules) if name == self.package or name.startswith(dotted)]:
                sys.modules.pop(name, None)
            if not _packages and _Finder in sys.meta_path:
                sys.meta_path.remove(_Finder)

    # -- what `import` means in a module of the model ------------------------------------------------------------------

    def private_import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        if level:
            return self._import(name, globals, locals, fromlist, level)
        top = name.partition(".")[0]
        if top in self._views:
            module = self._import(name, globals, locals, fromlist, 0)
            view = self._views[top]
            return view if module is view.real else module
        if not self._owns(top):
            if top not in self._expected:
                return self._import(name, globals, locals, fromlist, 0)
            found = self._import_expected(top, lambda: self._import(name, globals, locals, fromlist, 0))
            if found is not None:
                return found
        try:
            module = self._import(f"{self.package}.{name}", globals, locals, fromlist or ("__name__",), 0)
        except ModuleNotFoundError as error:
            self._rename(error)
            raise
        return module if fromlist else sys.modules[f"{self.package}.{top}"]

    def import_module(self, name: str, package: str | None = None) -> types.ModuleType:
        """Import a module as `importlib.import_module` does, the model's own ones first."""
        if name in self._views:
            return self._views[name]
        top = name.partition(".")[0]
        if not top or not self._owns(top):
            found = self._import_expected(top, lambda: importlib.import_module(name, package))
            if found is not None:
                return found
        try:
            return importlib.import_module(f"{self.package}.{name}")
        except ModuleNotFoundError as error:
            self._rename(error)
            raise

    def _import_expected(self, top: str, load: Callable[[], types.ModuleType]) -> types.ModuleType | None:
        """Import what is no module of the model's own as long as the import finds what was expected; None where it finds another.

        It does where models whose modules have one name are loaded at the same time: between the look at what an import would
        find and the import, another one has put its folder in front of `sys.path`, and the import has found its module.
        """
        try:
            module = load()
        except ImportError:
            if not self._was_anothers(top):
                raise
            return None
        return None if self._was_anothers(top) else module

    def _was_anothers(self, top: str) -> bool:
        """Whether the process has another module of that name than was found when it was looked for; then look anew."""
        expected = self._expected.pop(top, None)
        loaded = sys.modules.get(top)
        if expected is None or loaded is None or _same(_file_of(loaded, getattr(loaded, "__spec__", None)), expected):
            return False
        self._foreign.discard(top)
        return self._owns(top)

    def _owns(self, top: str) -> bool:
        """Whether the top-level name `top` is a module or package in the model's folders."""
        if top in self._foreign and top in sys.modules:
            return False
        private = f"{self.package}.{top}"
        if private in sys.modules:
            return True
        if self.package in sys.modules and top not in SERVED_BY_US:
            spec = _find(private, self._folders)
            if spec is not None and (spec.loader is not None or not exists(top)):
                return True
            if self._is_anothers(top, private):
                return True
        self._foreign.add(top)
        return False

    def _is_anothers(self, top: str, private: str) -> bool:
        """Whether a module that the model finds in folders which it has put into `sys.path` is another than the process has, or
        would find.
        """
        front, back = self._path.added()
        for entry in (*front, *back):
            spec = _find(private, [os.path.abspath(entry)])
            if spec is not None and spec.loader is not None:
                break
        else:
            return False
        loaded = sys.modules.get(top)
        other = spec_of(top) if loaded is None else getattr(loaded, "__spec__", None)
        if loaded is None and other is None:
            return False
        file = _file_of(loaded, other)
        if file is None or _same(file, spec.origin):
            if loaded is None and spec.origin is not None:
                self._expected[top] = spec.origin
            return False
        if entry in back:
            installed = importlib.machinery.PathFinder.find_spec(top, list(self._path.base))
            if installed is not None and _same(installed.origin, file):
                return False
        sys.modules[self.package].__path__.append(os.path.abspath(entry))
        log.warning(
            "model '%s': its module '%s' (%s) has the name of another in this process (%s). It gets its own, but libraries that "
            "find modules by name, as pickle does, get the other: placement 'process' keeps them apart",
            getattr(self.instance, "model_name", ""), top, spec.origin, file,
        )  # fmt: skip
        return True

    def describe(self, error: BaseException) -> str:
        """Return what is told of an exception of the model's (faults.py); with the way out, where private names are its cause."""
        text = describe(error, self.main, self.shown)
        name = error.name if isinstance(error, ModuleNotFoundError) and error.name else "."
        spec = None if "." in name else _find(f"{self.package}.{name}", self._folders)
        return text if spec is None or spec.loader is None else text + _HIDDEN.format(name)

    # -- names ---------------------------------------------------------------------------------------------------------

    def named(self, name: str) -> types.ModuleType | None:
        """Return the model's own module of a name, None if it has none.

        The name is the author's, or a private one that an earlier load has written into a pickle.
        """
        if name.startswith(PREFIX):
            name = name.partition(".")[2]
            if f"{self.package}.{name}" == self.main:
                return sys.modules.get(self.main)
        if name == self.shown:
            return sys.modules.get(self.main)
        if not name or not self._owns(name.partition(".")[0]):
            return None
        try:
            return importlib.import_module(f"{self.package}.{name}")
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.package}.{name}".startswith(error.name):
                raise
            return None

    def public(self, name: str) -> str:
        """Return the name of a module of the model as its author knows it."""
        return public_names(name, self.main, self.shown)

    def _rename(self, error: ModuleNotFoundError) -> None:
        if error.name and error.name.startswith(self.package):
            error.name = public_names(error.name)
            error.args = (public_names(str(error.args[0])),) if error.args else ()
            error.msg = public_names(error.msg)


def _file_of(module: types.ModuleType | None, spec: importlib.machinery.ModuleSpec | None) -> str | None:
    """Return the file of a module, None where it has none."""
    file: str | None = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    return file


def _same(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and os.path.realpath(one) == os.path.realpath(other)


def _flat(constants: tuple[object, ...]) -> Iterator[object]:
    for constant in constants:
        if isinstance(constant, (tuple, frozenset)):
            yield from _flat(tuple(constant))
        else:
            yield constant
