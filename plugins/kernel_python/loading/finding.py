"""Where the modules of a model are: found as Python finds them, in the model's own folders before anywhere else.

One rule for the imports of models in the server (modules.py), for what is read of their source (sources.py) and for what is
checked of it (source_check.py). Looks for modules and runs none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import FileFinder, ModuleSpec

__all__ = ["SERVED_BY_US", "exists", "find", "spec_of"]

#: Never taken from a model's folder: people leave stand-ins for these beside their models, to edit or test them alone.
SERVED_BY_US = frozenset({"triton_python_backend_utils", "c_python_backend_utils"})


def find(name: str, folders: Iterable[str], finder_of: Callable[[str], FileFinder]) -> ModuleSpec | None:
    """Return the spec of a module in the first of `folders` that has one, by each folder's finder; None where none has.

    Folders of that name without an `__init__` are one package together, which a module in a later folder goes before; its
    spec has no loader.
    """
    locations: list[str] = []
    for folder in folders:
        spec = finder_of(folder).find_spec(name)
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        locations.extend(spec.submodule_search_locations or ())
    if not locations:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = locations
    return spec


def exists(top: str) -> bool:
    """Whether the normal path has a module `top`; a mere folder of that name in a model's folder does not hide it."""
    return spec_of(top) is not None or top in sys.modules


def spec_of(top: str) -> ModuleSpec | None:
    """Return the spec of a top-level module on the normal path, None where there is none."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
