"""Copies what passes to the process that looks on, as far as that takes it.

The law: nothing waits here. What the other process does not take in time is left out, from then on until that connection's end.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from kernel.shadow.proxy import CLOSED

__all__ = ["FRAME", "GAP", "Tee"]

#: In front of each piece: of which connection it is, what, and how long.
FRAME = struct.Struct("<QBI")

#: Besides what a proxy tells: something of a connection is missing from here on.
GAP = 3

#: How much may wait in this process for the other one; bytes.
MOST = 64 * 1024 * 1024

#: What the other process says when it looks on.
READY = b"R"


class Tee(asyncio.Protocol):
    """The end of a socket pair, of which the other process has the other. `ready`: it looks on; `ended`: it does no more.

    Numbers of connections have to differ among all that tell it.
    """

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self._transport: Any = None
        self._gaps: set[int] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.ready.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.ended.set()

    def tell(self, connection: int, kind: int, data: bytes = b"") -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if connection in self._gaps:
            if kind != CLOSED:
                return
            self._gaps.discard(connection)
        elif kind != CLOSED and transport.get_write_buffer_size() + len(data) > MOST:
            self._gaps.add(connection)
            kind, data = GAP, b""
        transport.writelines((FRAME.pack(connection, kind, len(data)), data))

    def close(self) -> None:
        """Nothing passes any more; what waits is still handed over."""
        if self._transport is not None:
            self._transport.close()
