"""Is what a model imports and says safe to share? Holds it against the tables of shareable.py, and says what is not.

Most names are safe or not whatever is done with them; a few calls are so by how they are made, which are at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernel_python.loading.mentions import OWN, STORED, UNTOLD, VALUE, Call, Chain, Import, Mention, Scope
from kernel_python.loading.shareable import ONLY, SAFE, UNSAFE, UNSAFE_ATTRIBUTES
from kernel_python.loading.sources import Names, Program

__all__ = ["Judge"]

#: Reached through another module (`logging.os`), these are what they are anywhere.
_INNER = frozenset({"builtins", "ctypes", "gc", "importlib", "multiprocessing", "os", "signal", "sys", "warnings"})
_UNKNOWN = "not known to be safe to share"
_SHARED_BY_ALL = "which all models share"


class Judge:
    """Holds what a model imports and mentions against the tables, `shared_modules` being safe whatever they say."""

    def __init__(self, shared_modules: frozenset[str]) -> None:
        self._shared = shared_modules

    def of_import(self, shown: str, one: Import) -> str | None:
        """Return why an import in a file is not safe; None where it is."""
        place = f"({shown}:{one.line})"
        module = ".".join(one.module[1:])
        if self._is_shared(one.module[1:]):
            return None
        if one.module[1] not in SAFE:
            cause = UNSAFE.get(one.module[1])
            return f"imports {module} {place}" + (f", which {cause}" if cause else "")
        found = _forbidden(one.module[1:])
        if found is not None:
            return f"imports {module} {place}{found[1]}"
        if "*" in one.names and module in _MODULES:
            return f"imports everything of {module} {place}, some of it {_UNKNOWN}"
        return None

    def of_mentions(self, program: Program) -> str | None:
        """Return why something that is said in the files is not safe: the first that isn't."""
        names = Names(program)
        for shown, source in program.files:
            if source.exits:
                return f"raises SystemExit ({shown}:{source.exits[0]}), which ends the server"
            for mention in source.mentions:
                found = self._mention(mention, names)
                if found is not None:
                    what, why = found
                    return f"{what} ({shown}:{mention.line}){why}"
        return None

    # -- mentions ------------------------------------------------------------------------------------------------------

    def _mention(self, mention: Mention, names: Names) -> tuple[str, str] | None:
        """Return what a mention does and what is wrong with that; None where nothing is."""
        for part in mention.chain[1:]:
            if part in UNSAFE_ATTRIBUTES:
                return f"uses {part}", f", which {UNSAFE_ATTRIBUTES[part]}"
        if mention.use is STORED:  # `a.b = 1` changes a: what stands before the last part
            base = names.meanings(mention.scope, mention.chain[:-1])
            meanings = {(*meaning, mention.chain[-1]) for meaning in base}
        else:
            meanings = {*names.meanings(mention.scope, mention.chain)}
        for meaning in sorted(meanings):
            found = None if meaning[0] == OWN else self._meaning(meaning, mention)
            if found is not None:
                return found
        return None

    def _meaning(self, chain: Chain, mention: Mention) -> tuple[str, str] | None:
        if self._is_shared(chain):
            return None
        chain = _innermost(chain)
        found = _forbidden(chain) or self._calls(chain, mention)
        if found is not None:
            return found
        name = _dotted(chain)
        if mention.use is STORED and chain[0] != "builtins":
            changed = _dotted(chain[:-1])
            if not changed.endswith(("(…)", "()", "[]")):
                return f"changes {changed if chain[-1] == '[]' else name}", f", {_SHARED_BY_ALL}"
        if _changes_contents(chain):
            return f"changes {_dotted(chain[:-2])}", f", {_SHARED_BY_ALL}"
        if mention.use is VALUE and name in _MODULES:
            return f"hands on {name}", ", so that it can't be seen what is done with it"
        return None

    def _calls(self, chain: Chain, mention: Mention) -> tuple[str, str] | None:
        """Judge what depends on how it is called.

        A meaning begins in another way than what is written, and ends in the same: so a call in it is found from the end.
        """
        for length, call in mention.calls:
            at = len(chain) - (len(mention.chain) - length)
            rule = _RULES.get(_dotted(chain[:at])) if at > 0 else None
            problem = rule(call, mention.scope) if rule else None
            if problem is not None:
                return f"calls {_dotted(chain[:at])}", f" {problem}"
        if mention.use is VALUE and _dotted(chain) in _HANDED_ON:
            return f"hands on {_dotted(chain)}", ", so that it can't be seen how it is called"
        return None

    def _is_shared(self, chain: Chain) -> bool:
        return bool(self._shared) and any(name in self._shared for name in _prefixes(chain))


def _is_private(name: str) -> bool:
    return name == "__dict__" or (name.startswith("_") and not name.startswith("__"))


def _dotted(chain: Chain | list[str]) -> str:
    """Return a chain as it is written: `os.environ[]`, `logging.getLogger().name`."""
    return "".join(part if part[:1] in ("(", "[") else f".{part}" for part in chain)[1:]


def _prefixes(chain: Chain | list[str]) -> Iterator[str]:
    return (_dotted(chain[:end]) for end in range(1, len(chain) + 1))


def _innermost(chain: Chain) -> Chain:
    """Return a chain from the last module on that is reached through another."""
    start = 0
    for index, part in enumerate(chain):
        if part in _INNER:
            start = index
        if part.endswith((")", "]")):
            break
    return chain[start:]


