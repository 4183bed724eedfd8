"""Make the pages of docs/ that say what there is: commands and flags of their parsers, fields of config.pbtxt of its schema,
families of metrics of what makes them. `python3 dev.py reference` (`--check`: compare).

What a thing means is told where it is made (help texts, notes of the schema, HELP texts), and at length in the pages that each
of these begins by naming. scripts/reference.py makes the page of public names.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from kernel.cli import commands
from kernel.cli.flags import is_without_effect
from kernel.cli.parser import parser_of
from kernel.cli.serve import serve as commands_serve
from kernel.config import model_config_pb2, parameters
from kernel_metrics.machine import Machine
from kernel_metrics.models import ModelFamilies
from kernel_metrics.page import SERVER
from kernel_metrics.text import Family

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = "Made from the code by `python3 dev.py reference`"

COMMANDS_HEAD = f"""\
# Commands and flags

{MADE}; edit the help texts, not this page. What is common to all
commands stands in [the command line](cli.md), and what the flags of `serve` that are used most are about in [flags](flags.md).
Commands of plugins, such as [`kernel ray`](ray.md), tell theirs by `--help`.
"""

CONFIG_HEAD = f"""\
# Fields of config.pbtxt

{MADE}; edit the notes in `kernel/config/model_config.proto`, not
this page. Names and numbers are Triton's, so every config of Triton's can be read. What fields mean here,
and which have no effect, stands in [the contract](contract/model_config.md), at length in [batching](batching.md),
[sequences](sequences.md), [instances](instances.md) and [caching](caching.md).

## Parameters that the server reads

Each is `parameters {{ key: "NAME" value {{ string_value: "VALUE" }} }}`; others are the model's own, or its backend's:
[Python](python.md), [ONNX](onnx.md#how-it-runs), [remote](remote.md), [Ray](ray.md).

"""

METRICS_HEAD = f"""\
# Families of the metrics page

{MADE}; edit the HELP texts, not this page. What they count, and
which flags add families, stands in [metrics](metrics.md).
Behind these come those that models make.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def code(text: str) -> str:
    return f"`{text}`"


def commands_page() -> str:
    helps = dict(re.findall(r"^  (\w+) {2,}(.*)$", commands.HELP, re.M))
    parts = [COMMANDS_HEAD]
    for name in commands.COMMANDS:
        parser = parser_of(getattr(importlib.import_module(f"kernel.cli.{name}"), name))
        parts.append(f"\n## kernel {name}\n\n{helps[name][0].upper()}{helps[name][1:]}.\n\n")
        parts.append(f"```text\n{' '.join(parser.format_usage().removeprefix('usage: ').split())}\n```\n\n")
        actions = [action for action in parser._actions if action.help not in (argparse.SUPPRESS, None) and action.dest != "help"]
        parts.append(table(("", ""), [(flag(action), said(action)) for action in actions]))
    serve = parser_of(commands_serve)
    idle = sorted({code(action.option_strings[0]) for action in serve._actions if is_without_effect(action)})
    parts.append("\n## Flags of tritonserver without effect\n\nTaken by `kernel serve`, with a warning, so that a start script ")
    parts.append(f"needs no change; there is nothing here that they could act on:\n{', '.join(idle)}.\n")
    return "".join(parts)


def flag(action: argparse.Action) -> str:
    """Return how an argument is written: `--name VALUE`."""
    names = ", ".join(map(code, action.option_strings)) or code(str(action.metavar or action.dest))
    value = action.metavar if action.metavar is not None else action.dest.upper()
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings or action.nargs == 0:
        return names
    return f"{names} {code(f'[{value}]' if action.nargs == '?' else str(value))}"


def said(action: argparse.Action) -> str:
    text = str(action.help) % vars(action) if "%(" in str(action.help) else str(action.help).replace("%%", "%")
    return escaped(text)


def escaped(text: str) -> str:
    return re.sub(r"([<*_])", r"\\\1", text)


def configuration_page() -> str:
    rows = [(code(name), "any", escaped(wanted)) for name, (_, wanted) in parameters.SERVER.items()]
    rows += [(code(name), "`python`", wanted) for name, (_, wanted) in parameters.PYTHON.items()]
    rows += [(code(name), "`python`", "one of " + ", ".join(values)) for name, values in parameters.CHOICES.items()]
    rows += [(code(name), "`python`", "see [Python models](python.md)") for name in parameters.FREE]
    parts = [CONFIG_HEAD, table(("parameter", "backend", "value"), rows)]
    file = model_config_pb2.DESCRIPTOR
    notes = schema_notes()
    messages = sorted(file.message_types_by_name.values(), key=lambda one: one.name != "ModelConfig")
    for message in (one for top in messages for one in nested(top)):
        name = message.full_name.removeprefix(f"{file.package}.")
        parts.append(f"\n## {name}\n\n")
        parts.append(f"{notes[name]}\n\n" if name in notes else "")
        parts.append(table(("field", "type"), [(code(field.name), kind(field)) for field in message.fields]))
    return "".join(parts)


def schema_notes() -> dict[str, str]:
    """Return what stands above the messages in the schema."""
    text = Path(model_config_pb2.__file__).with_name("model_config.proto").read_text()
    found = re.findall(r"((?:^// .*\n)+)message (\w+)", text, re.M)
    return {name: " ".join(line.removeprefix("// ") for line in note.splitlines()) for note, name in found}


def nested(message: Descriptor) -> Iterator[Descriptor]:
    """Yield a message and those that are defined in it, but for what stands behind maps."""
    if not message.GetOptions().map_entry:
        yield message
        for one in message.nested_types:
            yield from nested(one)


def kind(field: FieldDescriptor) -> str:
    message, values = field.message_type, field.enum_type
    if message is not None and message.GetOptions().map_entry:
        return f"map of {kind(message.fields_by_name['key'])} to {kind(message.fields_by_name['value'])}"
    if message is not None:
        name = message.full_name.removeprefix("inference.")
        what = f"[{name}](#{name.replace('.', '').lower()})"
    elif values is not None:
        what = ", ".join(code(value.name) for value in values.values)
    else:
        what = TYPES[field.type]
    return f"list of {what}" if field.is_repeated else what


TYPES = {
    value: name.removeprefix("TYPE_").lower() for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")
}


def metrics_page() -> str:
    machine = Machine(cpu=False, gpus=None, interval=1.0)
    server = [Family(*one) for one in SERVER]
    parts = [METRICS_HEAD]
    for title, labels, families in (
        ("Of each model version", "`model`, `version`", ModelFamilies().by_name.values()),
        ("Of the server", "none, but `gpu_uuid` of GPUs", [*machine.families, *server]),
    ):
        parts.append(f"\n## {title}\n\nLabels: {labels}.\n\n")
        parts.append(table(("name", "kind", "HELP"), [(code(one.name), one.kind, help_of(one)) for one in families]))
    return "".join(parts)


def help_of(family: Family) -> str:
    return family.head.splitlines()[0].removeprefix(f"# HELP {family.name} ")


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "configuration.md": configuration_page,
    "families.md": metrics_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say what is stale")
    check = parser.parse_args().check
    stale = [name for name, make in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != make()]
    for name in stale:
        if check:
            print(f"docs/{name} is not what the code gives: run `python3 dev.py reference`", file=sys.stderr)
        else:
            (DOCS / name).write_text(PAGES[name]())
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
