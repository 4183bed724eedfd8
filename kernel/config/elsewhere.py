"""Placements elsewhere: models of any backend that are executed by another server, which reads their config itself.

The parameter `placement` names the backend that sees to that; what their instance groups ask for is looked for there.
"""

from __future__ import annotations

from kernel.config.model_config_pb2 import ModelConfig as Message

__all__ = ["ELSEWHERE", "elsewhere"]

#: The placements; each is also the name of the backend that serves such models.
ELSEWHERE = ("ray",)


def elsewhere(message: Message) -> str:
    """Return the placement of a model that is executed by another server, "" for one that is executed by this one."""
    if "placement" not in message.parameters:
        return ""
    placement = message.parameters["placement"].string_value.lower()
    return placement if placement in ELSEWHERE else ""
