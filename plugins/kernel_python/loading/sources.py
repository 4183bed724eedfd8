"""Which files a model consists of, and what the names in them mean: its imports, followed through its own modules.

Modules are found where modules.py finds them (finding.py). Files are read (mentions.py) and not run; what is read is bounded, and
what can't be followed is a `Doubt`. Knows nothing of what is safe.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from kernel_python.loading.finding import SERVED_BY_US, exists, find
from kernel_python.loading.mentions import MODULE, OWN, Chain, Import, Scope, Source, read

__all__ = ["FILES", "FILE_BYTES", "TOTAL_BYTES", "Doubt", "Names", "Program"]

#: What is read of one model at most. Parsing holds the interpreter lock, a tenth of a second for a file of this size; and models
#: that are longer are not the small ones for which a process of their own would cost too much.
FILES, FILE_BYTES, TOTAL_BYTES = 200, 1 << 17, 1 << 19
#: A name that may stand for more things than _MEANINGS is not followed, nor is one of more parts than _LONGEST.
_MEANINGS, _LONGEST = 16, 100
#: Following names takes _STEPS, and _STEPS_PER_BYTE more for each byte, at most; names in a circle _STEPS_OF_CIRCLE each.
_STEPS, _STEPS_PER_BYTE, _STEPS_OF_CIRCLE = 10_000, 4, 100

_BUILTINS = {*dir(builtins), "__builtins__", "exit", "quit"}
_UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)


class Doubt(Exception):
    """Why a model can't be examined to the end."""


