"""`--record` and what belongs to it: what of the requests is kept in a file while they are served."""

from __future__ import annotations

import argparse

from kernel.cli.parser import Parser, share, size
from kernel.errors import Code, ServingError
from kernel.recording import Recorder, RecordOptions
from kernel.server import Kernel

__all__ = ["add_record_flags", "check_record", "recorder_of"]

#: A smaller file would have next to nothing in it.
LEAST_SIZE = 64 * 1024


def add_record_flags(parser: Parser) -> None:
    default = RecordOptions()
    parser.add_argument(
        "--record", default="", metavar="FILE", help="write what becomes of requests to FILE, for kernel replay and simulate"
    )
    parser.add_argument(
        "--record-rate",
        type=share,
        default=default.rate,
        metavar="SHARE",
        help="the share of requests that is recorded, by chance, above 0 to 1 (default: 1)",
    )
    parser.add_argument(
        "--record-size",
        type=size,
        default=default.size,
        metavar="BYTES",
        help=f"how large the file may become; the recording ends then (default: {default.size})",
    )
    parser.add_switch("--record-tensors", False, "record what is asked and answered, too; without it nothing of either is kept")
    parser.add_argument(
        "--record-redaction",
        default="",
        metavar="NAME[,KEY=VALUE...]",
        help="have what is recorded pass a redactor first: hash, or one of a plugin",
    )


def check_record(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse what makes no sense together."""
    if not options.record:
        for flag, name in (("--record-tensors", "record_tensors"), ("--record-redaction", "record_redaction")):
            if getattr(options, name):
                parser.error(f"{flag} says how to record, and --record does not say where to")
    elif options.record_size < LEAST_SIZE:
        parser.error(f"--record-size is {options.record_size}, wanted are at least {LEAST_SIZE} bytes")


def recorder_of(kernel: Kernel, options: argparse.Namespace, version: str) -> Recorder | None:
    """Return what records, where that is asked for. Raises ServingError for a redactor that nobody has."""
    if not options.record:
        return None
    # Each replica writes a file of its own.
    path = options.record if options.replica is None else f"{options.record}.replica{options.replica.index}"
    name, settings = _redaction(options.record_redaction)
    chosen = RecordOptions(path, options.record_rate, options.record_size, options.record_tensors, name)
    redact = kernel.plugins.redactor(name, settings) if name else None
    return Recorder(kernel, kernel.supervision.history, chosen, redact, version)


def _redaction(text: str) -> tuple[str, dict[str, str]]:
    name, *pairs = text.split(",")
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ServingError(Code.INVALID_ARG, f"--record-redaction '{text}' is not of the form NAME,KEY=VALUE,…")
        settings[key] = value
    return name, settings
