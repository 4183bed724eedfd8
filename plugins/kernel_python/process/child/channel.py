"""The child's end of the socket. No thread reads for the others: whoever waits for something reads, until he has it.

One reader at a time; what he reads is handed to whom it is for (`dispatch`), and when he has what he wants, another who waits
goes on reading. What is to be sent is put down by any thread, and sent by whoever comes first. When the server is gone, we go.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any

from kernel_python.process.notes import Notes
from kernel_python.process.wire import Frames, frame

__all__ = ["Channel"]

MANY = 1 << 17  # bytes: from so many on, what was put down is sent at once
LOOK_SECONDS = 30e-6  # how long an answer is looked out for, before we go to sleep: to be woken costs about as much
NO_LOOK = 8  # so many waits go to sleep at once after one that looked out in vain
_peek = getattr(socket, "MSG_DONTWAIT", 0)


class Channel:
    """`dispatch(message)` is called by the thread that reads, with the lock `state` held.

    Code that looks at what `dispatch` changes, and waits if it has not changed yet, holds that lock, too.
    """

    def __init__(self, server: socket.socket, notes: Notes, dispatch: Callable[[tuple[Any, ...]], None]) -> None:
        self._socket = server
        self._notes = notes
        self._dispatch = dispatch
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)
        self._frames = Frames()
        self._out: list[bytes] = []
        self._flushing: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()  # loops that will flush in this turn
        self._put_off = 0.0  # since when something waits to be sent
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self.state = threading.RLock()
        self._changed = threading.Condition(self.state)
        self._followers = 0
        self._no_look = 0
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}
        #: Called before a wait that may be long; returns after how many seconds it is to be called again, if at all.
        self.rest: Callable[[], float | None] = lambda: None

    def sever(self, null: int, refuse: Callable[..., Any]) -> None:
        """This process is a fork, which the server does not know: to send, or to wait for a message, raises what `refuse` raises.

        `null`: a descriptor that replaces the socket's, which stays the one of the process that was forked.
        """
        os.dup2(null, self._socket.fileno(), inheritable=False)
        self._out.clear()
        for name in ("post", "put_off", "send", "wait"):
            setattr(self, name, refuse)
        self.flush = self.glance = lambda: None  # type: ignore[method-assign]

    # -- out -----------------------------------------------------------------------------------------------------------

    def post(self, message: tuple[Any, ...]) -> None:
        """Put a message down to be sent by the next `flush`. Raises ValueError for what can't be written down."""
        self._out.append(frame(message))

    def put_off(self, message: tuple[Any, ...]) -> None:
        """As `post`, for what the server is to get even if this process dies first: it is noted in shared memory, too."""
        data = frame(message)
        noted = self._notes.add(data)
        self._out.append(data)
        if not noted:
            self.flush()

    def send(self, message: tuple[Any, ...]) -> None:
        self._out.append(frame(message))
        self.flush()

    def flush(self) -> None:
        """Send what was put down. If another thread is sending, it sends this, too."""
        out = self._out
        while out and self._sending.acquire(False):
            try:
                count = len(out)
                data = out[0] if count == 1 else b"".join(out[:count])
                del out[:count]
                self._socket.sendall(data)
                if not out:
                    self._notes.clear()
            except OSError:
                os._exit(1)
            finally:
                self._sending.release()

    def flush_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send at the end of this turn of the running loop, so that what comes in one turn goes as one.

        Each loop for itself: another one that was to send may have closed, or be blocked.
        """
        if loop not in self._flushing:
            self._flushing.add(loop)
            loop.call_soon(self._flush_for, loop)

    def _flush_for(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flushing.discard(loop)
        self.flush()

    def flush_old(self, now: float, seconds: float) -> None:
        """Send what was put down longer ago than `seconds`, or is more than MANY bytes."""
        out = self._out
        if out:
            if not self._put_off:
                self._put_off = now
            if now - self._put_off > seconds or sum(map(len, out)) > MANY:
                self._put_off = 0.0
                self.flush()

    # -- in ------------------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], Any], soon: bool = False) -> None:
        """Read, or let others read, until `done()`. Any thread; what is to be sent is sent first. `soon`: it may be at once."""
        self._put_off = 0.0
        self.flush()
        while not done():
            if self._reading.acquire(False):
                try:
                    if soon:
                        self._look_out(done)
                    while not done():
                        self._read()
                finally:
                    self._reading.release()
                    self._pass_on()
            else:
                with self._changed:
                    self._followers += 1
                    try:
                        if not done() and self._reading.locked():
                            self._changed.wait()
                    finally:
                        self._followers -= 1

    def _look_out(self, done: Callable[[], Any]) -> None:
        """Read without going to sleep for LOOK_SECONDS, unless that was in vain lately."""
        if self._no_look:
            self._no_look -= 1
            return
        end = monotonic() + LOOK_SECONDS
        while not done():
            if not self._read(_peek) and monotonic() > end:
                self._no_look = NO_LOOK
                return

    def glance(self) -> None:
        """Read what is there, without waiting."""
        if self._reading.acquire(False):
            try:
                while self._read(_peek):
                    pass
            finally:
                self._reading.release()
                self._pass_on()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the running loop read as long as something it waits for is under way; see `detach`."""
        with self.state:
            count = self._loops.get(loop, 0)
            self._loops[loop] = count + 1
            if not count:
                for closed in [one for one in self._loops if one.is_closed()]:  # while they still waited for something
                    del self._loops[closed]
        if not count:
            loop.add_reader(self._socket.fileno(), self.glance)

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Undo one `attach`. Called in the loop's thread."""
        with self.state:
            count = self._loops[loop] - 1
            if count:
                self._loops[loop] = count
                return
            del self._loops[loop]
        if not loop.is_closed():
            loop.remove_reader(self._socket.fileno())

    def _read(self, flags: int = 0) -> bool:
        """Read once and hand out what came; False when there was nothing. Only by who holds `_reading`."""
        space = self._frames.space()
        if not flags:
            seconds = self.rest()
            if seconds is not None and not self._poll.poll(seconds * 1000):
                return False
        try:
            count = self._socket.recv_into(space, 0, flags)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            count = 0
        if not count:
            os._exit(1)  # the server is gone, and with it everybody we could answer
        with self.state:
            for message in self._frames.came(count):
                self._dispatch(message)
        self._pass_on()
        return True

    def _pass_on(self) -> None:
        if self._followers:
            with self._changed:
                self._changed.notify_all()
