"""Finds the plugins and asks them: the one user of pluggy.

Built-in plugins come through the same entry-point group as everybody's. Two backends of one name, or a plugin that can't
be imported, stop the start with an error that names the distributions.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pluggy

from kernel.config import did_you_mean
from kernel.errors import Code, ServingError
from kernel.hookspecs import GROUP, HookSpecs, hookimpl
from kernel.interfaces import Backend, Batcher, Cache, Frontend, Gate, Host, Site
from kernel.options import StorageOptions
from kernel.recording import Redactor, hashing
from kernel.repository import FileRepository, Repository
from kernel.rules import LocalCache
from kernel.supplied import BACKEND, BATCHER, CACHE, FRONTEND, GATE, REPOSITORY, SINK, SITE, require, returned

if TYPE_CHECKING:
    from kernel.config import ModelConfig
    from kernel.observability import TraceOptions, TraceSink

__all__ = ["Plugins", "is_location"]

#: A location that is no folder. A Path has one slash fewer.
_LOCATION = re.compile(r"([a-z][a-z0-9]+):/+(?=[^/])")

HOOKS = tuple(name for name in vars(HookSpecs) if not name.startswith("_"))


class _Own:
    """What the core itself supplies, through the same door as everybody."""

    @staticmethod
    @hookimpl(trylast=True)
    def make_cache(name: str, settings: Mapping[str, str]) -> Cache | None:
        return LocalCache.of(settings) if name == "local" else None

    @staticmethod
    @hookimpl(trylast=True)
    def make_redactor(name: str, settings: Mapping[str, str]) -> Redactor | None:
        return hashing(settings) if name == "hash" else None


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
            self._register(plugin, None, _name_of(plugin))

    def _register(self, plugin: object, name: str | None, origin: str) -> None:
        named = f"plugin '{name}' (from {origin})" if name else f"plugin {origin}"
        self._check_hooks(plugin, named)
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            words = str(error).splitlines()[-1]
            raise ServingError(Code.INTERNAL, f"{named}: {words}{_wanted(error)}") from error
        self._origins[plugin] = named

    def _check_hooks(self, plugin: object, named: str) -> None:
        """Refuse hooks that there are not, and functions that have a hook's name and are none."""
        implemented = set()
        for attribute in dir(plugin):
            options = self._manager.parse_hookimpl_opts(plugin, attribute)
            if options is None:
                continue
            implemented.add(options.get("specname") or attribute)
            if isinstance(plugin, type) and inspect.isfunction(inspect.getattr_static(plugin, attribute)):
                raise ServingError(Code.INTERNAL, f"{named} is the class {plugin.__qualname__}; wanted is an object of it")
        for hook in sorted(implemented - set(HOOKS)):
            words = f"{named} implements a hook '{hook}' that there is not; there are {', '.join(HOOKS)}"
            raise ServingError(Code.INTERNAL, words + did_you_mean(hook, HOOKS))
        for hook in HOOKS:
            if hook not in implemented and callable(getattr(plugin, hook, None)):
                words = f"{named} has a function '{hook}' that is no hook, since @hookimpl is missing above it"
                raise ServingError(Code.INTERNAL, words)
        if not implemented:
            words = f"{named} implements no hook; there are {', '.join(HOOKS)}, each below @hookimpl"
            raise ServingError(Code.INTERNAL, words + _near_a_hook(plugin))

    def _called(self, hook: str, arguments: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        """Call each implementation of a hook, in the order of registration; yield whose it is and what it returned."""
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            given = [arguments[name] for name in implementation.argnames]  # an implementation may leave some out
            yield self._origins[implementation.plugin], implementation.function(*given)

    def backends(self, kernel: Host) -> dict[str, Backend]:
        """Return all backends by name. Raises ServingError when two plugins give the same name."""
        found: dict[str, Backend] = {}
        givers: dict[str, str] = {}
        for origin, given in self._called("register_backends", {"kernel": kernel}):
            returned(given, Mapping, f"register_backends of {origin}", "a mapping of names to backends")
            for name, backend in cast(Mapping[str, Backend], given).items():
                require(backend, BACKEND, f"the backend '{name}' of {origin}")
                if name in found:
                    raise ServingError(
                        Code.ALREADY_EXISTS,
                        f"two plugins give the backend '{name}': {givers[name]} and {origin}; uninstall one of them",
                    )
                found[name], givers[name] = backend, origin
        return found

    def frontends(self, kernel: Host, options: argparse.Namespace) -> list[Frontend]:
        """Return the front ends that the options ask for. Raises ServingError for what is none."""
        found: list[Frontend] = []
        for origin, given in self._called("register_frontends", {"kernel": kernel, "options": options}):
            returned(given, (list, tuple), f"register_frontends of {origin}", "a list of front ends, [] where none is asked for")
            for frontend in cast(Sequence[Frontend], given):
                require(frontend, FRONTEND, f"a front end of {origin}")
                found.append(frontend)
        return found

    def sites(self, kernel: Host, options: argparse.Namespace) -> list[Site]:
        """Return the pages for people that the options ask for. Raises ServingError for what is none."""
        found: list[Site] = []
        for origin, given in self._called("register_sites", {"kernel": kernel, "options": options}):
            returned(given, (list, tuple), f"register_sites of {origin}", "a list of sites, [] where none is asked for")
            for site in cast(Sequence[Site], given):
                require(site, SITE, f"a site of {origin}")
                found.append(site)
        return found

    def gate(self, kernel: Host, options: argparse.Namespace) -> Gate | None:
        """Return what says who may ask for what; None where nobody does. Raises ServingError."""
        gate: Gate | None = self._manager.hook.make_gate(kernel=kernel, options=options)
        if gate is not None:
            require(gate, GATE, "the gate")
        return gate

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Let the plugins add their command-line options."""
        self._manager.hook.add_options(parser=parser)

    def trace_sink(self, kernel: Host, options: TraceOptions) -> TraceSink | None:
        """Return what takes traces in the mode that the options ask for. Raises ServingError."""
        sink: TraceSink | None = self._manager.hook.make_trace_sink(kernel=kernel, options=options)
        if sink is not None:
            require(sink, SINK, f"the trace sink for mode '{options.mode}'")
        return sink

    def repositories(
        self, locations: Sequence[str | os.PathLike[str] | Repository], options: StorageOptions | None
    ) -> list[Repository]:
        """Return the repositories at some locations. Raises ServingError."""
        return [self.repository(one, options or StorageOptions()) for one in locations]

    def repository(self, location: str | os.PathLike[str] | Repository, options: StorageOptions) -> Repository:
        """Return the repository at a location; one that is a repository already is that. Raises ServingError."""
        if not isinstance(location, (str, os.PathLike)):
            return location
        path = os.fspath(location)
        scheme = _LOCATION.match(path)
        if scheme is not None and is_location(path):
            whole = f"{scheme[1]}://{path[scheme.end() :]}"
            repository: Repository | None = self._manager.hook.open_repository(location=whole, options=options)
            if repository is not None:
                require(repository, REPOSITORY, f"the repository at '{whole}'")
                return repository
        return FileRepository(path)

    def cache(self, name: str, settings: Mapping[str, str]) -> Cache:
        """Make the response cache called `name`. Raises ServingError where no plugin knows one of that name."""
        cache: Cache | None = self._manager.hook.make_cache(name=name, settings=settings)
        if cache is None:
            words = f"unable to find a response cache '{name}': no installed plugin makes it, only 'local' is built in"
            raise ServingError(Code.INVALID_ARG, words)
        require(cache, CACHE, f"the response cache '{name}'")
        return cache

    def redactor(self, name: str, settings: Mapping[str, str]) -> Redactor:
        """Make the redactor called `name`. Raises ServingError where no plugin knows one of that name."""
        redactor: Redactor | None = self._manager.hook.make_redactor(name=name, settings=settings)
        if redactor is None:
            words = f"unable to find a redactor '{name}': no installed plugin makes it, only 'hash' is built in"
            raise ServingError(Code.INVALID_ARG, words)
        kinds: Any = Callable
        returned(redactor, kinds, f"make_redactor for '{name}'", "what can be called with a request")
        return redactor

    def batcher(self, config: ModelConfig) -> Batcher | None:
        """Return the batcher that a plugin has for a model, None where none has."""
        batcher: Batcher | None = self._manager.hook.make_batcher(config=config)
        if batcher is not None:
            require(batcher, BATCHER, f"the batcher for model '{config.name}'")
        return batcher


def is_location(path: str) -> bool:
    """Whether a repository is named that is no folder of this machine."""
    return _LOCATION.match(path) is not None and not os.path.isdir(path)


def _name_of(plugin: object) -> str:
    """Return what an object that an app has handed over is called: a module by its name, all else by its class."""
    kind = type(plugin)
    return plugin.__name__ if isinstance(plugin, types.ModuleType) else f"{kind.__module__}.{kind.__qualname__}"


def _near_a_hook(plugin: object) -> str:
    """Return what to say where a plugin without hooks has a function whose name is nearly one."""
    functions = [name for name in dir(plugin) if not name.startswith("_") and callable(getattr(plugin, name, None))]
    for name in functions:
        if near := did_you_mean(name, HOOKS):
            return f"; it has a function '{name}'{near.replace(';', ':', 1)}"
    return ""


def _wanted(error: pluggy.PluginValidationError) -> str:
    """Return which arguments a hook may take, where one takes others."""
    hook = next((name for name in HOOKS if f"'{name}'" in str(error)), None)
    if hook is None:
        return ""
    names = list(inspect.signature(getattr(HookSpecs, hook)).parameters)[1:]
    return f"; {hook} may take {', '.join(names)}"
