"""What a service supplies: its methods, each a path and a handler. A handler is given a Call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kernel_grpc.rpc.assembly import Message

__all__ = ["Method", "Receiver"]


class Receiver(Protocol):
    """What a streaming method makes for each call."""

    def message(self, data: Message) -> None:
        """Take the next message. `call.hold()` keeps further ones back until `call.unhold()`."""

    def half_closed(self) -> None:
        """The client has sent its last message: end the call as soon as nothing is under way on it.

        Also called, perhaps before that, when the server stops (`call.server.draining`): messages may still come then.
        """


class Method:
    """One RPC.

    `path`: such as `/package.Service/Method`. `category`: of restricted protocols, "" for none. A unary method's `handler(call,
    message)` is called once the request is complete; it ends in exactly one `reply`, `finish` or `fail`, at once or later. A
    streaming method's `handler(call)` is called when the call begins and returns a Receiver. What a handler raises is logged
    and answered as INTERNAL. `most`: the largest message that it takes, None for what the front end takes.
    """

    __slots__ = ("category", "handler", "most", "path", "streaming")

    def __init__(
        self,
        path: str,
        handler: Callable[..., Any],
        *,
        category: str = "",
        streaming: bool = False,
        most: int | None = None,
    ) -> None:
        self.path = path
        self.most = most
        self.handler = handler
        self.category = category
        self.streaming = streaming

    def __repr__(self) -> str:
        return f"<Method {self.path}>"
