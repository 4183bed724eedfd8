"""PINGs, both ways, and the age of a connection: what the keep-alive flags say (contract: grpc_protocol, section 5).

Pure: `now` is an argument, a Pulse says what is to be done and does nothing. Times are in seconds; the flags are in milliseconds.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

__all__ = ["Action", "Keepalive", "Pulse"]

#: A client without calls may not send PINGs more often than this, unless it is permitted to send them at all.
IDLE_INTERVAL = 2 * 3600.0


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The flags. `max_pings_without_data` and `max_strikes`: 0 for any number. `max_age`, `age_grace`: inf for never."""

    time: float = 7200.0
    timeout: float = 20.0
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_interval: float = 300.0
    max_strikes: int = 2
    max_age: float = math.inf
    age_grace: float = math.inf

    @property
    def finest(self) -> float:
        """The shortest of the times that a connection has to be looked at for."""
        return min(self.time, self.timeout, self.max_age, self.age_grace)


class Action(enum.Enum):
    NOTHING = enum.auto()
    PING = enum.auto()
    CLOSE = enum.auto()  # the client is dead
    RETIRE = enum.auto()  # the connection is old: let its calls finish
    END = enum.auto()  # the calls of an old connection have had their grace


class Pulse:
    """One connection's state. `sent` grows whenever the client is sent data, an end or credit."""

    __slots__ = ("_acknowledged", "_born", "_last_ping", "_max_age", "_options", "_pinged", "_pings", "_retired", "_seen",
                 "_sent", "_strikes")  # fmt: skip

    def __init__(self, options: Keepalive, now: float, jitter: float = 0.0) -> None:
        """`jitter`: a part of the age to add, so that connections that came together don't go together."""
        self._options = options
        self._born = now
        self._max_age = options.max_age * (1 + jitter)
        self._retired = False
        # Received PINGs.
        self._last_ping = -math.inf
        self._strikes = 0
        self._seen = 0
        # Sent ones.
        self._pinged = -math.inf
        self._acknowledged = True
        self._pings = 0
        self._sent = 0

    def received_ping(self, now: float, sent: int, calls: int) -> bool:
        """Count a PING of the client's; False when it has sent too many."""
        options = self._options
        if sent != self._seen:  # PINGs that go with answers are allowed: by them clients measure the line
            self._seen = sent
            self._strikes = 0
            self._last_ping = -math.inf
        interval = options.min_recv_interval if calls or options.permit_without_calls else IDLE_INTERVAL
        early = now < self._last_ping + interval
        self._last_ping = now
        if not early:
            return True
        self._strikes += 1
        return not 0 < options.max_strikes < self._strikes

    def received_pong(self) -> None:
        self._acknowledged = True

    def beat(self, now: float, heard: float, sent: int, calls: int) -> Action:
        """Say what is to be done at `now`. `heard`: when something came last."""
        options = self._options
        age = now - self._born
        if age >= self._max_age + options.age_grace:
            return Action.END
        if age >= self._max_age and not self._retired:
            self._retired = True
            return Action.RETIRE
        if not self._acknowledged:
            if heard > self._pinged:
                self._acknowledged = True  # it has sent something since our PING, so it is not dead
            elif now - self._pinged >= options.timeout:
                return Action.CLOSE
            return Action.NOTHING
        if sent != self._sent:
            self._sent = sent
            self._pings = 0
        due = max(heard, self._pinged) + options.time
        allowed = not options.max_pings_without_data or self._pings < options.max_pings_without_data
        if now < due or not allowed or not (calls or options.permit_without_calls):
            return Action.NOTHING
        self._pings += 1
        self._pinged = now
        self._acknowledged = False
        return Action.PING
