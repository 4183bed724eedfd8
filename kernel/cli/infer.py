"""`kernel infer`: one inference in this process, without a port. For trying a model out, and for scripts."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np
import uvloop

from kernel.cli.flags import (
    add_config_flags,
    add_log_flags,
    add_storage_flags,
    add_strict_flag,
    auto_complete,
    log_options,
    storage_options,
)
from kernel.cli.opened import opened
from kernel.cli.output import own_stdout
from kernel.cli.parser import Parser, patience
from kernel.cli.table import columns
from kernel.cli.values import as_json, read_tensor
from kernel.errors import Code, ServingError
from kernel.models import Model
from kernel.observability import set_up_log
from kernel.requests import InferenceResponse
from kernel.server import Kernel
from kernel.tensor import Tensor

__all__ = ["infer"]

DESCRIPTION = """\
Run one inference in this process and print the response.

REPO is a model repository; all its models are loaded, since one may call another. Each input is
NAME=VALUE, where VALUE is JSON (nested lists give the shape), @FILE.npy, @FILE.json or @- for JSON
from the standard input. An input of datatype BYTES may also be a plain string, or @FILE for the
content of any file.
"""

EPILOG = """\
examples:
  kernel infer repository/ add_sub --input A=[1,2,3] --input B=[10,20,30]
  kernel infer repository/ text_upper --input TEXT='["one","two"]' --format table
  kernel infer repository/ pipeline_sync --input IMAGE=@digit.npy --batch --output LABEL --explain

A response is printed as one line of JSON, in the form of the KServe protocol; a decoupled model may
give several. What models print goes to the standard error.

Exit status: 0 if the model answered, 1 if not, 2 if the command line is wrong.
"""


def infer(arguments: Sequence[str]) -> int:
    """Run `kernel infer`; return the exit status."""
    parser = Parser("kernel infer", "[FLAG ...] REPO MODEL [--input NAME=VALUE ...]", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("repository", metavar="REPO", help="model repository")
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE", help="an input, see above")
    parser.add_argument("--output", action="append", default=[], metavar="NAME", help="an output to return (default: all)")
    parser.add_argument("--version", default="", metavar="N", help="version of the model (default: the newest)")
    parser.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE", help="a request parameter, JSON or text"
    )
    parser.add_argument("--id", default="", help="id of the request")
    parser.add_argument("--timeout", type=patience, metavar="SECONDS", help="give up after this time")
    parser.add_switch("--batch", False, "put a batch dimension of 1 in front of every input")
    parser.add_switch("--explain", False, "say on the standard error why it took as long as it did")
    parser.add_argument("--format", choices=("json", "table"), default="json", help="how to print (default: json)")
    parser.add_argument(
        "--load-model", action="append", default=[], metavar="NAME", help="load only MODEL and these (default: all models)"
    )
    add_storage_flags(parser)
    add_config_flags(parser)
    add_strict_flag(parser, True)
    add_log_flags(parser, info=False)
    options = parser.read(arguments)
    options.inputs = _pairs(parser, "--input", options.input)
    options.parameters = {name: _json_or_text(value) for name, value in _pairs(parser, "--parameter", options.parameter).items()}
    set_up_log(log_options(options))
    try:
        with own_stdout() as answers, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_infer(options, answers))
    except ServingError as error:
        print(f"error: {error.code.value} - {error.message.strip()}", file=sys.stderr)
        return 1
    return 0


def _pairs(parser: Parser, flag: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            parser.error(f"{flag} '{text}' is not of the form NAME=VALUE")
        if name in pairs:
            parser.error(f"{flag} '{name}' is given twice")
        pairs[name] = value
    return pairs


def _json_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


async def _infer(options: argparse.Namespace, answers: TextIO) -> None:
    only = [options.model, *options.load_model] if options.load_model else ["*"]
    kernel = Kernel(
        options.repository,
        control_mode="explicit",
        load_models=only,
        exit_on_error=False,
        auto_complete=auto_complete(options),
        strict_outputs=options.strict_outputs,
        config_name=options.model_config_name,
        storage=storage_options(options),
    )
    async with kernel:
        if kernel.broken is not None:
            raise kernel.broken
        with opened([options.repository], storage_options(options)) as (repository,):
            model = _model(kernel, options.model, options.version, repository.mistaken)
        inputs = {name: _tensor(model, name, value, options.batch) for name, value in options.inputs.items()}
        responses = kernel.stream(
            options.model,
            inputs,
            version=options.version,
            outputs=options.output or None,
            parameters=options.parameters or None,
            id=options.id,
            timeout=options.timeout,
        )
        try:
            async for response in responses:
                as_text = _table if options.format == "table" else _as_line
                print(as_text(response), file=answers, flush=True)
        finally:
            if options.explain:
                _explain(kernel, options)


def _explain(kernel: Kernel, options: argparse.Namespace) -> None:
    """Print why the request took as long as it did; nothing where it was refused before any scheduler had it."""
    for told in [one for one in kernel.explain(options.id) if one.model == options.model][:1]:
        print("\n".join(told.lines()), file=sys.stderr, flush=True)


def _model(kernel: Kernel, name: str, version: str, mistaken: Callable[[], str]) -> Model:
    """Return the model; where it isn't ready, say why instead of that it isn't. `mistaken`: why that is no repository."""
    try:
        return kernel.model(name, version)
    except ServingError as error:
        lines = [line for line in kernel.index() if line.name == name and line.reason and version in ("", line.version)]
        if lines:
            raise ServingError(error.code, f"{error.message}: {'; '.join(line.reason.strip() for line in lines)}") from None
        names = [model.name for model in kernel.models()]
        near = difflib.get_close_matches(name, names, n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(sorted(set(names))) or 'none'}"
        hint += f": {words}" if (words := mistaken()) else ""
        raise ServingError(error.code, f"{error.message}{hint if not version else ''}") from None


def _tensor(model: Model, name: str, text: str, batch: bool) -> Tensor:
    spec = model.input_specs.get(name)
    if spec is None:
        raise ServingError(
            Code.INVALID_ARG,
            f"unexpected inference input '{name}' for model '{model.name}'; it has {', '.join(model.input_specs) or 'none'}",
        )
    tensor = read_tensor(spec, text)
    if batch:
        tensor.array = np.expand_dims(tensor.array, 0)
    return tensor


def _as_line(response: InferenceResponse) -> str:
    head: dict[str, Any] = {"id": response.id} if response.id else {}
    head |= {"model_name": response.model_name, "model_version": response.model_version}
    if response.parameters:
        head["parameters"] = response.parameters
    return json.dumps({**head, "outputs": [as_json(tensor) for tensor in response.outputs]}, ensure_ascii=False)


def _table(response: InferenceResponse) -> str:
    rows = [("output", "datatype", "shape", "data")]
    for tensor in response.outputs:
        shown = as_json(tensor)
        text = " ".join(item if isinstance(item, str) else json.dumps(item) for item in shown["data"][:20])
        rest = f" … ({len(shown['data'])} elements)" if len(shown["data"]) > 20 else ""
        rows.append((tensor.name, tensor.datatype, str(shown["shape"]), text + rest))
    return "\n".join(columns(rows))
