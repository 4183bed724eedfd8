"""`kernel doctor`: what of a repository, and of a command line of tritonserver's, is refused here, differs, or costs time.

Reads as `kernel check` does and runs no model code. Puts the findings together and tells them; who finds them is elsewhere
(doctor_flags.py, doctor_models.py, the backends).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from kernel.cli.cache_config import cache_options
from kernel.cli.check import Found, find_models, installed_backends
from kernel.cli.doctor_flags import REFUSED as FLAG_REFUSED
from kernel.cli.doctor_flags import CommandLine, read_line
from kernel.cli.doctor_models import COSTS, DIFFERS, REFUSED, findings_of
from kernel.cli.flags import (
    add_config_flags,
    add_repository_flags,
    add_storage_flags,
    auto_complete,
    repositories,
    storage_options,
)
from kernel.cli.opened import opened
from kernel.cli.parser import Parser
from kernel.cli.table import columns
from kernel.errors import ServingError
from kernel.interfaces import Backend, Finding
from kernel.plugins import Plugins
from kernel.repository import Repository
from kernel.server import Kernel

__all__ = ["doctor"]

DESCRIPTION = """\
Tell what of model repositories, and of a command line of tritonserver's, is not here as it is at Triton.

Each finding has the place of what it was found by and a line with what to do:
  refused   it can't be served, or the server would not start with it
  differs   it is served, and means something else here than at Triton
  costs     it takes time that it need not take
The models' own code is read, but neither loaded nor run.
"""

EPILOG = """\
examples:
  kernel doctor repository/
  kernel doctor models/ --from 'tritonserver --model-repository=/models --http-port=9000 --http-thread-count=16'
  kernel doctor models/ --json

Exit status: 0 if nothing is refused, 1 if something is, 2 if the command line is wrong.
"""

#: In the order in which they are told.
SEVERITIES = (REFUSED, DIFFERS, COSTS)
Told = Mapping[str, tuple[Found, list[Finding]]]


def doctor(arguments: Sequence[str]) -> int:
    """Run `kernel doctor`; return the exit status."""
    parser = Parser("kernel doctor", "[FLAG ...] REPO [REPO ...]", DESCRIPTION, epilog=EPILOG)
    add_repository_flags(parser)
    add_storage_flags(parser)
    add_config_flags(parser)
    parser.add_argument(
        "--from",
        dest="line",
        default="",
        metavar="LINE",
        help="a command line of tritonserver's; what stands before its name is passed over",
    )
    parser.add_switch("--json", False, "print the findings as JSON")
    options = parser.read(arguments)
    paths = repositories(parser, options)
    try:
        line = read_line(options.line, paths) if options.line else None
    except ValueError as error:
        parser.error(f"argument --from: {error}")
    try:
        with opened(paths, storage_options(options)) as there:
            models = _examined(there, options, line)
    except ServingError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(json.dumps(_document(line, models), indent=2) if options.json else "\n".join(_text(paths, line, models)))
    refused = line is not None and any(flag.verdict == FLAG_REFUSED for flag in line.flags)
    return int(refused or any(one.severity == REFUSED for _, findings in models.values() for one in findings))


def _examined(there: Sequence[Repository], options: argparse.Namespace, line: CommandLine | None) -> Told:
    """Return what there is to tell of each model, by name, the worst first."""
    backends = installed_backends() if line is None else _backends(line)
    name = options.model_config_name or ("" if line is None else line.options.model_config_name)
    complete = auto_complete(options) and (line is None or auto_complete(line.options))
    cached = None if line is None else cache_options(line.options) is not None
    told = {}
    for found in find_models(there, backends, auto_complete=complete, config_name=name, look=True):
        findings = findings_of(found, backends, config_name=name, cached=cached)
        shown = [replace(one, place=found.told(one.place), what=found.told(one.what)) for one in findings]
        told[found.folder.name] = (found, sorted(shown, key=lambda one: SEVERITIES.index(one.severity)))
    return told


def _backends(line: CommandLine) -> Mapping[str, Backend]:
    """Return the backends as the line sets them up."""
    return Plugins().backends(Kernel(backend_config=line.options.backend_config))


# -- words -----------------------------------------------------------------------------------------------------------------


def _text(paths: Sequence[str], line: CommandLine | None, models: Told) -> Iterator[str]:
    if line is not None:
        yield from _line_text(line)
    for name, (_, findings) in models.items():
        if findings:
            yield f"model '{name}':"
        for one in findings:
            yield f"  {one.severity:9} {one.place}{': ' if one.place else ''}{one.what}"
            if one.remedy:
                yield f"  {'':9} -> {one.remedy}"
    yield _summary(paths, models)


def _line_text(line: CommandLine) -> Iterator[str]:
    yield "flags:"
    yield from columns([(flag.verdict, flag.text, _words(flag.what, flag.remedy)) for flag in line.flags], "  ")
    yield "use this line:"
    yield f"  {line.shown()}"


def _words(what: str, remedy: str) -> str:
    return f"{what}{' -> ' if remedy else ''}{remedy}"


def _summary(paths: Sequence[str], models: Told) -> str:
    if not models:
        return f"no models in {' and '.join(paths)}; a model is a folder such as {paths[0].rstrip('/')}/my_model/1"
    count = f"{len(models)} models" if len(models) != 1 else "1 model"
    found = [one.severity for _, findings in models.values() for one in findings]
    if not found:
        return f"{count} looked at, as far as can be seen without loading; nothing is refused, differs or costs"
    numbers = [f"{severity}: {found.count(severity)}" for severity in SEVERITIES if severity in found]
    return f"{count} looked at, as far as can be seen without loading; {', '.join(numbers)}"


def _document(line: CommandLine | None, models: Told) -> dict[str, object]:
    """Return the same for programs."""
    document: dict[str, object] = {
        "models": {
            name: {
                "backend": found.config.served_by if found.config is not None else "",
                "placement": found.choice.where if found.choice is not None else "",
                "reason": found.choice.reason if found.choice is not None else "",
                "findings": [asdict(one) for one in findings],
            }
            for name, (found, findings) in models.items()
        },
    }
    if line is not None:
        document["flags"] = [asdict(flag) for flag in line.flags]
        document["serve"] = line.serve
    return document