def _forbidden(chain: Chain) -> tuple[str, str] | None:
    """Return what is wrong with a name of a foreign module whatever is done with it."""
    before = ""
    for end, name in enumerate(_prefixes(chain)):
        if name in UNSAFE:
            return f"uses {name.removeprefix('builtins.')}", f", which {UNSAFE[name]}"
        part = chain[end]
        if (before in ONLY and part not in ONLY[before]) or (end and _is_private(part) and before[-1:] not in ")]"):
            return f"uses {name}", f", {_UNKNOWN}"
        before = name
    return None


#: Methods of lists, sets and dictionaries; in numpy the first two are functions, too.
_CHANGING = frozenset("append insert clear discard extend popitem setdefault update".split())


def _changes_contents(chain: Chain) -> bool:
    """Return whether it calls a method that changes a collection which belongs to a module: `urllib.parse.uses_netloc.append(…)`.

    Neither the result of a call does, nor an object of the caller's, for which a method of a class is called.
    """
    *base, method, call = chain if len(chain) > 3 else ("", "", "")
    if method not in _CHANGING or call not in ("()", "(…)") or base[0] in ("", "builtins"):
        return False
    if base[0] == "numpy" and method in ("append", "insert"):
        return False
    return not base[-1][:1].isupper() and not any(part[:1] in "([" for part in base)


#: Modules and objects of which some part isn't safe: handed on, nobody can see which part is used.
_MODULES = frozenset(
    name
    for unsafe in (*UNSAFE, *ONLY)
    for name in [*_prefixes(unsafe.split("."))][: None if unsafe in ONLY else -1]
    if not name.startswith(("builtins", "os.environ", "asyncio.get_"))
    and name not in ("sys.stdin", "sys.stdout", "sys.stderr")  # handed on to be printed to; nothing they have is unsafe
    and not name.rpartition(".")[2][:1].isupper()
)


# -- calls that are safe or not by how they are made: None, or what is wrong ----------------------------------------------

_Rule = Callable[[Call, Scope], "str | None"]


def _child(call: Call, scope: Scope) -> str | None:
    """Allow programs that are started plainly: no code of the model runs in a copy of the server, no open file is handed on."""
    if call.more:
        return "with arguments that can't be seen"
    if call.count > 6:  # the seventh positional argument of Popen is preexec_fn
        return "with many unnamed arguments"
    return _child_task(call, scope)


def _child_task(call: Call, scope: Scope) -> str | None:
    if None in call.named:
        return "with arguments that can't be seen"
    for name, harmless in (("preexec_fn", None), ("close_fds", True)):
        if call.named.get(name, harmless) is not harmless:
            return f"with {name}"
    return None


def _array_file(call: Call, scope: Scope) -> str | None:
    if call.named.get("allow_pickle", False) is False:
        return None
    return "with allow_pickle, which finds classes by the names of their modules"


def _array_file_read(call: Call, scope: Scope) -> str | None:
    return _array_file(call, scope) if call.count < 3 else "with many unnamed arguments"


def _own_loop(call: Call, scope: Scope) -> str | None:
    return "while it is imported" if scope.on_import() else None


def _this_loop(call: Call, scope: Scope) -> str | None:
    """Allow `get_event_loop` in coroutines; elsewhere it makes a loop for the main thread, and that is the server's."""
    inner: Scope | None = scope
    while inner is not None and inner.kind == "lambda":
        inner = inner.outer
    return None if inner is not None and inner.kind == "async def" else "outside of a coroutine"


def _import_by_name(call: Call, scope: Scope) -> str | None:
    return "with a name that can't be seen"  # calls with a constant were read as imports (mentions.py)


def _logger(call: Call, scope: Scope) -> str | None:
    name = str(call.first)
    return f"for {name}, the server's" if name.partition(".")[0].startswith("kernel") else None


def _log_setup(call: Call, scope: Scope) -> str | None:
    """Allow `basicConfig`, which does nothing beside the server's log, where only the look of a model's lines is lost by that."""
    more = [str(name or "**") for name in call.named if name not in ("level", "format", "datefmt", "style")]
    if more or call.count:
        return f"with {', '.join(more) or 'unnamed arguments'}, which changes the server's log"
    level = call.named.get("level", 30)
    return None if str(level).removeprefix(".") in _LEVELS else "for lines that the server's log leaves out"


def _descriptor(call: Call, scope: Scope) -> str | None:
    number = call.first if call.count else UNTOLD
    return f"of {number}, which is the server's" if number in (0, 1, 2) else None


#: What the server's log always shows.
_LEVELS = frozenset("INFO 20 WARNING WARN 30 ERROR 40 CRITICAL FATAL 50".split())

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        [f"subprocess.{name}" for name in "Popen call check_call check_output getoutput getstatusoutput run".split()],
        _child,
    ),
    **dict.fromkeys(
        [f"asyncio.{within}create_subprocess_{how}" for within in ("", "subprocess.") for how in ("exec", "shell")],
        _child_task,
    ),
    "numpy.load": _array_file_read,
    "numpy.save": _array_file,
    "asyncio.Runner": _own_loop,
    "asyncio.run": _own_loop,
    "asyncio.get_event_loop": _this_loop,
    "importlib.import_module": _import_by_name,
    "logging.basicConfig": _log_setup,
    "logging.getLogger": _logger,
    "os.close": _descriptor,
}
#: Where one of these is handed on, nobody sees how it is called.
_HANDED_ON = frozenset(
    name for name, rule in _RULES.items() if rule in (_child, _child_task, _this_loop, _import_by_name, _log_setup)
)
