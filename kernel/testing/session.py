"""One kernel and what was loaded into it: folders, repositories and fakes. All of it async, on whatever loop it is used first.

Knows what is at work and who holds what, for the loop that asks when it has nothing to do; how tests come to their loop, and how
all this ends, is the kit's business.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernel.errors import ServingError, clipped
from kernel.instances import CallbackInstance, LoopInstance, TaskInstance, ThreadInstance, ThreadTaskInstance
from kernel.repository import FileRepository
from kernel.server import Kernel
from kernel.testing import holders
from kernel.testing.fakes import Fake, FakeBackend
from kernel.testing.folders import Folders
from kernel.testing.loop import Elsewhere, KitLoop, patience, running_loop
from kernel.testing.threads import Threads

__all__ = ["Session"]

_OURS = (CallbackInstance, LoopInstance, TaskInstance, ThreadInstance, ThreadTaskInstance)
#: How many requests of each kind are explained where a test has failed, in how many lines, and how long one may become.
REASONS = 3
LINES = 8
LONGEST = 400

_LINES = re.compile(r"\s*\n\s*").sub
_UNKNOWN = re.compile(r"Request for unknown model: '([^']+)'")


class Session:
    """`hung`: a test has been told that something hangs. `told`: why requests took as long as they did, once that was asked."""

    def __init__(self, virtual_time: bool, strict_outputs: bool, limit: float, plugins: Sequence[object]) -> None:
        self.virtual_time = virtual_time
        self.strict_outputs = strict_outputs
        self.limit = limit
        self.hung = False
        self.told: list[str] = []
        self._plugins = plugins
        self._fakes: dict[str, Fake] = {}
        self._new_fakes: list[Fake] = []
        self._kernel: Kernel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = Threads()
        self._temporary = Path(tempfile.mkdtemp(prefix="kernel-testing-"))
        self._folders = Folders(self._temporary)

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            raise RuntimeError("nothing has been loaded yet, so there is no kernel")
        return self._kernel

    # -- loading -------------------------------------------------------------------------------------------------------

    async def load_folder(self, folder: Path, strict: bool | None) -> None:
        """Load one model folder. Raises ServingError with the reason when that can't be."""
        if folder.name in self._fakes:
            raise ValueError(f"model '{folder.name}' has a fake in this test, and would be hidden by it")
        self._folders.add(folder)
        await self._load(folder.name, strict)

    async def load_all(self, repository: Path, models: Sequence[str] | None, strict: bool | None) -> list[str]:
        """Load the models of a repository that have no fakes, or those of them that are named; return their names.

        Raises ServingError with the reasons of all that can't be loaded.
        """
        there = FileRepository(repository).scan()
        missing = [name for name in models or () if name not in there]
        if missing:
            raise FileNotFoundError(f"no model '{missing[0]}' in {repository}; there are {', '.join(there) or 'none'}")
        names = [name for name in models or there if name not in self._fakes]
        for name in names:
            self._folders.add(there[name].path)
        failures = {}
        for name in names:
            try:
                await self._load(name, strict)
            except ServingError as error:
                failures[name] = error
        if failures:
            reasons = "".join(f"\n  {name}: {error.message.strip()}" for name, error in failures.items())
            first = next(iter(failures.values()))
            raise ServingError(first.code, f"{len(failures)} of {len(names)} models can't be loaded:{reasons}") from first
        return names

    def add_fake(self, fake: Fake) -> Fake:
        """Have a fake loaded before the next model is, or is sent something."""
        if fake.name in self._fakes:
            raise ValueError(f"'{fake.name}' has a fake already")
        if self._kernel is not None and any(model.name == fake.name for model in self._kernel.models()):
            raise ValueError(f"model '{fake.name}' is loaded already; fake it before whatever loads it")
        fake.write(self._temporary / fake.name)
        self._fakes[fake.name] = fake
        self._new_fakes.append(fake)
        return fake

    async def _load(self, name: str, strict: bool | None) -> None:
        await self._started()
        await self.catch_up()
        kernel = self.kernel
        kernel.strict_outputs = self.strict_outputs if strict is None else strict
        try:
            with patience(self._loop):
                await kernel.load(name)
        except ServingError as error:
            for fake in self._fakes.values():
                if fake.config is None and re.search(rf"\b{re.escape(fake.name)}\b", error.message):
                    error.add_note(f"The fake of '{fake.name}' has no config, and the steps of ensembles need one")
            raise
        finally:
            kernel.strict_outputs = self.strict_outputs

    async def catch_up(self) -> None:
        """Load the fakes that have come since."""
        self.check_loop()
        while self._new_fakes:
            fake = self._new_fakes.pop(0)
            with patience(self._loop):
                await self.kernel.load(fake.name)
            fake.loaded(self.kernel.model(fake.name))

    def check_loop(self) -> None:
        """Refuse to be used on another loop than the one that the models live on."""
        if running_loop() is not self._loop:
            raise RuntimeError(
                "the models of a test live on one loop: load and use them all in the test, or leave the marker of the other "
                "async plugin out"
            )

    async def _started(self) -> None:
        if self._kernel is not None:
            self.check_loop()
            return
        loop = self._loop = asyncio.get_running_loop()
        if self.virtual_time and not isinstance(loop, KitLoop):
            raise RuntimeError(
                f"virtual time needs the kit's own loop, this test runs on a {type(loop).__name__}: "
                "leave the markers of other async plugins out"
            )
        kernel = Kernel(
            self._folders,
            # A test is to see its model: in this process, on its loop, whatever the model imports.
            backend_config={"python": {"default-placement": "server"}},
            control_mode="explicit",
            strict_outputs=self.strict_outputs,
            plugins=[FakeBackend(self._fakes), *self._plugins],
        )
        await kernel.start()
        self._kernel = kernel
        if isinstance(loop, KitLoop):
            loop.elsewhere, loop.explain = self._elsewhere, self.explain

    # -- what goes on --------------------------------------------------------------------------------------------------

    def explain(self) -> str:
        """Return a line for each request that has no answer: who holds it; and for each execution that goes on for nobody."""
        if self._kernel is None:
            return ""
        folders = self._places()
        return "\n".join([*holders.explain(self._kernel, folders), *holders.executing(self._kernel, folders)])

    def _places(self) -> list[Path]:
        """Return the folders of the models that are loaded."""
        return [model.model_folder for model in self.kernel.models()]

    def _elsewhere(self) -> Elsewhere:
        kernel = self.kernel
        executing = set()
        for model in kernel.models():
            for instance in model.scheduler.instances:
                if not instance.running:
                    continue
                executing.add(instance.name)
                # Of plugins' own kinds of instances, such as processes, nothing is known but that they execute.
                if not isinstance(instance, _OURS) and any(batch.blocked_on is None for batch in instance.running):
                    return Elsewhere.WORK
        return self._threads.look(executing, holders.awaits_sender(kernel))

    def reasons(self) -> list[str]:
        """Return why requests took as long as they did: a few of those that failed, that have no answer, and the slowest."""
        if self._kernel is None:
            return []
        kernel, lines = self._kernel, []
        going = [one for request in holders.unanswered(kernel)[:REASONS] for one in kernel.explain(request)]
        failed, slowest = kernel.explain(failed=REASONS), kernel.explain(slowest=REASONS)
        for title, told in (("failed", failed), ("without an answer", going), ("slowest", slowest)):
            below = [f"  {clipped(_LINES(' ', line), LONGEST)}" for one in told for line in one.lines()]
            more = [f"  … and {len(below) - LINES} calls and steps more"] if len(below) > LINES else []
            lines += [f"{title}:", *below[:LINES], *more] if below else []
        return lines

    # -- what is wrong -------------------------------------------------------------------------------------------------

    def raise_failures(self) -> None:
        """Raise the first assertion that has failed in a fake and has not been raised yet."""
        __tracebackhide__ = True
        for fake in self._fakes.values():
            if fake.failures:
                raise fake.failures.pop(0)

    def hint(self, message: str) -> str:
        """Return what may help with an error message, "" where nothing does."""
        found = _UNKNOWN.search(message)
        if found is None:
            return ""
        name = found.group(1)
        beside = self._folders.find(name)
        load = f"load_model({str(beside.path)!r})" if beside is not None else "load_model"
        return f"'{name}' is not loaded in this test: load it with {load}, or let fake_model('{name}', ...) stand in for it"

