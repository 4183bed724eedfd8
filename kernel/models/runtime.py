"""What models and their registry use of the kernel that they run in. Protocols, no code; class Kernel has it all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from kernel.circles.lookout import Lookout
from kernel.config import ModelConfig
from kernel.instances import Mailbox, Turn
from kernel.interfaces import Batcher, Host, Observer
from kernel.models.admission import Ceiling
from kernel.models.cache_stage import ResponseCache
from kernel.models.handover_stage import Takers
from kernel.observability import RequestTracing
from kernel.options import Options
from kernel.scheduling import Limits

__all__ = ["Runtime"]


class Batchers(Protocol):
    """Who knows the plugins' batchers."""

    def batcher(self, config: ModelConfig) -> Batcher | None:
        """Return the plugin's batcher for a model, None for the core's own rule."""


class ModelTracer(Protocol):
    """Who says what a model has to tell of its requests."""

    def of_model(self, name: str) -> RequestTracing | None:
        """Return what a model's `tracing` is to be."""


class LoadPool(Protocol):
    """Who has threads for loads."""

    load: ThreadPoolExecutor


class Supervising(Protocol):
    """Who looks after what models do."""

    ceiling: Ceiling | None
    limits: Limits | None
    lookout: Lookout
    observers: tuple[Callable[[Any], Observer | None], ...]
    peers: Takers | None

    def know(self, model: Any) -> None:
        """Look after a model version from now on: its executions that last, its number of instances."""


class Runtime(Host, Protocol):
    """The kernel, as its models and its registry use it; class Kernel says what each is."""

    cache: ResponseCache | None
    epoch_offset: float
    mailbox: Mailbox
    on_unload: Callable[[], None]
    options: Options
    turn: Turn

    @property
    def gpus(self) -> tuple[int, ...]: ...

    @property
    def plugins(self) -> Batchers: ...

    @property
    def pools(self) -> LoadPool: ...

    @property
    def supervision(self) -> Supervising: ...

    @property
    def tracer(self) -> ModelTracer: ...

    def changed(self) -> None:
        """Another model serves some name: what was looked up before is stale."""
