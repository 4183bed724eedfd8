"""Calls that could only wait for themselves: each is refused with the reason, or works, wherever models run; none hangs."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from telling import TEXT

from kernel import Kernel

STUCK = "could only wait for itself"
PLACEMENTS = ["loop", "thread", "process"]

#: What the models start with. `make(name).exec()` calls; a model that is called with [0] answers at once.
HEAD = """
import asyncio, concurrent.futures, os, threading, time
def make(model, x=1.0):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[pb_utils.Tensor("X", np.array([x], np.float32))], requested_output_names=["S"])
def show(r):
    return r.error().message() if r.has_error() else r.output_tensors()[0].as_numpy()[0].decode()
def tell(requests, value):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))]) for _ in requests]
def told(name):
    try:
        return show(make(name).exec())
    except pb_utils.TritonModelException as e:
        return str(e)
def number(requests):
    return float(requests[0].inputs()[0].as_numpy()[0])
"""


def model(body: str, define: str = "def", helpers: str = "") -> str:
    lines = "\n        ".join(body.strip().splitlines())
    return f"{HEAD}{helpers}\nclass TritonPythonModel:\n    {define} execute(self, requests):\n        {lines}\n"


class World:
    def __init__(self, repo: Any, placement: str) -> None:
        self.repo = repo
        self.placement = placement

    def add(
        self, name: str, body: str, define: str = "def", placement: str = "", count: int = 1, helpers: str = "", **parameters: str
    ) -> None:
        parameters = {"placement": placement or self.placement, **parameters}
        self.repo.add(name, model(body, define, helpers), io=TEXT, count=count, parameters=parameters)

    def ask(self, *names: str, seconds: float = 5.0, value: float = 1.0) -> list[str]:
        """Return what comes of requests that are sent at once."""

        async def one(kernel: Kernel, name: str) -> str:
            try:
                response = await asyncio.wait_for(kernel.infer(name, {"X": np.array([value], np.float32)}), seconds)
            except TimeoutError:
                return "HANGS"
            except Exception as error:
                return str(error)
            return str(response.outputs[0].array[0].decode())

        async def main(kernel: Kernel) -> list[str]:
            return await asyncio.gather(*(one(kernel, name) for name in names))

        answers: list[str] = self.repo.run(main, drain_seconds=0.5)
        assert "HANGS" not in "".join(answers), answers
        return answers


@pytest.fixture(params=PLACEMENTS)
def world(repo: Any, request: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("kernel_python.waiting.HELD_SECONDS", 0.1)
    return World(repo, request.param)


END = "if number(requests) == 0: return tell(requests, 'end')\n"
SYNC = "return tell(requests, show(make('{0}').exec()))"
ASYNC = "return tell(requests, show(await make('{0}').async_exec()))"
#: Both are in the middle of `execute` before either calls.
BOTH = """
open("{folder}/{name}", "w").close()
while len(os.listdir("{folder}")) < 2:
    {pause}
"""


def both(folder: Path, name: str, placement: str, other: str) -> tuple[str, str]:
    """Return how a model of two is defined that call one another once both are there."""
    folder.mkdir(exist_ok=True)
    if placement == "loop":  # one after the other: a call that leaves `execute` lets the other begin
        return SYNC.format(other), "def"
    return BOTH.format(folder=folder, name=name, pause="time.sleep(0.001)") + SYNC.format(other), "def"


def both_async(folder: Path, name: str) -> str:
    """Return what an async model of two does until both are there."""
    (folder / "there").mkdir(exist_ok=True)
    return BOTH.format(folder=folder / "there", name=name, pause="await asyncio.sleep(0.001)")


def test_circles_through_async_executions(world: World, tmp_path: Path) -> None:
    """a (sync) -> ga (async) -> b (sync), and b -> gb -> a: each alone is served, both at once are a circle."""
    folder = tmp_path / "there"
    for name, other in (("a", "b"), ("b", "a")):
        body, define = both(folder, name, world.placement, f"g{name}")
        world.add(name, END + body, define)
        world.add(f"g{name}", f"return tell(requests, show(await make('{other}', 0).async_exec()))", "async def")
    answers = world.ask("a", "b")
    assert sum(STUCK in one for one in answers) <= 1
    if world.placement != "loop":
        assert sum(STUCK in one for one in answers) == 1, answers
        assert any("a -> ga -> b" in one or "b -> gb -> a" in one for one in answers)
    assert sum("end" in one for one in answers) >= 1


@pytest.mark.parametrize("define", ["def", "async def"])
@pytest.mark.parametrize(
    "wait",
    [
        "pool = concurrent.futures.ThreadPoolExecutor(1); r = pool.submit(lambda: told('{0}')).result()",
        "got = []; t = threading.Thread(target=lambda: got.append(told('{0}'))); t.start(); t.join(); r = got[0]",
        "pool = concurrent.futures.ThreadPoolExecutor(1); r = list(pool.map(lambda n: told(n), ['{0}']))[0]",
    ],
    ids=["result", "join", "map"],
)
def test_calls_by_threads_that_execute_waits_for(world: World, define: str, wait: str) -> None:
    """The thread knows of no execution; who waits for it is read off the stacks."""
    world.add("a", wait.format("a") + "\nreturn tell(requests, r)", define, max_concurrency="1")
    (answer,) = world.ask("a")
    assert STUCK in answer or "needs the event loop" in answer, answer
    if world.placement != "loop":
        assert "a -> a" in answer


@pytest.mark.parametrize("define", ["def", "async def"])
def test_a_circle_through_a_thread_of_another_model(world: World, define: str) -> None:
    """A -> B -> a thread of B's pool -> A."""
    world.add("a", SYNC.format("b"))
    if define == "def":
        wait = "r = concurrent.futures.ThreadPoolExecutor(1).submit(lambda: told('a')).result()"
    else:
        wait = "r = await asyncio.wrap_future(concurrent.futures.ThreadPoolExecutor(1).submit(lambda: told('a')))"
    world.add("b", wait + "\nreturn tell(requests, r)", define)
    (answer,) = world.ask("a")
    assert STUCK in answer or "needs the event loop" in answer, answer
    if world.placement != "loop":
        assert "a -> b -> a" in answer


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_exec_of_itself_by_an_async_model(world: World, concurrency: str) -> None:
    world.add("a", SYNC.format("a"), "async def", max_concurrency=concurrency)
    (answer,) = world.ask("a")
    assert STUCK in answer and "a -> a" in answer


