"""kernel_auth: clients have keys, and may do what stands beside these in a file (`--auth-keys`). Without that, nothing.

Found through the entry-point group `kernel` and nothing else. docs/auth.md says how the file looks; `python -m kernel_auth NAME`
makes a key.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kernel import hookimpl

if TYPE_CHECKING:
    from kernel import Gate, Kernel

__all__ = ["add_options", "make_gate"]


@hookimpl
def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("clients and their keys")
    group.add_argument(
        "--auth-keys",
        default="",
        metavar="FILE",
        help="serve only clients whose key, or token, this file knows (TOML), and only what it lets them do; read again when it "
        "changes",
    )


@hookimpl
def make_gate(kernel: Kernel, options: argparse.Namespace) -> Gate | None:
    if not options.auth_keys:
        return None
    from kernel_auth.gate import KeyGate  # what nobody asks for is not imported

    return KeyGate(kernel, Path(options.auth_keys))
