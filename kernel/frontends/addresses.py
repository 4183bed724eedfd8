"""Addresses to listen at, as people write them: IPv6 in brackets or not, `ipv4:` or `ipv6:` in front or not. Pure.

Every interface means both families, however it is written (`0.0.0.0`, `::`, `[::]`), as gRPC's own servers have it; with `ipv4:`
or `ipv6:` in front it is that one alone.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

__all__ = ["Address", "read_address"]

EVERYWHERE = ("", "0.0.0.0", "::")


class Address(NamedTuple):
    """A host, without brackets. `version`: of IP, 4 or 6; 0 where the host's name or number says it, or it is both."""

    host: str
    version: int = 0

    @property
    def everywhere(self) -> bool:
        """Whether it is every interface, of both families."""
        return not self.version and self.host in EVERYWHERE

    def with_port(self, port: int) -> str:
        """The address as a URL has it."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def read_address(text: str) -> Address:
    """Read an address. Raises ValueError with what is wrong."""
    prefix, colon, host = text.partition(":")
    version = {"ipv4": 4, "ipv6": 6}.get(prefix, 0) if colon else 0
    if not version:
        host = text
    bare = host
    if host.startswith("[") and host.endswith("]"):
        bare = host[1:-1]
        if version == 4 or _version(bare) != 6:
            raise ValueError(f"'{text}' is no address: an IPv6 address belongs into the brackets, as in [::1]")
    elif ("[" in host or "]" in host) or (":" in host and _version(host) != 6):
        raise ValueError(f"'{text}' is no address; a port has a flag of its own, and IPv6 is written as ::1 or [::1]")
    if version and _version(bare) != version:
        raise ValueError(f"'{text}' is no IPv{version} address")
    return Address(bare, version)


def _version(host: str) -> int:
    """Return which version of IP a number is of, 0 where it is none."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0
