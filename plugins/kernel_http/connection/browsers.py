"""What is asked of requests that a browser may have been talked into: whose page they come from, and by which name they reach us.

A page of anybody can have a browser send requests to a server that its owner could not reach himself, and, with a name that he
owns and points at this machine (DNS rebinding), read the answers. Browsers say where a request that changes something comes from
(Origin), and by which name they know the server (Host). Clients that are no browsers send no Origin, and nothing is asked of
them.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from functools import cached_property
from ipaddress import ip_address

from kernel import clipped
from kernel_http.connection import replies
from kernel_http.connection.heads import Head

__all__ = ["ANY", "Browsers"]

#: Every name.
ANY = "*"

_PORTS = {"http": "80", "https": "443"}


class Browsers:
    """`names`: those of this server, besides its addresses, `localhost` and the machine's own names; ANY for all. `control`:
    whether pages of this server may change what is served.
    """

    def __init__(self, names: Collection[str] = (), *, control: bool = False) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._control = control

    def page_refused(self, head: Head) -> bytes | None:
        """Return the answer to a request for a page that comes by a name which is none of ours, else None."""
        host = _field(head, b"host")
        if self._is_known(_split(host)[0]):
            return None
        words = f"this page is not shown by the name '{clipped(host, 80)}'; if that is a name of this server, start it with "
        return replies.error(403, f"{words}--http-allowed-host={clipped(_split(host)[0], 80)}", json=False)

    def change_refused(self, head: Head) -> bytes | None:
        """Return the answer to a request that changes what is served, where a browser has sent it for a page that may not."""
        origin = _field(head, b"origin")
        if not origin:
            return None
        scheme, _, rest = origin.partition("://")
        name, port = _split(rest)
        default = _PORTS.get(scheme, "")
        own = _split(_field(head, b"host"))
        same = (name, port or default) == (own[0], own[1] or default)
        if not (name and (name in self._names or (same and self._is_known(name)))):
            words = f"this request changes what is served, and comes from a page of another site (Origin: {clipped(origin, 80)})"
        elif not self._control:
            words = "this request changes what is served, and comes from a browser, which may only with --dashboard-control=true"
        else:
            return None
        return replies.error(403, words, json=True)

    def _is_known(self, name: str) -> bool:
        return ANY in self._names or name in self._names or name in self._own or _is_address(name)

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


def _split(host: str) -> tuple[str, str]:
    """Return a host's name, without the brackets of an address, and its port, "" for none."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name.rstrip("."), port


def _is_address(name: str) -> bool:
    """Whether that is an address: nobody can point it at another machine."""
    try:
        ip_address(name)
    except ValueError:
        return name.endswith(".localhost")
    return True
