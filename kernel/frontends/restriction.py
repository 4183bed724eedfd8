"""Restricted APIs: which categories of operations ask for a header, and what it has to say.

Reads the values of `--http-restricted-api` and `--grpc-restricted-protocol`; how a client sends the header, and what it is told
without, is the front ends' business. A mistake is told in the reference's words first.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from ipaddress import ip_address

__all__ = ["CATEGORIES", "is_local", "is_restricted", "local_categories", "only_local", "parse_restrictions"]

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


#: Those with operations that change something for everybody; and what tells of the requests of all clients.
CHANGING = ("logging", "trace", "shared-memory", "model-repository")
INFLIGHT = "inflight"

#: In which category an operation is restricted that has a name of its own here.
_OWNERS = {INFLIGHT: "statistics"}


def local_categories(options: argparse.Namespace, restricted: Collection[str]) -> frozenset[str]:
    """Return the categories whose changing operations are for clients of this machine alone, and "inflight" where that is.

    `restricted`: those that ask for a header, which decides then.
    """
    found: set[str] = {*CHANGING, INFLIGHT} if getattr(options, "safe", False) else set()
    if getattr(options, "allow_client_shm", "local") == "local":
        found.add("shared-memory")
    return frozenset(one for one in found if _OWNERS.get(one, one) not in restricted)


def is_restricted(options: argparse.Namespace, prefix: str, restricted: Collection[str]) -> bool:
    """Whether clients of other machines are kept from each change of what is served. `prefix`: of the flags of a front end."""
    kept = {*restricted, *local_categories(options, restricted)}
    return kept.issuperset(CHANGING) or getattr(options, f"{prefix}_use_ssl_mutual", False)


def is_local(peer: object) -> bool:
    """Whether a transport's `peername` is of a client of this machine: it came by a loopback address, or a Unix socket."""
    if not isinstance(peer, tuple) or not peer:
        return True
    try:
        address = ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def only_local(category: str) -> str:
    """Return why a client of another machine is refused, and the way out."""
    shm = category == "shared-memory"
    what, flag = ("registering shared memory", "--allow-client-shm") if shm else ("this operation", "--safe")
    return (
        f"{what} is for clients of the server's own machine ({flag}); others need a key, which --auth-keys, "
        "--http-restricted-api and --grpc-restricted-protocol ask for"
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
