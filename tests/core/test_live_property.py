"""The law of live repositories, under random histories in virtual time.

Whatever is edited, polled, watched, loaded, unloaded and asked, in whatever order the load threads answer: what serves was READY
and made of files that were there, no request fails while its model has a good version, each gets one answer, and no instance is
left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from live import ENSEMBLE, Answering, X, write
from virtual import BASE, Client, LateLoop, TestExecutor, answer

from kernel import Batch, Code, InstanceContext, Kernel, Result, ServingError

STEPS = {"e": "a", "f": "e"}  # ensemble -> what it passes on
PLAIN = ("a", "b")
NAMES = (*PLAIN, *STEPS)

names = st.sampled_from(NAMES)
plain = st.sampled_from(PLAIN)
versions = st.sampled_from([0, 0, 0, 1, 2, 3])  # 0: the highest that there is
policies = st.sampled_from(["all {}", "latest { num_versions: 1 }", "specific { versions: 2 }"])
waits = st.tuples(st.just("advance"), st.sampled_from([0.1, 1.0, 3.0, 16.0, 16.0]))
histories = st.lists(
    st.one_of(
        st.tuples(st.just("send"), names),
        st.tuples(st.just("send"), names),
        st.tuples(st.just("good"), plain, versions),
        st.tuples(st.just("bad"), plain, versions),
        st.tuples(st.just("drop"), plain, versions),
        st.tuples(st.just("count"), plain, st.integers(1, 3)),
        st.tuples(st.just("policy"), plain, policies),
        st.tuples(st.sampled_from(["typo", "noise"]), names),
        st.tuples(st.sampled_from(["delete", "restore", "restore"]), names),
        st.tuples(st.sampled_from(["duplicate", "unique", "unique"]), plain),
        st.tuples(st.just("load"), names),
        st.tuples(st.just("override"), plain),
        st.tuples(st.just("unload"), names, st.booleans()),
        waits,
        waits,
        waits,
        waits,
        waits,
    ),
    min_size=10,
    max_size=50,
)
delays = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.3, 4.0]), min_size=1, max_size=7)


class Busy(Answering):
    """Answers what its version's file says, after some seconds."""

    def create(self, context: InstanceContext) -> TestExecutor:
        text = (context.version_folder / "answer").read_text()
        if text == "bad":
            raise ServingError(Code.INTERNAL, text)
        value = int(text)

        async def execute(batch: Batch) -> Result:
            await asyncio.sleep(value % 7)
            return [answer(request, Y=[value]) for request in batch.requests]

        return TestExecutor(execute, context, self.log)


class World:
    """The files, the kernel that serves them, and what may be expected of it."""

    def __init__(self, folder: Path, mode: str, watch: bool) -> None:
        self.one, self.two, self.away = folder / "one", folder / "two", folder / "away"
        for path in (self.one, self.two, self.away):
            path.mkdir()
        self.mode, self.watch = mode, watch
        self.values = itertools.count(1)
        self.written: dict[str, set[int]] = {name: set() for name in PLAIN}
        self.counts = dict.fromkeys(PLAIN, 1)
        self.policies = dict.fromkeys(PLAIN, "latest { num_versions: 1 }")
        self.settled = dict.fromkeys(NAMES, 0.0)  # since when a model lies where it should
        self.expected: set[str] = set()  # has been READY, and nothing has happened since that may take it away
        self.must_succeed: set[str] = set()
        self.tasks: list[asyncio.Task[None]] = []
        for name in PLAIN:
            self.good(name, 1)
            self.config(name)
        for name in STEPS:
            self.config(name)
            (self.one / name / "1").mkdir()

    # -- files ---------------------------------------------------------------------------------------------------------

    def folder(self, name: str) -> Path:
        return self.away / name if (self.away / name).exists() else self.one / name

    def good(self, name: str, version: int) -> None:
        value = next(self.values)
        self.written[name].add(value)
        write(self.folder(name) / str(version) / "answer", str(value))

    def config(self, name: str, more: str = "") -> None:
        text = ENSEMBLE % STEPS[name] if name in STEPS else BASE.replace("count: 1", f"count: {self.counts[name]}")
        if name in PLAIN:
            text += f"version_policy {{ {self.policies[name]} }}\n"
        write(self.folder(name) / "config.pbtxt", text + more)

    def touch(self, step: tuple[Any, ...]) -> None:
        """Do to the files what the step says."""
        kind, name = step[:2]
        folder = self.folder(name)
        version = (step[2] or highest(folder)) if kind in ("good", "bad", "drop") else 0
        match kind:
            case "good":
                self.good(name, version)
            case "bad":
                write(folder / str(version) / "answer", "bad")
            case "drop":
                shutil.rmtree(folder / str(version), ignore_errors=True)
            case "count":
                self.counts[name] = step[2]
                self.config(name)
            case "policy":
                self.policies[name] = step[2]
                self.config(name)
            case "typo":
                self.config(name, "max_batch_sizes: 1\n")
            case "noise":
                write(folder / "1" / "__pycache__" / "x.pyc", str(next(self.values)))
            case "delete" if folder.parent == self.one:
                folder.rename(self.away / name)
                self.unsettle(name)
            case "restore" if folder.parent == self.away:
                folder.rename(self.one / name)
                self.unsettle(name)
            case "duplicate" if not (self.two / name).exists():
                shutil.copytree(folder, self.two / name)
                self.unsettle(name)
            case "unique" if (self.two / name).exists():
                shutil.rmtree(self.two / name)
                self.unsettle(name)

    def unsettle(self, name: str) -> None:
        """What is polled may go for a while, with all that consists of it."""
        for one in above(name):
            self.settled[one] = self.kernel.loop.time()
            if self.mode == "poll":
                self.expected.discard(one)

    def repair(self) -> None:
        for name in NAMES:
            self.touch(("restore", name))
            self.touch(("unique", name))
            if name in PLAIN:
                self.policies[name] = "latest { num_versions: 1 }"
            self.config(name)
        for name in PLAIN:
            for version in (1, 2, 3):
                self.good(name, version)

    # -- the kernel ----------------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Whoever is READY when nothing is under way stays so until something takes it away."""
        kernel = self.kernel
        for name in self.expected:
            assert kernel.is_model_ready(name), f"'{name}' has gone: {[line for line in kernel.index() if line.name == name]}"
        quiet = not kernel._registry._claims._line and not kernel._registry.catalog.background
        if quiet:
            now = kernel.loop.time()
            for name in NAMES:
                lies = all((self.one / one).exists() and not (self.two / one).exists() for one in below(name))
                since = max(self.settled[one] for one in below(name))
                if kernel.is_model_ready(name) and lies and now - since > 30:
                    self.expected.add(name)

    async def keep_observing(self) -> None:
        while True:
            self.observe()
            await asyncio.sleep(0.35)

    def begin(self, work: Any) -> None:
        async def tolerant() -> None:
            with contextlib.suppress(ServingError):
                await work

        self.tasks.append(asyncio.ensure_future(tolerant()))

    def ask(self, step: tuple[Any, ...], client: Client) -> None:
        """Ask of the kernel what the step says."""
        kernel, (kind, name) = self.kernel, step[:2]
        match kind:
            case "send":
                id = f"{name} {len(client.answers)}"
                if kernel.is_model_ready(name):
                    self.must_succeed.add(id)
                client.send(name, id)
            case "load":
                self.begin(kernel.load(name))
            case "override":
                config = {
                    "backend": "test",
                    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
                    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
                }
                value = next(self.values)
                self.written[name].add(value)
                self.begin(kernel.load(name, config=json.dumps(config), files={"2/answer": str(value).encode()}))
            case "unload" if self.mode == "explicit":
                gone = set(above(name))
                if step[2]:
                    gone |= {other for one in below(name) for other in above(one)}
                self.expected -= gone
                kernel.unload(name, dependents=step[2])


