"""`is_ready` of a model: may it be sent requests? (spec python_backend, section 2.)

Makes of the model's method the question that the core asks; when, and how long it waits, is the core's business.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from kernel_python.calling import EXECUTION, Instance

__all__ = ["question_of"]


def question_of(instance: Instance, model: Any) -> Callable[[], bool | Awaitable[bool]] | None:
    """Return what asks the model, `async` if its method is; None where it has none."""
    ask = getattr(model, "is_ready", None)
    if not callable(ask):
        return None

    def is_ready() -> bool:
        EXECUTION.set(instance.idle)
        return checked(ask())

    async def is_ready_async() -> bool:
        EXECUTION.set(instance.idle)
        return checked(await ask())

    return is_ready_async if inspect.iscoroutinefunction(ask) else is_ready


def checked(answer: Any) -> bool:
    if not isinstance(answer, bool):
        raise TypeError(f"is_ready() must return a boolean value, found {type(answer)}")
    return answer
