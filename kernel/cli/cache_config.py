"""`--cache-config` and its older form: which response cache there is, and how it is set up.

What the settings mean is the business of who makes the cache (hook `make_cache`).
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from kernel.cli.parser import Parser
from kernel.errors import Code, ServingError

__all__ = ["add_cache_flags", "cache_options"]


class _Config(argparse.Action):
    """One setting of a cache: `--cache-config local,size=268435456`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        name, comma, setting = values.partition(",")
        key, equals, value = setting.partition("=")
        if not (name.strip() and comma and key.strip() and equals):
            words = f"No cache specified. {option} option format is <cache name>,<setting>=<value>. Got {values}"
            parser.error(f"{words} — {option} '{values}' is not of the form <cache name>,<setting>=<value>")
        namespace.cache = {one: dict(settings) for one, settings in namespace.cache.items()}
        namespace.cache.setdefault(name.strip(), {})[key.strip()] = value.strip()
        namespace.cache_flags = namespace.cache_flags | {"cache-config"}
        _exclude(parser, namespace)


class _Size(argparse.Action):
    """The size of the local cache, as it was given before there were others; 0 for none."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if not re.fullmatch("[0-9]{1,18}", values):
            parser.error(f"{option} '{values}' is no number of bytes")
        print(f"Warning: '{option}' has been deprecated, use '--cache-config=local,size={values}'", file=sys.stderr)
        if int(values):
            namespace.cache = {"local": {"size": values}}
        namespace.cache_flags = namespace.cache_flags | {"response-cache-byte-size"}
        _exclude(parser, namespace)


def _exclude(parser: Any, namespace: Any) -> None:
    if len(namespace.cache_flags) > 1:
        words = "Incompatible flags --response-cache-byte-size and --cache-config both provided."
        parser.error(f"{words} Please provide one or the other.")


def add_cache_flags(parser: Parser) -> None:
    """Add `--cache-config` and its older form."""
    parser.set_defaults(cache={}, cache_flags=frozenset())
    parser.add_argument(
        "--cache-config",
        action=_Config,
        metavar="NAME,SETTING=VALUE",
        help="keep the answers of models with response_cache: local,size=BYTES in memory (default: no cache)",
    )
    parser.add_argument("--response-cache-byte-size", action=_Size, help=argparse.SUPPRESS)


def cache_options(options: argparse.Namespace) -> tuple[str, dict[str, str]] | None:
    """Return the name and the settings of the cache that is asked for. Raises ServingError for two of them."""
    caches: dict[str, dict[str, str]] = options.cache
    if len(caches) > 1:
        words = f"found multiple cache configurations, but only a single cache is currently supported: {sorted(caches)}"
        raise ServingError(Code.INVALID_ARG, words)
    return next(iter(caches.items()), None)
