"""Which model serves which name, and the way there: look, read, load, unload."""

from __future__ import annotations

from kernel.registry.entries import UNLOADED, Failure, ModelIndex
from kernel.registry.polling import Poller
from kernel.registry.progress import Progress
from kernel.registry.registry import LoadRequest, Registry
from kernel.registry.watching import WATCH_SECONDS, Reload, Watcher, log_reload

__all__ = [
    "UNLOADED",
    "WATCH_SECONDS",
    "Failure",
    "LoadRequest",
    "ModelIndex",
    "Poller",
    "Progress",
    "Registry",
    "Reload",
    "Watcher",
    "log_reload",
]
