"""May a model run in the server's process, beside others? Read from its source, without running any of it.

It may where everything that its files import, followed through its own modules, is known to be safe to share, and nothing that
they mention says otherwise; shareable.py has the tables. In doubt it may not: then a process of its own is right, as in the
reference, and costs a hop. This rule is for models that mean no harm; it is no sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_python.mentions import MODULE, OWN, STORED, VALUE, Chain, Class, Import, Mention, Scope, Source
from kernel_python.shareable import ONLY, SAFE, UNSAFE, UNSAFE_ATTRIBUTES
from kernel_python.sources import Doubt, Names, Program

__all__ = ["SAFE_REASON", "Evidence", "examine"]

SAFE_REASON = "its code and what it imports are known to be safe to share"

#: Reached through another module (`logging.os`), these are what they are anywhere.
_INNER = frozenset({"builtins", "ctypes", "gc", "importlib", "multiprocessing", "os", "signal", "sys", "warnings"})
_UNKNOWN = "not known to be safe to share"
_SHARED_BY_ALL = "which all models share"
#: How many names and base classes lead to `execute` at most.
_DEPTH = 20


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
    try:
        program = Program(file, version_folder, model_folder)
        doubt = program.unread or _first_doubt(program, shared_modules)
        return Evidence(doubt is None, doubt or SAFE_REASON, _asynchronous(program))
    except Doubt as doubt:
        return Evidence(False, str(doubt), None)
    except (RecursionError, MemoryError, OSError, ValueError) as error:
        return Evidence(False, f"{file.name} can't be examined: {type(error).__name__}", None)


def _first_doubt(program: Program, shared_modules: frozenset[str]) -> str | None:
    """Return the weightiest reason why the model may not be shared, None where there is none: imports come before the rest."""
    judge = _Judge(program, shared_modules)
    return next(judge.of_imports(), None) or next(judge.of_mentions(), None)


class _Judge:
    """Holds what a program imports and mentions against the tables."""

    def __init__(self, program: Program, shared_modules: frozenset[str]) -> None:
        self._program = program
        self._names = Names(program)
        self._shared = shared_modules
        self._modules = {
            ".".join(one.module[1 : end + 1]) for _, one in program.foreign for end in range(1, len(one.module))
        }

    def of_imports(self) -> Iterator[str]:
        for shown, one in self._program.foreign:
            found = self._import(one, f"({shown}:{one.line})")
            if found is not None:
                yield found

    def of_mentions(self) -> Iterator[str]:
        for shown, source in self._program.files:
            for line in source.exits:
                yield f"raises SystemExit ({shown}:{line}), which ends the server"
            for mention in source.mentions:
                found = self._mention(mention)
                if found is not None:
                    what, why = found
                    yield f"{what} ({shown}:{mention.line}){why}"

    def _import(self, one: Import, place: str) -> str | None:
        module = ".".join(one.module[1:])
        if self._is_shared(module):
            return None
        if one.module[1] not in SAFE:
            cause = UNSAFE.get(one.module[1])
            return f"imports {module} {place}" + (f", which {cause}" if cause else "")
        found = _forbidden(one.module[1:])
        if found is not None:
            return f"imports {module} {place}{found[1]}"
        if "*" in one.names and (module in ONLY or any(name.startswith(f"{module}.") for name in UNSAFE)):
            return f"imports everything of {module} {place}, some of it {_UNKNOWN}"
        return None

    # -- mentions ------------------------------------------------------------------------------------------------------

    def _mention(self, mention: Mention) -> tuple[str, str] | None:
        """Return what a mention does and what is wrong with that; None where nothing is."""
        for part in mention.chain[1:]:
            if part in UNSAFE_ATTRIBUTES:
                return f"uses {part}", f", which {UNSAFE_ATTRIBUTES[part]}"
        for meaning in sorted(self._names.meanings(mention.scope, mention.chain)):
            found = None if meaning[0] == OWN else self._meaning(meaning, mention)
            if found is not None:
                return found
        return None

    def _meaning(self, chain: Chain, mention: Mention) -> tuple[str, str] | None:
        if any(self._is_shared(name) for name in _prefixes(chain)):
            return None
        found = _forbidden(chain) or self._inner(chain) or self._calls(chain, mention)
        if found is not None:
            return found
        name = _dotted(chain)
        if mention.use is STORED and len(chain) > 1 and chain[0] != "builtins":
            changed = _dotted(chain[:-1])
            if not changed.endswith(("(…)", "()", "[]")):
                return f"changes {changed if chain[-1] == '[]' else name}", f", {_SHARED_BY_ALL}"
        if mention.use is VALUE and name in self._modules:
            return f"hands on the module {name}", ", so that it can't be seen what is done with it"
        return None

    def _inner(self, chain: Chain) -> tuple[str, str] | None:
        """Judge a module that is reached through another."""
        for place, part in enumerate(chain[1:], 1):
            if part in _INNER:
                return _forbidden(chain[place:])
            if part.endswith((")", "]")):
                return None
        return None

    def _calls(self, chain: Chain, mention: Mention) -> tuple[str, str] | None:
        """Judge what depends on how it is called. A call is as far from the end of a meaning as from that of what is written."""
        for place, call in mention.calls:
            at = len(chain) - (len(mention.chain) - place)
            rule = _RULES.get(_dotted(chain[:at])) if at > 0 else None
            problem = rule(call, mention.scope) if rule else None
            if problem is not None:
                return f"calls {_dotted(chain[:at])}", f" {problem}"
        if mention.use is VALUE and _dotted(chain) in _HANDED_ON:
            return f"hands on {_dotted(chain)}", ", so that it can't be seen how it is called"
        return None

    def _is_shared(self, name: str) -> bool:
        return any(prefix in self._shared for prefix in _prefixes(name.split(".")))


def _dotted(chain: Chain | list[str]) -> str:
    """Return a chain as it is written: `os.environ[]`, `logging.getLogger().name`."""
    return "".join(part if part[:1] in ("(", "[") else f".{part}" for part in chain)[1:]


def _prefixes(chain: Chain | list[str]) -> Iterator[str]:
    return (_dotted(chain[:end]) for end in range(1, len(chain) + 1))


def _forbidden(chain: Chain) -> tuple[str, str] | None:
    """Return what is wrong with a name of a foreign module whatever is done with it."""
    before = ""
    for end, name in enumerate(_prefixes(chain)):
        if name in UNSAFE:
            return f"uses {name.removeprefix('builtins.')}", f", which {UNSAFE[name]}"
        if before in ONLY and chain[end] not in ONLY[before]:
            return f"uses {name}", f", {_UNKNOWN}"
        before = name
    return None


# -- calls that are safe or not by how they are made: None, or what is wrong ----------------------------------------------

_Rule = Callable[[ast.Call, Scope], "str | None"]


def _keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    """Return what a call gives by name; None is the name of `**more`."""
    return {keyword.arg: keyword.value for keyword in call.keywords}


def _constant(node: ast.expr | None, default: object = None) -> object:
    return node.value if isinstance(node, ast.Constant) else default


def _child(call: ast.Call, scope: Scope) -> str | None:
    """Allow programs that are started plainly: no code of the model runs in a copy of the server, no open file is handed on."""
    given = _keywords(call)
    if None in given or any(isinstance(argument, ast.Starred) for argument in call.args):
        return "with arguments that can't be seen"
    if len(call.args) > 6:  # the next is preexec_fn
        return "with many unnamed arguments"
    return _child_task(call, scope)


def _child_task(call: ast.Call, scope: Scope) -> str | None:
    given = _keywords(call)
    if None in given:
        return "with arguments that can't be seen"
    wrong = [name for name in ("preexec_fn", "close_fds") if _constant(given.get(name), "?" if name in given else None)]
    return f"with {wrong[0]}, in a copy of the server" if wrong and wrong != ["close_fds"] else None


def _array_file(call: ast.Call, scope: Scope) -> str | None:
    allowed = _keywords(call).get("allow_pickle", ast.Constant(False))
    return (
        None
        if _constant(allowed, True) is False
        else "with allow_pickle, which finds classes by the names of their modules"
    )


def _array_file_read(call: ast.Call, scope: Scope) -> str | None:
    return _array_file(call, scope) if len(call.args) < 3 else "with many unnamed arguments"


def _own_loop(call: ast.Call, scope: Scope) -> str | None:
    return "while it is imported" if scope.on_import() else None


def _this_loop(call: ast.Call, scope: Scope) -> str | None:
    """Outside of coroutines it makes a loop for the main thread, which here is the server's."""
    inner: Scope | None = scope
    while inner is not None and inner.kind == "lambda":
        inner = inner.outer
    return None if inner is not None and inner.kind == "async def" else "outside of a coroutine"


