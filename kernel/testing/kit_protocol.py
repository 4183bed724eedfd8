"""What loaded models and their calls need of the kit that they belong to. A protocol, no code."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from kernel.server import Kernel
from kernel.testing.loop import KitLoop

__all__ = ["KitProtocol"]


class KitProtocol(Protocol):
    """The kit; class Kit says what each is."""

    hung: bool
    told: list[str]

    @property
    def kernel(self) -> Kernel: ...

    @property
    def loop(self) -> KitLoop: ...

    @property
    def limit_elsewhere(self) -> float | None: ...

    def prepare(self) -> None: ...

    def run(self, work: Coroutine[Any, Any, Any], request: Any = None) -> Any: ...

    async def catch_up(self) -> None: ...

    def raise_failures(self) -> None: ...

    def explain(self) -> str: ...

    def reasons(self) -> list[str]: ...

    def hint(self, message: str) -> str: ...
