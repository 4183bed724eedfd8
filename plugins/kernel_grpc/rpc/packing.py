"""The compressed messages of one call's answer: in order, although the large ones are packed on another thread.

What comes while one of them is packed waits behind it, the call's status included.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from kernel_grpc.http2 import Data
from kernel_grpc.rpc.compression import ON_LOOP
from kernel_grpc.rpc.meanings import Meaning
from kernel_grpc.rpc.patience import MAX_WAITING
from kernel_grpc.rpc.server import Server
from kernel_grpc.rpc.status import Status

__all__ = ["Packing"]

log = logging.getLogger(__name__)


class Sender(Protocol):
    """The call, as its packed messages need it."""

    done: bool
    meaning: Meaning
    server: Server

    @property
    def writable(self) -> bool: ...

    def send_pieces(self, pieces: Sequence[Data], size: int, *, compressed: bool) -> None:
        """Send a message as it is."""

    def finish(self, code: int, text: str) -> None:
        """End the call with a status."""

    def give_up(self, code: int, text: str) -> None:
        """End the call although its method has not."""

    def room_again(self) -> None:
        """The call may be writable again."""


class Packing:
    """What has to wait while a message is packed on another thread: messages, and the status behind them."""

    __slots__ = ("_behind", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[list[Data] | tuple[int, str]] | None = None  # None where nothing is packed on another thread
        self._behind = 0  # the bytes of the messages that wait

    @property
    def busy(self) -> bool:
        return self._waiting is not None

    def send(self, call: Sender, pieces: list[Data], size: int) -> None:
        """Send a message compressed, in its turn."""
        if self._waiting is not None:
            self._behind += size
            if self._behind > MAX_WAITING:
                text = f"{self._behind} bytes wait to be compressed, more than the {MAX_WAITING} that are kept"
                call.give_up(Status.RESOURCE_EXHAUSTED, text)
            else:
                self._waiting.append(pieces)
            return
        compression = call.meaning.compression
        assert compression is not None
        if size <= ON_LOOP:
            _send_packed(call, pieces, size, compression.packed(pieces))
        else:
            self._waiting = deque()
            job = call.server.kernel.loop.run_in_executor(None, compression.packed, pieces)
            job.add_done_callback(partial(self._packed, call, pieces, size))

    def finish(self, code: int, text: str) -> None:
        """Have the call finished behind what waits; only where it is `busy`."""
        assert self._waiting is not None
        self._waiting.append((code, text))

    def _packed(self, call: Sender, pieces: list[Data], size: int, done: asyncio.Future[bytes]) -> None:
        if done.cancelled() or call.done:  # the loop is closing; or nobody waits any more
            return
        if (error := done.exception()) is not None:
            log.error("an answer can't be compressed", exc_info=error)
            call.send_pieces(pieces, size, compressed=False)
        else:
            _send_packed(call, pieces, size, done.result())
        waiting, self._waiting = self._waiting or deque(), None
        self._go_on(call, waiting)
        if call.writable:
            call.room_again()

    def _go_on(self, call: Sender, waiting: deque[list[Data] | tuple[int, str]]) -> None:
        """Send what had to wait, up to the next message that is packed on another thread."""
        while waiting and not call.done:
            item = waiting.popleft()
            if isinstance(item, tuple):
                call.finish(*item)
            else:
                size = sum(map(len, item))
                self._behind -= size
                self.send(call, item, size)
            if self._waiting is not None:
                self._waiting = waiting
                return


def _send_packed(call: Sender, pieces: list[Data], size: int, packed: bytes) -> None:
    """Send the shorter of the two."""
    if len(packed) < size:
        call.send_pieces([packed], len(packed), compressed=True)
    else:
        call.send_pieces(pieces, size, compressed=False)
