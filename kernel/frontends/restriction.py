"""Restricted APIs: which categories of operations ask for a header, and what it has to say.

Reads the values of `--http-restricted-api` and `--grpc-restricted-protocol`; how a client sends the header, and what it is told
without, is the front ends' business. A mistake is told in the reference's words first.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["CATEGORIES", "parse_restrictions"]

#: Every operation belongs to one of these. (Contract: http_protocol, section 2.)
CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


def parse_restrictions(values: Sequence[str], flag: str) -> dict[str, tuple[str, str]]:
    """Return category -> (key, value) for values such as `health,metadata:admin-key=secret`.

    Raises ValueError that names the flag, what came and what was wanted.
    """
    kind = "protocol" if "protocol" in flag else "api"
    result: dict[str, tuple[str, str]] = {}
    for text in values:
        categories, colon, pair = text.partition(":")
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not (colon and equals and key and value):
            raise ValueError(
                f"{flag} option format is '<config name>:<setting>=<value>'. Got {text} — "
                f"{flag} '{text}' is not of the form <category>[,<category>...]:<key>=<value>"
            )
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"{flag} '{text}': '{key}' can't be the name of a header")
        for category in map(str.strip, categories.split(",")):
            if category not in CATEGORIES:
                raise ValueError(
                    f"unknown restricted {kind} '{category}' — "
                    f"{flag} '{text}': there is no category '{category}'; there are {', '.join(CATEGORIES)}"
                )
            if category in result:
                raise ValueError(
                    f"restricted {kind} '{category}' can not be specified in multiple config groups — "
                    f"{flag} '{text}': the category '{category}' was given before"
                )
            result[category] = (key, value)
    return result
