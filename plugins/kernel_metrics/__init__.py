"""The Prometheus page, on a port of its own: the hooks, and what an app needs to show the page itself.

Found through the entry-point group `kernel` and nothing else.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import hookimpl
from kernel_metrics import frontend, options
from kernel_metrics.options import MetricsSettings
from kernel_metrics.page import Page
from kernel_metrics.text import CONTENT_TYPE

if TYPE_CHECKING:
    from kernel import Frontend, Kernel

__all__ = ["CONTENT_TYPE", "MetricsSettings", "Page", "add_options", "register_frontends"]


@hookimpl
def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about metrics."""
    options.add_options(parser)


@hookimpl
def register_frontends(kernel: Kernel, options: argparse.Namespace) -> list[Frontend]:
    """Give the page, unless `--allow-metrics=false`."""
    return [frontend.MetricsFrontend(kernel, options)] if options.allow_metrics else []
