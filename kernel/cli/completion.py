"""`kernel completion`: what a shell reads to complete commands and flags, made of the parsers that read the command lines.

So it knows every flag of every installed plugin. Needs shtab, which writes the scripts and is not needed by anybody else.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Sequence
from types import ModuleType

from kernel.cli.parser import Parser, parser_of
from kernel.errors import how_to_install

__all__ = ["completion"]

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Write to the standard output what a shell reads to complete commands, flags and their values.
"""

EPILOG = """\
examples:
  bash:  kernel completion bash > ~/.local/share/bash-completion/completions/kernel
  zsh:   kernel completion zsh > ~/.zfunc/_kernel     (a folder of $fpath, before compinit)
  fish:  kernel completion fish > ~/.config/fish/completions/kernel.fish
  for this shell alone:  eval "$(kernel completion bash)"

After plugins have come or gone it is to be written anew.
Exit status: 0 if it was written, 1 if shtab is missing, 2 if the command line is wrong.
"""

#: Which values are names of files or folders, by how the help calls them.
FOLDERS = frozenset({"REPO", "DIR", "FOLDER"})
FILES = frozenset({"FILE", "PATH"})


def completion(arguments: Sequence[str]) -> int:
    """Run `kernel completion`; return the exit status."""
    parser = Parser("kernel completion", " | ".join(SHELLS), DESCRIPTION, epilog=EPILOG)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    options = parser.read(arguments)
    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        print(f"error: kernel completion needs shtab: {how_to_install('completion')}", file=sys.stderr)
        return 1
    print(shtab.complete(_whole(shtab), options.shell))
    return 0


def _whole(shtab: ModuleType) -> argparse.ArgumentParser:
    """Return one parser for all commands. Only their flags count: nothing is read with it."""
    from kernel.cli import commands  # not at the top: it finds the commands, this one too

    whole = argparse.ArgumentParser("kernel", allow_abbrev=False)
    whole.add_argument("--version", action="store_true", help="the version")
    found = whole.add_subparsers()
    helps = dict(re.findall(r"^  (\w+) {2,}(.*)$", commands.HELP, re.M))
    for name in commands.COMMANDS:
        run = getattr(importlib.import_module(f"kernel.cli.{name}"), name)
        try:
            own = [parser_of(run)]
        except (ValueError, SystemExit):  # it reads its line in a way of its own: its name is completed
            own = []
        for action in (action for one in own for action in one._actions):
            _as_file(action, shtab)
        found.add_parser(name, parents=own, add_help=not own, help=helps.get(name, name), allow_abbrev=False)
    for entry in importlib.metadata.entry_points(group=commands.COMMAND_GROUP):
        found.add_parser(entry.name, help=helps.get(entry.name, entry.name), allow_abbrev=False)
    return whole


def _as_file(action: argparse.Action, shtab: ModuleType) -> None:
    """Have the value of a flag completed as a name of a file or a folder, where it is one."""
    word = action.metavar if isinstance(action.metavar, str) else ""
    if word in FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab's own way
    elif word in FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
