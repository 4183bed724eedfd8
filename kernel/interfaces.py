"""What plugins supply: protocols, no code. Whoever writes a backend, a front end or a repository reads this file first.

Hooks (`kernel/hookspecs.py`) hand these objects over at start-up or load; on a request's path only their methods run.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from kernel.batch import Batch
    from kernel.config import ModelConfig
    from kernel.remote import RemoteInstance
    from kernel.request import InferenceRequest, InferenceResponse
    from kernel.server import Kernel

__all__ = ["Backend", "Executor", "Frontend", "InstanceContext", "Placement", "RemoteExecutor", "Result"]

#: What `Executor.execute` gives back for its batch: one response per request in order, None where the request is or will be
#: answered through `Kernel.send`; or None altogether when all of them are.
Result = Sequence["InferenceResponse | None"] | None


class Placement(enum.Enum):
    """Where an instance's `execute` runs."""

    LOOP = "loop"  # called on the kernel's loop, inside a greenlet: may use `kernel.wait(request)` to wait for a child
    TASK = "task"  # `execute` returns an awaitable: one asyncio task a batch on the kernel's loop
    THREAD = "thread"  # called on the instance's own thread
    THREAD_TASK = "thread_task"  # `execute` returns an awaitable that runs on an asyncio loop in the instance's own thread
    REMOTE = "remote"  # as CALLBACK, for work done elsewhere, to which a run may be handed at once; a RemoteExecutor
    CALLBACK = "callback"  # called on the kernel's loop; returns at once and later calls `batch.instance.finished(batch, result)`


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """What a backend is told when it makes the executor of one model instance."""

    kernel: Kernel
    config: ModelConfig
    version: int
    instance_name: str  # `<group>_<k>`
    kind: str  # "CPU", "GPU" or "MODEL"
    device_id: int
    model_folder: Path
    version_folder: Path


@runtime_checkable
class Executor(Protocol):
    """One model instance of a backend.

    `placement` is read once, after the executor was made. `capacity` is how many executions it takes at a time (1 for
    LOOP and THREAD; more lets awaitables overlap). `may_wait` counts for LOOP only and is read before each execution: False
    says that this one will not call `Kernel.wait`, which saves the greenlet it would need for that.
    """

    placement: Placement
    capacity: int
    may_wait: bool

    def execute(self, batch: Batch) -> Result | Awaitable[Result]:
        """Run one batch and return a response for each of its requests.

        An exception fails every request of the batch that has no final answer yet: a ServingError with its own code and
        words, anything else as INTERNAL. Output arrays that are handed over must be the request's own: nobody else may
        write to them afterwards.
        """

    def finalize(self) -> None:
        """Called once when the instance goes, on the thread that made the executor for THREAD and THREAD_TASK."""


class RemoteExecutor(Executor, Protocol):
    """What an executor of placement REMOTE has besides. Everything is called on the loop.

    Its `execute` sets `batch.started` of an execution that begins at once, and later calls `batch.instance.finished(batch,
    result)` with all of the batch's times set; `finalize` is not called, `close` is.
    """

    def attach(self, instance: RemoteInstance) -> None:
        """Called once, before the first execution. From here on `instance` is told when the executor goes down or comes up."""

    def take_back(self) -> list[Batch]:
        """Return the batches that were handed over and have not begun, in their order; they never will here."""

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """Nobody waits for the answer of `request` any more, whose execution may go on."""

    async def close(self) -> None:
        """Finalize, as nothing is running any more, or was told to end at once; return when nothing is left."""

    def kill(self) -> None:
        """End at once whatever still runs; `close` may follow."""


class Backend(Protocol):
    """Serves the models whose config names it. One object per kernel."""

    name: str
    #: True where `create` is quick and must happen on the loop; otherwise it runs on the instance's own thread.
    creates_on_loop: bool

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """Return the config with what the model itself can tell (auto-complete). Called on a load thread, once a version.

        Raises ServingError; the load fails with its message.
        """

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """Refuse a config or a missing file that this backend can't serve, by raising ServingError.

        Loads nothing and runs no model code: `kernel check` calls it. `versions`: those that would be loaded.
        """

    def create(self, context: InstanceContext) -> Executor:
        """Make one instance: import, initialise, ready to execute. Raises ServingError (or anything; it is then INTERNAL)."""


class Frontend(Protocol):
    """Something that takes requests from outside, such as a wire protocol."""

    async def start(self) -> None:
        """Begin to listen. Raises OSError where the address can't be had."""

    async def drain(self) -> None:
        """Accept no new connections, let those that are busy finish; returns when none is left."""

    async def stop(self) -> None:
        """Close at once whatever is still open."""

    @property
    def address(self) -> str:
        """Where it listens, for the start-up table, e.g. `http://0.0.0.0:8000`."""
