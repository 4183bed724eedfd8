"""One simulated life of a server, drawn from a seed: what is sent, what goes wrong meanwhile, and what must hold all the same.

`simulate(seed)` is the same whenever it is called. Faults are part of a history, then they stop; from there on everything has to
come to its end. Violations are kept, not raised: a model's assertion would only be one more answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import itertools
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from simulation.books import look_at_books, watched_schedulers
from simulation.grpc_client import GrpcClient
from simulation.http_client import HttpClient
from simulation.plans import CACHED_VALUES, Plan, draw_models
from simulation.scripted import Elsewhere, Planned, Scripted, number_of
from simulation.words import explain
from virtual import Deadlock, LateLoop, Watched

from kernel import (
    Batch,
    InferenceRequest,
    InferenceResponse,
    Kernel,
    LocalCache,
    RequestState,
    ServingError,
    Tensor,
)
from kernel_grpc.rpc.calls import open_call
from kernel_grpc.rpc.server import Server
from kernel_grpc.services.methods import inference_methods
from kernel_http.frontend import make_server

__all__ = ["Outcome", "Ticket", "World", "simulate"]

RELEASED = RequestState.RELEASED
START, END = 1, 2
LENGTHS = (5, 30, 80, 300)  # steps of a history
MOST_TURNS = 300_000  # of the loop at one moment
SHORT_SEEDS, SHORT_LENGTHS = 1000, (3, 8, 20)  # the first seeds live short lives, for the tests
LONG_SEEDS, LONG_LENGTHS = 10**7, (1000, 3000)  # from here on lives are long: most of the time goes to requests, not to starts
_times = itertools.count(1_000_000_000)

#: Of the installed plugins a simulated server has this one; to look for them anew takes longer than to serve a hundred requests.
_PLUGINS = [entry for entry in importlib.metadata.entry_points(group="kernel") if entry.name == "kernel_ensemble"]
_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


@dataclass
class Outcome:
    """What came of one seed. `requests`: that clients have sent; `executions`: that backends were given."""

    seed: int
    requests: int = 0
    executions: int = 0
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class SeededLoop(LateLoop):
    """Virtual time, in which the work of threads is done at once and takes a seed's time to be known."""

    def __init__(self, rng: Random) -> None:
        super().__init__(lambda: rng.choice((0.0, 0.0, 0.0, 0.0004, 0.02)))
        self.rng = rng
        self.turns, self.moment = 0, 0.0

    def _run_once(self) -> None:
        if self.moment != self.now:
            self.turns, self.moment = 0, self.now
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Deadlock("something is done over and over, and no time passes")
        super()._run_once()  # type: ignore[misc]


class Ticket:
    """One request of a client, and what came for it: the continuation of one that goes to the kernel directly."""

    __slots__ = (
        "cancelled", "client", "deadline", "ended", "failed", "got", "lost", "number", "place", "plan", "request", "rows", "sent",
        "timeout", "until", "width", "world",
    )  # fmt: skip

    def __init__(self, world: World, plan: Plan, number: int, rows: int) -> None:
        self.world = world
        self.plan = plan
        self.number = number
        self.rows = rows
        self.request: InferenceRequest | None = None
        self.sent = world.loop.now
        self.deadline = False
        self.until = inf  # the deadline that the kernel was told
        self.cancelled = False  # by its client, or by something that its client could see
        self.ended = 0
        self.got = 0  # responses with outputs
        self.failed = ""
        self.width = 1 + number % 17 // 16
        self.client: Any = None  # whose wire it went by
        self.place: Any = None  # where on that
        self.timeout = 0.0  # that its wire was told, in seconds
        self.lost = False  # its wire has ended, and with it the right to an answer

    @property
    def id(self) -> str:
        return str(self.number)

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        world, plan = self.world, self.plan
        world.expect(not self.ended, "an answer after the final one", plan)
        self.ended += final
        if world.loop.now > self.until + 1e-6:
            world.expect(world.jumped(self.until), f"an answer {world.loop.now - self.until:.4f} s after the deadline", plan)
        if response is None:
            world.expect(plan.decoupled, "a final flag without an answer", plan)
            return
        world.expect(response.id == self.id or not response.model_name, "an answer has another request's id", plan)
        if response.error is not None:
            world.expect(final, "an error that is not the end", plan)
            self.fail(response.error.message)
            return
        world.expect(response.model_name == plan.name, "an answer of another model", plan)
        if response.outputs:
            self.look_at(response["Y"])
        if plan.ordered and self.request is not None:
            world.look_at_answer(self.request, plan)

    def end(self) -> None:
        """The final answer has come by a wire."""
        self.world.expect(not self.ended, "an answer after the final one", self.plan)
        self.ended += 1

    def look_at(self, values: Any) -> None:
        """Compare what came with what the model gives."""
        world, plan = self.world, self.plan
        more = self.got / 16 if plan.decoupled else 0.0
        self.got += 1
        expected = np.float32(world.value_of(self) + plan.total + more)
        world.expect(bool(np.all(np.asarray(values).ravel() == expected)), "an answer that belongs to another request", plan)

    def fail(self, words: str) -> None:
        self.failed = words
        world = self.world
        reason = explain(words, self)
        world.counts[reason or "?"] += 1
        if not reason:
            world.broken(f"nobody has committed this: {words}", self.plan)


