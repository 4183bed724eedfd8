"""Modules of the standard library as a model in the server sees them: those that find modules by name, or say where they lie.

A model's own modules have private names (modules.py), so what is asked for a module by the name that its author knows has to
know whose code asks: `importlib.import_module`, `pickle.load`, `pydoc.locate`. Pickles that a model writes say the author's
names, which any other process knows. `sys.path` is a list of the model's own, whose changes the real one follows. All else about
these modules is the real ones'; libraries see only those.
"""

from __future__ import annotations

import importlib
import io
import operator
import pickle
import pydoc
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

__all__ = ["ModelPath", "Modules", "views_of"]


class Modules(Protocol):
    """The private modules of one instance, as its views ask for them; modules.py has them."""

    package: str

    def private_import(self, name: str, /) -> types.ModuleType:
        """What `__import__` is in the instance's code."""

    def import_module(self, name: str, package: str | None = None) -> types.ModuleType:
        """Import as `importlib.import_module` does, the model's own modules first."""

    def named(self, name: str) -> types.ModuleType | None:
        """Return the model's own module of a name as its author knows it, None if it has none."""

    def public(self, name: str) -> str:
        """Return the name of a module of the model as its author knows it."""


class View(types.ModuleType):
    """A module of which the model has some attributes of its own."""

    def __init__(self, real: types.ModuleType, **own: Any) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__.update(own, __spec__=real.__spec__, __loader__=real.__loader__, __package__=real.__package__)
        self.__dict__["real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self.__dict__["real"], name, value)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["real"])


class SysView(View):
    """`sys`; a list that is assigned to `sys.path` is copied."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "path":
            self.path[:] = value
        else:
            super().__setattr__(name, value)


#: What `from sys import *` gives; `sys` itself has no such list, and a view that has none would give its own attributes only.
_NAMES_OF_SYS = [name for name in dir(sys) if not name.startswith("_")]


def views_of(modules: Modules, path: ModelPath) -> dict[str, View]:
    """Return the views of one instance, by name."""
    own_pickle = _Pickling(modules)
    return {
        "importlib": View(importlib, import_module=modules.import_module, __import__=modules.private_import),
        "pickle": View(
            pickle,
            dump=own_pickle.dump,
            dumps=own_pickle.dumps,
            load=own_pickle.load,
            loads=own_pickle.loads,
            Unpickler=own_pickle.unpickler,
        ),
        "pydoc": View(pydoc, locate=_locating(modules)),
        "sys": SysView(sys, path=path, __all__=_NAMES_OF_SYS.copy()),
    }


# -- sys.path ----------------------------------------------------------------------------------------------------------


#: Entries of the real `sys.path` that models have put there, and how many instances want each.
_shared: Counter[str] = Counter()
_lock = threading.Lock()


class ModelPath(list[str]):
    """`sys.path` of one instance: what the server has, and the model's folders behind it, as in the reference.

    What the model adds or takes away is done to the real one, too: libraries are to find it. `leave` undoes that.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        with _lock:
            super().__init__([*(entry for entry in sys.path if entry not in _shared), *folders])
        self.base = frozenset(self)
        self._before: list[str] = list(self)
        self._added: set[str] = set()

    def added(self) -> tuple[list[str], list[str]]:
        """Return what the model has put in front of everything installed, and what behind."""
        front: list[str] = []
        back: list[str] = []
        seen = False
        for entry in self:
            if entry in self.base:
                seen = True
            elif isinstance(entry, str):
                (back if seen else front).append(entry)
        return front, back

    def leave(self) -> None:
        """Take away what only this instance has added."""
        with _lock:
            for entry in self._added:
                self._take_away(entry)
            self._added = set()

    def _follow(self) -> None:
        before, now = Counter(self._before), Counter(self)
        with _lock:
            for entry in before - now:
                if entry in self._added:
                    self._added.discard(entry)
                    self._take_away(entry)
                elif entry in sys.path and entry not in now:
                    sys.path.remove(entry)
            front, new = self.added()[0], now - before
            for entry in reversed([entry for entry in front if entry in new]):
                self._add(entry, True)
            for entry in new:
                if entry not in front:
                    self._add(entry, False)
        self._before = list(self)

    def _add(self, entry: str, in_front: bool) -> None:
        if entry in self._added or (entry in sys.path and entry not in _shared):
            return
        self._added.add(entry)
        _shared[entry] += 1
        if entry not in sys.path:
            sys.path.insert(0 if in_front else len(sys.path), entry)

    @staticmethod
    def _take_away(entry: str) -> None:
        _shared[entry] -= 1
        if not _shared[entry]:
            del _shared[entry]
            if entry in sys.path:
                sys.path.remove(entry)


def _followed(name: str) -> Callable[..., Any]:
    change = getattr(list, name)

    def changed(self: ModelPath, *args: Any, **named: Any) -> Any:
        result = change(self, *args, **named)
        self._follow()
        return result

    changed.__name__ = name
    return changed


for _name in ("append", "clear", "extend", "insert", "pop", "remove", "__delitem__", "__iadd__", "__setitem__"):
    setattr(ModelPath, _name, _followed(_name))


# -- pickle and pydoc ----------------------------------------------------------------------------------------------------


class _Pickling:
    """`pickle` for one instance."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules

        class Unpickler(pickle.Unpickler):
            """Finds the model's own classes by the names that their author knows, before those of others."""

            def find_class(self, module: str, name: str) -> Any:
                found = modules.named(module)
                return super().find_class(module if found is None else found.__name__, name)

        self.unpickler = Unpickler

    def loads(self, data: Any, /, **named: Any) -> Any:
        return self.unpickler(io.BytesIO(data), **named).load()

    def load(self, file: Any, /, **named: Any) -> Any:
        return self.unpickler(file, **named).load()

    def dumps(self, obj: Any, protocol: int | None = None, **named: Any) -> bytes:
        data = pickle.dumps(obj, protocol, **named)
        if self._modules.package.encode() not in data or named.get("buffer_callback") is not None:
            return data
        out = io.BytesIO()  # pickled anew by the slow Python version, which can write other names
        _Renaming(out, self._modules, protocol, **named).dump(obj)
        return out.getvalue()

    def dump(self, obj: Any, file: Any, protocol: int | None = None, **named: Any) -> None:
        file.write(self.dumps(obj, protocol, **named))


_PythonPickler: Any = pickle._Pickler  # the one that is written in Python


class _Renaming(_PythonPickler):  # type: ignore[misc]
    """Writes classes and functions of a model under the names that its author knows."""

    dispatch: ClassVar[dict[Any, Any]] = dict(_PythonPickler.dispatch)

    def __init__(self, file: Any, modules: Modules, protocol: int | None, **named: Any) -> None:
        super().__init__(file, protocol, **named)
        self._modules = modules

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = getattr(obj, "__module__", None) or ""
        if not module.startswith(self._modules.package + "."):
            super().save_global(obj, name)
            return
        public = self._modules.public(module)
        name = name or obj.__qualname__
        outer, _, last = name.rpartition(".")
        if outer and self.proto < 4:
            self.save_reduce(getattr, (operator.attrgetter(outer)(sys.modules[module]), last), obj=obj)
            return
        if self.proto >= 4:
            self.save(public)
            self.save(name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + public.encode() + b"\n" + name.encode() + b"\n")
        self.memoize(obj)

    dispatch[types.FunctionType] = save_global


def _locating(modules: Modules) -> Callable[..., Any]:
    def locate(path: str, forceload: bool = False) -> Any:
        """Return the object that a dotted path names, the model's own ones first; None where there is none."""
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            found: Any = modules.named(".".join(parts[:end]))
            if found is None:
                continue
            for part in parts[end:]:
                found = getattr(found, part, None)
            return found
        return pydoc.locate(path, forceload)

    return locate
