"""What a child does: becomes the model instance that the server describes, executes what it is given, finalizes.

A plain `execute` runs in the main thread, one execution after another; an `async def execute` on an asyncio loop there. How an
execution is held to its contract is the business of kernel_python.executor, here as in the server.
"""

from __future__ import annotations

import _thread
import asyncio
import importlib.util
import inspect
import json
import logging
import os
import socket
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Awaitable
from typing import Any

from kernel import Placement, ServingError
from kernel_python import background
from kernel_python.calling import EXECUTION, Instance, only
from kernel_python.executor import AsyncExecutor, ModelExecutor, SyncExecutor
from kernel_python.faults import TritonModelException, chain_of, describe
from kernel_python.loading.lifecycle import complete, initialized, model_class
from kernel_python.process import wire
from kernel_python.process.child.channel import Channel
from kernel_python.process.child.executions import Executions
from kernel_python.process.child.log import Forwarding
from kernel_python.process.child.remote import Kernel
from kernel_python.process.notes import Notes
from kernel_python.process.pool import Loans, Pool, mapped

__all__ = ["run"]

log = logging.getLogger("kernel_python")

LOOK_SECONDS = 1.0  # between two looks at executions that may last too long, at most
LEAVE_SECONDS = 1.0  # what tasks that were given up may take to end


def run(server: socket.socket, inbound: int, outbound: int, tickets: int) -> None:
    """Serve until the server says that it is over; then return."""
    Child(server, inbound, outbound, tickets).run()