class World:
    """The server, its clients, and all that is remembered to compare with."""

    request_type = Watched

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.loop = SeededLoop(rng)
        self.faults = True
        self.fault_rate = rng.choice((0.0, 0.02, 0.2))
        self.late_rate = rng.choice((0.0, 0.1, 0.5))
        self.load_faults = rng.choice((0.0, 0.0, 0.2))
        self.limited = rng.random() < 0.25
        self.plans: dict[str, Plan] = {plan.name: plan for plan in draw_models(rng, self.limited)}
        self.executors: list[Any] = []
        self.tickets: list[Ticket] = []
        self.executions = 0
        self.committed: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.going_on: set[int] = set()  # sequences that execute
        self.places_of: dict[int, tuple[int, int]] = {}  # number of a request -> its sequence, its place there
        self.last_place: dict[int, int] = {}
        self.current: dict[tuple[str, int], tuple[int, int]] = {}  # model, correlation id -> sequence, place of the next
        self.last_begun: dict[Any, tuple[float, int]] = {}  # scheduler -> enqueued and order of the last that began
        self.last_answered: dict[Any, int] = {}
        self.unloads: Counter[str] = Counter()
        self.stopping = False
        self.jumps: list[tuple[float, float]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.kernel: Kernel
        self.folder: Path
        self.wires = rng.choice((0.0, 0.0, 0.5, 0.95))  # how many of the requests come by one
        self.http: Any = None
        self.grpc: Any = None
        self.clients: list[Any] = []

    # -- what must hold --------------------------------------------------------------------------------------------------

    def broken(self, law: str, plan: Plan | None = None) -> None:
        if len(self.violations) < 20:
            where = f" (model {plan.name}: {plan.kind}, {plan.style})" if plan is not None else ""
            self.violations.append(f"{self.loop.now - 1000:.4f}: {law}{where}")

    def expect(self, holds: bool, law: str, plan: Plan | None = None) -> None:
        if not holds:
            self.broken(law, plan)

    def jump(self, seconds: float) -> None:
        """The clock jumps, or the loop is held."""
        self.jumps.append((self.loop.now, self.loop.now + seconds))
        self.loop.now += seconds

    def jumped(self, moment: float) -> bool:
        """Whether nobody could do anything at a moment."""
        return any(began <= moment + 1e-6 and moment <= ended + 1e-6 for began, ended in self.jumps)

    def look_at_order(self, batch: Batch, plan: Plan) -> None:
        """Executions of a plain queue begin first come, first served."""
        scheduler = batch.instance.owner
        first, last = batch.requests[0], batch.requests[-1]
        before = self.last_begun.get(scheduler, (0.0, 0))
        self.expect((first.enqueued, first.order or before[1]) >= before, "not first come, first served", plan)
        orders = [one.order for one in batch.requests]
        self.expect(orders == sorted(orders), "a batch is not in the order of arrival", plan)
        self.last_begun[scheduler] = (last.enqueued, last.order or before[1])

    def look_at_answer(self, request: InferenceRequest, plan: Plan) -> None:
        scheduler = request.model.scheduler
        if not request.order:
            return  # the cache had it
        self.expect(request.order > self.last_answered.get(scheduler, 0), "answers are not in order", plan)
        self.last_answered[scheduler] = request.order

    def look_at_sequences(self, batch: Batch, plan: Plan) -> list[int]:
        """The requests of a sequence are executed in order, one at a time, and see their own state."""
        real = [one for one in batch.requests if one.inputs["READY"].array.item()]
        self.expect(len(batch.requests) <= plan.rows, "an execution has too many requests", plan)
        self.expect(bool(real), "nothing but null requests", plan)
        self.expect(len(real) == len(batch.requests) or plan.kind == "direct", "a null request with oldest", plan)
        taken = batch.instance.owner.queue._sequencer.occupied(batch.instance)
        self.expect(taken <= plan.slots, "an instance has more sequences than slots", plan)
        mine = []
        for request in real:
            sequence, place = self.places_of[number_of(request)]
            state, count = (int(number) for number in request.inputs["S"].array[0])
            start = bool(request.inputs["START"].array.item())
            self.expect(sequence not in self.going_on and sequence not in mine, "two requests of a sequence at a time", plan)
            self.expect(place > self.last_place.get(sequence, -1), "the order of a sequence is not kept", plan)
            self.expect(start == (place == 0), "START where there is none, or none where it is", plan)
            if start:
                self.expect((state, count) == (0, 0), "a sequence begins with another's state", plan)
            else:
                self.expect(state in (0, sequence) and count <= place, "a sequence sees another's state", plan)
            self.last_place[sequence] = place
            mine.append(sequence)
        self.going_on.update(mine)
        return mine

    def value_of(self, ticket: Ticket) -> int:
        cached = any(plan.cached for plan in ticket.plan.below)
        return ticket.number % CACHED_VALUES if cached else ticket.number

    # -- what is sent ----------------------------------------------------------------------------------------------------

    def draw_ticket(self) -> Ticket:
        rng = self.rng
        plan = rng.choice(list(self.plans.values()))
        rows = rng.randint(1, plan.rows) if plan.rows and not plan.sequential else 1
        if plan.kind == "batching" and rng.random() < 0.7:
            rows = 1
        ticket = Ticket(self, plan, len(self.tickets) + 1, rows)
        self.tickets.append(ticket)
        return ticket

    def array_of(self, ticket: Ticket) -> Any:
        shape = (ticket.rows, ticket.width) if ticket.plan.rows else (ticket.width,)
        return np.full(shape, self.value_of(ticket), np.float32)

    def send(self) -> None:
        """Send one request, by a wire or to the kernel directly."""
        rng, ticket = self.rng, self.draw_ticket()
        plan = ticket.plan
        if self.wires and rng.random() < self.wires:
            self.send_by_wire(ticket)
            return
        request = ticket.request = Watched(
            plan.name, {"X": Tensor("X", "FP32", self.array_of(ticket))}, ticket, id=ticket.id
        )
        if rng.random() < 0.12:
            ticket.deadline = True
            request.deadline = self.loop.now + rng.choice((-0.001, 0.0, 0.0005, 0.01, 0.04, 3.0))
            ticket.until = max(self.loop.now, request.deadline)
        if plan.levels:
            request.priority = rng.randint(0, plan.levels)
        if plan.times_out and rng.random() < 0.2:
            request.timeout_us = rng.choice((1, 900, 20_000))
        if plan.sequential:
            self.send_in_sequence(ticket, request)
            return
        self.kernel.submit(request)

    def send_by_wire(self, ticket: Ticket) -> None:
        rng, plan = self.rng, ticket.plan
        client = ticket.client = self.draw_client(plan)
        fields: dict[str, Any] = {}
        if plan.levels:
            fields["priority"] = rng.randint(0, plan.levels)
        if plan.times_out and rng.random() < 0.2:
            fields["timeout"] = rng.choice((1, 900, 20_000))
        if rng.random() < 0.03 and not plan.sequential:
            ticket.width = rng.choice((400, 9000, 30_000))
        if plan.sequential:
            # By a wire of which nobody knows when it is read: a sequence of one request.
            self.places_of[ticket.number] = ticket.number, 0
            fields |= {"sequence_id": 100 + ticket.number, "sequence_start": True, "sequence_end": True}
        if isinstance(client, GrpcClient) and rng.random() < 0.1:
            ticket.timeout = rng.choice((1e-6, 0.0005, 0.01, 3.0))
            ticket.deadline = True
        client.ask(ticket, fields)

    def draw_client(self, plan: Plan) -> Any:
        """Return a connection, perhaps a new one."""
        rng = self.rng
        kind = GrpcClient if plan.decoupled or rng.random() < 0.5 else HttpClient
        there = [one for one in self.clients if type(one) is kind and not one.over]
        if len(there) < 2 or rng.random() < 0.03:
            there = [kind(self, rng.choice((0, 0, 1, 1)))]
            self.clients += there
        return rng.choice(there)

    def disturb(self) -> None:
        """A client goes, is silent, reads again, says nonsense, or asks for something else."""
        rng = self.rng
        there = [one for one in self.clients if not one.over]
        if not there:
            return
        client, what = rng.choice(there), rng.random()
        if what < 0.15:
            client.leave(reset=True)
        elif what < 0.25:
            client.leave(reset=False)
        elif what < 0.35:
            client.misbehave()
        elif what < 0.6:
            client.look()
        elif client.pipe.silent:
            client.pipe.listen()
        else:
            client.pipe.silent = client.pipe.has_slept = True
            self.loop.call_later(rng.choice((0.01, 0.5, 200.0)), client.pipe.listen)

    def send_in_sequence(self, ticket: Ticket, request: InferenceRequest) -> None:
        rng = self.rng
        key = ticket.plan.name, rng.randint(1, 5)
        request.correlation_id = key[1]
        request.flags = rng.choice((0, 0, 0, START, END, START | END))
        if key not in self.current and rng.random() < 0.8:
            request.flags |= START
        sequence, place = (ticket.number, 0) if request.flags & START else self.current.get(key, (0, 0))
        self.places_of[ticket.number] = sequence, place
        self.kernel.submit(request)
        if request.state is not RELEASED or not ticket.failed:
            self.expect(bool(sequence), "accepted without a sequence", ticket.plan)
            self.current[key] = sequence, place + 1

    # -- what happens ----------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        if self.tickets:
            ticket = self.rng.choice(self.tickets[-40:])
            if ticket.ended or ticket.lost:
                return
            if ticket.client is not None:
                ticket.client.cancel(ticket)
            elif ticket.request is not None:
                ticket.cancelled = True
                self.kernel.cancel(ticket.request)

    def kill(self) -> None:
        there = [one for one in self.executors if isinstance(one, Elsewhere) and not one.closed and hasattr(one, "instance")]
        if there:
            self.rng.choice(there).die(self.rng.choice((0.0, 0.001, 0.02, 0.5)))

    def reload(self) -> None:
        """Unload a model, load it, or give it another number of instances, while requests are on their way."""
        plan = self.rng.choice(list(self.plans.values()))
        what = self.rng.random()
        if what < 0.3:
            self.unloads.update(one.name for one in self.plans.values())  # ensembles go with their steps
            self.kernel.unload(plan.name)
        elif plan.kind != "ensemble" and what < 0.7:
            self.write(plan, self.rng.randint(1, 3))
        task = asyncio.ensure_future(self.load(plan))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def load(self, plan: Plan) -> None:
        try:
            await self.kernel.load(plan.name)
        except ServingError as error:
            words = error.message
            if not ("planned" in words or "stopp" in words or "exiting" in words or plan.kind == "ensemble"):
                self.broken(f"a load has failed: {words}", plan)

    def write(self, plan: Plan, instances: int = 0) -> None:
        path = self.folder / plan.name / "config.pbtxt"
        path.parent.mkdir(exist_ok=True)
        (path.parent / "1").mkdir(exist_ok=True)
        path.write_text(plan.text(instances))
        os.utime(path, ns=(0, next(_times)))

    async def live(self) -> None:
        """The history: while faults last, after them, and the end."""
        rng = self.rng
        for plan in self.plans.values():
            self.write(plan)
        load_faults, self.load_faults = self.load_faults, 0.0
        resources = [f"R:{rng.randint(2, 5)}"] if self.limited else []
        kernel = self.kernel = Kernel(
            self.folder, plugins=[Scripted(self)], control_mode="explicit", load_models=["*"],
            cache=LocalCache(rng.choice((1000, 1 << 20))), drain_seconds=rng.choice((0.0, 0.01, 5.0, 1000.0)),
            memory_limit_receive=rng.choice((0, 200_000)), memory_limit_send=rng.choice((0, 200_000)),
            rate_limit="execution_count" if self.limited else "off", rate_limit_resources=resources,
        )  # fmt: skip
        async with kernel:
            self.http = make_server(kernel)  # type: ignore[arg-type]
            self.grpc = Server(kernel, inference_methods(kernel), open_call)
            self.load_faults = load_faults
            for _ in range(self.length()):
                self.step()
                if rng.random() < 0.7:
                    await asyncio.sleep(rng.choice((0.0, 0.0, 0.0003, 0.001, 0.005, 0.04, 0.7)))
            self.faults = False
            if rng.random() < 0.2:  # stopped in the middle of everything
                self.stopping = True
                if rng.random() < 0.5:
                    drains = [asyncio.ensure_future(server.drain()) for server in (self.http, self.grpc)]
                    await asyncio.sleep(rng.choice((0.0, 0.01, 300.0)))
                    for drain in drains:
                        drain.cancel()
            else:
                await self.settle()
            self.stopping = True
        self.http.abort()
        self.grpc.abort()
        await asyncio.sleep(5)

    def length(self) -> int:
        """Return how many steps the history has."""
        lengths = SHORT_LENGTHS if self.seed < SHORT_SEEDS else LENGTHS if self.seed < LONG_SEEDS else LONG_LENGTHS
        return self.rng.choice(lengths)

    def step(self) -> None:
        rng = self.rng
        what = rng.random()
        if what < 0.74:
            for _ in range(rng.choice((1, 1, 2, 5, 12, 30))):
                self.send()
        elif what < 0.86:
            self.cancel()
        elif what < 0.89:
            self.kill()
        elif what < 0.91:
            self.disturb()
        elif what < 0.95 and self.load_faults >= 0:
            self.reload()
        else:
            self.jump(rng.choice((0.0005, 0.03, 2.0)))

    async def settle(self) -> None:
        """Faults have stopped: everything comes to its end, and everything can be asked again."""
        for client in self.clients:
            if client.pipe.silent:
                client.pipe.listen()
        await asyncio.sleep(30)
        for plan in self.plans.values():
            await self.load(plan)
        await asyncio.sleep(600)
        await self.take_all()
        look_at_books(self)
        for plan in self.plans.values():
            if plan.sequential:
                continue
            ticket = Ticket(self, plan, len(self.tickets) + 1, 1)
            self.tickets.append(ticket)
            ticket.request = Watched(plan.name, {"X": Tensor("X", "FP32", self.array_of(ticket))}, ticket, id=ticket.id)
            self.kernel.submit(ticket.request)
            await asyncio.sleep(30)
            circle = "could only wait for itself" in ticket.failed
            self.expect(bool(ticket.ended and not ticket.failed) or circle, f"not served any more: {ticket.failed}", plan)
        look_at_books(self)

    async def take_all(self) -> None:
        """Wait for the clients that take 700 bytes at a time of what waits for them, for as long as they do."""
        send = self.kernel.memory.send
        left = send.used + 1
        while send.used and send.used < left:
            left = send.used
            await asyncio.sleep(600)

    def look_at_end(self) -> None:
        for ticket in self.tickets:
            answers = ticket.ended == 1 or (ticket.ended == 0 and ticket.lost)
            self.expect(answers, f"request {ticket.id} has {ticket.ended} final answers", ticket.plan)
            if ticket.ended and not ticket.failed:
                self.counts["ok"] += 1
            if ticket.client is not None:
                self.counts["answered by " + type(ticket.client).__name__ if ticket.ended else "left by their clients"] += 1
        limits = self.kernel.supervision.limits
        if limits is not None:
            limiter = limits.limiter
            self.expect(not limiter.holding and not limiter.waiting, "resources are not given back")


class _Log(logging.Handler):
    """Nothing is logged as an error that the seed has not planned."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        words = f"{record.getMessage()}: {error!r}"
        if isinstance(error, Planned) or "planned" in words or "its executor returned" in words:
            return
        if self.world.stopping and "exiting" in words:
            return
        if "'ensemble' is not loaded" in words and ("no available versions" in words or "not available or ambiguous" in words):
            return  # one of its steps was unloaded while it was on its way
        self.world.broken(f"logged: {words}")


@contextlib.contextmanager
def _logged(world: World) -> Iterator[None]:
    handler, loggers = _Log(world), [logging.getLogger(name) for name in ("kernel", "kernel_http", "kernel_grpc", "asyncio")]
    before = [(logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, (propagate, level) in zip(loggers, before):
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)


def simulate(seed: int) -> Outcome:
    """Live one seed's history and return what came of it."""
    world = World(seed)
    loop = world.loop
    loop.set_exception_handler(lambda _, context: world.broken(f"nobody has seen to this: {context}"))
    world.folder = Path(tempfile.mkdtemp(prefix="kernel_simulation_", dir=_MEMORY))
    found = mock.patch("importlib.metadata.entry_points", lambda **_: _PLUGINS)
    gone = mock.patch("kernel_http.connection.ended.is_gone", lambda _: False)
    with _logged(world), watched_schedulers(world), found, gone:
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(world.live())
            world.look_at_end()
            left = [task for task in asyncio.all_tasks(loop) if not task.done()]
            world.expect(not left, f"tasks are left: {left}")
        except Deadlock as error:
            world.broken(f"hangs: {error}")
        except Exception as error:
            world.broken(f"the simulation has failed: {type(error).__name__}: {error}")
            logging.getLogger("simulation").debug("seed %d", seed, exc_info=True)
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with contextlib.suppress(Exception):
                loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            loop.close()
            shutil.rmtree(world.folder, ignore_errors=True)
    return Outcome(seed, len(world.tickets), world.executions, world.violations, world.counts)


