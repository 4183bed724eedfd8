"""Every hook: its signature and one sentence. All are called at start-up, load or unload, never for a request.

A plugin implements them with `from kernel import hookimpl` and is found through the entry-point group `kernel`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

from kernel.interfaces import Backend, Batcher, Cache, Frontend, Gate, Host, Site

if TYPE_CHECKING:
    from kernel.config import ModelConfig
    from kernel.observability import TraceOptions, TraceSink
    from kernel.options import StorageOptions
    from kernel.recording import Redactor
    from kernel.repository import Repository

__all__ = ["GROUP", "HookSpecs", "hookimpl"]

GROUP = "kernel"
hookspec = pluggy.HookspecMarker(GROUP)
#: The decorator of a plugin's functions (or methods) that implement hooks of kernel/hookspecs.py, each under the hook's name.
hookimpl = pluggy.HookimplMarker(GROUP)


class HookSpecs:
    """The hooks. A plugin implements those that it needs, and may leave out arguments that it doesn't."""

    @hookspec
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add command-line options of `kernel serve`."""

    @hookspec
    def register_backends(self, kernel: Host) -> Mapping[str, Backend]:  # type: ignore[empty-body]
        """Return backends by the name that a config's `backend` (or `platform`) gives them."""

    @hookspec
    def register_frontends(self, kernel: Host, options: argparse.Namespace) -> Sequence[Frontend]:  # type: ignore[empty-body]
        """Return the front ends that the options ask for; they are started once the models are loaded."""

    @hookspec
    def register_sites(self, kernel: Host, options: argparse.Namespace) -> Sequence[Site]:  # type: ignore[empty-body]
        """Return the pages for people that the options ask for, which a front end for HTTP serves beside its protocol."""

    @hookspec(firstresult=True)
    def make_gate(self, kernel: Host, options: argparse.Namespace) -> Gate | None:
        """Return what says who may ask for what, asked before the front ends are made; None where the options ask for none."""

    @hookspec(firstresult=True)
    def make_trace_sink(self, kernel: Host, options: TraceOptions) -> TraceSink | None:
        """Return what takes traces in the mode that the options ask for, None for a mode that isn't yours."""

    @hookspec(firstresult=True)
    def make_cache(self, name: str, settings: Mapping[str, str]) -> Cache | None:
        """Return the response cache that `--cache-config name,setting=value` asks for, None for a name that isn't yours."""

    @hookspec(firstresult=True)
    def open_repository(self, location: str, options: StorageOptions) -> Repository | None:
        """Return the model repository at a location that is no folder, such as `s3://bucket/models`; None if it isn't yours."""

    @hookspec(firstresult=True)
    def make_batcher(self, config: ModelConfig) -> Batcher | None:
        """Return the Batcher of a model with `dynamic_batching`, who decides what goes together; None to leave it to others."""

    @hookspec(firstresult=True)
    def make_redactor(self, name: str, settings: Mapping[str, str]) -> Redactor | None:
        """Return the redactor that `--record-redaction name,key=value` asks for, None for a name that isn't yours."""
