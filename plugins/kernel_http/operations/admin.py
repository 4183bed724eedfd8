"""Everything but inference: health, metadata, configuration, statistics, the repository.

Each operation reads the kernel's public state and returns a whole response; key orders are the reference's. Only a load
takes time: later requests of its connection wait for it; and a model that is asked whether it is ready may.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import msgspec
import numpy as np

from kernel import EXTENSIONS, Code, ServingError, model_metadata
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head
from kernel_http.json.errors import NON_OBJECT, NON_STRING, malformed
from kernel_http.json.large import LARGE, Cut, LongString, decode_large
from kernel_http.json.members import flag_of
from kernel_http.operations.operation import UNITS, Operation, Pace, at_once, in_pieces, read_object

if TYPE_CHECKING:
    from kernel import Explanation, Kernel, ModelScale, ModelStatistics, ServerScale
    from kernel_http.connection.routes import Handler

__all__ = ["Admin"]

log = logging.getLogger(__name__)

#: What takes next to nothing, and what takes more than others, in units; what takes long, whose turns are its own (Pace).
TAKES = {"live": 0, "ready": 0, "server_metadata": 0, "index": 12}
LONG = ("explain", "calls")

#: How many requests without an answer are told of in a turn of the loop.
PIECE = 128

#: How many requests are explained where nobody says how many, and at most.
TOLD = 10
MOST_TOLD = 100

#: For how long what was found of the slowest and of those that failed is told again: a hundred take 10 ms and more.
TOLD_SECONDS = 0.5

DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


class Admin:
    """The handlers of the routes that are not inference."""

    def __init__(self, kernel: Kernel, *, server_name: str, server_version: str) -> None:
        self.kernel = kernel
        self._tasks: set[asyncio.Task[None]] = set()
        self._explained: dict[str, tuple[float, list[msgspec.Raw]]] = {}  # until when what was found is told
        self._metadata = replies.json_reply({"name": server_name, "version": server_version, "extensions": EXTENSIONS})

    def handlers(self) -> dict[str, Handler]:
        """Return route name -> handler."""
        quick: dict[str, Operation] = {
            "live": self.live,
            "ready": self.ready,
            "server_metadata": self.server_metadata,
            "model_metadata": self.model_metadata,
            "model_config": self.model_config,
            "statistics": self.statistics,
            "scale": self.scale,
            "explain": self.explain,
            "calls": self.calls,
            "index": self.index,
            "unload": self.unload,
            "replace_replicas": self.replace_replicas,
        }
        slow: dict[str, Handler] = {"model_ready": self.model_ready, "load": self.load}
        pace = Pace(self.kernel.loop)
        paced = {name: at_once(quick.pop(name), 0, pace) for name in LONG}
        paced["inflight"] = in_pieces(self.inflight, pace)
        return {**{name: at_once(operation, TAKES.get(name, UNITS)) for name, operation in quick.items()}, **paced, **slow}

    # --- health

    def live(self, head: Head, body: bytes) -> bytes:
        return replies.OK_EMPTY if self.kernel.live else replies.REQUEST_ERROR

    def ready(self, head: Head, body: bytes) -> bytes:
        return replies.OK_EMPTY if self.kernel.is_ready() else replies.REQUEST_ERROR

    def model_ready(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        """Not ready, unknown model, unknown version: all the same answer. The model itself may be asked, which may take time."""
        exchange = Exchange(connection, head)
        connection.exchanges.append(exchange)

        def reply(ready: bool) -> None:
            exchange.answer(replies.OK_EMPTY if ready else replies.error(400, "Model version not ready", json=False))

        try:
            self.kernel.ask_model_ready(head.model, head.version, reply)
        except ServingError as error:
            exchange.answer(replies.error_of(error, json=False))

    # --- what there is

    def server_metadata(self, head: Head, body: bytes) -> bytes:
        return self._metadata

    def model_metadata(self, head: Head, body: bytes) -> bytes:
        return replies.json_reply(model_metadata(self.kernel, head.model, head.version))

    def model_config(self, head: Head, body: bytes) -> bytes:
        return replies.json_reply(self.kernel.model(head.model, head.version).config.as_dict())

    def inflight(self, head: Head, body: bytes) -> Iterator[tuple[bytes, bool]]:
        """Every request alive, some in a piece; beside the standard API."""
        return pieces_of("inflight", self.kernel.each_inflight())

    def scale(self, head: Head, body: bytes) -> bytes:
        """How many instances and replicas there are and are to be; beside the standard API."""
        report: ServerScale = self.kernel.scale()
        lines: Sequence[ModelScale] = report.models
        server = {name: value for name, value in asdict(report).items() if name != "models"}
        return replies.json_reply({"server": server, "models": [asdict(line) for line in lines]})

    def calls(self, head: Head, body: bytes) -> bytes:
        """Which models have called which, among the newest requests; beside the standard API."""
        return replies.json_reply({"calls": [asdict(one) for one in self.kernel.observed_calls()]})

    def explain(self, head: Head, body: bytes) -> bytes:
        """Why requests took as long as they did; beside the standard API. An id is percent-encoded."""
        kind, _, value = head.path.removeprefix("/v2/kernel/explain/").partition("/")
        if kind == "id":
            return replies.json_reply({"requests": explanations(self.kernel.explain(unquote(value)))})
        count = int(value) if value else TOLD
        if not 0 < count <= MOST_TOLD:
            words = f"{count} requests are asked for, wanted are 1 to {MOST_TOLD}"
            raise ServingError(Code.INVALID_ARG, words)
        return replies.json_reply({"requests": self._told(kind)[:count]})

    def _told(self, kind: str) -> list[msgspec.Raw]:
        """Return all that are told of a kind, slowest or failed, as JSON. It is found twice a second at most."""
        now = self.kernel.clock()
        until, told = self._explained.get(kind, (now, []))
        if until <= now:
            explain = self.kernel.explain
            told = explanations(explain(slowest=MOST_TOLD) if kind == "slowest" else explain(failed=MOST_TOLD))
            self._explained[kind] = now + TOLD_SECONDS, told
        return told

    def statistics(self, head: Head, body: bytes) -> bytes:
        return replies.json_reply(
            {"model_stats": [statistics_of(record) for record in self.kernel.statistics(head.model, head.version)]}
        )

    # --- the repository

    def index(self, head: Head, body: bytes) -> bytes:
        ready = read_object(body).get("ready", False)
        rows = []
        for entry in self.kernel.index(ready=flag_of(ready, "ready")):
            row = {"name": entry.name}
            if entry.version:
                row["version"] = entry.version
            if entry.state:
                row["state"] = entry.state
            if entry.reason:
                row["reason"] = entry.reason
            rows.append(row)
        return replies.json_reply(rows)

    def unload(self, head: Head, body: bytes) -> bytes:
        parameters = read_load_parameters(body)
        dependents = flag_of(parameters.get("unload_dependents", False), "unload_dependents")
        self.kernel.unload(head.model, dependents=dependents)
        return replies.EMPTY_JSON

    def replace_replicas(self, head: Head, body: bytes) -> bytes:
        """One replica after another; beside the standard API. Answers when the last is replaced."""
        read_object(body)
        replace = getattr(self.kernel, "replace_replicas", None)
        if replace is None:
            raise ServingError(Code.UNSUPPORTED, "this server has no replicas that could be replaced (kernel serve --replicas)")
        return replies.json_reply({"replaced": replace()})

    def load(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        """Load a model, and hold back what else the connection sends until that is done."""
        exchange = Exchange(connection, head)
        connection.exchanges.append(exchange)
        connection.barrier = True
        if len(json) > LARGE:
            reading = connection.aside(lambda: large_overrides(json, self.kernel.memory.values))
            reading.add_done_callback(lambda done: self._begin(connection, exchange, done.result))
        else:
            self._begin(connection, exchange, lambda: load_overrides(read_load_parameters(json)))

    def _begin(self, connection: ClientConnection, exchange: Exchange, overrides: Callable[[], Overrides]) -> None:
        task = self.kernel.loop.create_task(self._load(connection, exchange, overrides))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, connection: ClientConnection, exchange: Exchange, overrides: Callable[[], Overrides]) -> None:
        try:
            config, files = overrides()
            await self.kernel.load(exchange.head.model, config=config, files=files)
            payload = replies.EMPTY_JSON
        except ServingError as error:
            error.__traceback__ = None  # it leads to this frame, and so to the future that has it: the body would stay
            payload = replies.error_of(error, json=True)
        except Exception as error:
            log.exception("loading model '%s' failed", exchange.head.model)
            payload = replies.error(500, f"{type(error).__name__}: {error}", json=True)
        exchange.answer(payload)
        connection.release()


def explanations(found: Sequence[Explanation]) -> list[msgspec.Raw]:
    """Return explanations as JSON, each with its text."""
    return [msgspec.Raw(replies.encode({**msgspec.to_builtins(one), "lines": one.lines()})) for one in found]


def statistics_of(record: ModelStatistics) -> dict[str, Any]:
    """Return one model version's statistics as the extension prints them (docs/contract/observability.md).

    Ours are `placement`, where the model runs and why, and `hop`, what the way to other processes has cost it.
    """
    statistics: dict[str, Any] = {
        "name": record.name,
        "version": str(record.version),
        "last_inference": record.last_inference_ms,
        "inference_count": record.inference_count,
        "execution_count": record.execution_count,
        "inference_stats": {name: duration_of(getattr(record, name)) for name in DURATIONS},
        "response_stats": {
            key: {name: duration_of(duration) for name, duration in durations.items()}
            for key, durations in record.response_stats.items()
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": duration_of(compute_input),
                "compute_infer": duration_of(compute_infer),
                "compute_output": duration_of(compute_output),
            }
            for size, (compute_input, compute_infer, compute_output) in sorted(record.batch_stats.items())
        ],
        "memory_usage": [],
    }
    if record.placement_choice is not None:
        statistics["placement"] = {"where": record.placement_choice.where, "reason": record.placement_choice.reason}
    if record.hop is not None:
        statistics["hop"] = duration_of(record.hop)
    return statistics


def pieces_of(name: str, records: Iterator[Any]) -> Iterator[tuple[bytes, bool]]:
    """Yield an object whose member of that name has the records, PIECE of them at a time, each with whether there are more."""
    text, more = b'{"%b":[' % name.encode(), True
    while more:
        part = list(islice(records, PIECE))
        more = len(part) == PIECE
        text += replies.encode(part)[1:-1]
        yield text if more else text.removesuffix(b",") + b"]}", more
        text = b","


def duration_of(duration: Any) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def read_load_parameters(body: bytes) -> dict[str, Any]:
    parameters = read_object(body).get("parameters", {})
    if type(parameters) is not dict:
        raise malformed("parameters", NON_OBJECT)
    return parameters


#: The config and the files of a load request, each None where there is none.
Overrides = tuple[str | None, dict[str, bytes] | None]


def large_overrides(body: Any, limit: int) -> Overrides:
    """As `load_overrides`, of a body that is too large for the loop. `limit`: of its values."""
    record = decode_large(body, limit, lambda value, text: False, dict, cut=FILES)
    parameters = record.get("parameters", {}) if type(record) is dict else {}
    if type(parameters) is not dict:
        raise malformed("parameters", NON_OBJECT)
    return load_overrides(parameters)


def load_overrides(parameters: dict[str, Any]) -> Overrides:
    """Return the config and the files of a load request. Raises ServingError."""
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key != "config" and not key.startswith("file:"):
            raise ServingError(Code.INTERNAL, "unexpected error on creating Triton parameter")
        if type(value) not in (str, LongString):
            raise malformed(key, NON_STRING)
        pieces, size = ([text := value.encode()], len(text)) if type(value) is str else (value.pieces(), value.end - value.start)
        if key == "config":
            config = b"".join(list(pieces)).decode()
        else:
            try:
                files[key.removeprefix("file:")] = cast(bytes, decoded_base64(pieces, size))
            except ValueError as error:  # binascii.Error is one; what is no ASCII is another
                raise ServingError(Code.INVALID_ARG, f"Unable to parse '{key}': it is not base64 ({error})") from None
    return config, files or None


def decoded_base64(pieces: Iterable[bytes], most: int) -> memoryview:
    """Return what a text in base64 says, of `most` bytes at most, which comes in pieces, as it may be long. Raises ValueError.

    Each is put where it stays: to join all of them would be one call, which holds the interpreter.
    """
    content = np.empty(most // 4 * 3 + 6, np.uint8).data
    size = 0
    rest = b""

    def put(text: bytes) -> None:
        nonlocal size
        part = base64.b64decode(text, validate=True)
        content[size : size + len(part)] = part
        size += len(part)

    for piece in pieces:
        whole = rest + piece
        cut = max(0, len(whole) - 6) // 4 * 4  # what may be padded is decoded last
        chunk, rest = whole[:cut], whole[cut:]
        if (padding := chunk.find(b"=")) >= 0:
            base64.b64decode(chunk[padding // 4 * 4 :] + rest, validate=True)  # in its words
            raise ValueError("there is more behind its padding")
        put(chunk)
    put(rest)
    return content[:size]


def _in_parameters(value: Any, restore: Callable[[Any], Any]) -> None:
    """Give the files of a load request their contents."""
    if isinstance(value, dict) and "parameters" in value:
        parameters = value["parameters"] = restore(value["parameters"])
        if isinstance(parameters, dict):
            for key, member in parameters.items():
                parameters[key] = restore(member)


#: A file of a model is one string.
FILES = Cut((), _in_parameters, strings=True, outside="what stands outside of long strings")
