"""The process that looks on: has a sample of what passes answered once more, and says where that differs. Nobody waits for it.

The law: it takes what it is told as fast as it comes, so that who tells it need not; what it has no time or no room for is
counted and not compared.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from kernel.errors import Code, ServingError, clipped
from kernel.recording import Tolerance, answer_of, differences
from kernel.shadow.calls import MOST_UNPACKED, SeenCall, SeenCalls
from kernel.shadow.exchanges import Exchange, Exchanges, Message, Room
from kernel.shadow.inferences import PATHS, Given, NotCompared, answers_of, asked_of, failed_as, model_of
from kernel.shadow.proxy import CLIENT, CLOSED, GRPC, UPSTREAM
from kernel.shadow.tee import FRAME
from kernel.tensor import Tensor

__all__ = ["AskedCalls", "Comparer", "Mismatch", "Tally", "frames"]

#: How much may be kept of what is not compared yet; bytes.
ROOM = 512 * 1024 * 1024

#: How many comparisons are under way at a time, and how many may wait.
AT_ONCE = 8
MOST_WAITING = 256

#: How many models are told apart.
MOST_MODELS = 10_000

_INFER = re.compile(rb"(?:https?://[^/]+)?/v2/models/([^/?]+)(?:/versions/([^/?]+))?/infer(?:\?.*)?")

#: What of a request is said to the candidate.
_PASSED_ON = ("content-type", "content-encoding", "inference-header-content-length")

#: Answers of the upstream that say something of that moment, and nothing of the request.
_OF_THE_MOMENT = frozenset({408, 429, 499, 502, 503, 504})


@dataclass(frozen=True)
class Mismatch:
    """One output, "" for the answer as a whole, that the candidate gives otherwise."""

    model: str
    id: str
    output: str
    expected: str
    actual: str
    words: str


class Tally:
    """Of the requests of one model: how many passed, and what came of those that were chosen, by a word."""

    def __init__(self) -> None:
        self.passed = 0
        self.outcomes: Counter[str] = Counter()


class AskedCalls(Protocol):
    """The candidate, as it is asked over gRPC. `messages`: those of the protocol. On threads."""

    messages: Any

    def call(self, method: str, message: bytes, timeout: float) -> list[bytes]:
        """Return all messages of the answer. Raises ServingError."""


class Comparer:
    """`ask(path, headers, body)`: status, headers and body of the candidate's answer, or ServingError where there is none; called
    on threads. `mismatch`: told of each, there. `calls`: how calls of gRPC are asked, each for `timeout` seconds at most.
    """

    def __init__(
        self,
        ask: Callable[[str, Mapping[str, str], bytes], tuple[int, dict[str, str], bytes]],
        mismatch: Callable[[Mismatch], None],
        sample: float,
        tolerance: Tolerance,
        calls: AskedCalls | None = None,
        timeout: float = 20.0,
    ) -> None:
        self.models: dict[str, Tally] = {}
        self.others = 0  # requests that are no inferences
        self.lost = 0  # connections that could not be followed to their end
        self._ask = ask
        self._mismatch = mismatch
        self._sample = sample
        self._tolerance = tolerance
        self._calls = calls
        self._timeout = timeout
        self._connections: dict[int, Exchanges | SeenCalls] = {}
        self._room = Room(ROOM)
        self._lock = threading.Lock()
        self._waiting = 0
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kernel-shadow")

    # -- what passes ---------------------------------------------------------------------------------------------------

    def told(self, number: int, kind: int, data: bytes) -> None:
        exchanges = self._connections.get(number)
        if kind == CLOSED:
            if exchanges is not None:
                del self._connections[number]
                exchanges.ended()
            return
        if exchanges is None:
            exchanges = self._connections[number] = (
                SeenCalls(self._room, self._wanted_call, self._complete_call)
                if number & GRPC
                else Exchanges(self._room, self._wanted, self._complete)
            )
        if exchanges.lost:
            return
        if kind == CLIENT:
            exchanges.from_client(data)
        elif kind == UPSTREAM:
            exchanges.from_upstream(data)
        else:
            exchanges.ended()
        self.lost += exchanges.lost

    def _wanted(self, request: Message) -> bool:
        found = _INFER.fullmatch(request.target) if request.method == "POST" else None
        if found is None:
            self.others += 1
            return False
        return self._passed(unquote(found[1].decode("latin-1"))) and self._chosen()

    def _passed(self, model: str) -> bool:
        """Count what has passed; False where there are too many models."""
        if model not in self.models and len(self.models) >= MOST_MODELS:
            return False
        self.models.setdefault(model, Tally()).passed += 1
        return True

    def _chosen(self) -> bool:
        return self._sample >= 1.0 or random.random() < self._sample

    def _complete(self, exchange: Exchange) -> None:
        found = _INFER.fullmatch(exchange.request.target)
        assert found is not None
        model = unquote(found[1].decode("latin-1"))
        if exchange.request.cut or exchange.answer.cut:
            self._count(model, "too large", exchange.size)
        elif exchange.answer.status in _OF_THE_MOMENT:
            self._count(model, "upstream busy", exchange.size)
        else:
            self._submit(model, exchange.size, lambda: self._outcome(model, exchange))

    def _wanted_call(self, path: str) -> bool | None:
        if path not in PATHS or self._calls is None:
            self.others += 1
            return None
        return self._chosen()

    def _complete_call(self, call: SeenCall) -> None:
        model = model_of(call.request)
        if self._passed(model) and call.kept:
            self._submit(model, call.size, lambda: self._outcome_of_call(model, call))
        else:
            self._room.free(call.size)

    def _submit(self, model: str, size: int, outcome: Callable[[], str]) -> None:
        """Have something compared, if there is time for it."""
        if self._waiting >= MOST_WAITING:
            self._count(model, "no time", size)
            return
        with self._lock:
            self._waiting += 1
        self._pool.submit(self._compare, model, size, outcome)

    def _count(self, model: str, outcome: str, size: int) -> None:
        with self._lock:
            self.models[model].outcomes[outcome] += 1
            self._room.free(size)

    def finish(self, seconds: float) -> None:
        """Wait until what is under way is compared, for so long at most."""
        done = threading.Thread(target=self._pool.shutdown, daemon=True)
        done.start()
        done.join(seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- on threads ----------------------------------------------------------------------------------------------------

    def _compare(self, model: str, size: int, compared: Callable[[], str]) -> None:
        try:
            outcome = compared()
        except NotCompared as why:
            outcome = str(why)
        except Exception as error:  # nothing that passes may end this
            outcome = f"not understood ({type(error).__name__})"
        with self._lock:
            self._waiting -= 1
        self._count(model, outcome, size)

    def _outcome_of_call(self, model: str, call: SeenCall) -> str:
        """Ask each request of a call again; what differs in one differs in all of it."""
        calls, outcomes = self._calls, {"same"}
        assert calls is not None
        for asked in asked_of(calls.messages, call):
            actual: Given
            try:
                actual = answers_of(calls.messages, call.path, calls.call(call.path, asked.message, self._timeout))
            except ServingError as error:
                actual = failed_as(call.path, error)
            outcomes.add(self._judge(asked.model or model, asked.id, asked.expected, actual))
        return next(one for one in ("failed", "differ", "same") if one in outcomes)

    def _outcome(self, model: str, exchange: Exchange) -> str:
        request, answer = exchange.request, exchange.answer
        if b"sequence_id" in request.body[: _length(request)]:
            return "sequence"  # one request of it alone would be answered otherwise
        if b"shared_memory_region" in request.body[: _length(request)]:
            return "shared memory"
        expected: Given
        try:
            expected = [_read(answer)]
        except ServingError as error:
            if answer.status == 200:
                return "not understood"
            expected = error
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        try:
            status, came, body = self._ask(request.target.decode("latin-1"), headers, bytes(request.body))
        except ServingError:
            return "candidate unreachable"
        actual: Given
        try:
            actual = [_read(Message(status=status, headers=came, body=bytearray(body)))]
        except ServingError as error:
            actual = error
        return self._judge(model, _id_of(answer), expected, actual)

    def _judge(self, model: str, id: str, expected: Given, actual: Given) -> str:
        """Compare, tell each mismatch, and return the word for what came of it."""
        found = self._judged(expected, actual)
        for output, wanted, got, words in found:
            self._mismatch(Mismatch(model, id, output, wanted, got, words))
        if not found:
            return "same"
        return "failed" if isinstance(actual, ServingError) and not isinstance(expected, ServingError) else "differ"

    def _judged(self, expected: Given, actual: Given) -> list[tuple[str, str, str, str]]:
        if isinstance(expected, ServingError):
            if isinstance(actual, ServingError):
                if actual.code is expected.code:
                    return []
                words = f"it fails otherwise: {actual.code.name}: {clipped(actual.message)}, expected was {_told(expected)}"
                return [("", expected.code.name, actual.code.name, words)]
            return [("", expected.code.name, "an answer", f"it succeeds, expected was {_told(expected)}")]
        if isinstance(actual, ServingError):
            return [("", "an answer", actual.code.name, f"it fails: {_told(actual)}")]
        if len(actual) != len(expected):
            counts = str(len(expected)), str(len(actual))
            return [("", *counts, f"it has {counts[1]} responses, expected were {counts[0]}")]
        return [
            (one.output, one.expected, one.actual, one.words)
            for wanted, came in zip(expected, actual)
            for one in differences(wanted, came, self._tolerance)
        ]


def _told(error: ServingError) -> str:
    return f"{error.code.name}: {clipped(error.message)}"


def _length(message: Message) -> int:
    """Return how long the JSON of a body is."""
    text = message.headers.get("inference-header-content-length", "")
    return int(text) if text.isascii() and text.isdigit() else len(message.body)


def _read(message: Message) -> list[Tensor]:
    return answer_of(message.status, message.headers, unpacked(message))


def unpacked(message: Message) -> bytes:
    """Return a body without its compression. Raises ServingError."""
    how = message.headers.get("content-encoding", "identity").lower()
    body = bytes(message.body)
    if how == "identity":
        return body
    if how not in ("gzip", "deflate"):
        raise ServingError(Code.UNSUPPORTED, f"it is packed by '{clipped(how)}'")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        found = unpacker.decompress(body, MOST_UNPACKED)
    except zlib.error as error:
        raise ServingError(Code.UNKNOWN, f"it can't be unpacked: {error}") from None
    if unpacker.unconsumed_tail:
        raise ServingError(Code.UNKNOWN, f"it has more than {MOST_UNPACKED} bytes unpacked")
    return found


def _id_of(answer: Message) -> str:
    try:
        told = json.loads(unpacked(answer)[: _length(answer)])
        return str(told.get("id", ""))
    except (ValueError, AttributeError, RecursionError, ServingError):
        return ""


async def frames(reader: asyncio.StreamReader, told: Callable[[int, int, bytes], None]) -> None:
    """Hand on what is read, until its end."""
    try:
        while True:
            number, kind, size = FRAME.unpack(await reader.readexactly(FRAME.size))
            told(number, kind, await reader.readexactly(size) if size else b"")
    except (asyncio.IncompleteReadError, ConnectionError):
        return
