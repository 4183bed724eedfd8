"""`kernel graph`: ensembles as graphs of their steps and tensors, and who calls whom as a running server has seen it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from kernel.cli.asking import ask
from kernel.cli.check import find_models, installed_backends
from kernel.cli.drawing import Graph, GraphEdge, GraphNode, mermaid, svg
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
from kernel.config import ModelConfig
from kernel.errors import Code, ServingError

__all__ = ["graph"]

DESCRIPTION = """\
Draw the ensembles of model repositories: their steps, and the tensors between them.

Which models call others from their code (BLS) stands in no config: --calls asks a running server which have,
among its newest requests. Loads no model code.
"""

EPILOG = """\
examples:
  kernel graph repository/
  kernel graph repository/ --format svg --output models.svg
  kernel graph repository/ --calls localhost:8000 --model pipeline

Mermaid is what GitHub and many editors draw in a block of Markdown.

Exit status: 0 if it was drawn, 1 if a config can't be read or the server not be asked, 2 if the command line
is wrong.
"""

FORMATS = ("mermaid", "svg", "json")


def graph(arguments: Sequence[str]) -> int:
    """Run `kernel graph`; return the exit status."""
    parser = Parser("kernel graph", "[FLAG ...] REPO [REPO ...]", DESCRIPTION, epilog=EPILOG)
    add_repository_flags(parser)
    add_storage_flags(parser)
    add_config_flags(parser)
    parser.add_argument("--format", choices=FORMATS, default="mermaid", help="mermaid, svg or json (default: mermaid)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write it there (default: the standard output)")
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help="only of this one; may be given repeatedly")
    parser.add_argument("--calls", default="", metavar="URL", help="a server's HTTP port, to ask which calls it has seen")
    options = parser.read(arguments)
    paths = repositories(parser, options)
    try:
        with opened(paths, storage_options(options)) as there:
            found = find_models(
                there, installed_backends(), auto_complete=auto_complete(options), config_name=options.model_config_name
            )
        configs = {one.folder.name: one.config for one in found if one.config is not None}
        for one in found:
            if one.config is None:
                print(f"not drawn: {'; '.join(one.told(error.message) for error in one.errors)}", file=sys.stderr)
        unknown = [name for name in options.model if name not in configs]
        if unknown:
            words = f"there is no model '{unknown[0]}' whose config can be read; there are {', '.join(sorted(configs)) or 'none'}"
            raise ServingError(Code.NOT_FOUND, words)
        graphs = [*_ensembles(configs, options.model), *_calls(options.calls, options.model)]
        if not graphs:
            graphs = _alone(configs, options.model)
            there_is = "no ensemble, so the models are drawn alone" if graphs else "no model, so nothing is drawn"
            print(f"there is {there_is}{'' if options.calls else '; --calls URL adds calls that were seen'}", file=sys.stderr)
        if graphs or options.output is not None or options.format == "json":
            _write(graphs, options)
    except ServingError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return int(len(configs) < len(found))


def _write(graphs: Sequence[Graph], options: argparse.Namespace) -> None:
    if options.format == "json":
        text = json.dumps([asdict(one) for one in graphs], indent=2)
    else:
        text = mermaid(graphs) if options.format == "mermaid" else svg(graphs)
    if options.output is None:
        print(text)
        return
    try:
        options.output.write_text(text.rstrip("\n") + "\n", errors="replace")
    except (OSError, ValueError) as error:
        raise ServingError(Code.INVALID_ARG, f"{options.output} can't be written: {error}") from None


def _ensembles(configs: dict[str, ModelConfig], only: Sequence[str]) -> Iterator[Graph]:
    for name, config in sorted(configs.items()):
        if config.ensemble is not None and (not only or name in only):
            yield _ensemble(config, configs)


def _alone(configs: dict[str, ModelConfig], only: Sequence[str]) -> list[Graph]:
    """Return the models of which none is known to call another, as one graph; none of none."""
    nodes = [GraphNode(name, name) for name in sorted(configs) if not only or name in only]
    return [Graph("models", nodes, ())] if nodes else []


def _ensemble(config: ModelConfig, configs: dict[str, ModelConfig]) -> Graph:
    """Return the graph of an ensemble. An edge has the names of all tensors that go that way."""
    steps = config.ensemble or ()
    nodes = [GraphNode("in", "request", "end")]
    made = dict.fromkeys((spec.name for spec in config.inputs), "in")
    for k, step in enumerate(steps):
        inner = configs.get(step.model_name)
        version = f" v{step.model_version}" if step.model_version > 0 else ""
        kind = "group" if inner is not None and inner.is_ensemble else "plain"
        nodes.append(GraphNode(f"step{k}", f"{step.model_name}{version}", kind))
        made |= dict.fromkeys(step.output_map.values(), f"step{k}")
    nodes.append(GraphNode("out", "response", "end"))
    ways: dict[tuple[str, str], list[str]] = {}
    for k, step in enumerate(steps):
        for tensor in step.input_map.values():
            ways.setdefault((made.get(tensor, "in"), f"step{k}"), []).append(tensor)
    for spec in config.outputs:
        ways.setdefault((made.get(spec.name, "in"), "out"), []).append(spec.name)
    edges = [GraphEdge(*way, ", ".join(dict.fromkeys(tensors))) for way, tensors in ways.items()]
    return Graph(f"ensemble {config.name}", nodes, edges)


def _calls(url: str, only: Sequence[str]) -> Iterator[Graph]:
    """Return which model called which, as a server tells of it. Raises ServingError."""
    if not url:
        return
    url = url if "://" in url else f"http://{url}"
    status, reason, told = ask(url, "/v2/kernel/calls")
    try:
        calls = msgspec.convert(told, AllCalls).calls
    except (msgspec.ValidationError, RecursionError):
        calls = None
    if status != 200 or calls is None:
        why = told.get("error", "") if isinstance(told, dict) else ""
        why = f": {why}" if why else "; it may be another server, or of another release"
        words = f"{url} answers {status} {reason} where it is asked for calls{why}"
        raise ServingError(Code.UNAVAILABLE, words)
    edges = [
        GraphEdge(one.caller, one.model, f"{one.count} calls" if one.count > 1 else "1 call", dashed=True)
        for one in calls
        if not only or one.caller in only or one.model in only
    ]
    names = dict.fromkeys(name for edge in edges for name in (edge.source, edge.target))
    if edges:
        yield Graph("calls that were seen", [GraphNode(name, name) for name in names], edges)


class Calls(msgspec.Struct):
    """As ObservedCalls, of a server."""

    caller: str
    model: str
    count: int


class AllCalls(msgspec.Struct):
    calls: list[Calls]
