"""Remote models whose endpoints come and go while they serve, as who starts and ends them says. On the loop.

While there is no endpoint, requests wait for one, or are refused with the reason once nobody should wait. One that has gone gets
no further request: what it had not looked at goes elsewhere, what was open there fails with the reason. A sequence stays with
the endpoint that it began with, whichever others come. Knows nothing of how endpoints are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from kernel import Code, Host, InferenceResponse, Reason, RemoteOwner, ServingError
from kernel_grpc.http2 import literal
from kernel_remote.choice import Sequences, Standing
from kernel_remote.endpoints import Endpoints, Link
from kernel_remote.executor import RemoteModel
from kernel_remote.settings import Address, Settings

__all__ = ["ElasticModel", "Endpoints", "Link", "Settings", "link_to"]


def link_to(host: str, port: int, name: str, metadata: Mapping[str, str], connections: int = 4, patience: float = 10.0) -> Link:
    """Return how an endpoint is reached, in plain text. `name`: what messages call it; `metadata` go along with each call."""
    fields = b"".join(literal(key.encode(), value.encode()) for key, value in metadata.items())
    return Link(Address(host, port), connections, patience, fields, name=name)


class Waiting(Protocol):
    """A request that waits for an endpoint."""

    def send(self) -> None:
        """Send it."""

    def end(self, response: InferenceResponse) -> None:
        """Answer it."""


class ElasticModel(RemoteModel):
    """The executor of a model whose endpoints are told by `add`, `retire` and `drop`.

    `unreachable(link, why)` is told where one can't be connected to any more: who hears that may `drop` it at once.
    """

    def __init__(
        self,
        host: Host,
        settings: Settings,
        decoupled: bool,
        known: Callable[[], Endpoints],
        most: int,
        unreachable: Callable[[Link, str], None],
    ) -> None:
        super().__init__(host, settings, (), decoupled, known, most)
        self.sequences = Sequences(kept=True)
        self._instance: RemoteOwner | None = None
        self._unreachable = unreachable
        self._waiting: list[Waiting] = []
        self._problem: ServingError | None = None  # why nobody should wait

    def attach(self, instance: RemoteOwner) -> None:
        """It is down as long as it has no endpoint."""
        self._instance = instance
        if not self.standings:
            instance.down()

    def add(self, link: Link) -> None:
        """An endpoint serves from now on."""
        endpoint = self._known().take(link)
        endpoint.on_unreachable = lambda why: self._unreachable(link, why)
        self.endpoints[endpoint.standing] = endpoint
        self.standings.append(endpoint.standing)
        self._ask_loads()
        self._problem = None
        if len(self.standings) == 1 and self._instance is not None:
            self._instance.up()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.send()

    def retire(self, link: Link) -> None:
        """Send nothing new to an endpoint; its requests and sequences go on."""
        standing = self._standing(link)
        if standing in self.standings:
            self.standings.remove(standing)
            self._ask_loads()
            if not self.standings and self._instance is not None:
                self._instance.down()

    def outstanding(self, link: Link) -> int:
        """Return how many requests are open at an endpoint."""
        standing = self._standing(link)
        return 0 if standing is None else standing.outstanding

    def drop(self, link: Link, why: str) -> None:
        """An endpoint has gone: what is open there fails; `why`: as said of it, such as `has died`."""
        self.retire(link)
        standing = self._standing(link)
        if standing is not None:
            endpoint = self.endpoints.pop(standing)
            self.sequences.forget(standing)
            endpoint.on_unreachable = None
            endpoint.close(why)
            self._known().give_back(endpoint)

    def refuse(self, problem: ServingError) -> None:
        """Nobody should wait for an endpoint any more: who does is told why, and so are those to come, until one comes."""
        self._problem = problem
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._turn_away(one, problem)
        if self._instance is not None:
            self._instance.hopeless(problem)

    def park(self, delivery: Waiting) -> None:
        if self._problem is None:
            self._waiting.append(delivery)
        else:
            self._turn_away(delivery, self._problem)

    def _turn_away(self, one: Waiting, problem: ServingError) -> None:
        one.end(InferenceResponse.failure(Code.UNAVAILABLE, problem.message, Reason.OTHER))

    def _ask_loads(self) -> None:
        """Have loads reported where there is a choice."""
        self.kind = replace(self.kind, ask_load=len(self.standings) > 1)

    def _standing(self, link: Link) -> Standing | None:
        return next((standing for standing, endpoint in self.endpoints.items() if endpoint.link == link), None)
