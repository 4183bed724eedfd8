"""KServe v2 over gRPC: the hooks. Found through the entry-point group `kernel` and nothing else."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import hookimpl
from kernel_grpc import options as flags

if TYPE_CHECKING:
    from kernel import Frontend, Kernel

__all__ = ["add_options", "register_frontends"]


@hookimpl
def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that begin with `--grpc-`."""
    flags.add_options(parser)


@hookimpl
def register_frontends(kernel: Kernel, options: argparse.Namespace) -> list[Frontend]:
    """Give the gRPC front end, unless `--allow-grpc=false`."""
    if not options.allow_grpc:
        return []
    from kernel_grpc.frontend import (
        GrpcFrontend,  # protobuf and the rest of it cost time that `--allow-grpc=false` saves
    )

    return [GrpcFrontend(kernel, options)]
