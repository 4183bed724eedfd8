"""One end of the socket pair between the supervisor and a replica: records both ways, and sockets along with them.

A record is its length, four bytes, and MessagePack. Neither end ever waits for the other: what can't be sent yet is kept. Sockets
travel with the first bytes of their record and are there when that is complete.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from kernel.replicas.messages import Message

__all__ = ["Channel", "receive", "transmit"]

HEAD = 4

#: What is read at a time, and how many sockets may come with it.
READ_SIZE = 256 * 1024
MOST_SOCKETS = 64
_SPACE = socket.CMSG_SPACE(MOST_SOCKETS * array.array("i").itemsize)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Channel:
    """Takes over `sock`. On `loop`, `on_message(record)` is called for each record, and `on_end()` once, when the other end is
    gone. What comes for a channel that is closed is passed over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._received = bytearray()
        self._sockets: deque[int] = deque()  # descriptors that have come, and whose records have not been read
        self._waiting: deque[tuple[memoryview, Sequence[int]]] = deque()  # what is still to be sent
        self._closed = False
        sock.setblocking(False)
        loop.add_reader(sock, self._read)

    def send(self, record: Message, sockets: Sequence[socket.socket] = ()) -> None:
        """Send a record. The descriptors of `sockets` are copied now: the caller may close them. Raises OSError where there is no
        descriptor left for that.
        """
        if self._closed:
            return
        data = _encode(record)
        copies: list[int] = []
        try:
            copies += (os.dup(one.fileno()) for one in sockets)
        except OSError:
            for copy in copies:
                os.close(copy)
            raise
        self._waiting.append((memoryview(len(data).to_bytes(HEAD, "little") + data), copies))
        if len(self._waiting) == 1:
            self._write()

    def taken(self, count: int) -> list[socket.socket]:
        """Return the sockets that have come with the record that is being read."""
        return [socket.socket(fileno=self._sockets.popleft()) for _ in range(count)]

    def close(self) -> None:
        """Say and hear nothing more. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for descriptor in (*self._sockets, *(copy for _, copies in self._waiting for copy in copies)):
            os.close(descriptor)
        self._sockets.clear()
        self._waiting.clear()

    def _write(self) -> None:
        while self._waiting:
            data, copies = self._waiting[0]
            try:
                sent = socket.send_fds(self._sock, [data], copies) if copies else self._sock.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._write)
                return
            except OSError:
                return  # it is gone, which reading tells
            for copy in copies:
                os.close(copy)
            self._waiting[0] = (data[sent:], ())
            if sent == len(data):
                self._waiting.popleft()
        self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_SIZE, _SPACE, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(value[: len(value) - len(value) % descriptors.itemsize])
                self._sockets.extend(descriptors)
        if not data:
            if not self._closed:
                self.close()
                self._on_end()
            return
        self._received += data
        self._deliver()

    def _deliver(self) -> None:
        received, at = self._received, 0
        records = []
        while len(received) - at >= HEAD:
            end = at + HEAD + int.from_bytes(received[at : at + HEAD], "little")
            if end > len(received):
                break
            records.append(_decode(received[at + HEAD : end]))
            at = end
        del received[:at]
        for record in records:
            if not self._closed:
                self._on_message(record)


def receive(sock: socket.socket) -> Message | None:
    """Wait for one record, without a loop, and read no byte of the next; None when the other end is gone."""
    head = _exactly(sock, HEAD)
    data = _exactly(sock, int.from_bytes(head, "little")) if head else b""
    return _decode(data) if data else None


def transmit(sock: socket.socket, record: Message) -> None:
    """Send one record, without a loop. Raises OSError."""
    data = _encode(record)
    sock.sendall(len(data).to_bytes(HEAD, "little") + data)


def _exactly(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes; b"" where they don't come."""
    received = bytearray()
    while len(received) < count:
        try:
            data = sock.recv(count - len(received))
        except OSError:
            return b""
        if not data:
            return b""
        received += data
    return bytes(received)
