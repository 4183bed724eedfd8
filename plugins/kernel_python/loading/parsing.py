"""Python's syntax trees, made by one thread at a time.

CPython 3.11 counts the depth of a tree that it turns into objects for all threads together, and raises SystemError where two do
that at once. Models load on several threads, and some of them parse, too.
"""

from __future__ import annotations

import ast
import threading

__all__ = ["tree_of"]

_lock = threading.Lock()
_TRIES = 5


def tree_of(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Return the tree of a file. Raises what `ast.parse` does for what is no source: SyntaxError, ValueError and the like."""
    with _lock:
        for _ in range(_TRIES):
            try:
                return ast.parse(source, name)
            except SystemError:  # another thread parses without our lock (`import` does); see above
                continue
        return ast.parse(source, name)
