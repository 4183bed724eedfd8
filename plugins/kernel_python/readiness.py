"""`is_ready` of a model: may it be sent requests? (contract: python_backend, section 2.)

The model's method as the core calls it; when it is called, and how long is waited for it, the core decides.
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
