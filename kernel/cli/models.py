"""`kernel models`: what lies in the repositories, and how a client would have to call it. Loads no model code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence

from kernel.cli.check import Found, find_models, installed_backends
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
from kernel.config import ModelConfig, TensorSpec
from kernel.errors import ServingError
from kernel.repository import Repository, shown

__all__ = ["models"]

DESCRIPTION = """\
Show the models of one or more model repositories: versions, backend, batching, inputs and outputs.

Shapes are those that a client sends and gets, the batch dimension included; -1 stands for any size.
"""

EPILOG = """\
examples:
  kernel models repository/
  kernel models repository/ --json

Exit status: 0 if all models could be read, 1 if not, 2 if the command line is wrong.
"""


def models(arguments: Sequence[str]) -> int:
    """Run `kernel models`; return the exit status."""
    parser = Parser("kernel models", "[FLAG ...] REPO [REPO ...]", DESCRIPTION, epilog=EPILOG)
    add_repository_flags(parser)
    add_storage_flags(parser)
    add_config_flags(parser)
    parser.add_switch("--json", False, "print JSON: the full configs by model")
    options = parser.read(arguments)
    paths = repositories(parser, options)
    try:
        with opened(paths, storage_options(options)) as there:
            return _models(there, options)
    except ServingError as error:
        print(error.message, file=sys.stderr)
        return 1


def _models(there: Sequence[Repository], options: argparse.Namespace) -> int:
    everything = find_models(
        there, installed_backends(), auto_complete=auto_complete(options), config_name=options.model_config_name
    )
    if options.json:
        print(json.dumps([_as_dict(found) for found in everything], indent=2))
    else:
        for words in (repository.mistaken() for repository in there):
            if words:
                print(words, file=sys.stderr)
        print("\n\n".join("\n".join(_lines(found)) for found in everything) or "no models")
    return 1 if any(found.errors for found in everything) else 0


def _as_dict(found: Found) -> dict[str, object]:
    return {
        "name": found.folder.name,
        "path": shown(found.folder.path),
        "versions": list(found.versions),
        "config": found.config.as_dict() if found.config is not None else None,
        "placement": None if found.choice is None else {"where": found.choice.where, "reason": found.choice.reason},
        "errors": [found.told(error.message) for error in found.errors],
    }


def _lines(found: Found) -> Iterable[str]:
    """Return the paragraph about one model."""
    config = found.config
    if config is None:
        return [found.folder.name, *(f"  {found.told(error.message)}" for error in found.errors)]
    rows = [("versions", ", ".join(map(str, found.versions))), ("backend", _backend(config)), ("batching", _batching(config))]
    rows += [("placement", str(found.choice))] if found.choice is not None else []
    rows += [("steps", " -> ".join(step.model_name for step in config.ensemble))] if config.ensemble else []
    batched = config.max_batch_size > 0
    tensors = [
        (title if k == 0 else "", spec.name, spec.datatype, _shape(spec, batched), "optional" if spec.optional else "")
        for title, specs in (("inputs", config.inputs), ("outputs", config.outputs))
        for k, spec in enumerate(specs or [_UNKNOWN])
    ]
    width = max(len("versions"), *(len(row[0]) for row in rows))
    return [
        config.name,
        *(f"  {title:{width}}  {value}" for title, value in rows),
        *columns([(f"{row[0]:{width}}", *row[1:]) for row in tensors], indent="  "),
        *(f"  {found.told(error.message)}" for error in found.errors),
    ]


_UNKNOWN = TensorSpec("(told by the model when it is loaded)", "", ())


def _backend(config: ModelConfig) -> str:
    details = [
        "decoupled: any number of responses to a request" if config.decoupled else "",
        "" if config.is_ensemble else _instances(sum(group.count for group in config.instance_groups)),
    ]
    return ", ".join([config.metadata_platform, *(detail for detail in details if detail)])


def _instances(count: int) -> str:
    return f"{count} instances" if count > 1 else ""


def _batching(config: ModelConfig) -> str:
    if config.max_batch_size == 0:
        return "none"
    rows = f"up to {config.max_batch_size} rows"
    batching = config.dynamic_batching
    if batching is None:
        return f"{rows} in one request"
    delay = f", waiting up to {batching.max_queue_delay_us} µs" if batching.max_queue_delay_us else ""
    preferred = f", preferably {', '.join(map(str, batching.preferred_batch_size))}"
    if list(batching.preferred_batch_size) in ([], [config.max_batch_size]):
        preferred = ""
    return f"dynamic, {rows}{preferred}{delay}"


def _shape(spec: TensorSpec, batched: bool) -> str:
    if spec is _UNKNOWN:
        return ""
    return "[" + ", ".join(map(str, (-1, *spec.dims) if batched else spec.dims)) + "]"