def _import_by_name(call: ast.Call, scope: Scope) -> str | None:
    return "with a name that can't be seen"  # others have become imports


def _logger(call: ast.Call, scope: Scope) -> str | None:
    name = _constant(call.args[0]) if call.args else None
    return f"for {name}, the server's" if str(name).partition(".")[0].startswith("kernel") else None


def _descriptor(call: ast.Call, scope: Scope) -> str | None:
    number = _constant(call.args[0]) if call.args else None
    return f"of {number}, which is the server's" if number in (0, 1, 2) else None


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        [f"subprocess.{name}" for name in "Popen call check_call check_output getoutput getstatusoutput run".split()],
        _child,
    ),
    "asyncio.create_subprocess_exec": _child_task,
    "asyncio.create_subprocess_shell": _child_task,
    "numpy.load": _array_file_read,
    "numpy.save": _array_file,
    "asyncio.Runner": _own_loop,
    "asyncio.run": _own_loop,
    "asyncio.get_event_loop": _this_loop,
    "importlib.import_module": _import_by_name,
    "logging.getLogger": _logger,
    "os.close": _descriptor,
}
#: Where one of these is handed on, nobody sees how it is called.
_HANDED_ON = frozenset(
    name for name, rule in _RULES.items() if rule in (_child, _child_task, _this_loop, _import_by_name)
)


