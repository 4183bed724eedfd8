"""May a model run in the server's process, beside others? Read from its source, without running any of it.

It may where everything that its files import, followed through its own modules, is known to be safe to share, and nothing that
they mention says otherwise; shareable.py has the tables. In doubt it may not: then a process of its own is right, as in the
reference, and costs the way there and back. This rule is for models that mean no harm; it is no sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_python.loading.judging import Judge
from kernel_python.loading.mentions import MODULE, OWN, Chain, Class, Source
from kernel_python.loading.sources import Doubt, Program

__all__ = ["SAFE_REASON", "Evidence", "examine"]

SAFE_REASON = "its code and what it imports are known to be safe to share"
#: A name of more parts than this leads nowhere.
_LONGEST = 10


@dataclass(frozen=True)
class Evidence:
    """`shareable`: whether the model may run in the server's process; `reason`: why, or why not.

    `asynchronous`: whether `execute` is `async def`; None where that can't be told.
    """

    shareable: bool
    reason: str
    asynchronous: bool | None


def examine(
    file: Path, version_folder: Path, model_folder: Path, shared_modules: frozenset[str] = frozenset()
) -> Evidence:
    """Say whether the model in `file` may share its process. `shared_modules`: names that are safe besides those known to be.

    Never raises for what the files hold; takes time linear in their bytes.
    """
    judge = Judge(shared_modules)
    try:
        program = Program(file, version_folder, model_folder, judge.of_import)
        doubt = program.doubt or judge.of_mentions(program)
        return Evidence(doubt is None, doubt or SAFE_REASON, _asynchronous(program))
    except Doubt as doubt:
        return Evidence(False, str(doubt), None)
    except (RecursionError, MemoryError, OSError, ValueError) as error:
        return Evidence(False, f"{file.name} can't be examined: {type(error).__name__}", None)


def _asynchronous(program: Program) -> bool | None:
    """Return whether `execute` of TritonPythonModel is `async def`; None where that can't be told."""
    if program.main is None:
        return None
    try:
        found = _Executes(program).of(program.main, ("TritonPythonModel",))
    except RecursionError:
        return None
    return found.pop() if len(found) == 1 else None


class _Executes:
    """Looks for `execute` in a class and those that it inherits from.

    Answers are sets of what it may be: True where it is `async def`, None where that can't be told; empty where there is none.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._seen: set[tuple[Source, Chain]] = set()

    def of(self, source: Source, name: Chain) -> set[bool | None]:
        """Look in what `name` stands for at the top level of a file."""
        if (source, name) in self._seen:
            return set()
        self._seen.add((source, name))
        if name == ("object",) and "object" not in source.top.bound:
            return set()
        if len(name) == 1 and name[0] in source.classes:
            return {answer for found in source.classes[name[0]] for answer in self._of_class(source, found)}
        found: set[bool | None] = set()
        for _, chain in source.top.bound.get(name[0], {}):
            found |= self._of_chain(source, (*chain, *name[1:]))
        return found or {None}

    def _of_class(self, source: Source, found: Class) -> set[bool | None]:
        if "execute" in found.methods:
            return {found.methods["execute"]}
        for base in found.bases:
            inherited: set[bool | None] = {None} if base is None else self.of(source, base)
            if inherited:
                return inherited
        return set()

    def _of_chain(self, source: Source, chain: Chain) -> set[bool | None]:
        """Follow a name into the module that it is from."""
        if chain[0] not in (MODULE, OWN):
            return self.of(source, chain) if len(chain) < _LONGEST else {None}
        module = self._program.own.get(chain[1:-1])
        return {None} if module is None else self.of(module, chain[-1:])
