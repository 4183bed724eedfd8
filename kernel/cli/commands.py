"""Finds the command and hands the rest of the line to it."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from kernel import __version__
from kernel.cli.ending import Ending

__all__ = ["main"]

#: Each is a module of this package with a function of its name; imported when it is asked for.
COMMANDS = (
    "serve", "check", "doctor", "models", "config", "graph", "infer", "top", "explain", "simulate", "replay",
    "shadow", "bench", "tune", "new", "completion"
)  # fmt: skip

#: The group of entry points by which plugins have commands: each a function that takes the rest of the line and returns a status.
COMMAND_GROUP = "kernel.commands"

#: What a wrong command line ends with, as argparse has it. `kernel serve` alone ends with 1, as the reference does.
MISTAKEN = 2

HELP = """\
usage: kernel COMMAND …

A model server that keeps Triton's contract, in one asyncio process.

commands:
  serve       load the models of a model repository and serve them
  check       tell all mistakes of all models of a repository, without loading any
  doctor      tell who comes from Triton what differs, is refused or costs
  models      show what is in a repository: versions, backends, inputs, outputs
  config      show a model's config, and where each of its values comes from
  graph       draw ensembles, and who calls whom, as Mermaid or SVG
  infer       run one inference in this process, without a port
  top         show what a running server does, as it does it
  explain     ask a running server why requests took as long as they did
  simulate    tell what would become of requests: batches, latencies, refusals
  replay      have recorded requests answered again, and compare
  shadow      stand in front of another server, and compare a sample of its answers
  bench       send requests to a server and tell how fast it answers
  tune        find settings of a model with which it meets a goal
  new         write a new model or plugin to start from, with a test
  completion  write what completes commands and flags in a shell
  ray         serve on the nodes of a Ray cluster: deploy, down

  kernel COMMAND --help   what a command takes, with examples
  kernel --version        the version

start here:
  kernel serve repository/
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    _open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = (words[0], words[1:]) if words else ("", [])
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if command in ("-V", "--version"):
        print(f"kernel {__version__}")
        return 0
    given = {} if command in COMMANDS else {one.name: one for one in importlib.metadata.entry_points(group=COMMAND_GROUP)}
    if command not in COMMANDS and command not in given:
        print(HELP.splitlines()[0], file=sys.stderr)
        print(f"Error: {_mistake(command, (*COMMANDS, *given))}", file=sys.stderr)
        return MISTAKEN
    try:
        run = given[command].load() if given else getattr(importlib.import_module(f"kernel.cli.{command}"), command)
        status = int(run(rest))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        sys.stderr.close()
        return 1
    if arguments is None:  # called as the program, not by a test: the process ends now, within a time limit
        Ending(status).start()
    return status


def _open_streams() -> None:
    """Have all three standard streams: where one was closed (`>&-`), the next file or socket would get its number.

    It would be written to, and handed to the processes of models as theirs.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(opened, True)
            # The descriptor outlives the object: others replace it (streams.py).
            setattr(sys, name, open(opened, "w" if number else "r", closefd=False))


def _mistake(command: str, commands: Sequence[str]) -> str:
    if not command:
        return f"a command is wanted: {', '.join(commands)}"
    if command.startswith("-"):
        return f"'{command}' stands where a command is wanted; is it `kernel serve {command} …`?"
    if command == "record":  # looked for beside replay, but it is the server that records
        return "unknown command 'record'; is it `kernel serve REPO --record FILE`?"
    near = difflib.get_close_matches(command, commands, n=1)
    return f"unknown command '{command}'; " + (f"did you mean '{near[0]}'?" if near else f"there are {', '.join(commands)}")