TWICE = {
    "gather": "got = await asyncio.gather(make('a').async_exec(), make('a').async_exec())",
    "to_thread": "got = await asyncio.gather(asyncio.to_thread(make('a').exec), asyncio.to_thread(make('a').exec))",
    "tasks": """
async def one():
    return await make('a').async_exec()
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(one()), group.create_task(one())]
got = [task.result() for task in tasks]
""",
    "wait": """
done, _ = await asyncio.wait([make('a').async_exec(), make('a').async_exec()])
got = [one.result() for one in done]
""",
}


@pytest.mark.parametrize("concurrency", ["1", "3"])
@pytest.mark.parametrize("way", TWICE)
def test_two_calls_of_itself(world: World, way: str, concurrency: str) -> None:
    world.add("a", f"{TWICE[way]}\nreturn tell(requests, [show(r) for r in got])", "async def", max_concurrency=concurrency)
    (answer,) = world.ask("a")
    assert STUCK in answer and "a -> a" in answer


def test_a_call_that_blocks_the_loop_it_is_to_be_answered_on(world: World) -> None:
    """`m` has room for more, but its loop stands still in the call of `n`, which calls `m`."""
    world.add("m", END + SYNC.format("n"), "async def", max_concurrency="4")
    world.add("n", "return tell(requests, show(make('m', 0).exec()))")
    (answer,) = world.ask("m")
    if world.placement == "loop":
        assert "end" in answer  # the loop goes on
    else:
        assert STUCK in answer


