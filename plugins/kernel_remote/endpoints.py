"""The far ends: for each address the calls that wait, the connections that carry them, and what is known of it. On the loop.

Connections are few: a further one is made where the streams of those that are there are used up, or where none is healthy. What
waits while there is none ends as soon as a connection can't be made; for a moment after that, what comes ends at once. Models
that name the same address share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernel_grpc.http2 import Data
from kernel_remote.calls import UNAVAILABLE, Call, Kind, Outcome, head_of
from kernel_remote.choice import Standing
from kernel_remote.client import Account
from kernel_remote.settings import Address, Settings
from kernel_remote.tls import Identity, cause_of, client_context
from kernel_remote.wire import CLOSED_BY_FAR_END, Wire

__all__ = ["Endpoint", "Endpoints", "Link", "links"]

log = logging.getLogger("kernel_remote")

#: Seconds that a connection may take, the greeting of the far end included.
CONNECT_TIMEOUT = 5.0

#: Seconds in which no further attempt is made to connect after one that failed, doubled each time up to the longest.
BACKOFF = 0.1
LONGEST = 2.0

#: Seconds that an endpoint stays which nobody uses.
LINGER = 5.0

#: The largest message that is no inference's.
SMALL = 64 * 1024 * 1024

#: What is said of an endpoint that nobody uses any more.
CLOSED = "is no longer used"


@dataclass(frozen=True, slots=True)
class Link:
    """How an address is reached. `connections`: the most; `patience`: of a Pulse; `fields`: metadata, as a header block has them.

    `name`: what messages call it, "" for its address.
    For TLS: `authorities` as PEM, "" for the system's; `identity`: what is shown to who asks for a certificate; `server_name`: to
    which the far end's certificate belongs, "" for the host.
    """

    address: Address
    connections: int = 4
    patience: float = 10.0
    fields: bytes = b""
    authorities: str = ""
    identity: Identity | None = None
    server_name: str = ""
    name: str = ""

    @property
    def shown(self) -> str:
        """As messages call it."""
        return self.name or self.address.name


def links(settings: Settings, authorities: str, identity: Identity | None, fields: bytes) -> list[Link]:
    """Return how each of a model's endpoints is reached."""
    found = []
    for one in settings.endpoints:
        link = Link(one, settings.connections, settings.patience, fields)
        if one.secure:
            link = replace(link, authorities=authorities, identity=identity, server_name=settings.server_name)
        found.append(link)
    return found