def highest(folder: Path) -> int:
    return max((int(one.name) for one in folder.iterdir() if one.name.isdigit()), default=1)


def above(name: str) -> list[str]:
    """Return the model and the ensembles that consist of it."""
    return [name, *(other for ensemble, step in STEPS.items() if step == name for other in above(ensemble))]


def below(name: str) -> list[str]:
    """Return the model and what it consists of."""
    return [name, *(below(STEPS[name]) if name in STEPS else ())]


@settings(deadline=None, max_examples=50)
@given(mode=st.sampled_from(["poll", "explicit"]), watch=st.booleans(), slow=delays, history=histories)
def test_what_serves_goes_on(mode: str, watch: bool, slow: list[float], history: list[tuple[Any, ...]]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        own_temporary_folder(),
        asyncio.Runner(loop_factory=lambda: LateLoop(functools.partial(next, itertools.cycle(slow)))) as runner,
    ):
        problems: list[dict[str, Any]] = []
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        runner.run(story(World(Path(folder), mode, watch), history))
        assert not problems, problems


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Have temporary files made in a folder of their own, and nothing left there."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before
        assert os.listdir(folder) == []


async def story(world: World, history: list[tuple[Any, ...]]) -> None:
    backend = Busy()
    kernel = world.kernel = Kernel(
        world.one, world.two, plugins=[backend], control_mode=world.mode,
        load_models=["*"] if world.mode == "explicit" else [],
    )  # fmt: skip
    async with kernel:
        if world.watch:
            kernel.watch(lambda reload: None)
        await asyncio.sleep(61)
        observing = asyncio.ensure_future(world.keep_observing())
        client = Client(kernel)
        for step in history:
            if step[0] == "advance":
                await asyncio.sleep(step[1])
            elif step[0] in ("send", "load", "override", "unload"):
                world.ask(step, client)
            else:
                world.touch(step)
            if observing.done():
                observing.result()
        world.repair()
        for _ in range(2):
            await asyncio.sleep(100)
            if world.mode == "explicit":
                await asyncio.gather(*(kernel.load(name) for name in NAMES))
        observing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await observing
        await asyncio.gather(*world.tasks)
        check(world, client)
        for name in NAMES:
            value = float((await kernel.infer(name, X))["Y"][0])
            assert value == max(world.written[below(name)[-1]]), f"'{name}' serves what was there before"
        assert kernel.is_ready()
        assert not kernel._registry._claims._line
    assert backend.count("initialize") == backend.count("finalize"), "an instance was left"
    assert not kernel._registry.catalog.alive()


def check(world: World, client: Client) -> None:
    """Every request got one answer: a value that was there, or an error where its model was not READY."""
    for id in client.answers:
        _, words = client.outcome(id)
        assert words == "ok" or id not in world.must_succeed, f"{id} failed: {words}"
        if words == "ok":
            (response,) = [response for _, response, _ in client.answers[id]]
            assert response is not None
            assert int(response["Y"][0]) in world.written[below(id.split()[0])[-1]]
