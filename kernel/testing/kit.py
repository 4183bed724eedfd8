"""One kernel under test: loads folders and fakes, runs the loop for plain tests, and looks at the end whether all is well.

Works without pytest: `with Kit() as kit: model = kit.load_model("repository/add_sub")`. In a plain test the loop is the kit's own
and runs while the kit is asked for something; in an async test it is the test's, and what would wait is awaited.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from kernel.errors import ServingError
from kernel.server import Kernel
from kernel.testing import ending, holders
from kernel.testing.calls import Request
from kernel.testing.errors import Leak, Unanswered
from kernel.testing.fakes import Fake
from kernel.testing.folders import find_folder
from kernel.testing.frames import frames_of_task, place_of
from kernel.testing.loop import KitLoop, patience, running_loop
from kernel.testing.models import AsyncModel, AsyncRepository, LoadedModel, LoadedRepository
from kernel.testing.session import Session

__all__ = ["Kit"]

_PLAIN = "this was made for a plain test; in an async test, `await load_model(...)` gives the async form"


class Kit(Session):
    """Loads models and looks after them.

    `virtual_time`: the clock jumps to the next timer when nothing is at work. `strict_outputs`: outputs that differ from the
    config are errors. `check_leaks`: what is left of the models at the end is a Leak. `limit`: real seconds that a test waits
    for anything. `roots`: the folders that relative paths start from. `plugins`: as for Kernel.
    `kernel`: the Kernel that they are loaded into. Used in a `with` or an `async with`, or closed.

    The core's own: `loop`, `limit_elsewhere`, `prepare`, `run`, `run_test`.
    """

    def __init__(
        self,
        *,
        virtual_time: bool = False,
        strict_outputs: bool = True,
        check_leaks: bool = True,
        limit: float = 30.0,
        roots: Sequence[Path] = (),
        plugins: Sequence[object] = (),
    ) -> None:
        super().__init__(virtual_time, strict_outputs, limit, plugins)
        self.check_leaks = check_leaks
        self.roots = [Path.cwd(), *roots]
        self.for_async_test = False  # what is loaded before the test runs is meant for an async one
        self._closed = False
        self._snapshot = ending.Snapshot(self._threads)
        self._problems: list[str] = []

    # -- what tests call -----------------------------------------------------------------------------------------------

    def load_model(self, folder: str | Path, *, version: int | str = "", strict_outputs: bool | None = None) -> Any:
        """Load one model folder and return the LoadedModel; in async tests an awaitable of the AsyncModel.

        The steps of an ensemble come along, other models that it calls don't. Raises ServingError with the reason when it
        can't be loaded, FileNotFoundError when there is no such folder.
        """
        __tracebackhide__ = True
        path = find_folder(folder, self.roots)

        async def load() -> AsyncModel:
            await self.load_folder(path, strict_outputs)
            return AsyncModel(self, path.name, self.kernel.model(path.name, version).version)

        if running_loop() is not None:
            return load()
        model: AsyncModel = self.run(load())
        return model if self.for_async_test else LoadedModel(self, model.name, model.version)

    def load_repository(
        self, folder: str | Path, *, models: Sequence[str] | None = None, strict_outputs: bool | None = None
    ) -> Any:
        """Load all models of a repository, or those that are named, and return the LoadedRepository; fakes go before models.

        In async tests an awaitable of the AsyncRepository. Raises ServingError with the reasons when some can't be loaded.
        """
        __tracebackhide__ = True
        path = find_folder(folder, self.roots)

        async def load() -> AsyncRepository:
            names = await self.load_all(path, models, strict_outputs)
            return AsyncRepository(self, {name: AsyncModel(self, name, self.kernel.model(name).version) for name in names})

        if running_loop() is not None:
            return load()
        repository: AsyncRepository = self.run(load())
        if self.for_async_test:
            return repository
        return LoadedRepository(self, {name: LoadedModel(self, name, one.version) for name, one in repository.items()})

    def fake_model(self, name: str, answer: Any, *, config: str | Path | Mapping[str, Any] | None = None) -> Fake:
        """Let a function stand in for a model that others call; see Fake.

        `config`: of the model it stands for, as text, mapping, file or model folder; calls and answers are held to it. Without
        one it takes any inputs and answers any outputs, but can't be the step of an ensemble.
        """
        if config is not None and not isinstance(config, Mapping) and not re.search(r"[:{\n]", str(config)):
            path = Path(config)
            file = next((root / path for root in self.roots if (root / path).exists()), None)
            if file is None:
                raise FileNotFoundError(f"no file or model folder '{path}' for the config of the fake of '{name}'")
            config = file
        return self.add_fake(Fake(name, answer, config))

    # -- the loop ------------------------------------------------------------------------------------------------------

    @property
    def loop(self) -> KitLoop:
        """The kit's own loop."""
        if self._loop is None:
            self._loop = KitLoop(virtual=self.virtual_time, limit=self.limit)
            self._loop.set_exception_handler(self._note_problem)
        if not isinstance(self._loop, KitLoop):
            raise RuntimeError("the models were loaded on the loop of another plugin; use them in an async test")
        return self._loop

    @property
    def limit_elsewhere(self) -> float | None:
        """How long to wait for an answer on a loop that does not see by itself that none will come."""
        return None if isinstance(self._loop, KitLoop) else self.limit

    def prepare(self) -> None:
        """Have everything there before a plain test sends a request."""
        __tracebackhide__ = True
        if running_loop() is not None:
            raise RuntimeError(_PLAIN)
        if self._new_fakes:
            self.run(self.catch_up())

    def run(self, work: Any, request: Request | None = None) -> Any:
        """Run a coroutine of the kit's on its own loop. Raises Unanswered or Deadlock; then `request` is given up."""
        __tracebackhide__ = True
        try:
            return self._run(work)
        except Unanswered:
            if request is not None:
                request.give_up()
            raise
        except (Leak, ServingError, TypeError, ValueError) as error:
            # The way through the loop would only bury the test's own line.
            raise error.with_traceback(None) from error.__cause__

    def run_test(self, test: Any) -> None:
        """Run the coroutine of an async test."""
        __tracebackhide__ = True
        self._run(test)

    def _run(self, work: Any) -> Any:
        __tracebackhide__ = True
        if running_loop() is not None:
            work.close()
            raise RuntimeError(_PLAIN)
        loop = self.loop
        task = loop.create_task(work)
        try:
            return loop.run(task)
        except Unanswered as error:
            if self._closed:
                error.add_note("  found when the test had ended")
            elif self.for_async_test and not task.done():
                error.add_note(f"  the test waits at {place_of(frames_of_task(task), self.roots[-1:])}")
            self.hung, self.told = True, self.told or self.reasons()
            raise error.with_traceback(None) from None
        finally:
            if not task.done():  # something else has stopped the loop
                task.cancel()
                loop.run(asyncio.wait([task]))

    def _note_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        self._problems.append(f"{context['message']}: {error!r}" if error is not None else context["message"])

    @property
    def closed(self) -> bool:
        """Whether the models are unloaded, or about to be."""
        return self._closed

    # -- the end -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Kit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(quiet=error is not None)

    async def __aenter__(self) -> Kit:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(quiet=error is not None)

    def close(self, *, quiet: bool = False) -> None:
        """Unload everything and raise what is wrong: requests without an answer, leaks, failed fakes. `quiet`: raise nothing."""
        __tracebackhide__ = True
        loop = self._loop
        if loop is None or loop.is_closed():
            self._forget()
        elif not isinstance(loop, KitLoop):
            loop.run_until_complete(self.aclose(quiet=quiet))
        else:
            try:
                self.run(self.aclose(quiet=quiet))
            finally:
                self.run(ending.shut_down(loop))
                loop.close()

    async def aclose(self, *, quiet: bool = False) -> None:
        """As `close`, on the loop of an async test."""
        __tracebackhide__ = True
        if self._closed:
            return
        self._closed = True
        leaks: list[str] = []
        try:
            if self._kernel is not None:
                leaks = await self._stop(self._kernel, hopeless=quiet or self.hung)
        finally:
            self._forget()
        if quiet:
            return
        self.raise_failures()
        if leaks and self.check_leaks and not self.hung:
            raise Leak("of the models of this test something is left:\n" + "\n".join(f"  {leak}" for leak in leaks))

    async def _stop(self, kernel: Kernel, hopeless: bool) -> list[str]:
        """Finish what is in flight, stop the kernel and return what is left.

        `hopeless`: something hangs, or nobody wants to know. Raises Unanswered where a request has no answer, or an execution
        no end.
        """
        folders = self._places()
        loop = asyncio.get_running_loop()
        try:
            if not hopeless:
                await ending.drain(kernel, self.explain)
        except Unanswered:
            self.told = self.reasons()
            raise
        finally:
            for request in holders.unanswered(kernel):
                kernel.cancel(request)
            with ending.LogOfClose() as log, patience(loop):
                await kernel.stop(0.0)
        if hopeless:
            return []
        leaks = log.lines
        if isinstance(loop, KitLoop) and not self.for_async_test:  # in an async test tasks may be the test's own
            await asyncio.sleep(0)
            leaks += ending.tasks_left(loop, folders)
        leaks += self._snapshot.leaks(folders, getattr(loop, "_default_executor", None))
        return [*leaks, *self._problems]

    def _forget(self) -> None:
        self._closed = True
        shutil.rmtree(self._temporary, ignore_errors=True)
