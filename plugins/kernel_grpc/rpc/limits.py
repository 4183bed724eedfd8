"""What one client, one connection and one request may cost: the numbers that the flags set. Knows nothing of who heeds them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """`tensors`: inputs, outputs, pieces of raw data of one inference request, each. `parameters`: its own and its tensors'.
    `message_size`: bytes of the largest message, also unpacked. `queue`: bytes that may wait for one client
    before further inferences of it do. Seconds, inf for ever: `request_timeout`: for a request that has begun; `send_timeout`:
    for taking some of what waits; `idle`: without a call. `least_rate`: bytes a second, both ways, that a client must keep up.
    """

    tensors: int = 8192
    parameters: int = 8192
    message_size: int = 2**31 - 1
    queue: int = 2**26
    request_timeout: float = 60.0
    send_timeout: float = 300.0
    idle: float = 3600.0
    least_rate: int = 1024
