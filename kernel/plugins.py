"""Finds the plugins and asks them: the one user of pluggy.

Built-in plugins come through the same entry-point group as everybody's. Two backends of one name, or a plugin that can't
be imported, stop the start with an error that names the distributions.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import pluggy

from kernel.cache import LocalCache
from kernel.errors import Code, ServingError
from kernel.hookspecs import GROUP, HookSpecs, hookimpl
from kernel.interfaces import Backend, Batcher, Cache, Frontend

if TYPE_CHECKING:
    from kernel.config import ModelConfig
    from kernel.server import Kernel
    from kernel.settings import TraceOptions
    from kernel.trace import TraceSink

__all__ = ["Plugins"]


class _Own:
    """What the core itself supplies, through the same door as everybody."""

    @staticmethod
    @hookimpl(trylast=True)
    def make_cache(name: str, settings: Mapping[str, str]) -> Cache | None:
        return LocalCache.of(settings) if name == "local" else None


class Plugins:
    """The plugins of one kernel: all that are installed, and `extra` objects with hook implementations."""

    def __init__(self, extra: Sequence[object] = ()) -> None:
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(HookSpecs)
        self._origins: dict[object, str] = {}
        self._register(_Own(), None, "the kernel itself")
        seen: set[str] = set()
        for entry in importlib.metadata.entry_points(group=GROUP):
            if entry.name in seen:  # the same distribution found twice on the path
                continue
            seen.add(entry.name)
            origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
            try:
                plugin = entry.load()
            except Exception as error:
                raise ServingError(
                    Code.INTERNAL,
                    f"plugin '{entry.name}' ({entry.value}, from {origin}) can't be imported: {type(error).__name__}: {error}",
                ) from error
            self._register(plugin, entry.name, origin)
        for plugin in extra:
            self._register(plugin, None, f"{type(plugin).__module__}.{type(plugin).__qualname__}")

    def _register(self, plugin: object, name: str | None, origin: str) -> None:
        self._manager.register(plugin, name)
        self._manager.check_pending()
        self._origins[plugin] = origin

    def backends(self, kernel: Kernel) -> dict[str, Backend]:
        """Return all backends by name. Raises ServingError when two plugins give the same name."""
        found: dict[str, Backend] = {}
        givers: dict[str, str] = {}
        for implementation in self._manager.hook.register_backends.get_hookimpls():
            origin = self._origins[implementation.plugin]
            arguments = [kernel] * len(implementation.argnames)  # an implementation may leave the argument out
            given = cast(Mapping[str, Backend], implementation.function(*arguments))
            for name, backend in given.items():
                if name in found:
                    raise ServingError(
                        Code.ALREADY_EXISTS,
                        f"two plugins give the backend '{name}': {givers[name]} and {origin}; uninstall one of them",
                    )
                found[name], givers[name] = backend, origin
        return found

    def frontends(self, kernel: Kernel, options: argparse.Namespace) -> list[Frontend]:
        """Return the front ends that the options ask for."""
        results: list[Sequence[Frontend]] = self._manager.hook.register_frontends(kernel=kernel, options=options)
        return [frontend for frontends in reversed(results) for frontend in frontends]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Let the plugins add their command-line options."""
        self._manager.hook.add_options(parser=parser)

    def trace_sink(self, kernel: Kernel, options: TraceOptions) -> TraceSink | None:
        """Return what takes traces in the mode that the options ask for. Raises ServingError."""
        sink: TraceSink | None = self._manager.hook.make_trace_sink(kernel=kernel, options=options)
        return sink

    def cache(self, name: str, settings: Mapping[str, str]) -> Cache:
        """Make the response cache called `name`. Raises ServingError where no plugin knows one of that name."""
        cache: Cache | None = self._manager.hook.make_cache(name=name, settings=settings)
        if cache is None:
            words = f"unable to find a response cache '{name}': no installed plugin makes it, only 'local' is built in"
            raise ServingError(Code.INVALID_ARG, words)
        return cache

    def batcher(self, config: ModelConfig) -> Batcher | None:
        """Return the batcher that a plugin has for a model, None where none has."""
        batcher: Batcher | None = self._manager.hook.make_batcher(config=config)
        return batcher
