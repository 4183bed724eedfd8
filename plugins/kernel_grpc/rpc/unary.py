"""An RPC with one request and one response: bytes are parsed, an operation answers, its message goes out.

The operations know requests, responses and the kernel; this file knows the calls they came by. What an operation raises as a
ServingError becomes the call's status; anything else is left to the transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from kernel import AskOthers, Code, ServingError
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.methods import Method

__all__ = ["MOST", "parsed", "unary"]

#: The largest message of methods that only steer the server or ask about it: names and settings.
MOST = 64 * 1024

Request = TypeVar("Request", bound=Message)


def unary(
    path: str,
    category: str,
    request_type: type[Request],
    operation: Callable[[Request], Message],
) -> Method:
    """Return the method at `path`, whose response `operation` makes at once.

    `category`: what it counts as for restricted protocols, "" where it can't be restricted.
    """

    def handler(call: Call, message: Any) -> None:
        try:
            request = parsed(request_type, message)
        except ServingError as error:
            call.fail(error)
            return

        def run() -> None:
            try:
                response = operation(request)
            except ServingError as error:
                call.fail(error)
            except AskOthers as others:
                others.wait(run)
            else:
                call.reply(response.SerializeToString())

        run()

    return Method(path=path, category=category, streaming=False, handler=handler, most=MOST)


def parsed(request_type: type[Request], data: Any) -> Request:
    """Return the request that `data` holds. Raises ServingError(INVALID_ARG), with the reference's words in front."""
    try:
        return request_type.FromString(bytes(data))
    except DecodeError as error:
        name = request_type.DESCRIPTOR.full_name
        raise ServingError(Code.INVALID_ARG, f"Unable to parse request as {name}: {error}") from None