class _Folders:
    """Finds modules where modules.py finds them: the version's folder first, then the model's."""

    def __init__(self, version_folder: Path, model_folder: Path) -> None:
        self._roots = [str(version_folder.absolute()), str(model_folder.absolute())]
        self._finders: dict[str, importlib.machinery.FileFinder] = {}

    def find(self, name: str, folders: Iterable[str] | None = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module in `folders`, by default the model's two."""
        spec = find(name, self._roots if folders is None else folders, self._finder)
        if spec is None or (spec.loader is None and folders is None and exists(name)):
            return None
        return spec

    def _finder(self, folder: str) -> importlib.machinery.FileFinder:
        if folder not in self._finders:
            self._finders[folder] = importlib.machinery.FileFinder(
                folder,
                (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
                (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES),
                (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
            )
        return self._finders[folder]

    def shown(self, file: str) -> str:
        """Return a file's name as its author knows it."""
        for root in self._roots:
            if file.startswith(root + os.sep):
                return file[len(root) + 1 :]
        return file


class Program:
    """The files of a model that its imports lead to.

    What else they import is shown to `judge` as it is found, the model's file first. Reading ends where that returns why it is
    not safe, or where a file can't be read: the reason is the `doubt`.
    """

    def __init__(
        self, file: Path, version_folder: Path, model_folder: Path, judge: Callable[[str, Import], str | None]
    ) -> None:
        self._folders = _Folders(version_folder, model_folder)
        self._judge = judge
        self.bytes = 0  # of all files
        self._owned: dict[str, bool] = {}
        self._places: dict[Chain, list[str]] = {}  # own packages -> where their modules lie
        self._left: deque[tuple[str, Source]] = deque()
        self.own: dict[Chain, Source | None] = {}  # None: a folder without a file of its own
        self.files: list[tuple[str, Source]] = []
        self.fields = Scope("fields")  # what attributes of self and cls are, in any of the files
        self.main: Source | None = None
        self.doubt: str | None = None
        try:
            self.main = self._read(str(file.absolute()), ())
            while self._left:
                self._follow(*self._left.popleft())
        except Doubt as doubt:
            self.doubt = str(doubt)

    def owns(self, top: str) -> bool:
        """Whether the top-level name `top` is a module of the model."""
        if top not in self._owned:
            self._owned[top] = top not in SERVED_BY_US and self._folders.find(top) is not None
        return self._owned[top]

    def _follow(self, shown: str, source: Source) -> None:
        for one in source.imports:
            kind, *parts = one.module
            if len(parts) > _LONGEST:
                raise Doubt(f"imports a name of {len(parts)} parts ({shown}:{one.line})")
            if kind == MODULE and not self.owns(parts[0]):
                doubt = self._judge(shown, one)
                if doubt is not None:
                    raise Doubt(doubt)
                continue
            place = f"{shown}:{one.line}"
            self._load(tuple(parts), place)
            for name in self._everything(tuple(parts)) if "*" in one.names else one.names:
                self._load((*parts, name), place)

    def _everything(self, package: Chain) -> list[str]:
        """Return the modules that `from package import *` may import: those that its `__all__` may name."""
        source = self.own.get(package)
        if source is None or "__all__" not in source.top.bound:
            return []
        folders = [Path(folder) for folder in self._places.get(package, ())]
        return sorted({file.name.partition(".")[0] for folder in folders for file in folder.iterdir()} - {"__init__"})

    def _load(self, parts: Chain, place: str) -> None:
        """Read the model's own module of that name, and the packages that it is in; a name that is no module is left out."""
        for end in range(1, len(parts) + 1):
            name = parts[:end]
            if name in self.own:
                continue
            if end > 1 and name[:-1] not in self._places:
                return
            spec = self._folders.find(name[-1], self._places[name[:-1]] if end > 1 else None)
            if spec is None:
                return
            if spec.submodule_search_locations is not None:
                self._places[name] = list(spec.submodule_search_locations)
            if spec.loader is None:
                self.own[name] = None
                continue
            if not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
                raise Doubt(f"imports {'.'.join(name)} ({place}), which is compiled")
            package = name if name in self._places else name[:-1]
            self.own[name] = None  # known from here on: packages that import one another in a circle are read once
            self.own[name] = self._read(str(spec.origin), package)

    def _read(self, file: str, package: Chain) -> Source:
        shown = self._folders.shown(file)
        if len(self.files) == FILES:
            raise Doubt(f"consists of more than {FILES} files")
        text = _content(file, shown)
        self.bytes += len(text)
        if self.bytes > TOTAL_BYTES:
            raise Doubt(f"its files are longer than {TOTAL_BYTES >> 10} KiB together")
        try:
            source = read(text, file, package)
        except _UNPARSED as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            words = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
            raise Doubt(f"{shown}{line} can't be read: {words}") from None
        self.files.append((shown, source))
        self._left.append((shown, source))
        for name, bound in source.fields.bound.items():
            self.fields.bound.setdefault(name, {}).update(bound)
        return source


def _content(file: str, shown: str) -> bytes:
    try:
        with open(file, "rb", opener=_open_file) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise Doubt(f"{shown} can't be read: it is no file")
            text = stream.read(FILE_BYTES + 1)
    except OSError as error:
        raise Doubt(f"{shown} can't be read: {error.strerror}") from None
    if len(text) > FILE_BYTES:
        raise Doubt(f"{shown} is longer than {FILE_BYTES >> 10} KiB")
    return text


def _open_file(file: str, flags: int) -> int:
    return os.open(file, flags | os.O_NONBLOCK)  # opening a named pipe would wait for a writer


class Names:
    """What names mean: chains of foreign modules, `builtins` among them; the model's own modules as OWN chains."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[Scope, str], frozenset[Chain]] = {}
        self._open: set[tuple[Scope, str]] = set()
        self._met: set[tuple[Scope, str]] = set()  # those of `_open` that following has led to again: names in a circle
        self._steps = _STEPS + _STEPS_PER_BYTE * program.bytes

    def meanings(self, scope: Scope, chain: Chain) -> frozenset[Chain]:
        """Return what `chain` may mean in `scope`. Raises Doubt where names stand for too much."""
        root, *rest = chain
        if root == "":
            return frozenset()
        if root in (MODULE, OWN):
            own = root == OWN or self._program.owns(rest[0])
            return self._own(tuple(rest)) if own else frozenset({tuple(rest)})
        bases: frozenset[Chain] = frozenset()
        if root in ("self", "cls") and rest:
            bases = self._bound(self._program.fields, rest[0])
            if bases:
                return self._extended(bases, rest[1:])
        return self._extended(self._name(scope, root), rest)

    def _step(self, steps: int = 1) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise Doubt("its names can't be followed")

    def _extended(self, bases: frozenset[Chain], rest: list[str]) -> frozenset[Chain]:
        found: set[Chain] = set()
        for base in bases:
            if base[0] == OWN:
                found |= self._own((*base[1:], *rest))
            else:
                found.add((*base, *rest))
        if len(found) > _MEANINGS or any(len(chain) > _LONGEST for chain in found):
            raise Doubt("its names can't be followed")
        return frozenset(found)

    def _name(self, scope: Scope, name: str) -> frozenset[Chain]:
        """Look a name up from `scope` outwards; at last it is a builtin."""
        inner: Scope | None = scope
        while inner is not None:
            self._step()
            if name in inner.elsewhere:
                inner = inner.elsewhere[name]
            if inner is scope or inner.kind != "class":
                if name in inner.bound and (inner, name) not in self._open:
                    return self._bound(inner, name)
                self._met.update({(inner, name)} & self._open)
                for star in inner.stars:
                    found = self._star(star, name)
                    if found is not None:
                        return found
            inner = inner.outer
        return frozenset({("builtins", name)}) if name in _BUILTINS else frozenset()

    def _bound(self, scope: Scope, name: str) -> frozenset[Chain]:
        key = (scope, name)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            self._met.add(key)
            return frozenset()
        self._open.add(key)
        found: set[Chain] = set()
        for where, chain in scope.bound.get(name, ()):
            self._step()
            found |= self.meanings(where, chain)
            if len(found) > _MEANINGS:
                raise Doubt(f"the name {name} stands for more than {_MEANINGS} things in it")
        self._open.discard(key)
        self._met.discard(key)
        if not self._met:
            self._known[key] = frozenset(found)
        else:  # part of a circle that is still being followed: incomplete, so it is not remembered
            self._step(_STEPS_OF_CIRCLE)
        return frozenset(found)

    def _star(self, module: Chain, name: str) -> frozenset[Chain] | None:
        """Return what `from module import *` makes of a name; None where nothing."""
        kind, *parts = module
        if kind != OWN and not self._program.owns(parts[0]):
            return None
        source = self._program.own.get(tuple(parts))
        return None if source is None else self._in_module(source.top, name)

    def _in_module(self, top: Scope, name: str) -> frozenset[Chain] | None:
        self._step()
        key = (top, f"*{name}")
        if key in self._open:  # modules that import all of one another
            return None
        if name in top.bound:
            return self._bound(top, name)
        self._open.add(key)
        try:
            found = (self._star(star, name) for star in top.stars)
            return next((one for one in found if one is not None), None)
        finally:
            self._open.discard(key)

    def _own(self, parts: Chain) -> frozenset[Chain]:
        """Return what a dotted name means that begins with one of the model's own modules."""
        end = len(parts)
        while end and parts[:end] not in self._program.own:
            end -= 1
        source = self._program.own.get(parts[:end])
        if end == len(parts):
            return frozenset({(OWN, *parts)})
        found = None if source is None else self._in_module(source.top, parts[end])
        return self._extended(found or frozenset(), list(parts[end + 1 :]))
