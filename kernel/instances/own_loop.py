"""An asyncio loop for a thread of its own, which goes on where code of a model closes what the loop waits by.

The law: whatever is handed to the loop is done, within LOOK_SECONDS at most. `os.closerange` in a model's code closes the loop's
epoll and its socket to itself, too: asyncio ends with an error then, or sleeps for ever, and so would all requests that it has.
Also in children: this imports nothing of ours, and runs on Python 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["LOOK_SECONDS", "OwnLoop"]

#: How long the loop sleeps at most before it looks whether it can be woken.
LOOK_SECONDS = 1.0

#: What was lost. Never closed: its number may mean another file by now.
_lost: list[Any] = []


class _DurableSelector(selectors.BaseSelector):
    """The system's best one, and another one of that kind where that is gone. `look()`: called now and then, before a sleep."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._inner: Any = selectors.DefaultSelector()
        self._look = look

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._try("register", fileobj, events, data)  # type: ignore[no-any-return]

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._try("modify", fileobj, events, data)  # type: ignore[no-any-return]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)  # type: ignore[no-any-return]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()  # type: ignore[no-any-return]

    def fileno(self) -> int:
        return self._inner.fileno()  # type: ignore[no-any-return]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._inner.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        short = LOOK_SECONDS if timeout is None else min(timeout, LOOK_SECONDS)
        try:
            found = self._inner.select(short)
        except OSError:
            self._renew()
            found = []
        if not found and short:
            self._look()
        return found  # type: ignore[no-any-return]

    def _try(self, method: str, fileobj: Any, events: int, data: Any) -> Any:
        try:
            return getattr(self._inner, method)(fileobj, events, data)
        except OSError:
            try:
                self._inner.select(0)
            except OSError:  # it is not `fileobj` that is wrong
                self._renew()
                return self._inner.register(fileobj, events, data)
            raise

    def _renew(self) -> None:
        lost, self._inner = self._inner, selectors.DefaultSelector()
        _lost.append(lost)
        for key in list(lost.get_map().values()):
            with contextlib.suppress(OSError, ValueError):  # it is gone, too
                self._inner.register(key.fileobj, key.events, key.data)


class OwnLoop(asyncio.SelectorEventLoop):
    """An asyncio loop for a thread of its own: `asyncio.set_event_loop`, `run_forever`, `close`. No arguments."""

    _ssock: Any
    _csock: Any

    def __init__(self) -> None:
        super().__init__(_DurableSelector(self._look))

    def _look(self) -> None:
        """Have other threads wake the loop by a new pair of sockets, where the old one is gone."""
        own: Any = self
        try:
            self._ssock.getpeername()
            self._csock.getpeername()
        except OSError:
            self.remove_reader(self._ssock.fileno())
            _lost.extend((self._ssock, self._csock))
            own._internal_fds -= 1
            own._make_self_pipe()

    def close(self) -> None:
        """As every loop's, also where what it would close is gone."""
        if not self.is_closed() and not self.is_running():
            self._look()  # a socket that is gone can't be closed
        super().close()
