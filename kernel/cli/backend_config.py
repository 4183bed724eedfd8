"""`--backend-config`: settings of backends, or of all of them where the name in front of the comma is left out.

What a backend's own settings mean is its business; the kernel hands them over. Those for all backends are known here.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from kernel.cli.parser import Parser

__all__ = ["add_backend_flags"]

#: What all backends may be told.
GLOBAL = ("default-max-batch-size",)


class _Setting(argparse.Action):
    """One setting: `--backend-config python,stub-timeout-seconds=60`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        name, comma, setting = values.partition(",")
        key, equals, value = setting.partition("=")
        name, key, value = name.strip(), key.strip(), value.strip()
        if not (comma and key and equals):
            parser.error(f"{option} option format is '<backend name>,<setting>=<value>'. Got {values}")
        if not name and key not in GLOBAL:
            parser.error(
                f"{option} '{values}' names no backend, and '{key}' is no setting for all: there is {GLOBAL[0]}"
            )
        if key == "default-max-batch-size" and not re.fullmatch("[0-9]{1,9}", value):
            parser.error(f"{option} '{values}': a whole number, 0 or more, is wanted for {key}")
        settings = {one: dict(of) for one, of in namespace.backend_config.items()}
        settings.setdefault(name, {})[key] = value
        namespace.backend_config = settings


def add_backend_flags(parser: Parser) -> None:
    """Add `--backend-config`."""
    parser.set_defaults(backend_config={})
    parser.add_argument(
        "--backend-config",
        action=_Setting,
        metavar="[BACKEND],SETTING=VALUE",
        help="set up a backend, e.g. python,stub-timeout-seconds=60, or all: ,default-max-batch-size=8 for models that can "
        "batch and whose config doesn't say how far (default: 4)",
    )
