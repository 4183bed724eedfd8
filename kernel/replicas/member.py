"""The replica's side: which it is, and what it and the supervisor tell each other.

A replica without its supervisor ends: it was to be one of several, and nobody would begin it anew, or end it.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from kernel.errors import Code, ServingError
from kernel.forking import guard, put_away
from kernel.frontends import Endpoint
from kernel.replicas.channel import Channel
from kernel.replicas.messages import (
    Answer,
    Answers,
    Ask,
    Bind,
    Bound,
    Leave,
    Load,
    Loaded,
    Meet,
    Message,
    Now,
    Number,
    Open,
    Opened,
    OthersReady,
    Ping,
    Pong,
    Ready,
    Replace,
    Replaced,
    Told,
    Wanted,
)
from kernel.replicas.peers import PeerTable

__all__ = ["Member", "Role", "end_with_parent"]

log = logging.getLogger("kernel.serve")

_PR_SET_PDEATHSIG = 1

#: How long others may take to answer a question: one whose loop is held does not.
ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Role:
    """Replica `index` of `count`. `descriptor`: of its end of the channel. `speaks`: it tells what is the same for all."""

    index: int
    count: int
    descriptor: int
    speaks: bool

    def __str__(self) -> str:
        return f"{self.index},{self.count},{self.descriptor},{int(self.speaks)}"

    @classmethod
    def parse(cls, text: str) -> Role:
        """Read what `str` has written. Raises ValueError."""
        index, count, descriptor, speaks = map(int, text.split(","))
        return cls(index, count, descriptor, bool(speaks))


class Member:
    """A replica's connection to its supervisor, from now on. On `loop`.

    `on_end()`: the supervisor has gone. `on_now()`: the end is to come at once. `leave`: set when another one serves in the place
    of this one. `others_ready`: whether all other replicas that
    serve are ready. `number`: how many there are to be, where that follows the load, as it was told last.

    The core's own: `forked`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, role: Role, on_end: Callable[[], None], on_now: Callable[[], None]
    ) -> None:
        self.role = role
        self.others_ready = True
        self.number: Number | None = None
        self.leave = asyncio.Event()
        self._asking: dict[int, asyncio.Future[list[Answer]]] = {}
        self._reloading: dict[int, asyncio.Future[Replaced]] = {}
        self._count = 0
        self._answering: dict[str, Callable[[bytes], Awaitable[bytes]]] = {}
        self.peers: PeerTable | None = None  # the other replicas, once there is a kernel
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = loop
        self._on_now = on_now
        self._open: asyncio.Future[None] = loop.create_future()
        self._binding: dict[int, asyncio.Future[list[socket.socket]]] = {}
        sock = socket.socket(fileno=role.descriptor)
        sock.set_inheritable(False)
        self._channel = Channel(loop, sock, self._told, on_end)
        guard(self)

    async def bind(self, service: str, endpoint: Endpoint, reuse_port: bool) -> list[socket.socket]:
        """Return the group's sockets of an endpoint, bound. Raises OSError as `Listener.reserve` does."""
        number = len(self._binding)
        bound: asyncio.Future[list[socket.socket]] = self._loop.create_future()
        self._binding[number] = bound
        self._channel.send(Bind(number, service, endpoint.written, endpoint.port, reuse_port))
        return await bound

    async def loaded(self, modules: Sequence[str] = (), ahead: Collection[str] = ()) -> None:
        """Tell that all models are there; return when connections may be accepted. `modules`, `ahead`: as Loaded says."""
        self._channel.send(Loaded([*modules], sorted(ahead)))
        await self._open
        if self.peers is not None:
            await self.peers.introduce()

    def opened(self) -> None:
        """Tell that connections are accepted."""
        self._channel.send(Opened())

    def tell_ready(self, ready: bool) -> None:
        """Tell that this replica has become ready, or is not any more."""
        self._channel.send(Ready(ready))

    def tell_load(self, share: float, queue_age: float) -> None:
        """Tell how much this replica has to do, as Load says; where the number of replicas follows that."""
        self._channel.send(Load(share, queue_age))

    # -- what concerns others, too -------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """Which replica this is."""
        return self.role.index

    def answer(self, topic: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer questions and make changes of a topic by `handler`; what that raises as a ServingError is the answer, too."""
        self._answering[topic] = handler

    async def ask(self, topic: str, data: bytes) -> list[bytes]:
        """Return what the other replicas answer to a question. Raises ServingError where one does not, with which."""
        try:
            answers = await asyncio.wait_for(self._asked(topic, data), ANSWER_SECONDS)
        except TimeoutError:
            words = f"the other replicas have not answered within {ANSWER_SECONDS:.0f} s; their loops may be held"
            raise ServingError(Code.UNAVAILABLE, words) from None
        for answer in answers:
            if answer.code:
                raise ServingError(Code[answer.code], f"replica {answer.index} of {len(answers) + 1}: {answer.message}")
        return [answer.data for answer in answers]

    async def change(self, topic: str, data: bytes, key: str, forget: bool = False) -> None:
        """Have all replicas, this one too, make a change, and those that begin later. `key`, `forget`: as Ask says.

        Raises ServingError where some have not: this one's own where all have failed alike, else with which and why.
        """
        answers = await self._asked(topic, data, key, forget)
        failed = [answer for answer in answers if answer.code]
        if not failed:
            return
        first = failed[0]
        if len(failed) == len(answers) and len({(answer.code, answer.message) for answer in failed}) == 1:
            raise ServingError(Code[first.code], first.message)
        reasons = "; ".join(f"replica {answer.index}: {answer.message}" for answer in failed)
        done = ", ".join(str(answer.index) for answer in answers if not answer.code) or "none"
        raise ServingError(Code[first.code], f"{reasons} (of {len(answers)} replicas these have done it: {done})")

    async def reload(self) -> int:
        """Have all replicas replaced, this one last; return how many they are when the last successor serves.

        Raises ServingError: UNAVAILABLE, with what has not come up.
        """
        self._count += 1
        number = self._count
        future: asyncio.Future[Replaced] = self._loop.create_future()
        self._reloading[number] = future
        self._channel.send(Replace(number))
        try:
            record = await future
        finally:
            del self._reloading[number]
        if record.code:
            raise ServingError(Code[record.code], record.message)
        return record.count

    async def _asked(self, topic: str, data: bytes, key: str = "", forget: bool = False) -> list[Answer]:
        self._count += 1
        number = self._count
        future: asyncio.Future[list[Answer]] = self._loop.create_future()
        self._asking[number] = future
        self._channel.send(Ask(number, topic, data, key, forget))
        try:
            return await future
        finally:
            del self._asking[number]

    async def _answer(self, record: Wanted) -> None:
        try:
            told = Told(record.id, await self._answering[record.topic](record.data))
        except ServingError as error:
            told = Told(record.id, b"", error.code.name, error.message)
        except Exception as error:
            log.exception("what another replica has asked failed")
            told = Told(record.id, b"", Code.INTERNAL.name, f"{type(error).__name__}: {error}")
        self._channel.send(told)

    def forked(self) -> None:
        """In a child that model code has forked: it is no replica."""
        put_away(self.role.descriptor)

    def _bound(self, record: Bound) -> None:
        bound = self._binding[record.id]
        if record.sockets:
            sockets = self._channel.taken(record.sockets)
            if bound.done():  # nobody waits any more
                for one in sockets:
                    one.close()
            else:
                bound.set_result(sockets)
        elif not bound.done():
            error = OSError(record.error)
            error.errno = record.errno or None
            bound.set_exception(error)

    def _told(self, record: Message) -> None:
        if isinstance(record, Bound):
            self._bound(record)
        elif isinstance(record, Open):
            if not self._open.done():
                self._open.set_result(None)
        elif isinstance(record, Leave):
            self.leave.set()
        elif isinstance(record, Meet):
            (sock,) = self._channel.taken(1)
            assert self.peers is not None  # it has loaded its models
            self.peers.join(record.name, record.index, sock, record.own)
        elif isinstance(record, Now):
            self._on_now()
        elif isinstance(record, Wanted):
            task = self._loop.create_task(self._answer(record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(record, Answers):
            asking = self._asking.get(record.id)
            if asking is not None and not asking.done():
                asking.set_result(record.answers)
        elif isinstance(record, OthersReady):
            self.others_ready = record.ready
        elif isinstance(record, Number):
            self.number = record
        elif isinstance(record, Ping):
            self._channel.send(Pong())
        elif isinstance(record, Replaced):
            reloading = self._reloading.get(record.id)
            if reloading is not None and not reloading.done():
                reloading.set_result(record)


def end_with_parent() -> None:
    """Have the system send SIGTERM to this process when its parent ends, however that ends; where the system has that."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (AttributeError, OSError):
        return
