"""Sends what was recorded again, to a server or to models in this process, and compares. On threads, which wait for answers.

The law: requests leave in the order in which they came, those of one sequence one after the other; as many as there are threads
are under way. What is kept of each is a number or two.
"""

from __future__ import annotations

import http.client
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from kernel.cli.grpc_calls import SERVICE, GrpcCalls
from kernel.errors import Code, ServingError, clipped
from kernel.local import Local
from kernel.recording import (
    Told,
    Tolerance,
    answer_of,
    body_of,
    differences,
    message_of,
    outputs_of,
    path_of,
    streamed_of,
)
from kernel.tensor import Tensor

__all__ = ["Answering", "InProcess", "ModelTally", "OverGrpc", "OverHttp", "Replayed", "Unexpected", "replay"]

#: How long an answer over HTTP may be; what is longer counts as none.
MOST_BYTES = 2 * 1024 * 1024 * 1024

#: How many differences are kept to be told.
MOST_TOLD = 100

#: What failed then for reasons of that moment: whether it does now says nothing.
OF_THE_MOMENT = frozenset({"UNAVAILABLE", "CANCELLED"})


#: What a server says of a model that may give any number of responses: over HTTP it can't be asked, over gRPC by a stream.
DECOUPLED = "decoupled transaction policy"

#: Why a request is sent and not compared.
ONLY_BY_STREAMS = "its model is decoupled and can't be asked over HTTP; --against grpc://HOST:PORT asks it"
OF_THAT_MOMENT = "it had failed for a reason of that moment"

EXACT_ENOUGH = Tolerance()


class Answering(Protocol):
    """Who is asked. Any thread."""

    def ask(self, told: Told) -> list[list[Tensor]]:
        """Return the outputs of each response. Raises ServingError."""

    def close(self) -> None:
        """Nobody asks any more."""


class OverHttp:
    """A server at a URL; each thread has a connection of its own."""

    def __init__(self, url: str, timeout: float, version: str = "", headers: Mapping[str, str] | None = None) -> None:
        """`version`: "" for the newest, "recorded" for the one that was asked. Raises ServingError for what is no URL."""
        try:
            address = urlsplit(url)
            self._host, self._secure = address.hostname or "", address.scheme == "https"
            self._port = address.port or (443 if self._secure else 8000)
        except ValueError:  # such as a port that is no number
            self._host = ""
        if not self._host or address.scheme not in ("http", "https"):
            raise ServingError(Code.INVALID_ARG, f"'{url}' is no address, wanted is one such as http://localhost:8000")
        self._url, self._prefix, self._timeout, self._version = url, address.path.rstrip("/"), timeout, version
        self._headers = dict(headers or {})
        self._own = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def ask(self, told: Told) -> list[list[Tensor]]:
        headers, body = body_of(told)
        path = path_of(told.model, str(told.version) if self._version == "recorded" else self._version)
        return [answer_of(*self.post(path, headers, body))]

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers by lower-case name, and body of an answer. Raises ServingError where there is none."""
        fresh = not hasattr(self._own, "connection")
        try:
            return self._exchange(path, headers, body)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            if fresh:
                raise self._failed(error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._failed(error) from None
        try:  # the server had closed a connection on which nothing came for a while
            return self._exchange(path, headers, body)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._failed(error) from None

    def _exchange(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = self._own.connection = kind(self._host, self._port, timeout=self._timeout)
            self._all.append(connection)
        try:
            connection.request("POST", f"{self._prefix}{path}", body, {**self._headers, **headers})
            response = connection.getresponse()
            answer = response.read(MOST_BYTES + 1)
        except BaseException:
            connection.close()  # the next request opens it anew
            raise
        if len(answer) > MOST_BYTES:
            connection.close()
            raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
        return response.status, {name.lower(): value for name, value in response.getheaders()}, answer

    def _failed(self, error: Exception) -> ServingError:
        return ServingError(Code.UNAVAILABLE, f"{self._url} can't be asked: {type(error).__name__}: {error}")

    def close(self) -> None:
        for connection in self._all:
            connection.close()


class OverGrpc:
    """A server that speaks gRPC. A decoupled model is asked by a stream for each request."""

    def __init__(self, url: str, timeout: float, version: str = "", headers: Mapping[str, str] | None = None) -> None:
        """As OverHttp, with a URL such as grpc://localhost:8001."""
        # What fails on a stream ends it with a status then, as a code is wanted.
        self._calls = GrpcCalls(url, {**(headers or {}), "triton_grpc_error": "true"}, MOST_BYTES)
        self._timeout, self._version = timeout, version
        self._decoupled: set[str] = set()

    def ask(self, told: Told) -> list[list[Tensor]]:
        calls, messages = self._calls, self._calls.messages
        message = message_of(messages, told, str(told.version) if self._version == "recorded" else self._version)
        if told.model not in self._decoupled:
            try:
                answers = calls.call(f"{SERVICE}ModelInfer", message, self._timeout)
                return [outputs_of(messages, answer)[1] for answer in answers]
            except ServingError as error:
                if not _is_of_decoupled(error):
                    raise
            self._decoupled.add(told.model)
        found = []
        for answer in calls.call(f"{SERVICE}ModelStreamInfer", message, self._timeout):
            _, outputs = streamed_of(messages, answer)
            if isinstance(outputs, ServingError):
                raise outputs
            if outputs is not None:
                found.append(outputs)
        return found

    def close(self) -> None:
        self._calls.close()


