"""Tells who has started `kernel serve` that it serves, and that it stops: systemd, for units of `Type=notify`.

Only where that one has asked, by naming a socket in NOTIFY_SOCKET. Whether it listens changes nothing for the server.
"""

from __future__ import annotations

import logging
import os
import socket

__all__ = ["notify"]

log = logging.getLogger("kernel.serve")

#: How long whoever listens may take to have room for a message; seconds.
PATIENCE = 1.0


def notify(*lines: str) -> None:
    """Send lines such as `READY=1` in one message; do nothing where nobody has asked for them."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path  # without a file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        log.warning("NOTIFY_SOCKET '%s' can't be told %s: %s", path, lines[0], error)
