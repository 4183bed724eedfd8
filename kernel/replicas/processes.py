"""The processes of replicas: how they are started, and how it is known that they have ended.

Each is in a process group of its own, so that what a terminal sends to all, such as SIGINT, comes to the supervisor alone, who
ends them in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence

from kernel.replicas.channel import Channel
from kernel.replicas.member import Role
from kernel.replicas.messages import Message
from kernel.replicas.pulse import is_stopped

__all__ = ["Processes"]


class Processes:
    """Starts replicas, a group of `count`: `command(role)` is the command line of one. What happens to them is told on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int, command: Callable[[Role], Sequence[str]]) -> None:
        self._loop = loop
        self._count = count
        self._command = command

    def __call__(
        self, index: int, speaks: bool, on_message: Callable[[Message], None], on_deaf: Callable[[], None],
        on_exit: Callable[[int], None],
    ) -> _Process:  # fmt: skip
        ours, theirs = socket.socketpair()
        try:
            role = Role(index, self._count, theirs.fileno(), speaks)
            popen = subprocess.Popen(
                self._command(role), stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), process_group=0, env=_environment()
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            return _Process(self._loop, popen, Channel(self._loop, ours, on_message, on_deaf), on_exit)
        except RuntimeError as error:  # no thread can be had; the channel, which nobody has any more, ends the process
            popen.kill()
            popen.wait()
            raise OSError(errno.EAGAIN, str(error)) from None


def _environment() -> dict[str, str]:
    """Return that of a replica: what this process tells whoever has started it is not for a replica to tell."""
    return {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}


class _Process:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, popen: subprocess.Popen[bytes], channel: Channel, on_exit: Callable[[int], None]
    ) -> None:
        self.pid = popen.pid
        self._loop = loop
        self._popen = popen
        self._channel = channel
        self._on_exit = on_exit
        threading.Thread(target=self._wait, name=f"kernel-replica-{popen.pid}", daemon=True).start()

    def send(self, record: Message, sockets: Sequence[socket.socket] = ()) -> None:
        self._channel.send(record, sockets)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(number)

    def is_stopped(self) -> bool:
        return is_stopped(self.pid)

    def _wait(self) -> None:
        status = self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended, status)

    def _ended(self, status: int) -> None:
        self._channel.close()
        self._on_exit(status)
