"""The command line as tritonserver's users know it: `--flag value` and `--flag=value`, booleans with or without a value.

Knows how flags are written, not which there are. A mistake ends the process with the usage and one sentence that helps.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

__all__ = ["Parser", "boolean", "parser_of", "patience", "positive", "seconds", "share", "size"]

#: The most that an answer is waited for.
MOST_SECONDS = 1_000_000

_WORDS = {"true": True, "1": True, "false": False, "0": False}


def boolean(text: str) -> bool:
    """Read true, false, 1 or 0 in any case."""
    try:
        return _WORDS[text.lower()]
    except KeyError:
        words = f"invalid value for bool option: {text} — '{text}' is neither true, 1, false nor 0"
        raise argparse.ArgumentTypeError(words) from None


def positive(text: str) -> int:
    """Read an integer greater than 0."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — '{text}' is no integer greater than 0")
    return int(text)


def seconds(text: str) -> int:
    """Read a number of seconds, an integer of at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — '{text}' is no integer of at least 0")
    return int(text)


def patience(text: str) -> float:
    """Read for how many seconds an answer is waited for: above 0, MOST_SECONDS at most, as sockets and locks take no more."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found <= MOST_SECONDS:
        words = f"'{text}' is no number above 0, {MOST_SECONDS} at most"
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — {words}")
    return found


def size(text: str) -> int:
    """Read a number of bytes, an integer of at least 0."""
    return seconds(text)


class _Asked(Exception):
    """Instead of reading a line: the parser that was to read it."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


#: Stands for a line that nobody reads (parser_of); told by what it is, not by its words.
_NO_LINE: list[str] = []


def parser_of(command: Callable[[Sequence[str]], Any]) -> Parser:
    """Return what reads the line of a command, which does nothing else."""
    try:
        command(_NO_LINE)
    except _Asked as asked:
        return asked.parser
    raise ValueError(f"{command} reads its line with no Parser")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser for one command.

    `arguments`: what the usage says behind the command; `mistake_status`: the exit status when the command line is wrong.
    """

    def __init__(
        self, prog: str, arguments: str, description: str, *, epilog: str = "", mistake_status: int = 2
    ) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {arguments}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._mistake_status = mistake_status

    def add_switch(self, flag: str, default: bool, help: str) -> None:
        """Add a boolean flag; alone it means true."""
        self.add_argument(
            flag, nargs="?", const=True, default=default, type=boolean, metavar="BOOL",
            help=f"{help} (default: {str(default).lower()})",
        )  # fmt: skip

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options, or end the process with the usage and the reason."""
        if arguments is _NO_LINE:
            raise _Asked(self)
        options, unknown = self.parse_known_intermixed_args(self._with_values(arguments))
        for argument in unknown:
            self.error(f"unexpected argument '{argument}'{self._near(argument)}")
        return options

    def _with_values(self, arguments: Sequence[str]) -> list[str]:
        """Write `=true` behind switches that stand alone, or they would take the next positional for their value."""
        result = []
        for k, argument in enumerate(arguments):
            # A private table of argparse: plugins add their flags by argparse's own methods, so they stand nowhere else.
            action = self._option_string_actions.get(argument)
            if action is not None and action.nargs == "?" and action.const is True:
                if k + 1 == len(arguments) or arguments[k + 1].lower() not in _WORDS:
                    argument += "=true"
            result.append(argument)
        return result

    def knows(self, flag: str) -> bool:
        return flag in self._option_string_actions

    def action(self, flag: str) -> argparse.Action | None:
        """Return what stands for a flag, None where there is none of that name."""
        return self._option_string_actions.get(flag)

    def _near(self, argument: str) -> str:
        if not argument.startswith("-"):
            return ""
        shown = [flag for flag, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        near = difflib.get_close_matches(argument.partition("=")[0], shown, n=2)
        return f"; did you mean {' or '.join(near)}?" if near else ""

    def error(self, message: str) -> NoReturn:
        flag, says, _ = message.removeprefix("argument ").partition(": invalid choice: ")
        if says:
            message = f"invalid argument for {flag} — {message}"  # the reference's words first, as everywhere
        self.print_usage(sys.stderr)
        print(f"Error: {message}", file=sys.stderr)
        sys.exit(self._mistake_status)


def share(text: str) -> float:
    """Read a flag's value that is a share of something, above 0, 1 at most."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found <= 1.0:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — '{text}' is no number above 0, 1 at most")
    return found
