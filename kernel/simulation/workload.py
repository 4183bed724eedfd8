"""Sends the requests of a simulation, and keeps what became of them: as a stream that comes, or from clients that wait.

A request that comes costs as little here as can be: what is simulated is the server, not the client.
"""

from __future__ import annotations

import asyncio
import gc
import math
import re
import time
from array import array
from collections import Counter
from functools import partial

from kernel.errors import ServingError
from kernel.requests import InferenceResponse
from kernel.simulation.arrivals import MOST, Arrivals, Closed
from kernel.simulation.cost import LONGEST
from kernel.simulation.forms import same_requests
from kernel.simulation.loop import SimulationLoop
from kernel.simulation.numbers import wrong
from kernel.simulation.traffic import SimulatedTraffic

__all__ = ["Workload"]

PATIENCE = 20 * LONGEST  # virtual seconds without any answer after which nobody waits any longer
AT_ONCE = 30_000  # requests that clients send while no time passes, before it is clear that it never will
REASONS = 1000  # that are known by their words, at most

_PREFIX = re.compile(r"\[request id: [^\]]*\] ")
_VARYING = re.compile(r"\b\d+\.\d+\b|(?<=sequence )\d+")  # how late it was, which sequence: the same reason for all


class Workload:
    """The requests. `came`, `answered`: when, in seconds from the start; NaN for what failed. `refused`: why -> how many.

    `last`: when the last one has failed. `took`: seconds of the processor for all of it.
    """

    def __init__(self, loop: SimulationLoop, traffic: SimulatedTraffic, arrivals: Arrivals | Closed, effort: float) -> None:
        self.came: array[float] = array("d")
        self.answered: array[float] = array("d")
        self.refused: Counter[str] = Counter()
        self.began = self.last = loop.now
        self.took = 0.0
        self._loop = loop
        self._traffic = traffic
        self._effort = effort
        self._left = 0  # that have no answer yet
        self._words: dict[str, str] = {}  # of an error -> its reason
        self._done: asyncio.Future[None] = loop.create_future()
        if isinstance(arrivals, Closed):
            self._clients(arrivals)
        else:
            self._stream(arrivals)

    async def all_answered(self) -> None:
        """Let them come, and wait for their answers. Raises ServingError for such as never have one."""
        loop = self._loop
        gc.collect()
        gc.freeze()
        gc.disable()
        began = time.process_time()
        try:
            end = self.came[-1] if self.came else loop.now
            while not self._done.done():
                before = self._left, len(self.came)
                await asyncio.wait([self._done], timeout=max(0.0, end - loop.now) + PATIENCE)
                if (self._left, len(self.came)) == before and not self._done.done():
                    raise wrong(f"{self._left} requests had no answer {PATIENCE:.0f} s after all others")
            self._done.result()
        finally:
            self.took = time.process_time() - began
            gc.enable()
            gc.unfreeze()

    def _failed(self, error: ServingError) -> None:
        """Count a request that has failed, by its reason."""
        words = self._words.get(error.message)
        if words is None:
            words = _VARYING.sub("…", _PREFIX.sub("", error.message))
            if len(self._words) < REASONS:
                self._words[error.message] = words
        self.refused[words] += 1
        self.last = self._loop.now

    def _over(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    # -- a stream of requests ----------------------------------------------------------------------------------------------

    def _stream(self, arrivals: Arrivals) -> None:
        self.came.frombytes((arrivals.offsets - arrivals.offsets[0] + self.began).tobytes())
        self.answered.frombytes(array("d", [math.nan]).tobytes() * len(self.came))
        self._left = len(self.came)
        loop, traffic, answered, failed = self._loop, self._traffic, self.answered, self._failed
        enqueue, slots = traffic.model.enqueue, traffic.slots

        def respond(index: int, response: InferenceResponse | None, final: bool) -> None:
            if final:
                if response is None or response.error is None:
                    answered[index] = loop.now
                else:
                    failed(response.error)
                self._left = left = self._left - 1
                if not left:
                    self._over()

        if traffic.plain:
            make = same_requests(traffic.model, *traffic.forms.of(traffic.rows))

            def arrive(index: int) -> None:
                enqueue(make(partial(respond, index)))
        else:

            def arrive(index: int) -> None:
                enqueue(traffic.make(partial(respond, index), index, index % slots, loop.now))

        loop.come(self.came, arrive)

    # -- clients that wait for their answers -------------------------------------------------------------------------------

    def _clients(self, closed: Closed) -> None:
        self._until = self.began + closed.seconds
        self._left = closed.clients  # who have not stopped
        self._moment, self._sent = self.began, 0  # how many were sent at this moment
        for client in range(closed.clients):
            self._loop.end_at(self.began, self._send, client)

    def _send(self, client: int) -> None:
        """Have a client send its next request."""
        loop, index = self._loop, len(self.came)
        now = loop.now
        if now > self._moment:
            self._moment, self._sent = now, 0
        self._sent += 1
        if self._done.done():
            return
        if self._sent > AT_ONCE or index >= MOST:
            self._done.set_exception(self._too_many())
            return
        self.came.append(now)
        self.answered.append(math.nan)
        request = self._traffic.make(partial(self._respond, client, index), index, client, now)
        loop.now += self._effort
        self._traffic.model.enqueue(request)

    def _too_many(self) -> ServingError:
        if len(self.came) >= MOST:
            return wrong(f"clients have sent {MOST} requests, more are not simulated; wanted are fewer seconds")
        words = f"clients have sent {AT_ONCE} requests at the same moment, as they are answered, or refused, at once"
        return wrong(f"{words}; --overhead says how long the server takes for a request at least")

    def _respond(self, client: int, index: int, response: InferenceResponse | None, final: bool) -> None:
        if not final:
            return
        loop = self._loop
        if response is None or response.error is None:
            self.answered[index] = loop.now
        else:
            self._failed(response.error)
        if loop.now < self._until or self._traffic.goes_on(client):
            loop.end_at(loop.now, self._send, client)
            return
        self._left -= 1
        if not self._left:
            self._over()