def _is_of_decoupled(error: ServingError) -> bool:
    return error.code is Code.UNSUPPORTED and DECOUPLED in error.message


class InProcess:
    """The models of a repository, in this process."""

    def __init__(self, repository: str, timeout: float, version: str = "", **options: Any) -> None:
        """Load the models; those that fail are missing, and who asks them fails. Raises ServingError for no repository."""
        self._models = Local(repository, exit_on_error=False, **options)
        self._timeout, self._version = timeout, version
        if (broken := self._models.kernel.broken) is not None:
            self._models.close()
            raise broken

    def ask(self, told: Told) -> list[list[Tensor]]:
        responses = self._models.stream(
            told.model,
            {tensor.name: tensor for tensor in told.inputs},
            version=str(told.version) if self._version == "recorded" else self._version,
            outputs=told.outputs,
            parameters=told.parameters or None,
            id=told.id,
            timeout=self._timeout,
            priority=told.priority,
            correlation_id=told.correlation_id,
            flags=told.flags,
        )
        return [response.outputs for response in responses]

    def close(self) -> None:
        self._models.close()


@dataclass
class ModelTally:
    """Of the requests of one model. `not_compared`: why -> how many. `before`, `after`: the seconds that those took that
    succeeded both times.
    """

    sent: int = 0
    same: int = 0
    differ: int = 0
    failed: int = 0
    not_compared: Counter[str] = field(default_factory=Counter)
    before: array[float] = field(default_factory=lambda: array("d"))
    after: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True)
class Unexpected:
    """What came of one request that was not as expected."""

    model: str
    id: str
    arrived: float
    output: str
    expected: str
    actual: str
    words: str


@dataclass
class Replayed:
    """What came of all. `told`: the first differences and failures; `seconds`: how long it took; `late`: by how much the one
    request left too late that did most so.
    """

    models: dict[str, ModelTally] = field(default_factory=dict)
    told: list[Unexpected] = field(default_factory=list)
    seconds: float = 0.0
    late: float = 0.0


