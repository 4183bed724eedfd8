"""What went wrong in a model, in the reference's words: exception texts, argument mismatches, error codes.

Pure text work: turns exceptions of models into the sentences that clients and load reports are shown. Knows no request.
"""

from __future__ import annotations

import enum
import itertools
import os
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

from kernel import Code, Reason, ServingError

__all__ = [
    "ErrorCode",
    "PybindEnum",
    "TritonModelException",
    "as_text",
    "asked_in_vain",
    "chain_of",
    "describe",
    "execution_error",
    "incompatible",
    "public_names",
]

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CHAIN, _TEXT = 20, 10_000  # exceptions of a chain, and frames of each; characters of a text: what is told at most
_PRIVATE = re.compile(r"kernel_model_\d+\.")
_PACKAGE = re.compile(r"kernel_model_\d+")


class TritonModelException(Exception):
    """What the functions of `triton_python_backend_utils` raise. From `execute` it acts like any other exception."""

    __module__ = "c_python_backend_utils"


class PybindEnum(enum.Enum):
    """An enum that prints itself as the reference's enums do."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class ErrorCode(PybindEnum):
    """The codes of TritonError, in the order of `kernel.Code`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = "__ErrorCode"
ErrorCode.__qualname__ = "TritonError.__ErrorCode"
ErrorCode.__module__ = "c_python_backend_utils"


def public_names(text: str, main: str = "", shown: str = "") -> str:
    """Return `text` with the private names of a model's modules replaced by those that its author knows.

    `main` is the private name of the model's own file and `shown` what the reference calls it, e.g. `1.model`.
    """
    if main:
        text = text.replace(main, shown)
    text = _PRIVATE.sub("", text)
    return _PACKAGE.sub(shown.partition(".")[0], text) if shown else text


def describe(error: BaseException, main: str = "", shown: str = "") -> str:
    """Return `<name>: <text>\\n\\nAt:\\n  <file>(<line>): <function>\\n`, innermost frame first (contract: python_backend, 2.3).

    Only frames of the model and what it called are listed: none of the import system's, none of ours.
    """
    try:
        text = str(error) or "<EMPTY MESSAGE>"
    except Exception:  # the model's own __str__ may raise; name and place are told all the same
        text = "<exception text not available>"
    frames = [f"  {file}({line}): {function}\n" for file, line, function, _ in _frames(error)]
    where = "\n\nAt:\n" + "".join(frames) if frames else ""
    return public_names(f"{type(error).__name__}: {text}", main, shown) + where


def chain_of(error: BaseException) -> list[tuple[Any, ...]]:
    """Return `error` and what it was caused by, each as its name, text, frames and place: what a message can carry.

    They are the arguments of kernel.ModelError.
    """
    chain: list[tuple[Any, ...]] = []
    current: BaseException | None = error
    while current is not None and len(chain) < _CHAIN:
        try:
            text = str(current)
        except Exception:
            text = "<exception text not available>"
        at = (current.filename, current.lineno, current.offset) if isinstance(current, SyntaxError) else None
        chain.append((type(current).__name__, text[:_TEXT], _frames(current)[:_CHAIN], at if at and at[0] else None))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain


def _frames(error: BaseException) -> list[tuple[str, int, str, int | None]]:
    """Return the frames of the model and what it called, innermost first: none of the import system's, none of ours."""
    frames: list[tuple[str, int, str, int | None]] = []
    trace: types.TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((_OURS, "<frozen importlib")):
            frames.append((code.co_filename, trace.tb_lineno, code.co_name, _column(trace)))
        trace = trace.tb_next
    return frames[::-1]


def _column(trace: types.TracebackType) -> int | None:
    """Return how many bytes of the line stand before what was executed; Python before 3.11 does not know."""
    positions = getattr(trace.tb_frame.f_code, "co_positions", None)
    if positions is None or trace.tb_lasti < 0:
        return None
    position: tuple[int | None, ...] | None = next(itertools.islice(positions(), trace.tb_lasti // 2, None), None)
    return None if position is None else position[2]


def execution_error(instance_name: str, message: str, code: Code = Code.INTERNAL) -> ServingError:
    """Return the error of a failed execution (contract: python_backend, 2.4)."""
    return ServingError(
        code, f"Failed to process the request(s) for model '{instance_name}', message: {message}", Reason.BACKEND
    )


def asked_in_vain(failed: str, instance_name: str, error: ServingError) -> TritonModelException:
    """Return what a model is told of a question that the server could not answer."""
    words = error.message
    return TritonModelException(
        f"{failed}: Failed to process the request for model '{instance_name}', message: {words}"
    )


def as_text(value: str | bytes) -> str:
    """Return as str what a model has given as text, in one of the two forms that the reference takes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def incompatible(
    function: str, signature: str, args: Sequence[object], kwargs: Mapping[str, object] | None = None
) -> TypeError:
    """Return the TypeError that the reference raises for arguments of a wrong type or number."""
    kind = "constructor" if function == "__init__" else "function"
    given = ", ".join(map(repr, args))
    if kwargs:
        given += ("; " if given else "") + "kwargs: " + ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
    return TypeError(
        f"{function}(): incompatible {kind} arguments. The following argument types are supported:\n"
        f"    1. {signature}\n\nInvoked with: {given}"
    )
