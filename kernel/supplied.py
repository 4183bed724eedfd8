"""What plugins supply is looked at once, when it comes: is all there that will be asked for, and of the right kind?

Python alone would tell of a misspelt `finalize` when the model goes, and of a forgotten `return` never. Objects in, errors out
that say whose it is, what came and which names were wanted; nothing here is asked for a request.
"""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from kernel.config import did_you_mean
from kernel.errors import Code, ServingError
from kernel.interfaces import Placement

__all__ = [
    "BACKEND",
    "BATCHER",
    "CACHE",
    "FRONTEND",
    "GATE",
    "REPOSITORY",
    "SINK",
    "SITE",
    "check_executor",
    "never_answers",
    "require",
    "returned",
]

BACKEND = ("name", "creates_on_loop", "complete_config", "validate", "create")
FRONTEND = ("start", "drain", "stop", "address")
CACHE = ("largest", "lookup", "insert", "usage")
BATCHER = ("choose",)
GATE = ("door",)
REPOSITORY = ("given", "path", "scan", "known", "find", "strays", "mistaken", "close")
SINK = ("opened", "completed", "retired", "close")
SITE = ("routes", "controls", "document", "follow", "close")
_EXECUTOR = ("placement", "capacity", "execute", "finalize")
_LOOP = (*_EXECUTOR, "may_wait")
_REMOTE = ("placement", "capacity", "execute", "attach", "take_back", "cancelled", "close", "kill")

#: What a plugin calls that answers requests otherwise than by what `execute` returns.
_ANSWERS = frozenset({"send", "finished"})


def require(given: object, names: Sequence[str], whose: str) -> None:
    """Raise ServingError where `given` lacks one of the names, with those that come near and all that are wanted."""
    for name in names:
        if not _has(given, name):
            there = {one for one in dir(given) if not one.startswith("_")} - set(names)
            words = f"{whose} ({_kind(given)}) has no '{name}'; wanted are {', '.join(names)}"
            raise _refused(words + did_you_mean(name, there))


def returned(given: object, kinds: type | tuple[type, ...], what: str, wanted: str) -> None:
    """Raise ServingError where a function that `what` stands for has returned something of another kind."""
    if not isinstance(given, kinds):
        hint = "; is a `return` missing?" if given is None else ""
        raise _refused(f"{what} returned {_shown(given)}, wanted {wanted}{hint}")


def check_executor(executor: object, whose: str) -> None:
    """Raise ServingError where an executor lacks something, or has a placement or a capacity that is none."""
    if executor is None:
        raise _refused(f"create of {whose} returned None, wanted an executor; is a `return` missing?")
    placement: Any = getattr(executor, "placement", None)
    whose = f"the executor of {whose}"
    if placement is not None and not isinstance(placement, Placement):
        members = ", ".join(f"Placement.{one.name}" for one in Placement)
        raise _refused(f"{whose} ({_kind(executor)}) has placement {_shown(placement)}, wanted one of {members}")
    names = _REMOTE if placement is Placement.REMOTE else _LOOP if placement is Placement.LOOP else _EXECUTOR
    require(executor, names, whose)
    if placement in (Placement.LOOP, Placement.THREAD) and inspect.iscoroutinefunction(getattr(executor, "execute", None)):
        other = Placement.TASK if placement is Placement.LOOP else Placement.THREAD_TASK
        words = f"whose execute is called and not awaited, but it is `async def`; wanted is {other}, or a plain one"
        raise _refused(f"{whose} ({_kind(executor)}) has Placement.{placement.name}, {words}")
    capacity = getattr(executor, "capacity", None)
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise _refused(f"{whose} ({_kind(executor)}) has capacity {_shown(capacity)}, wanted an integer of at least 1")


def never_answers(executor: object, whose: str) -> str:
    """Return what to say where `execute` returns nothing, and nothing in its module answers requests otherwise; else nothing."""
    execute = getattr(type(executor), "execute", None)
    if getattr(executor, "placement", None) in (Placement.CALLBACK, Placement.REMOTE):
        return ""  # these answer by a call
    if not isinstance(execute, types.FunctionType) or not _returns_nothing(execute.__code__):
        return ""
    module = sys.modules.get(type(executor).__module__)
    beside = list(vars(module).values()) if module is not None else []
    spaces = [list(vars(one).values()) for one in (*type(executor).__mro__, *beside) if isinstance(one, type)]
    codes = [one.__code__ for space in (beside, *spaces) for one in space if isinstance(one, types.FunctionType)]
    if any(_ANSWERS & set(code.co_names) for one in codes for code in _inner(one)):
        return ""
    return (
        f"execute of {whose} ({_kind(executor)}) returns nothing, and nothing beside it calls Kernel.send: its requests would "
        "have no answer. Is a `return` missing? Wanted is a list with a response for each request of the batch"
    )


def _returns_nothing(code: types.CodeType) -> bool:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return False
    before: dis.Instruction | None = None
    returns = False
    for one in dis.get_instructions(code):
        if one.opname == "RETURN_CONST":
            returns = True
            if one.argval is not None:
                return False
        elif one.opname == "RETURN_VALUE":
            returns = True
            if before is None or before.opname != "LOAD_CONST" or before.argval is not None:
                return False
        before = one
    return returns


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inner(constant)


def _has(given: object, name: str) -> bool:
    try:
        inspect.getattr_static(given, name)  # not the value: a property may have none yet
    except AttributeError:
        return hasattr(given, name)
    return True


def _kind(given: object) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


def _shown(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return text if value is None else f"{text} ({type(value).__name__})"


def _refused(words: str) -> ServingError:
    return ServingError(Code.INTERNAL, words)
