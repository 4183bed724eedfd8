"""How many replicas there are to be: the flag, and what it can't be combined with."""

from __future__ import annotations

import argparse
import os
import stat

from kernel.cli.parser import Parser, seconds
from kernel.replicas import Role
from kernel.server import usable_cores

__all__ = ["add_group_flags", "check_group"]

#: More replicas than so many are a slip of the keyboard: each takes what a server takes.
MOST = 1024


def add_group_flags(parser: Parser) -> None:
    parser.add_argument(
        "--replicas",
        type=replicas,
        default=Replicas(1, 1),
        metavar="N|auto|MIN..MAX",
        help="how many processes serve at the same ports, each with all models; auto: one for each core; MIN..MAX: as many as "
        "have work to do, either of which may be auto (default: 1)",
    )
    parser.add_argument(
        "--replica-hang-seconds",
        type=seconds,
        default=30,
        metavar="SECONDS",
        help="after how long without a sign of life, as it was stopped or its loop is held, a replica is killed and begins anew "
        "(default: 30; 0: never)",
    )
    parser.add_switch(
        "--replica-spare",
        True,
        "keep a process without models beside several replicas, about 40 MB, which takes the place of one that dies",
    )
    parser.add_argument("--replica", type=_role, help=argparse.SUPPRESS)  # a process of the group; given by the supervisor


class Replicas(int):
    """How many replicas there may be; `least`: how many there are at least, since their number follows the load between them."""

    least: int

    def __new__(cls, least: int, most: int) -> Replicas:
        found = super().__new__(cls, most)
        found.least = least
        return found


def replicas(text: str) -> Replicas:
    """Read a value of --replicas."""
    least, dots, most = text.partition("..")
    try:
        first = _number(least)
        second = _number(most) if dots else first
    except ValueError:
        words = "wanted is a number greater than 0, 'auto', or the least and the most of them, such as 1..8"
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — {words}") from None
    if second < first:
        words = f"'{text}' has more replicas at least than at most"
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — {words}")
    return Replicas(first, second)


def _number(text: str) -> int:
    """Raises ValueError where it is none."""
    if text.lower() == "auto":
        return usable_cores()
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ValueError
    count = int(text)
    if count > MOST:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — there may be {MOST} replicas at most")
    return count


def _role(text: str) -> Role:
    try:
        role = Role.parse(text)
        is_channel = stat.S_ISSOCK(os.fstat(role.descriptor).st_mode)
    except (ValueError, OSError):
        is_channel = False
    if not is_channel:
        raise argparse.ArgumentTypeError("is what the supervisor of --replicas gives a process that it has started")
    return role


def check_group(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse what several replicas can't do."""
    if options.replicas > 1 and options.watch:
        parser.error("--watch is for development, with one process: --replicas can't be combined with it")
