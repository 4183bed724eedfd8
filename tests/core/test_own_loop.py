"""A loop on a thread of its own goes on whatever of it code of a model closes."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kernel import OwnLoop
from kernel.instances import own_loop


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One that sleeps, on a thread."""
    monkeypatch.setattr(own_loop, "LOOK_SECONDS", 0.05)
    loop: Any = OwnLoop()
    asleep = threading.Event()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    loop.call_soon_threadsafe(asleep.set)
    assert asleep.wait(10)
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    assert not thread.is_alive()
    loop.close()


def descriptors(loop: Any, what: str) -> list[int]:
    own = {"epoll": [loop._selector.fileno()], "pipe": [loop._ssock.fileno(), loop._csock.fileno()]}
    return own.get(what) or own["epoll"] + own["pipe"]


def can_be_woken(loop: Any) -> bool:
    try:
        return isinstance(loop._ssock.getpeername(), str) and isinstance(loop._csock.getpeername(), str)
    except OSError:
        return False


def does(loop: Any) -> bool:
    done = threading.Event()
    loop.call_soon_threadsafe(done.set)
    return done.wait(10)


@pytest.mark.parametrize("what", ["epoll", "pipe", "all"])
@pytest.mark.parametrize("where", ["on the loop", "elsewhere"])
def test_it_goes_on_where_its_descriptors_are_closed(loop: Any, what: str, where: str) -> None:
    for _ in range(2):
        numbers = descriptors(loop, what)

        def close(numbers: list[int] = numbers) -> None:
            for number in numbers:
                os.close(number)

        if where == "elsewhere":
            close()
        else:
            loop.call_soon_threadsafe(close)
        for _ in range(3):
            assert does(loop)
        while not can_be_woken(loop):
            assert does(loop)
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01, "over"), loop).result(10) == "over"


def test_what_it_waits_for_besides_is_still_waited_for(loop: Any) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        received = asyncio.run_coroutine_threadsafe(loop.sock_recv(ours, 9), loop)
        assert does(loop)
        os.close(loop._selector.fileno())
        assert does(loop)
        theirs.sendall(b"there")
        assert received.result(10) == b"there"


def test_a_loop_whose_descriptors_are_gone_can_be_closed() -> None:
    loop: Any = OwnLoop()
    for number in descriptors(loop, "all"):
        os.close(number)
    loop.close()
    assert loop.is_closed()


def test_what_is_no_descriptor_is_refused_as_ever(loop: Any) -> None:
    number = os.dup(0)
    os.close(number)

    async def look() -> None:
        loop.add_reader(number, print)

    with pytest.raises(OSError, match="Bad file descriptor"):
        asyncio.run_coroutine_threadsafe(look(), loop).result(10)
    assert does(loop)
