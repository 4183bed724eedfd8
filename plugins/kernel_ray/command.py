"""`kernel ray`: whole kernels on the nodes of a Ray cluster, from the command line. Imports nothing of Ray before it acts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from kernel import ServingError

__all__ = ["ray"]

DESCRIPTION = """\
Serve model repositories on the nodes of a Ray cluster: a `kernel serve` on each.

  kernel ray deploy REPO   starts them, tells where they listen, starts anew what has died, and ends them at Ctrl-C
  kernel ray down          ends what a `deploy` somewhere else has started
"""

EPILOG = """\
examples:
  kernel ray deploy /models --address 10.0.0.1:6379
  kernel ray deploy s3://bucket/models --servers 4 --num-gpus 1 -- --http-port 8000 --log-verbose 1
  kernel ray down

What stands behind `--` are flags of `kernel serve`. A repository that doesn't lie at the same path of a node is
carried there. Two servers of one machine need ports of their own: `-- --http-port 0 --grpc-port 0 --metrics-port 0`.
Exit status: 0 if all was ended as asked, 1 if a server does not start or the cluster can't be reached, 2 if the
command line is wrong.
"""


def ray(arguments: Sequence[str]) -> int:
    """Run `kernel ray`; return the exit status."""
    own = list(arguments)
    flags: list[str] = []
    if "--" in own:
        place = own.index("--")
        own, flags = own[:place], own[place + 1 :]
    options = _parser().parse_args(own)
    options.flags = flags
    from kernel_ray import deploy

    try:
        return deploy.deploy(options) if options.action == "deploy" else deploy.down(options)
    except ServingError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    form: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser("kernel ray", description=DESCRIPTION, epilog=EPILOG, **form)
    actions = parser.add_subparsers(dest="action", required=True, metavar="deploy|down")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--address", default="auto", metavar="ADDRESS", help="of the cluster, as Ray takes it (default auto)")
    common.add_argument("--name", default="kernel", metavar="NAME", help="what the servers are called together (default kernel)")
    common.add_argument(
        "--drain", type=_number, default=30.0, metavar="SECONDS", help="what is in flight has so long at the end (default 30)"
    )
    start = actions.add_parser("deploy", parents=[common], help="start servers", epilog=EPILOG, **form)
    start.add_argument("repository", nargs="+", metavar="REPO", help="a folder, or the URL of one in an object store")
    start.add_argument("--servers", type=_count, default=0, metavar="N", help="how many; one on each node by default")
    start.add_argument("--num-cpus", type=_number, default=1.0, metavar="N", help="cores that each takes (default 1)")
    start.add_argument("--num-gpus", type=_number, default=0.0, metavar="N", help="GPUs that each takes (default 0)")
    start.add_argument("--runtime-env", type=_object, default={}, metavar="JSON", help="Ray's runtime_env")
    start.add_argument("--start-timeout", type=_number, default=300.0, metavar="SECONDS", help="until it serves (default 300)")
    start.add_argument("--quiet", action="store_true", help="do not show what the servers log")
    actions.add_parser("down", parents=[common], help="end servers", **form)
    return parser


def _number(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of at least 0")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 4096):
        raise argparse.ArgumentTypeError(f"'{text}' is no integer from 1 to 4096")
    return int(text)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"'{text}' is no JSON object")
    return found
