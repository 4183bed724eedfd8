"""The standard health service: is the server ready? For load balancers and probes that know gRPC but not Triton.

As on the reference, the name of the service that is asked for makes no difference: SERVING while the server is ready, else
NOT_SERVING. `Watch`, which the reference lacks, tells the state at once and whenever it changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kernel import Code, ServingError
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.unary import MOST, parsed, unary
from kernel_grpc.schemas import health_pb2 as pb

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["Health", "Watch", "methods"]

SERVICE = "grpc.health.v1.Health"
CATEGORY = "health"

#: How often the state is looked at while somebody watches. Readiness follows from the states of all model versions, which nobody
#: announces; to look costs microseconds, and one timer serves all watchers.
LOOK_SECONDS = 0.1

#: How many are told in one turn of the loop.
AT_ONCE = 128

SERVING = pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVING)
NOT_SERVING = pb.HealthCheckResponse(status=pb.HealthCheckResponse.NOT_SERVING)


def methods(kernel: Kernel) -> list[Method]:
    """Return the methods of the health service."""
    health = Health(kernel)
    return [
        unary(f"/{SERVICE}/Check", CATEGORY, pb.HealthCheckRequest, health.check),
        Method(path=f"/{SERVICE}/Watch", category=CATEGORY, streaming=True, handler=lambda call: Watch(health, call), most=MOST),
    ]


class Health:
    """The state of one kernel, and those who watch it. As long as it stays what it was nobody is looked at who has been told."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._watches: set[Watch] = set()
        self._due: set[Watch] = set()  # who is to be told
        self._unread: set[Watch] = set()  # who is to be told, and does not read
        self._state: pb.HealthCheckResponse | None = None  # when it was looked at last
        self._timer: asyncio.TimerHandle | None = None
        self._telling = False

    @property
    def state(self) -> pb.HealthCheckResponse:
        """How it is."""
        return SERVING if self.kernel.is_ready() else NOT_SERVING

    def check(self, request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        return self.state

    def add(self, watch: Watch) -> None:
        state = self.state
        self._watches.add(watch)
        if self._timer is None:
            self._state = state
            self._timer = self.kernel.loop.call_later(LOOK_SECONDS, self._look)
        elif state is not self._state:
            self._state = state  # nobody is told any more what it was; before it is looked at, it may be that again
            self._due = set(self._watches)
        watch.tell(state)

    def remove(self, watch: Watch) -> None:
        for watches in (self._watches, self._due, self._unread):
            watches.discard(watch)
        if not self._watches and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """See how it is. A stopping server lets those go who watch, or it would wait for them."""
        state = self.state
        if state is not self._state or not self.kernel.accepting:
            self._state = state
            self._due = set(self._watches)
        self._due |= self._unread
        self._unread = set()
        self._timer = self.kernel.loop.call_later(LOOK_SECONDS, self._look)
        if not self._telling:
            self._tell()

    def _tell(self) -> None:
        """Tell some of those who are to be told, and the others in further turns of the loop: there may be a hundred thousand."""
        due, state = self._due, self._state
        assert state is not None
        for watch in [due.pop() for _ in range(min(AT_ONCE, len(due)))]:
            if not watch.tell(state):
                self._unread.add(watch)
            if not self.kernel.accepting:
                watch.end(ServingError(Code.UNAVAILABLE, "Server exiting"))
        self._telling = bool(self._due)
        if self._telling:
            self.kernel.loop.call_soon(self._tell)


class Watch:
    """One client that watches: one request, then a message for each new state until the call ends."""

    __slots__ = ("_asked", "_call", "_health", "_told")

    def __init__(self, health: Health, call: Call) -> None:
        self._health = health
        self._call = call
        self._asked = False
        self._told: pb.HealthCheckResponse | None = None

    def message(self, data: Any) -> None:
        """Take the request."""
        if self._asked:
            self.end(_not_one_request())
            return
        self._asked = True
        try:
            parsed(pb.HealthCheckRequest, data)
        except ServingError as error:
            self.end(error)
            return
        self._call.on_cancel = self._gone
        self._health.add(self)

    def half_closed(self) -> None:
        """The client has said all it has to say; that is how a watch begins, not how it ends."""
        if not self._asked:
            self.end(_not_one_request())

    def tell(self, state: pb.HealthCheckResponse) -> bool:
        """Send the state if it is new. False: the client does not read; it is to be sent later, or is history by then."""
        if state is self._told:
            return True
        if self._told is not None and not self._call.writable:
            return False
        self._told = state
        self._call.send(state.SerializeToString())
        return True

    def end(self, error: ServingError) -> None:
        """End the call."""
        self._gone()
        self._call.fail(error)

    def _gone(self) -> None:
        self._health.remove(self)


def _not_one_request() -> ServingError:
    return ServingError(Code.UNSUPPORTED, f"{SERVICE}/Watch takes exactly one request")