# -- async def execute ------------------------------------------------------------------------------------------------------


def _asynchronous(program: Program) -> bool | None:
    """Return whether `execute` of TritonPythonModel is `async def`; None where that can't be told."""
    if program.main is None:
        return None
    found = _executes(program, program.main, ("TritonPythonModel",), 0)
    return found.pop() if len(found) == 1 else None


def _executes(program: Program, source: Source, chain: Chain, depth: int) -> set[bool | None]:
    """Return what `execute` of the class that `chain` names in a file may be; nothing where it has none."""
    if depth > _DEPTH:
        return {None}
    if len(chain) == 1 and chain[0] in source.classes:
        return {one for found in source.classes[chain[0]] for one in _of_class(program, source, found, depth)}
    if len(chain) == 1 and chain[0] == "object" and chain[0] not in source.top.bound:
        return set()
    found: set[bool | None] = set()
    for _, alias in source.top.bound.get(chain[0], {}):
        found |= _elsewhere(program, source, (*alias, *chain[1:]), depth + 1)
    return found or {None}


def _elsewhere(program: Program, source: Source, chain: Chain, depth: int) -> set[bool | None]:
    """Follow a name into the module that it is from."""
    if chain[0] not in (MODULE, OWN):
        return _executes(program, source, chain, depth)
    parts = chain[1:]
    module = program.own.get(parts[:-1])
    return {None} if module is None else _executes(program, module, parts[-1:], depth)


def _of_class(program: Program, source: Source, found: Class, depth: int) -> set[bool | None]:
    if "execute" in found.methods:
        return {found.methods["execute"]}
    for base in found.bases:
        inherited: set[bool | None] = {None} if base is None else _executes(program, source, base, depth + 1)
        if inherited:
            return inherited
    return set()
