"""Where one batch is executed, and how its result comes back: on the loop, on threads, elsewhere. Decides nothing."""

from __future__ import annotations

from kernel.instances.blocked_call import BlockedCall
from kernel.instances.instance import (
    HELD_SECONDS,
    AsyncInstance,
    CallbackInstance,
    Leavable,
    LoopInstance,
    ModelInstance,
    Owner,
    TaskInstance,
    all_gone,
)
from kernel.instances.mailbox import Mailbox
from kernel.instances.on_thread import ThreadInstance, ThreadTaskInstance
from kernel.instances.own_loop import OwnLoop
from kernel.instances.remote import RemoteInstance
from kernel.instances.run_length import READY_SECONDS, RunLength
from kernel.instances.thread import DaemonThreads, InstanceThread
from kernel.instances.turn import NESTED, TURN_SECONDS, Turn

__all__ = [
    "HELD_SECONDS",
    "NESTED",
    "READY_SECONDS",
    "TURN_SECONDS",
    "AsyncInstance",
    "BlockedCall",
    "CallbackInstance",
    "DaemonThreads",
    "InstanceThread",
    "Leavable",
    "LoopInstance",
    "Mailbox",
    "ModelInstance",
    "OwnLoop",
    "Owner",
    "RemoteInstance",
    "RunLength",
    "TaskInstance",
    "ThreadInstance",
    "ThreadTaskInstance",
    "Turn",
    "all_gone",
]
