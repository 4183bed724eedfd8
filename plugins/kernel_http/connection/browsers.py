"""What is asked of requests that a browser may have been talked into: whose page they come from, and by which name they reach us.

A page of anybody can have a browser send requests to a server that its owner could not reach himself, and, with a name that he
owns and points at this machine (DNS rebinding), read the answers. Browsers say where a request that changes something comes from
(Origin), and by which name they know the server (Host). Clients that are no browsers send no Origin, and nothing is asked of
them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from kernel import clipped
from kernel_http.connection import replies
from kernel_http.connection.heads import Head

__all__ = ["ANY", "Browsers", "Host", "read_host"]

#: Every name.
ANY = "*"

_PORTS = {"http": "80", "https": "443"}

#: `name`, `[address]`, and a port behind either. A name is labels with dots between, and perhaps one behind the last.
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::(?P<port>[0-9]{0,5}))?")


class Host(NamedTuple):
    """A host as a header names it. `name`: lower case, an address without its brackets; `port`: "" for none."""

    name: str
    port: str
    is_address: bool


def read_host(text: str) -> Host | None:
    """Read `name[:port]` or `[address][:port]`; None where it is anything else, be it by one character."""
    found = _HOST.fullmatch(text.lower()) if text.isascii() else None
    if found is None or int(found["port"] or 0) > 65535:
        return None
    kind, name = (IPv4Address, found["name"]) if found["address"] is None else (IPv6Address, found["address"])
    try:
        kind(name)
        is_address = True
    except ValueError:
        is_address = False
    if found["address"] is not None and not is_address:
        return None
    return Host(name, found["port"] or "", is_address)


class Browsers:
    """`names`: those of this server, besides its addresses, `localhost` and the machine's own names; ANY for all. `control`:
    whether pages of this server may change what is served.
    """

    def __init__(self, names: Collection[str] = (), *, control: bool = False) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._control = control

    def page_refused(self, head: Head, *, json: bool = False) -> bytes | None:
        """Return the answer to a request for a page that comes by a name that is none of ours, else None. `json`: of errors."""
        if ANY in self._names:
            return None
        text = _field(head, b"host")
        host = read_host(text)
        if host is not None and self._is_known(host):
            return None
        words = f"this page is not shown by the name '{clipped(text, 80)}'"
        if host is None:
            words += ", which is no name of a host"
        else:
            words += f"; if that is a name of this server, start it with --http-allowed-host={clipped(host.name, 80)}"
        return replies.error(403, words, json=json)

    def change_refused(self, head: Head) -> bytes | None:
        """Return the answer to a request that changes what is served, where a browser has sent it for a page that may not."""
        origin = _field(head, b"origin")
        if not origin:
            return None
        if not self._is_own_page(origin, _field(head, b"host")):
            words = f"this request changes what is served, and comes from a page of another site (Origin: {clipped(origin, 80)})"
        elif not self._control:
            words = "this request changes what is served, and comes from a browser, which may only with --dashboard-control=true"
        else:
            return None
        return replies.error(403, words, json=True)

    def _is_own_page(self, origin: str, host: str) -> bool:
        """Whether an Origin is a page of ours: one by an allowed name, or by the known name that the request itself came by."""
        scheme, _, rest = origin.partition("://")
        page, own = read_host(rest), read_host(host)
        if page is None:
            return False
        if page.name in self._names:
            return True
        default = _PORTS.get(scheme, "")
        same = own is not None and (page.name, page.port or default) == (own.name, own.port or default)
        return same and self._is_known(page)

    def _is_known(self, host: Host) -> bool:
        """Whether nobody else can point that name at this machine, as all addresses are known to, or somebody has allowed it."""
        name = host.name
        return host.is_address or ANY in self._names or name in self._names or name in self._own or name.endswith(".localhost")

    @cached_property
    def _own(self) -> frozenset[str]:
        """The names that need nobody's word: nobody else can point them at this machine."""
        machine = socket.gethostname().lower()
        return frozenset({"localhost", machine, machine.partition(".")[0]} - {""})


def _field(head: Head, name: bytes) -> str:
    """Return a header field, the first of that name, "" where there is none."""
    for key, value in head.headers:
        if key.lower() == name:
            return value.strip().decode("latin-1").lower()
    return ""