class Child:
    """One model instance, or the `auto_complete_config` of one model."""

    def __init__(self, server: socket.socket, inbound: int, outbound: int, tickets: int) -> None:
        memory = mapped(outbound)
        self._pool = Pool(memory)
        self._notes = Notes(memory)
        self._channel = Channel(server, self._notes, self._dispatch)
        self._loans = Loans(mapped(inbound))
        self._tickets = tickets
        self._main = threading.get_ident()
        self._setup: dict[str, Any] | None = None
        self._kernel: Kernel
        self._executor: ModelExecutor
        self._executions: Executions | None = None
        self._probes: set[asyncio.Task[None]] = set()
        self._log: Forwarding
        self._over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_leave: asyncio.Event
        self._begun: deque[tuple[Any, ...]] = deque()

    def run(self) -> None:
        channel = self._channel
        channel.rest = self._rest
        channel.wait(lambda: self._setup is not None)
        setup = self._setup
        assert setup is not None
        channel.send((wire.BEGUN,))
        if setup["beat"]:
            _thread.start_new_thread(self._beat, (setup["beat"] / 2,))
        for key, value in setup["environment"].items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        self._pool.limit(setup["mapped"])
        self._log = Forwarding(channel, setup["level"])
        os.register_at_fork(after_in_child=self._forked)
        self._kernel = Kernel(channel, self._pool, self._loans, self._notes, setup["strict_outputs"])
        instance = Instance(self._kernel, setup["instance"], setup["model"], setup["version_folder"], setup["phase"])
        instance.decoupled = setup["decoupled"]
        instance.iterative = setup["iterative"]
        instance.kept = frozenset(setup["kept"])
        instance.zero_copy = setup["zero_copy"]
        instance.outputs = frozenset(setup["outputs"])
        instance.lends = True  # arrays are written to a message or to shared memory before the model's code goes on
        only(instance)
        try:
            executor = self._become(instance, setup)
        except ServingError as error:
            self._fail(error.code.name, error.message)
        except BaseException as error:
            self._fail("INTERNAL", describe(error), chain_of(error))
        if executor is None:
            return
        self._executor = executor
        channel.send((wire.READY, isinstance(executor, AsyncExecutor), self._loans.size, executor.is_ready is not None))
        if setup["limit"]:
            _thread.start_new_thread(self._look_for_overtime, (setup["limit"], setup["model_folder"] + os.sep))
        if isinstance(executor, AsyncExecutor):
            background.run(self._serve_async(executor))
        else:
            self._executions = Executions(self._kernel, executor, self._loans, self._tickets)
            if executor.is_ready is not None:
                # The question may come during a long execution, and is to be answered then: a thread reads all the time.
                threading.Thread(target=channel.wait, args=(lambda: self._over,), name="reader", daemon=True).start()
            self._executions.serve(self._begun, lambda: self._over)
        executor.finalize()
        channel.send((wire.CLOSED,))

    def _beat(self, seconds: float) -> None:
        """Say that this process is alive, in a thread that models do not see, as long as it is."""
        while True:
            self._notes.beat()
            time.sleep(seconds)

    def _look_for_overtime(self, limit: float, folder: str) -> None:
        """Tell the server where executions are that are about to last too long: it answers for them, and nobody here may read
        what it asks.
        """
        while True:
            time.sleep(min(LOOK_SECONDS, limit / 8))
            executions = self._executions
            try:
                lasting = executions.lasting(time.monotonic() - limit / 2, self._main, folder) if executions is not None else []
                for number, place in lasting:
                    self._channel.send((wire.PLACE, number, place))
            except RuntimeError:  # the tasks have changed meanwhile
                continue

    def _forked(self) -> None:
        """This process is a fork that model code has made (`multiprocessing`, `os.fork`): the server's ends are not for it."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._tickets, inheritable=False)
        self._channel.sever(null, _refuse)
        os.close(null)
        self._log.stay()
        if self._loop is not None:
            self._loop.call_soon(os._exit, 1)  # a fork that returns from `execute` would wait on this loop for ever

    def _fail(self, code: str, text: str, chain: Any = ()) -> None:
        self._channel.send((wire.FAILED, code, text, list(chain)))
        sys.exit(1)

    def _become(self, instance: Instance, setup: dict[str, Any]) -> ModelExecutor | None:
        """Import the model, and make and initialize it. None where its config was to be completed, which is done then."""
        file = setup["file"]
        if setup["path"] is not None:
            sys.path[:] = setup["path"]
        sys.path[:0] = [setup["version_folder"], setup["model_folder"]]
        token = EXECUTION.set(instance.idle)
        try:
            shown, module = load_main(file, setup["version_folder"])
            if setup["phase"] == "auto_complete":
                filled = complete(model_class(module, shown), setup["model"], setup["config"])
                self._channel.send((wire.COMPLETED, None if filled is None else json.dumps(filled)))
                return None
            model = initialized(model_class(module, shown), file, setup["arguments"])
            instance.phase = "execute"
            if inspect.iscoroutinefunction(model.execute):
                executor: ModelExecutor = AsyncExecutor(instance, model, Placement.THREAD_TASK, setup["async_capacity"])
            else:
                executor = SyncExecutor(instance, model, Placement.THREAD, 1)
            instance.executor = executor
            return executor
        finally:
            EXECUTION.reset(token)

    # -- what the server says ----------------------------------------------------------------------------------------------

    def _dispatch(self, message: tuple[Any, ...]) -> None:
        """Take a message in. Called by whichever thread reads."""
        kind = message[0]
        if kind == wire.EXECUTE:
            if self._loop is None:
                self._begun.append(message)
            elif threading.get_ident() == self._main:
                self._begin(message)
            else:
                self._loop.call_soon_threadsafe(self._begin, message)
        elif kind == wire.ANSWER:
            self._kernel.answered(*message[1:])
        elif kind == wire.CANCEL:
            self._kernel.cancelled(*message[1:])
        elif kind == wire.REPLY:
            self._kernel.told(*message[1:])
        elif kind == wire.PROBE:
            self._probe(message[1])
        elif kind == wire.LOOK:
            self._look(message[1])
        elif kind == wire.LEVEL:
            self._log.set_level(message[1])
        elif kind == wire.SETUP:
            if message[1] != wire.GREETING:
                raise RuntimeError(f"this Python's marshal reads what the server writes as {message[1]!r}")
            self._setup = message[2]
        elif kind == wire.FINALIZE:
            self._over = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._to_leave.set)

    def _look(self, number: int) -> None:
        """Say what an execution waits for."""
        calls = None
        if self._executions is not None:
            calls = self._executions.awaited(number, self._main)
        self._channel.send((wire.AWAITS, number, [call.number for call in calls or ()]))

    def _probe(self, number: int) -> None:
        """Ask the model whether it is ready: `async` on the loop that it executes on, else on a thread of its own."""
        question = self._executor.is_ready
        assert question is not None
        if inspect.iscoroutinefunction(question) and self._loop is not None:
            loop = self._loop

            def begin() -> None:
                task = loop.create_task(self._answer(number, question()))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)

            loop.call_soon_threadsafe(begin)
            return

        def work() -> None:
            async def answer() -> bool:
                ready = question()
                return await ready if inspect.isawaitable(ready) else ready

            asyncio.run(self._answer(number, answer()))

        threading.Thread(target=work, name="is_ready", daemon=True).start()

    async def _answer(self, number: int, ready: Awaitable[bool]) -> None:
        answer: bool | str
        try:
            answer = await ready
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        self._channel.send((wire.PROBED, number, answer))

    def _rest(self) -> float | None:
        """Before a wait: see that the pool does not keep what was needed once."""
        if not self._pool.swollen:
            return None
        self._pool.rest()
        return 1.0 if self._pool.swollen else None  # type: ignore[redundant-expr]  # `rest` may have changed it

    # -- an async execute ----------------------------------------------------------------------------------------------

    async def _serve_async(self, executor: AsyncExecutor) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._to_leave = asyncio.Event()
        self._executions = Executions(self._kernel, executor, self._loans, self._tickets)
        channel = self._channel
        channel.attach(loop)
        with channel.state:
            while self._begun:  # messages that came while there was no loop
                self._begin(self._begun.popleft())
        if not self._over:
            await self._to_leave.wait()
        await self._executions.give_up(LEAVE_SECONDS)
        channel.detach(loop)

    def _begin(self, message: tuple[Any, ...]) -> None:
        assert self._loop is not None and self._executions is not None
        self._executions.begin(self._loop, message)


def _refuse(*_: Any, **__: Any) -> Any:
    raise TritonModelException(
        "this process was forked by the model, and the server does not know it: calls of other models, senders and metrics are "
        "for the process of the model instance. Hand results over to it, and call from there."
    )


def load_main(file: str, version_folder: str) -> tuple[str, types.ModuleType]:
    """Import the model's file under the reference's name for it, `<version>.model`; return that, and the module."""
    version = os.path.basename(version_folder)
    stem = os.path.basename(file)
    stem = (stem[:-3] if stem.endswith(".py") else stem).replace(".", "_")
    shown = f"{version}.{stem}"
    package = types.ModuleType(version)
    package.__path__ = [version_folder]
    sys.modules[version] = package
    spec = importlib.util.spec_from_file_location(shown, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[shown] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module = sys.modules.get(shown, module)
    setattr(package, shown.partition(".")[2], module)  # as every import does: `pydoc.locate` looks there
    return shown, module
