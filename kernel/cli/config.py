"""`kernel config show`: a model's config as the server has it, and of each value where it comes from."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import uvloop
from google.protobuf import text_format

from kernel.cli.check import find_models, installed_backends
from kernel.cli.flags import add_config_flags, add_storage_flags, auto_complete, storage_options
from kernel.cli.opened import opened
from kernel.cli.output import own_stdout
from kernel.cli.parser import Parser
from kernel.cli.table import columns, printable
from kernel.config import FieldOrigin, ModelConfig, read_config
from kernel.errors import Code, ServingError
from kernel.models import usable_gpus, without_gpus
from kernel.observability import LogOptions, set_up_log
from kernel.repository import Repository
from kernel.server import Kernel

__all__ = ["config"]

DESCRIPTION = """\
Show a model's config with all that was left out filled in.

With --origin each value stands in a line with where it comes from: the line of the file, `override` (what
came with --override), `auto-complete` (the model's own, with --load), or `default`. Loads no model code,
unless --load is given.
"""

EPILOG = """\
examples:
  kernel config show repository/ add_sub
  kernel config show repository/ add_sub --origin
  kernel config show repository/ add_sub --origin --load --set
  kernel config show repository/ add_sub --override '{"backend": "python", "max_batch_size": 4}' --json

Exit status: 0 if it was shown, 1 if it has mistakes or can't be read, 2 if the command line is wrong.
"""

#: What the origins are called here.
WORDS = {"model": "auto-complete"}


def config(arguments: Sequence[str]) -> int:
    """Run `kernel config`; return the exit status."""
    parser = Parser("kernel config", "show [FLAG ...] REPO MODEL", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("action", choices=("show",), metavar="show", help="what to do")
    parser.add_argument("repository", metavar="REPO", help="model repository")
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    parser.add_switch("--origin", False, "say of each value where it comes from")
    parser.add_switch("--set", False, "with --origin: leave out what is a default")
    parser.add_switch("--json", False, "print JSON; with --origin a list of field, value, origin and line")
    parser.add_switch("--load", False, "load the model, and show what it has made of its config (auto-complete)")
    parser.add_argument(
        "--override", default="", metavar="JSON", help="a config that stands for the file, as in a load request; @FILE: of a file"
    )
    add_storage_flags(parser)
    add_config_flags(parser)
    options = parser.read(arguments)
    if options.set and not options.origin:
        parser.error("--set is about origins: it goes with --origin")
    try:
        print(_shown(_config(options), options))
    except ServingError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


def _config(options: argparse.Namespace) -> ModelConfig:
    """Return the config that is to be shown. Raises ServingError."""
    text = options.override
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(errors="replace")
        except (OSError, ValueError) as error:
            raise ServingError(Code.INVALID_ARG, f"--override {options.override} can't be read: {error}") from None
    with opened([options.repository], storage_options(options)) as (repository,):
        return _loaded(options, text) if options.load else _read(repository, options, text)


def _read(repository: Repository, options: argparse.Namespace, override: str) -> ModelConfig:
    folders = repository.scan()
    if options.model not in folders:
        near = difflib.get_close_matches(options.model, folders, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(sorted(folders)) or 'none'}"
        raise ServingError(Code.NOT_FOUND, f"no model '{options.model}' in {options.repository}; {hint}")
    backends = installed_backends()
    if override:
        files = folders[options.model].fetch()
        return read_config(
            folders[options.model].path if files is None else files.folder.path,
            override=override,
            auto_complete=auto_complete(options),
            backends=backends,
            gpus=usable_gpus(),
            cpu_backends=without_gpus(backends),
            partial=auto_complete(options),
        )
    everything = find_models([repository], backends, auto_complete=auto_complete(options), config_name=options.model_config_name)
    (found,) = [one for one in everything if one.folder.name == options.model]
    if found.config is None:
        raise ServingError(Code.INVALID_ARG, "\n".join(found.told(error.message) for error in found.errors))
    return found.config


def _loaded(options: argparse.Namespace, override: str) -> ModelConfig:
    """Return the config of the loaded model."""
    set_up_log(LogOptions(info=False, error=False))

    async def load() -> ModelConfig:
        async with Kernel(
            options.repository,
            control_mode="explicit",
            exit_on_error=False,
            auto_complete=auto_complete(options),
            config_name=options.model_config_name,
            storage=storage_options(options),
        ) as kernel:
            await kernel.load(options.model, config=override or None)
            return kernel.model(options.model).config

    with own_stdout(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load())


def _shown(made: ModelConfig, options: argparse.Namespace) -> str:
    if not options.origin:
        return json.dumps(made.as_dict(), indent=2) if options.json else text_format.MessageToString(made.message).rstrip()
    found = [one for one in made.origins() if not (options.set and one.origin == "default")]
    if options.json:
        rows = [asdict(one) | {"origin": WORDS.get(one.origin, one.origin), "file": _file(made, one)} for one in found]
        return json.dumps(rows, indent=2)
    lines = columns([(one.field, json.dumps(one.value, ensure_ascii=False), _where(made, one)) for one in found])
    return "\n".join(map(printable, lines))


def _file(made: ModelConfig, one: FieldOrigin) -> str | None:
    return made.source.path if one.origin == "file" else None


def _where(made: ModelConfig, one: FieldOrigin) -> str:
    return f"{made.source.path}:{one.line}" if one.origin == "file" else WORDS.get(one.origin, one.origin)
