"""class Local: a kernel for scripts and notebooks, in calls that wait.

A Kernel on a thread of its own with a loop of its own; each method hands its work to that loop and waits for what comes of it. So
it works as well where another loop is running already, as in Jupyter. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from kernel.errors import Code, ServingError
from kernel.requests import InferenceResponse
from kernel.server import Kernel

__all__ = ["Local"]

log = logging.getLogger("kernel")

#: What the end may take beyond its limit, for `finalize` of the models and for the thread; seconds.
GRACE_SECONDS = 6.0
#: How long requests in flight are waited for where nobody has called `close`; seconds.
EXIT_SECONDS = 1.0

T = TypeVar("T")


class Local:
    """The models of one or more repositories, in calls that wait: `with kernel.Local("repository/") as models:`.

    `repositories` and `options` are those of `Kernel`, but for the control mode, "explicit" by default: models may be loaded
    and unloaded, and all are loaded at first, unless `load_models` names some (`[]` for none). Returns when they are ready.
    Raises ServingError when a repository is missing or a model fails to load.

    Every method may be called from any thread, and blocks it; on the kernel's own loop, where models with placement `loop`
    run, nothing may wait, and ServingError says so. `kernel` is the Kernel: what it has besides is called on its loop, by
    `run`. Close it, by leaving the `with` or by `close`; where nobody has it any more, and when the interpreter ends, it is
    closed.
    """

    def __init__(self, *repositories: str | os.PathLike[str], **options: Any) -> None:
        if options.setdefault("control_mode", "explicit") == "explicit":
            options.setdefault("load_models", ["*"])
        self.kernel = Kernel(*repositories, **options)
        thread = self._thread = _KernelThread(self.kernel)
        try:
            thread.up.result()
        except BaseException:
            thread.end(0.0)
            raise
        weakref.finalize(self, thread.stop, EXIT_SECONDS).atexit = False  # `_at_exit` waits for it as well

    def infer(self, model: str, inputs: Mapping[str, Any], **options: Any) -> InferenceResponse:
        """Run one inference and return the response; `response["SUM"]` is the numpy array of an output.

        `inputs`: name -> numpy array, or nested lists, of the tensor's full shape, the batch dimension included. Lists, and
        arrays of float64 for other floats, become the datatype that the model's config declares. `options` are those of
        `Kernel.infer`: `version`, `outputs`, `parameters`, `id`, `timeout` in seconds, and so on. Raises ServingError for every
        kind of failure, and for decoupled models that don't give exactly one response (use `stream`).
        """
        self._check_thread()
        return _wait(self.kernel.infer_threadsafe(model, inputs, **options))

    def stream(self, model: str, inputs: Mapping[str, Any], **options: Any) -> Iterator[InferenceResponse]:
        """Run one inference and yield its responses as they come; arguments and errors as for `infer`.

        Leaving the iteration cancels the request.
        """
        self._check_thread()
        answers: queue.SimpleQueue[InferenceResponse | BaseException | None] = queue.SimpleQueue()

        async def collect() -> None:
            try:
                async for response in self.kernel.stream(model, inputs, **options):
                    answers.put(response)
                answers.put(None)
            except BaseException as error:
                answers.put(error)

        work = self._start(collect())
        try:
            while (answer := answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            work.cancel()

    def load(self, name: str, *, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model; returns when it is ready. As `Kernel.load`, and with its errors."""
        self.run(self.kernel.load(name, config=config, files=files))

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model; returns when it has finished what it had and was finalized. As `Kernel.unload`, and with its errors."""

        async def unload() -> None:
            await self.kernel.unload(name, dependents=dependents)

        self.run(unload())

    def models(self) -> dict[str, list[int]]:
        """Return the versions that are ready, ascending, by the name of their model."""

        async def models() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for model in self.kernel.models():
                found.setdefault(model.name, []).append(model.version)
            return found

        return self.run(models())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the kernel's loop, such as `app(models.kernel)`; return what it returns, raise what it raises."""
        try:
            self._check_thread()
        except ServingError:
            coroutine.close()
            raise
        return _wait(self._start(coroutine))

    def close(self, timeout: float = 30.0) -> None:
        """Accept nothing more, finish what was accepted, for `timeout` seconds at most, and finalize all models."""
        self._thread.end(timeout)

    def __enter__(self) -> Local:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        thread = self._thread
        if thread.over:
            coroutine.close()
            raise ServingError(Code.UNAVAILABLE, "this Local has been closed and serves nothing any more; make a new one")
        return asyncio.run_coroutine_threadsafe(coroutine, thread.loop)

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread.thread:
            words = "waiting on the kernel's own loop would stop it for ever; there the methods of `Local.kernel` are awaited"
            raise ServingError(Code.UNSUPPORTED, words)


def _wait(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


class _KernelThread:
    """The thread with the kernel's loop. Must not know the Local, or nobody could let go of that.

    `up`: done when the kernel has started, or why it has not. `over`: it takes nothing more.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.up: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.over = False
        self.process = os.getpid()
        self.loop = _loop_factory()()
        self._kernel = kernel
        self._limit = EXIT_SECONDS
        self._end = asyncio.Event()
        self.thread = threading.Thread(target=self._run, name="kernel-local", daemon=True)
        _threads.add(self)
        self.thread.start()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._main())
        finally:
            _threads.discard(self)

    async def _main(self) -> None:
        starting = self.loop.create_task(self._kernel.start())
        ending = self.loop.create_task(self._end.wait())
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # interrupted: nobody waits for the models any more
            starting.cancel()
            await asyncio.wait([starting])
        error = asyncio.CancelledError() if starting.cancelled() else starting.exception()
        if error is not None:
            ending.cancel()
            self.over = True
            self.up.set_exception(error)
            return
        self.up.set_result(None)
        await ending
        await self._kernel.stop(self._limit)

    def stop(self, seconds: float) -> None:
        """Begin to end. Any thread."""
        if not self.over:
            self.over = True
            self._limit = seconds
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self.loop.call_soon_threadsafe(self._end.set)

    def end(self, seconds: float) -> None:
        """End, and wait for that; requests in flight have `seconds`. Any thread."""
        self.stop(seconds)
        if threading.current_thread() is not self.thread:
            self.thread.join(seconds + GRACE_SECONDS)
            if self.thread.is_alive():
                log.warning("a kernel has not come to its end within %.0f s and was left at that", seconds + GRACE_SECONDS)


_threads: set[_KernelThread] = set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


@atexit.register
def _at_exit() -> None:
    """End what nobody has closed, in a time that can be borne; all at once."""
    threads = [thread for thread in _threads if thread.process == os.getpid()]  # a fork has none of their threads
    for thread in threads:
        thread.stop(EXIT_SECONDS)
    for thread in threads:
        thread.end(EXIT_SECONDS)
