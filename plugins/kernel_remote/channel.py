"""gRPC calls for who makes them without a model: what `kernel bench` reaches grpc:// and grpcs:// with."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

from kernel import Code, ServingError
from kernel_grpc.http2 import literal
from kernel_grpc.schemas import grpc_service_pb2
from kernel_remote.calls import Call, Kind, Outcome
from kernel_remote.endpoints import Endpoint, Link
from kernel_remote.settings import Address
from kernel_remote.tls import cause_of

__all__ = ["Channel"]

CONNECTIONS = 4
LOOK_SECONDS = 0.25  # between two looks for calls that should have ended
MOST_BYTES = 1024 * 1024 * 1024  # of a message that is taken
DEADLINE_EXCEEDED = 4

_ADDRESS = re.compile(r"(grpcs?)://(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/,]+):(\d{1,5})").fullmatch


class Channel:
    """Calls to one server. `headers`: metadata of all. On the loop."""

    messages = grpc_service_pb2

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        match = _ADDRESS(address)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ServingError(Code.INVALID_ARG, f"'{address}' is no address, wanted is one such as grpc://localhost:8001")
        self._loop = asyncio.get_running_loop()
        fields = b"".join(literal(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())
        place = Address(match[2].strip("[]"), int(match[3]), match[1] == "grpcs")
        try:
            self._endpoint = Endpoint(Link(place, CONNECTIONS, fields=fields), self._loop)
        except (OSError, ValueError) as error:  # the system's authorities
            raise ServingError(Code.UNAVAILABLE, f"{address} can't be reached: {cause_of(error)}") from None
        self._kinds: dict[str, Kind] = {}
        self._calls: dict[_Call, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def call(
        self, path: str, message: bytes, timeout: float, came: Callable[[bytes], None], ended: Callable[[int, str], None]
    ) -> None:
        """Make a call that ends within `timeout` seconds: `came` for each message, then once `ended` with status and words."""
        kind = self._kinds.get(path)
        if kind is None:
            kind = self._kinds[path] = Kind(path, most=MOST_BYTES, clock=self._loop.time)
        call = _Call(kind, message, came, ended, self._calls)
        call.deadline = self._loop.time() + timeout
        self._calls[call] = None
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        self._endpoint.start(call)

    def _look(self) -> None:
        """Give calls up that the far end should have ended by now: it may not keep to deadlines."""
        late = self._loop.time() - LOOK_SECONDS
        for call in [one for one in self._calls if one.deadline is not None and one.deadline < late]:
            call.give_up()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look) if self._calls else None

    def close(self) -> None:
        """End all that goes on."""
        if self._timer is not None:
            self._timer.cancel()
        self._endpoint.close()


class _Call(Call):
    def __init__(
        self, kind: Kind, message: bytes, came: Callable[[bytes], None], ended: Callable[[int, str], None],
        calls: dict[_Call, None],
    ) -> None:  # fmt: skip
        super().__init__(kind, [message])
        self._came = came
        self._ended = ended
        self._calls = calls

    def message(self, data: bytes) -> None:
        self._came(data)

    def concluded(self, outcome: Outcome) -> None:
        self._calls.pop(self, None)
        self._ended(outcome.status, outcome.message)

    def give_up(self) -> None:
        """Wait no longer. What was told of another call's end may have ended this one."""
        if self.over:
            return
        del self._calls[self]
        self.cancel()
        self._ended(DEADLINE_EXCEEDED, "Deadline Exceeded")