def test_two_async_models_that_await_one_another(world: World, tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        body = f"{END}{both_async(tmp_path, name)}return tell(requests, show(await make('{other}', 0).async_exec()))"
        world.add(name, body, "async def", max_concurrency="1")
    answers = world.ask("a", "b")
    assert sum(STUCK in one for one in answers) == 1, answers
    assert sum("end" in one for one in answers) == 1


# -- what would have gone on is not refused --------------------------------------------------------------------------------


def test_a_thread_that_nobody_waits_for_may_call_its_own_model(world: World, tmp_path: Path) -> None:
    if world.placement == "loop":
        pytest.skip("it would hold the loop")
    called = tmp_path / "called"
    body = f"""
if number(requests) == 2:
    self.thread.join(10)
    return tell(requests, self.got)
if number(requests) == 0:
    return tell(requests, "end")
self.got = []
self.thread = threading.Thread(target=lambda: self.got.append(show(make("a", 0).exec())))
self.thread.start()
while not os.path.exists({str(called)!r}):
    time.sleep(0.001)
return tell(requests, "begun")
"""
    world.add("a", body, count=1)

    async def main(kernel: Kernel) -> list[str]:
        async def ask(value: int) -> Any:
            response = await kernel.infer("a", {"X": np.array([value], np.float32)}, timeout=10)
            return json.loads(response.outputs[0].array[0])

        begun = asyncio.ensure_future(ask(1))
        while not kernel.model("a").scheduler.queue.size:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        called.touch()  # the thread's call is served before those that come after it
        return [await begun, await ask(0), await ask(2)]

    assert world.repo.run(main) == ["begun", "end", ['"end"']]


TIMEOUTS = {
    "plain": "async with asyncio.timeout(1.0)",
    "stack": "async with contextlib.AsyncExitStack() as stack, await_of(stack)",
    "manager": "async with limited(1.0)",
}

#: Other ways to come to a time-out.
HELPERS = """
import contextlib
@contextlib.asynccontextmanager
async def limited(seconds):
    async with asyncio.timeout(seconds):
        yield
@contextlib.asynccontextmanager
async def await_of(stack):
    await stack.enter_async_context(limited(1.0))
    yield
"""


@pytest.mark.parametrize("way", TIMEOUTS)
def test_who_gives_up_in_time_is_not_refused(world: World, way: str, tmp_path: Path) -> None:
    """`asyncio.timeout` ends the waiting of `a`; `b` is served then."""
    timed = f"""
{both_async(tmp_path, "a")}
try:
    {TIMEOUTS[way]}:
        r = show(await make('b', 0).async_exec())
except TimeoutError:
    r = "gave up"
return tell(requests, r)
"""
    world.add("a", END + timed, "async def", max_concurrency="1", helpers=HELPERS)
    other = f"{both_async(tmp_path, 'b')}return tell(requests, show(await make('a', 0).async_exec()))"
    world.add("b", END + other, "async def", max_concurrency="1")
    first, second = (json.loads(one) for one in world.ask("a", "b"))
    assert first == "gave up" and json.loads(second) == "end"


def test_a_call_that_has_to_wait_for_others_is_served(world: World) -> None:
    world.add("slow", "time.sleep(0.4)\nreturn tell(requests, 'end')", placement="thread")
    world.add("a", ASYNC.format("slow"), "async def")
    world.add("b", SYNC.format("a"))
    assert all("end" in one for one in world.ask("b", "b", "a", "slow"))


# -- many at once ----------------------------------------------------------------------------------------------------------

#: Calls the models of `targets`, one after another or at once, until the number that goes along is used up.
WALK = """
left = number(requests) - 1
if left < 0:
    return tell(requests, "end")
{steps}
bad = [r.error() for r in got if r.has_error()]
if bad:
    return [pb_utils.InferenceResponse(error=bad[0])]
return tell(requests, "end")
"""
WALKS = {
    "def": "got = [make(one, left).exec() for one in {0}]",
    "async def": "got = await asyncio.gather(*(make(one, left).async_exec() for one in {0}))",
    "to_thread": "got = await asyncio.gather(*(asyncio.to_thread(make(one, left).exec) for one in {0}))",
    "pool": """
pool = concurrent.futures.ThreadPoolExecutor(2)
got = list(pool.map(lambda one: make(one, left).exec(), {0}))
pool.shutdown()
""",
}


def walk(way: str, targets: list[str]) -> tuple[str, str]:
    """Return the body and the kind of an `execute` that calls them."""
    body = WALK.format(steps=WALKS[way].strip().format(targets))
    return body, "async def" if way in ("async def", "to_thread") else "def"


MIXES = {"sync": ["def"] * 3, "async": ["async def"] * 3, "mixed": ["async def", "def", "to_thread"]}


@pytest.mark.parametrize("ways", MIXES.values(), ids=MIXES)
def test_sixty_calls_of_a_circle_of_three_all_get_an_answer(repo: Any, ways: list[str]) -> None:
    """Over loop, thread and process: who is refused is told the circle."""
    world = World(repo, "")
    for way, name, other, placement in zip(ways, "abc", "bca", PLACEMENTS):
        world.add(name, *walk(way, [other]), placement=placement, max_concurrency="2")
    answers = world.ask(*"abc" * 20, seconds=60.0, value=3.0)
    assert len(answers) == 60
    assert all(one == '"end"' or STUCK in one for one in answers), set(answers)


@pytest.mark.parametrize("acyclic", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(repo: Any, seed: int, acyclic: bool) -> None:
    """Every request has its answer, and none is refused where nobody calls in a circle."""
    drawn = random.Random(seed)
    world = World(repo, "")
    names = "abcd"
    for place, name in enumerate(names):
        callees = list(names[place + 1 :] if acyclic else names)
        targets = drawn.sample(callees, min(len(callees), drawn.randint(1, 2)))
        placement = drawn.choice(PLACEMENTS)
        way = drawn.choice([one for one in WALKS if (placement, one) != ("loop", "pool")])
        more = {"max_concurrency": str(drawn.randint(1, 2))}
        world.add(name, *walk(way, targets), placement=placement, count=drawn.randint(1, 2), **more)
    answers = world.ask(*(drawn.choice(names) for _ in range(16)), seconds=60.0, value=3.0)
    refused = [one for one in answers if one != '"end"']
    assert all(STUCK in one for one in refused), set(refused)
    assert not (acyclic and refused), set(refused)


def test_under_uvloop(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `kernel serve` runs on: its clock has milliseconds, and not every handle says when it is due."""
    monkeypatch.setattr(asyncio, "run", uvloop.run)
    world = World(repo, "")
    for way, name, other, placement in zip(MIXES["mixed"], "abc", "bca", PLACEMENTS):
        world.add(name, *walk(way, [other]), placement=placement, max_concurrency="2")
    answers = world.ask(*"abc" * 4, seconds=60.0, value=3.0)
    assert all(one == '"end"' or STUCK in one for one in answers), set(answers)
