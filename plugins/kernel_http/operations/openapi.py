"""`/openapi.json` and `/docs`: the API as it is with the models that are loaded, for programs and for people.

Both are made once for each set of models, on another thread, and a model's part of them once for each config that it has: a
request costs an answer that is there, or waits for it with all others. The page has neither scripts nor anything from elsewhere.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from kernel import __version__
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection, Exchange, reply
from kernel_http.connection.heads import Head
from kernel_http.operations.docs_page import SECURITY, page
from kernel_http.operations.schemas import ModelFacts, TensorFacts, base_document, model_parts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from kernel import Kernel, Model, ModelConfig, TensorSpec
    from kernel_http.connection.routes import Handler

__all__ = ["OpenApi"]

log = logging.getLogger(__name__)

Loaded = dict[str, tuple[tuple[int, ...], "ModelConfig"]]
"""Name -> the versions that are served, and the config of the newest."""

Answers = dict[str, bytes]
"""Route -> the whole response."""


class OpenApi:
    """The handlers of both routes."""

    def __init__(self, kernel: Kernel, server_name: str) -> None:
        self._kernel = kernel
        self._name = server_name
        self._generation = -1  # of the kernel, when what is answered was looked at
        self._answers: Answers = {}
        self._making: tuple[int, list[Exchange]] | None = None  # of which generation they are being made, and who waits for them
        self._later: list[Exchange] = []  # who came since, and after another load: they wait for the next ones
        # Of the thread that makes them, one at a time: name -> of what, its facts, its paths and its schemas as JSON.
        self._parts: dict[str, tuple[Any, ModelFacts, str, str]] = {}

    def handlers(self) -> dict[str, Handler]:
        """Return route name -> handler."""
        return {"openapi": self.answer, "docs": self.answer}

    def answer(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        """Answer with what is there, or when it is. Later requests of the connection wait their turn behind it."""
        if head.path.endswith("/"):
            reply(connection, head, replies.moved("../docs"))  # its links say where things are from there
            return
        exchange = Exchange(connection, head)
        connection.exchanges.append(exchange)
        if self._generation == self._kernel.generation:
            self._send(exchange)
        elif self._making is None:
            self._make(connection, [exchange])
        elif self._making[0] == self._kernel.generation:
            self._making[1].append(exchange)
        else:
            self._later.append(exchange)

    def _make(self, connection: ClientConnection, waiting: list[Exchange]) -> None:
        """Have them made of what is loaded now, for who waits."""
        self._making = generation, waiting = self._kernel.generation, waiting
        models = self._kernel.models()  # what is read of them does not change

        def done(made: asyncio.Future[Answers]) -> None:
            self._making = None
            if made.cancelled() or (error := made.exception()) is not None:
                words = "the server stops" if made.cancelled() else f"{type(error).__name__}: {error}"
                log.error("the description of the API can't be made: %s", words)
                for exchange in waiting:
                    exchange.answer(replies.error(500, words, json=True))
            else:
                self._generation, self._answers = generation, made.result()
                for exchange in waiting:
                    self._send(exchange)
            later, self._later = [one for one in self._later if one.connection is not None], []
            if later:
                connection = later[0].connection
                assert connection is not None
                self._make(connection, later)

        connection.aside(lambda: self._made(_loaded(models))).add_done_callback(done)

    def _send(self, exchange: Exchange) -> None:
        connection, answer = exchange.connection, self._answers[exchange.head.route]
        if connection is not None:
            connection.spend(3 + (len(answer) >> 13))  # it is handed over, not made
            exchange.answer(answer)

    def _made(self, loaded: Loaded) -> Answers:
        """Return both answers. On another thread, one call at a time."""
        before, self._parts = self._parts, {}
        for name in sorted(loaded):
            of = loaded[name]
            known = before.get(name)
            if known is None or known[0][0] != of[0] or known[0][1] is not of[1]:
                facts = facts_of(name, *of)
                paths, schemas = model_parts(facts)
                known = (of, facts, _members(paths), _members(schemas))
            self._parts[name] = known
        document = base_document(self._name, __version__, keys=self._kernel.gate is not None)
        parts = list(self._parts.values())
        whole = _joined(document, [part[2] for part in parts], [part[3] for part in parts])
        html = page(document, [part[1] for part in parts])
        return {
            "openapi": replies.reply(200, whole.encode(), json=True),
            "docs": replies.page(html.encode(errors="replace"), SECURITY),
        }


def _loaded(models: Sequence[Model]) -> Loaded:
    """Return the versions of each name, and the config of the newest."""
    loaded: Loaded = {}
    for model in models:
        versions, config = loaded.get(model.name, ((), model.config))
        newest = not versions or model.version > versions[-1]
        loaded[model.name] = (tuple(sorted((*versions, model.version))), model.config if newest else config)
    return loaded


def facts_of(name: str, versions: tuple[int, ...], config: ModelConfig) -> ModelFacts:
    """Return what is told of a model."""
    batch = (-1,) if config.max_batch_size > 0 else ()

    def told(specs: tuple[TensorSpec, ...]) -> tuple[TensorFacts, ...]:
        return tuple(
            TensorFacts(_told(spec.name), spec.datatype, (*batch, *spec.dims), getattr(spec, "optional", False)) for spec in specs
        )

    platform = _told(config.metadata_platform)
    return ModelFacts(_told(name), versions, platform, told(config.inputs), told(config.outputs), config.decoupled)


def _told(text: str) -> str:
    """Return a text that UTF-8 can carry, whatever a file's name has in it."""
    return text.encode(errors="backslashreplace").decode()


def _members(record: dict[str, Any]) -> str:
    """Return the members of an object as JSON, without its braces."""
    return json.dumps(record, separators=(",", ":"))[1:-1]


def _joined(document: dict[str, Any], paths: list[str], schemas: list[str]) -> str:
    """Return the document as JSON, with further members of its paths and schemas."""
    rest = {key: value for key, value in document.items() if key not in ("paths", "components")}
    components = {key: value for key, value in document["components"].items() if key != "schemas"}
    all_paths = ",".join(filter(None, [_members(document["paths"]), *paths]))
    all_schemas = ",".join(filter(None, [_members(document["components"]["schemas"]), *schemas]))
    return f'{{{_members(rest)},"paths":{{{all_paths}}},"components":{{{_members(components)},"schemas":{{{all_schemas}}}}}}}'