class _Lanes:
    """Has those of one sequence run one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int | str], deque[Callable[[], None]]] = {}

    def put(self, key: tuple[str, int | str], run: Callable[[], None]) -> bool:
        """Return whether the lane was empty; else `run` is run behind what is in it."""
        with self._lock:
            lane = self._waiting.get(key)
            if lane is None:
                self._waiting[key] = deque()
                return True
            lane.append(run)
            return False

    def next(self, key: tuple[str, int | str]) -> Callable[[], None] | None:
        with self._lock:
            lane = self._waiting[key]
            if lane:
                return lane.popleft()
            del self._waiting[key]
            return None


class _Replay:
    def __init__(
        self, target: Answering, tolerance: Tolerance, concurrency: int, report: Callable[[Unexpected], None] | None
    ) -> None:
        self._target = target
        self._tolerance = tolerance
        self._report = report
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(concurrency * 2)  # tensors of more are not read yet
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="kernel-replay")
        self._lanes = _Lanes()
        self._broken: BaseException | None = None
        self.result = Replayed()

    def run(self, requests: Iterable[Told], speed: float) -> Replayed:
        """`speed`: how many times as fast as they came; 0.0: as fast as can be."""
        begun, first = time.monotonic(), None
        try:
            for told in requests:
                first = told.arrived if first is None else first
                due = begun + (told.arrived - first) / speed if speed else 0.0
                if (ahead := due - time.monotonic()) > 0:
                    time.sleep(ahead)
                self._room.acquire()
                if self._broken is not None:
                    break
                self._submit(told, due)
        finally:
            self._pool.shutdown(cancel_futures=self._broken is not None)
        if self._broken is not None:
            raise self._broken
        self.result.seconds = time.monotonic() - begun
        return self.result

    def _submit(self, told: Told, due: float) -> None:
        def one() -> None:
            self._one(told, due)

        if not told.correlation_id:
            self._pool.submit(one)
            return
        key = told.model, told.correlation_id

        def lane() -> None:
            one()
            while (following := self._lanes.next(key)) is not None:
                following()

        if self._lanes.put(key, one):
            self._pool.submit(lane)

    def _one(self, told: Told, due: float) -> None:
        try:
            begun = time.monotonic()
            answers: list[list[Tensor]] | ServingError
            try:
                answers = self._target.ask(told)
            except ServingError as error:
                answers = error
            seconds = time.monotonic() - begun
            found = self._judged(told, answers)
            with self._lock:
                self._note(told, answers, seconds, found, begun - due if due else 0.0)
        except BaseException as error:  # a mistake of ours: told by who waits for the end
            self._broken = error
        finally:
            self._room.release()

    def _judged(self, told: Told, answers: list[list[Tensor]] | ServingError) -> list[tuple[str, str, str, str]] | str:
        """Return what is not as expected: output, expected, actual, words. Or why nothing can be said."""
        before = told.error
        if isinstance(answers, ServingError) and _is_of_decoupled(answers):
            return ONLY_BY_STREAMS
        if before is not None:
            if before.code in OF_THE_MOMENT:
                return f"{OF_THAT_MOMENT} ({before.code})"
            if not isinstance(answers, ServingError):
                return [("", before.code, "an answer", f"it succeeds, expected was {before.code}: {clipped(before.message)}")]
            if answers.code.name == before.code:
                return []
            words = f"it fails otherwise: {answers.code.name}: {clipped(answers.message)}, expected was {before.code}"
            return [("", before.code, answers.code.name, words)]
        if isinstance(answers, ServingError):
            return [("", "an answer", answers.code.name, f"it fails: {answers.code.name}: {clipped(answers.message)}")]
        if len(answers) != len(told.answers):
            counts = str(len(told.answers)), str(len(answers))
            return [("", *counts, f"it has {counts[1]} responses, expected were {counts[0]}")]
        return [
            (one.output, one.expected, one.actual, one.words)
            for expected, actual in zip(told.answers, answers)
            for one in differences(expected, actual, self._tolerance)
        ]

    def _note(
        self, told: Told, answers: list[list[Tensor]] | ServingError, seconds: float,
        found: Sequence[tuple[str, str, str, str]] | str, late: float,
    ) -> None:  # fmt: skip
        outcome = self.result.models.setdefault(told.model, ModelTally())
        outcome.sent += 1
        self.result.late = max(self.result.late, late)
        failed = isinstance(answers, ServingError)
        if isinstance(found, str):
            outcome.not_compared[found] += 1
            if self._report is not None:
                self._report(Unexpected(told.model, told.id, told.arrived, "", "", "not compared", found))
            found = ()
        elif not found:
            outcome.same += 1
        elif failed and told.error is None:
            outcome.failed += 1
        else:
            outcome.differ += 1
        if told.error is None and not failed:
            outcome.before.append(told.seconds)
            outcome.after.append(seconds)
        for one in found:
            worked = Unexpected(told.model, told.id, told.arrived, *one)
            if self._report is not None:
                self._report(worked)
            if len(self.result.told) < MOST_TOLD:
                self.result.told.append(worked)


def replay(
    requests: Iterable[Told], target: Answering, *, speed: float = 1.0, concurrency: int = 16,
    tolerance: Tolerance = EXACT_ENOUGH, report: Callable[[Unexpected], None] | None = None,
) -> Replayed:  # fmt: skip
    """Send requests, in the order of their arrival, and compare their answers with those that were recorded.

    `speed`: how many times as fast as they came, 0.0 for as fast as can be; `concurrency`: how many may be under way. `report` is
    told of all that is not as expected, and of what is not compared.
    """
    return _Replay(target, tolerance, concurrency, report).run(requests, speed)