class Asked(Call):
    """A call that is waited for. `outcome`: its end; `answer`: its first message, b"" before there is one."""

    answer = b""

    def __init__(self, kind: Kind, pieces: Sequence[Data]) -> None:
        super().__init__(kind, pieces)
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def message(self, data: bytes) -> None:
        self.answer = self.answer or data

    def concluded(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class Endpoint:
    """One far end."""

    account: Account | None = None  # where bytes of answers are counted

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self.name = link.shown
        self.standing = Standing(self.name)
        self.users = 0
        self._loop = loop
        self._context = client_context(link.authorities, link.identity) if link.address.secure else None
        self._wires: list[Wire] = []
        self._first: Wire | None = None  # of the healthy ones
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[Call] = deque()
        self._ordered: deque[Call] = deque()
        self._heads: dict[tuple[str, bool], bytes] = {}
        self._closed = False
        self._problem = ""  # of the last attempt to connect
        self._backoff = BACKOFF
        self._not_before = 0.0
        self._again: asyncio.TimerHandle | None = None
        self.on_unreachable: Callable[[str], None] | None = None  # told why it can't be connected to, and nothing is open

    def start(self, call: Call) -> None:
        """Send a call, at once or when there is a connection with room for it."""
        wire = self._first
        if wire is not None and not (self._waiting or self._ordered) and wire.has_room:
            self._begin(wire, call)
        elif self._closed:
            call.finish(self._unreached(CLOSED))
        elif self._problem and self._connecting is None and not self._healthy() and self._loop.time() < self._not_before:
            call.finish(self._unreached(self._problem))
        else:
            (self._ordered if call.ordered else self._waiting).append(call)
            self._look()

    async def ask(self, path: str, request: bytes, patience: float) -> tuple[Outcome, bytes]:
        """Make a call of its own; return its end, and its message, empty for none."""
        call = Asked(Kind(path, most=SMALL, clock=self._loop.time), [request])
        call.deadline = self._loop.time() + patience
        self.start(call)
        try:
            async with asyncio.timeout(patience):
                outcome = await call.outcome
        except TimeoutError:
            outcome = Outcome(UNAVAILABLE, f"endpoint {self.name} has not answered within {patience:g} s")
        finally:
            call.cancel()
        return outcome, call.answer

    def close(self, why: str = CLOSED) -> None:
        """End everything; `why`: what is told of it, as said of the endpoint."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._again is not None:
            self._again.cancel()
        for wire in list(self._wires):
            wire.give_up(why)
        self._first = None
        self._fail(why)

    # --- told by connections

    def changed(self, wire: Wire) -> None:
        """A connection may have room, or is suspect."""
        if wire is not self._first or not wire.healthy:
            self._judge()
        if self._waiting or self._ordered:
            self._look()

    def lost(self, wire: Wire) -> None:
        """A connection has gone; what waits gets another one."""
        if wire in self._wires:
            self._wires.remove(wire)
        self._judge()
        self._look()

    # --- calls

    def _healthy(self) -> list[Wire]:
        return [wire for wire in self._wires if wire.healthy]

    def _look(self) -> None:
        """Send what waits and may go."""
        if self._ordered:
            self._send(self._ordered, 1)
        if self._waiting:
            self._send(self._waiting, len(self._wires))

    def _send(self, waiting: deque[Call], most: int) -> None:
        """Send calls on the first `most` of the healthy connections."""
        while waiting:
            call = waiting[0]
            if call.over:
                waiting.popleft()
                continue
            healthy = self._healthy()
            wire = next((one for one in healthy[:most] if one.has_room), None)
            if wire is None:
                if not healthy or (not call.ordered and len(healthy) < self.link.connections):
                    self._connect()
                return
            waiting.popleft()
            self._begin(wire, call)

    def _begin(self, wire: Wire, call: Call) -> None:
        kind = call.kind
        key = kind.path, kind.ask_load
        head = self._heads.get(key)
        if head is None:
            address = self.link.address
            head = head_of(*key, address.authority, address.secure) + self.link.fields
            self._heads[key] = head
        call.begin(wire, head, self.name)
        wire.watch()

    def _fail(self, problem: str) -> None:
        for waiting in (self._ordered, self._waiting):
            calls = list(waiting)
            waiting.clear()
            for call in calls:
                call.finish(self._unreached(problem))

    def _unreached(self, problem: str) -> Outcome:
        return Outcome(UNAVAILABLE, f"endpoint {self.name} {problem}", processed=False)

    # --- connections

    def _judge(self) -> None:
        """Nobody is to be sent to an endpoint of whose connections none is healthy, and one that gives no answer."""
        self._first = first = next((wire for wire in self._wires if wire.healthy), None)
        suspect = first is None and any(wire.pulse.suspect for wire in self._wires)
        if suspect != self.standing.suspect:
            if suspect:
                log.warning("endpoint %s has not answered a PING: requests go elsewhere as long as it doesn't", self.name)
            else:
                log.info("endpoint %s answers again", self.name)
            self.standing.doubt(suspect, self._loop.time())
        if suspect:
            self._connect()

    def _connect(self) -> None:
        if self._connecting is not None or self._closed or self._again is not None:
            return
        wait = self._not_before - self._loop.time()
        if wait > 0:
            self._again = self._loop.call_later(wait, self._connect_again)
        else:
            self._connecting = self._loop.create_task(self._make())

    def _connect_again(self) -> None:
        self._again = None
        self._judge()
        self._look()

    async def _make(self) -> None:
        problem, wire = "", None
        greeted: asyncio.Future[None] = self._loop.create_future()
        link = self.link
        host = link.address.host
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                first = _Greeting(greeted, link)
                _, wire = await self._loop.create_connection(
                    lambda: Wire(first, self._loop, link.patience),
                    host,
                    link.address.port,
                    ssl=self._context,
                    server_hostname=None if self._context is None else link.server_name or host,
                )
                await greeted
        except TimeoutError:
            problem = f"can't be connected to within {CONNECT_TIMEOUT:g} s"
        except OSError as error:  # ssl's errors are OSErrors, too
            problem = f"can't be connected to ({cause_of(error)})"
        except Exception as error:  # no name of a host, such as one with a label of 64 characters
            problem = f"can't be connected to ({type(error).__name__}: {error})"
        finally:
            self._connecting = None
            unanswered = not greeted.done() or greeted.cancelled()
            greeted.cancel()
            if wire is not None and (problem or self._closed or unanswered):
                wire.give_up(problem or CLOSED)
        self._made(wire, problem)

    def _made(self, wire: Wire | None, problem: str) -> None:
        if problem != self._problem:
            if problem:
                log.warning("endpoint %s %s", self.name, problem)
            else:
                log.info("endpoint %s is connected to again", self.name)
        self._problem = problem
        now = self._loop.time()
        if problem or wire is None:
            self._not_before, self._backoff = now + self._backoff, min(LONGEST, 2 * self._backoff)
            if not self._healthy():
                if self.on_unreachable is not None:
                    self.on_unreachable(problem)
                self._fail(problem)
            self._judge()
            return
        self._backoff, self._not_before = BACKOFF, 0.0
        wire.user = self
        wire.account = self.account
        self._wires.append(wire)
        self._judge()
        self._look()


class _Greeting:
    """The user of a connection until the far end has greeted: then it may be given calls."""

    def __init__(self, greeted: asyncio.Future[None], link: Link) -> None:
        self._greeted = greeted
        self._why = "it wants TLS (grpcs://), or is a port of HTTP, where that of gRPC is wanted"
        if link.address.secure:
            known = link.identity is not None
            self._why = "it does not take our certificate" if known else "it wants a certificate of ours, cert_file"

    def changed(self, wire: Wire) -> None:
        if wire.ending.failure is not None:
            self._end(OSError(f"breaks the rules of HTTP/2: {wire.ending.failure[1]}"))
        elif wire.ending.greeted and not self._greeted.done():
            self._greeted.set_result(None)

    def lost(self, wire: Wire) -> None:
        silent = wire.heads.expected is not None and wire.gone == CLOSED_BY_FAR_END
        self._end(OSError(wire.gone + f" before it has said anything: perhaps {self._why}" * silent))

    def _end(self, error: Exception) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(error)


class Endpoints:
    """The endpoints of all models of one kernel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, account: Account | None = None) -> None:
        """`account`: where the bytes of answers are counted."""
        self._loop = loop
        self._account = account
        self._known: dict[Link, Endpoint] = {}

    def take(self, link: Link) -> Endpoint:
        """Return an endpoint for one more user."""
        endpoint = self._known.get(link)
        if endpoint is None:
            endpoint = self._known[link] = Endpoint(link, self._loop)
            endpoint.account = self._account
        endpoint.users += 1
        return endpoint

    def give_back(self, endpoint: Endpoint) -> None:
        """One user less. One without any is closed, after a while: a load asks, and makes its instances afterwards."""
        endpoint.users -= 1
        if not endpoint.users:
            self._loop.call_later(LINGER, self._let_go, endpoint)

    def _let_go(self, endpoint: Endpoint) -> None:
        if not endpoint.users and self._known.get(endpoint.link) is endpoint:
            del self._known[endpoint.link]
            endpoint.close()

    def close(self) -> None:
        """Close them all, whoever uses them."""
        known, self._known = self._known, {}
        for endpoint in known.values():
            endpoint.close()
