"""The live page: what the server does and why, for people in a browser, at `/` of the HTTP port.

Found through the entry-point group `kernel` and nothing else. It looks, and changes nothing: what its buttons do, where it has
any (`--dashboard-control`), goes through the repository API like everybody's requests.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import frontend_options, hookimpl
from kernel_dashboard.site import Dashboard

if TYPE_CHECKING:
    from kernel import Kernel, Site

__all__ = ["add_options", "register_sites"]


@hookimpl
def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about the page."""
    group = parser.add_argument_group("live page")
    switch = frontend_options.SWITCH
    words = "show what the server does at / of the HTTP port (default true)"
    group.add_argument("--dashboard", default=True, help=words, **switch)
    words = "let the page, and a browser, load and unload models (default false)"
    group.add_argument("--dashboard-control", default=False, help=words, **switch)


@hookimpl
def register_sites(kernel: Kernel, options: argparse.Namespace) -> list[Site]:
    """Give the page, unless `--dashboard=false`."""
    if not getattr(options, "dashboard", False):
        return []
    name = getattr(options, "id", None) or "triton"
    return [Dashboard(kernel, name, control=options.dashboard_control)]
