"""Where there are no more descriptors or threads, a load says for which model they were wanted, and for what."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kernel import Kernel, ServingError
from kernel.instances import on_thread
from kernel_python.process import spawn

ASYNC = """
class TritonPythonModel:
    async def execute(self, requests):
        return []
"""


def no_more(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def no_thread(thread: threading.Thread, start: Any = threading.Thread.start) -> None:
    if thread.name.startswith("a_0"):  # others, such as those of the load pool, are there
        raise RuntimeError("can't start new thread")
    start(thread)


FILES = "[Errno 24] Too many open files"
PROCESS = "the process of instance 'a_0_0' can't be started: " + FILES

#: What fails, the placement of the model, and what is told.
LACKS: dict[str, tuple[Any, str, Any, str, str]] = {
    "a pipe": (os, "pipe", no_more, "thread", f"instance 'a_0_0' of model 'a' can't have a thread of its own: {FILES}"),
    "a thread": (
        threading.Thread, "start", no_thread, "thread",
        "instance 'a_0_0' of model 'a' can't have a thread of its own: can't start new thread",
    ),
    "a loop": (on_thread, "OwnLoop", no_more, "thread", f"instance 'a_0_0' of model 'a' can't have a loop of its own: {FILES}"),
    "a socket": (spawn.socket, "socketpair", no_more, "process", f"{PROCESS}: its socket can't be made"),
    "memory": (spawn, "create", no_more, "process", f"{PROCESS}: the memory that it shares with the server can't be made"),
    "pipes": (
        spawn, "os", SimpleNamespace(**{**vars(os), "pipe": no_more}), "process",
        f"{PROCESS}: the pipes of its tickets and of its stderr can't be made",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LACKS)
def test_a_load_says_what_could_not_be_had(repo: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    target, name, failing, placement, words = LACKS[what]
    repo.add("a", ASYNC, parameters={"placement": placement})

    async def main(kernel: Kernel) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(target, name, failing)
            with pytest.raises(ServingError) as told:
                await kernel.load("a")
        assert words in told.value.message
        await kernel.load("a")

    repo.run(main, control_mode="explicit")
