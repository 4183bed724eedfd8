"""What one client, one connection and one request may cost: the numbers that the flags set. Knows nothing of who heeds them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """`tensors`: inputs, outputs, pieces of raw data of one inference request, each. `parameters`: its own and its tensors'.
    `message_size`: bytes of the largest message, also unpacked.
    """

    tensors: int = 8192
    parameters: int = 8192
    message_size: int = 2**31 - 1
