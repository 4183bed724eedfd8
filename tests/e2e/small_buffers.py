"""Runs `kernel` with the smallest buffers that the system gives, so that it reads and writes in pieces whatever it wants to.

At each socket that listens, whose connections inherit them, and at the channels to processes of models.
"""

from __future__ import annotations

import runpy
import socket
from typing import Any

_bind, _pair = socket.socket.bind, socket.socketpair


def smallest(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 1)


def bind(sock: socket.socket, address: Any) -> None:
    smallest(sock)
    _bind(sock, address)


def socketpair(*arguments: Any) -> tuple[socket.socket, socket.socket]:
    pair = _pair(*arguments)
    if pair[0].type == socket.SOCK_STREAM:  # other messages have to fit in at once
        for end in pair:
            smallest(end)
    return pair


if __name__ == "__main__":
    socket.socket.bind = bind  # type: ignore[method-assign]
    socket.socketpair = socketpair  # type: ignore[assignment]
    runpy.run_module("kernel", run_name="__main__")
