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
from typing import Any
from urllib.parse import unquote

from kernel.errors import Code, ServingError, clipped
from kernel.recording import Tolerance, answer_of, differences
from kernel.shadow.exchanges import Exchange, Exchanges, Message, Room
from kernel.shadow.proxy import CLIENT, CLOSED, UPSTREAM
from kernel.shadow.tee import FRAME

__all__ = ["Comparer", "Mismatch", "Tally", "frames"]

#: How much may be kept of what is not compared yet; bytes.
ROOM = 512 * 1024 * 1024

#: How many comparisons are under way at a time, and how many may wait.
AT_ONCE = 8
MOST_WAITING = 256

#: How much an answer may have when unpacked.
MOST_UNPACKED = 256 * 1024 * 1024

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


class Comparer:
    """`ask(path, headers, body)`: status, headers and body of the candidate's answer, or ServingError where there is none; called
    on threads. `mismatch`: told of each, there.
    """

    def __init__(
        self,
        ask: Callable[[str, Mapping[str, str], bytes], tuple[int, dict[str, str], bytes]],
        mismatch: Callable[[Mismatch], None],
        sample: float,
        tolerance: Tolerance,
    ) -> None:
        self.models: dict[str, Tally] = {}
        self.others = 0  # requests that are no inferences
        self.lost = 0  # connections that could not be followed to their end
        self._ask = ask
        self._mismatch = mismatch
        self._sample = sample
        self._tolerance = tolerance
        self._connections: dict[int, Exchanges] = {}
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
            exchanges = self._connections[number] = Exchanges(self._room, self._wanted, self._complete)
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
        name = unquote(found[1].decode("latin-1"))
        if name not in self.models and len(self.models) >= 10_000:
            return False
        self.models.setdefault(name, Tally()).passed += 1
        return self._sample >= 1.0 or random.random() < self._sample

    def _complete(self, exchange: Exchange) -> None:
        found = _INFER.fullmatch(exchange.request.target)
        assert found is not None
        model = unquote(found[1].decode("latin-1"))
        if exchange.request.cut or exchange.answer.cut:
            self._count(model, "too large", exchange)
        elif exchange.answer.status in _OF_THE_MOMENT:
            self._count(model, "upstream busy", exchange)
        elif self._waiting >= MOST_WAITING:
            self._count(model, "no time", exchange)
        else:
            with self._lock:
                self._waiting += 1
            self._pool.submit(self._compare, model, exchange)

    def _count(self, model: str, outcome: str, exchange: Exchange) -> None:
        with self._lock:
            self.models[model].outcomes[outcome] += 1
            self._room.free(exchange.size)

    def finish(self, seconds: float) -> None:
        """Wait until what is under way is compared, for so long at most."""
        done = threading.Thread(target=self._pool.shutdown, daemon=True)
        done.start()
        done.join(seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- on threads ----------------------------------------------------------------------------------------------------

    def _compare(self, model: str, exchange: Exchange) -> None:
        try:
            outcome = self._outcome(model, exchange)
        except Exception as error:  # nothing that passes may end this
            outcome = f"not understood ({type(error).__name__})"
        with self._lock:
            self._waiting -= 1
        self._count(model, outcome, exchange)

    def _outcome(self, model: str, exchange: Exchange) -> str:
        request, answer = exchange.request, exchange.answer
        if b"sequence_id" in request.body[: _length(request)]:
            return "sequence"  # one request of it alone would be answered otherwise
        if b"shared_memory_region" in request.body[: _length(request)]:
            return "shared memory"
        try:
            expected = _read(answer)
        except ServingError as error:
            if answer.status == 200:
                return "not understood"
            expected = error
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        try:
            status, came, body = self._ask(request.target.decode("latin-1"), headers, bytes(request.body))
        except ServingError:
            return "candidate unreachable"
        try:
            actual = _read(Message(status=status, headers=came, body=bytearray(body)))
        except ServingError as error:
            actual = error
        found = self._judged(expected, actual)
        for output, wanted, got, words in found:
            self._mismatch(Mismatch(model, _id_of(answer), output, wanted, got, words))
        if not found:
            return "same"
        return "failed" if isinstance(actual, ServingError) and not isinstance(expected, ServingError) else "differ"

    def _judged(self, expected: Any, actual: Any) -> list[tuple[str, str, str, str]]:
        if isinstance(expected, ServingError):
            if isinstance(actual, ServingError):
                if actual.code is expected.code:
                    return []
                words = f"it fails otherwise: {actual.code.name}: {clipped(actual.message)}, expected was {_told(expected)}"
                return [("", expected.code.name, actual.code.name, words)]
            return [("", expected.code.name, "an answer", f"it succeeds, expected was {_told(expected)}")]
        if isinstance(actual, ServingError):
            return [("", "an answer", actual.code.name, f"it fails: {_told(actual)}")]
        return [(one.output, one.expected, one.actual, one.words) for one in differences(expected, actual, self._tolerance)]


def _told(error: ServingError) -> str:
    return f"{error.code.name}: {clipped(error.message)}"


def _length(message: Message) -> int:
    """Return how long the JSON of a body is."""
    text = message.headers.get("inference-header-content-length", "")
    return int(text) if text.isascii() and text.isdigit() else len(message.body)


def _read(message: Message) -> Any:
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
