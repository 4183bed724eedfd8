"""KServe v2 over HTTP: the hooks. Found through the entry-point group `kernel` and nothing else."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import hookimpl
from kernel_http import frontend, options

if TYPE_CHECKING:
    from kernel import Frontend, Kernel

__all__ = ["add_options", "register_frontends"]


@hookimpl
def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that begin with `--http-`."""
    options.add_options(parser)


@hookimpl
def register_frontends(kernel: Kernel, options: argparse.Namespace) -> list[Frontend]:
    """Give the HTTP front end, unless `--allow-http=false`."""
    return [frontend.HttpFrontend(kernel, options)] if options.allow_http else []
