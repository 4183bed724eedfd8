"""Waking threads and loops by a byte: nothing is lost, and nobody blocks."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kernel.instances.mailbox import Mailbox
from kernel.instances.thread import InstanceThread
from kernel.instances.wake_pipe import WakePipe
from kernel.requests.request import LATER


def test_a_wake_counts_also_where_the_reader_comes_later() -> None:
    pipe = WakePipe()
    pipe.wake()
    pipe.wait()
    with pytest.raises(BlockingIOError):  # whoever rings never blocks
        for _ in range(1_000_000):
            pipe.wake()
    pipe.wait()
    pipe.close()
    with pytest.raises(BrokenPipeError):  # nobody hears it any more
        pipe.wake()


def test_a_thread_does_all_it_is_given_in_order() -> None:
    """Given while it works, while it falls asleep and while it sleeps: 300 times what it has to wait for, with 0 to 4 before."""
    thread = InstanceThread("worker")
    done: list[int] = []
    for round in range(300):
        over = threading.Event()
        for number in range(round % 5):
            thread.put(lambda number=number: done.append(number))  # type: ignore[misc]
        thread.put(over.set)
        assert over.wait(10)
        assert done == list(range(round % 5))
        done.clear()
    thread.stop()
    thread._thread.join(10)
    assert not thread._thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(thread._pipe.fileno())


def test_a_mailbox_whose_loop_was_closed_says_so() -> None:
    """As on asyncio's own loops: the first call is lost, after it everybody is told."""
    loop = uvloop.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    mailbox.post(print)
    with pytest.raises(RuntimeError, match="the kernel has stopped"):
        mailbox.post(print)


def test_a_mailbox_without_files_wakes_the_loop_as_the_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(24, "Too many open files")

    async def main() -> None:
        monkeypatch.setattr(os, "pipe", none_left)
        mailbox = Mailbox(asyncio.get_running_loop())
        there = asyncio.Event()
        thread = threading.Thread(target=mailbox.post, args=(there.set,))
        thread.start()
        await asyncio.wait_for(there.wait(), 10)
        thread.join()
        mailbox.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_threads_post_arrives_in_their_order_on_every_loop(new_loop: Callable[[], Any]) -> None:
    async def main() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        got: list[tuple[int, int]] = []
        all_there = asyncio.Event()

        def take(n: int, i: int) -> None:
            got.append((n, i))
            if len(got) == 20_000:
                all_there.set()

        threads = [threading.Thread(target=lambda n=n: [mailbox.post(take, n, i) for i in range(5000)]) for n in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(all_there.wait(), 20)
        for number in range(4):
            assert [index for n, index in got if n == number] == list(range(5000))
        mailbox.leave((got.clear, ()))
        mailbox.close()
        assert not got  # what was there has been called
        with pytest.raises(RuntimeError, match="the kernel has stopped"):
            mailbox.post(print)
        mailbox.wake()  # by a thread that has looked at `closed` a moment before
        mailbox.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def asleep(thread: InstanceThread) -> None:
    """Return once it has gone to sleep; whoever has been woken up is awake for the system at once."""
    state = Path(f"/proc/self/task/{thread._thread.native_id}/stat")
    while not (thread._asleep and state.read_text().rpartition(")")[2].split()[0] == "S"):
        time.sleep(0.001)


@pytest.mark.parametrize("gone", [["write"], ["read"], ["write", "read"]])
@pytest.mark.parametrize("when", ["asleep", "awake"])
def test_a_thread_whose_pipe_was_closed_is_woken_otherwise(gone: list[str], when: str) -> None:
    """By code of a model, which has closed what is not its own."""
    thread = InstanceThread("worker")
    go, over = threading.Event(), threading.Event()
    if when == "awake":
        thread.put(go.wait)
    else:
        asleep(thread)
    for end in gone:
        os.close(getattr(thread._pipe, f"_{end}"))
        (thread._pipe.put_away if end == "write" else thread._pipe.close).detach()
    go.set()
    asleep(thread)  # it has seen it, if it sees it
    for _ in range(5):
        over.clear()
        assert thread.put(over.set) is LATER
        assert over.wait(10)
        asleep(thread)
    thread.put(None)
    thread._thread.join(10)
    assert not thread._thread.is_alive()


def test_work_for_a_thread_that_nothing_wakes_comes_to_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    thread = InstanceThread("worker")
    asleep(thread)
    pipe = thread._pipe
    with monkeypatch.context() as patched:
        patched.setattr(pipe, "wake", lost)
        patched.setattr(pipe, "wake_anyway", lost)
        problem = thread.put(print)
        assert str(problem) == "[Errno 9] thread 'worker' can't be woken: something has closed its pipe"
        assert not thread.inbox
        with pytest.raises(OSError, match="can't be woken"):
            asyncio.run(thread.call(print))
    thread.put(None)
    thread._thread.join(10)
    assert not thread._thread.is_alive()


@pytest.mark.parametrize("gone", [["write"], ["read"], ["write", "read"]])
def test_a_loop_whose_pipe_was_closed_is_woken_as_the_loop_does(gone: list[str]) -> None:
    async def main() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        pipe = mailbox._pipe
        assert pipe is not None
        await asyncio.sleep(0.01)  # the loop looks at it by now
        for end in gone:
            os.close(getattr(pipe, f"_{end}"))
            (pipe.put_away if end == "write" else pipe.close).detach()
        for _ in range(3):
            there = asyncio.Event()
            thread = threading.Thread(target=mailbox.post, args=(there.set,))
            thread.start()
            await asyncio.wait_for(there.wait(), 10)
            thread.join()
        mailbox._pipe = None
        mailbox.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
