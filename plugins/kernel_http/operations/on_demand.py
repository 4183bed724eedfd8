"""Where models are loaded on demand: a request for one that is not there waits for its load, in its place on its connection.

Later requests of the connection begin when it does. Nothing here is used in other control modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernel import NotLoaded, ServingError
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_http.connection.routes import Handler

__all__ = ["on_demand"]

#: The routes that want their model to be there, and whether their errors are JSON from the start.
ROUTES = {"infer": False, "generate": True, "generate_stream": True, "model_metadata": True, "model_config": True}


def on_demand(kernel: Kernel, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return the handlers, those that want a model behind a look whether it is there."""
    return {name: _awaited(kernel, one, ROUTES[name]) if name in ROUTES else one for name, one in handlers.items()}


def _awaited(kernel: Kernel, handler: Handler, json_errors: bool) -> Handler:
    def ask(connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        try:
            kernel.model(head.model, head.version)
        except NotLoaded as away:
            waiting = Exchange(connection, head)
            connection.exchanges.append(waiting)
            connection.barrier = True

            def then(error: ServingError | None) -> None:
                if waiting.connection is None:
                    return  # the client has gone
                if error is None:
                    connection.begin_again(waiting, lambda: ask(connection, head, json, tail))
                else:
                    waiting.answer(replies.error_of(error, json=json_errors))
                connection.release()

            away.wait(then, lambda: waiting.connection is not None, False)
            return
        except ServingError:
            pass  # the handler has the words for it, and says them in its turn
        handler(connection, head, json, tail)

    return ask
