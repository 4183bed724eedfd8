"""Why a request took as long as it did, in words: scripted histories on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from live import ENSEMBLE
from virtual import BASE, Behaviour, Client, TestBackend, echo, run, sleeping, write_repository

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, Record, Result, ServingError
from kernel.models.handover_stage import Away
from kernel.observability import history
from kernel.observability.explanation import HAND_OVER, Ran, Waited, waited
from kernel.observability.statistics import FOLD

BATCHING = BASE + "max_batch_size: 8\n"
Story = Callable[[Kernel, Client], Awaitable[None]]


def told(
    folder: Path, models: dict[str, str], behaviours: dict[str, Behaviour], story: Story, ids: str, **options: Any
) -> list[str]:
    """Return what is said of requests, by their ids, after `story`."""

    async def main() -> list[str]:
        write_repository(folder, models)
        backend = TestBackend(behaviours)
        async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"], **options) as kernel:
            await story(kernel, Client(kernel))
            return [explanation.words for id in ids.split() for explanation in kernel.explain(id)]

    return run(main())


def sends(*moments: tuple[float, str, str], then: float = 100.0, **more: Any) -> Story:
    """Return a story: at moments, requests of an id to a model."""

    async def story(kernel: Kernel, client: Client) -> None:
        at = 0.0
        for moment, id, model in moments:
            await asyncio.sleep(moment - at)
            at = moment
            client.send(model, id, **{**more, "value": [[1.0, 2.0]]} if id.isupper() else more)
        await asyncio.sleep(then)

    return story


ROW = [[1.0]]
DELAYED = BATCHING + "dynamic_batching { max_queue_delay_microseconds: 5000 }\n"
PREFERRING = BATCHING + "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 50000 }\n"
EAGER = BATCHING + "dynamic_batching { }\n"
TWO = BASE.replace("count: 1", "count: 2")
RAGGED = PREFERRING.replace("[4]", "[8]")
OLDEST = BATCHING + "sequence_batching { oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 10000 } }\n"
DECOUPLED = BASE + "model_transaction_policy { decoupled: true }\n"
THREE = BASE.replace("count: 1", "count: 3")
LIMITED = BASE.replace("count: 1", 'count: 1 rate_limiter { resources { name: "R" count: 1 } }')
SEQUENCES = BASE + "sequence_batching { max_sequence_idle_microseconds: 5000000 }\n"

#: What it is of -> config, seconds of an execution, requests and when they come, whom to explain, what is said.
HISTORIES: dict[str, tuple[str, float, str, str, list[str]]] = {
    "alone": (BASE, 0.0032, "a0", "a", ["began at once; executed 3.2 ms"]),
    "behind one": (
        BASE, 0.05, "a0 b10", "b", ["queued 40 ms: the only instance ran another request; executed 50 ms"],
    ),
    "behind two": (
        BASE, 0.05, "a0 b10 c20", "c", ["queued 80 ms: the only instance ran 2 other requests; executed 50 ms"],
    ),
    "behind a long one": (
        BASE, 12.4, "a0 b400", "b", ["queued 12 s: the only instance ran another request; executed 12.4 s"],
    ),
    "little": (BASE, 0.00025, "a0", "a", ["began at once; executed 250 µs"]),
    "several instances": (
        THREE, 0.02, "a0 b1 c2 d3", "c d",
        ["began at once; executed 20 ms", "queued 17 ms: all 3 instances ran 3 other requests; executed 20 ms"],
    ),
    "the delay": (
        DELAYED, 0.02, "a0 b2", "a b",
        [
            "held 5 ms for the delay; left with 1 other as the delay was over; executed 20 ms",
            "held 3 ms for the delay; left with 1 other as the delay was over; executed 20 ms",
        ],
    ),
    "the delay, alone": (DELAYED, 0.02, "a0", "a", ["held 5 ms for the delay; left alone as the delay was over; executed 20 ms"]),
    "the delay, over before an instance is free": (
        DELAYED, 0.02, "a0 b7 c24", "b c",
        [
            "queued 18 ms: the only instance ran another request; left with 1 other as the delay was over; executed 20 ms",
            "queued 1 ms: the only instance ran another request; left with 1 other as the delay was over; executed 20 ms",
        ],
    ),
    "busy, then the delay": (
        BATCHING + "dynamic_batching { max_queue_delay_microseconds: 30000 }\n", 0.02, "a0 b40", "b",
        [
            "queued 10 ms: the only instance ran another request; held 20 ms for the delay; left alone as the delay was over; "
            "executed 20 ms"
        ],
    ),
    "a preferred size": (
        PREFERRING, 0.02, "a0 b2 c4 d6", "a d",
        [
            "held 6 ms for the delay; left with 3 others as a preferred size was reached; executed 20 ms",
            "began at once; left with 3 others as a preferred size was reached; executed 20 ms",
        ],
    ),
    "a full batch, and the rest": (
        EAGER, 0.02, "x0 a1 b1 c1 d1 e1 f1 g1 h1 i1 j1", "x a j",
        [
            "began at once; executed 20 ms",
            "queued 19 ms: the only instance ran another request; left with 7 others as it was full; executed 20 ms",
            "queued 39 ms: the only instance ran 2 batches of 9 requests in all; left with 1 other as an instance was free; "
            "executed 20 ms",
        ],
    ),
    "behind a batch": (
        EAGER, 0.02, "x0 a1 b1 c1 d22", "d", ["queued 18 ms: the only instance ran a batch of 3; executed 20 ms"],
    ),
    "resources": (
        LIMITED, 0.02, "a0 b1", "b", ["queued 19 ms: the only instance ran another request; executed 20 ms"],
    ),
    "two instances": (
        TWO, 0.02, "a0 b1 c2", "c", ["queued 18 ms: both instances ran 2 other requests; executed 20 ms"],
    ),
    "another shape behind it": (
        RAGGED, 0.02, "a0 b2 C4", "a",
        ["held 4 ms for the delay; left with 1 other as the next request does not go into the same batch; executed 20 ms"],
    ),
    "a sequence that is held": (
        OLDEST, 0.02, "a0", "a", ["held 10 ms for the delay; executed 20 ms"],
    ),
    "a queue that lets nobody wait for long": (
        EAGER.replace("{ }", "{ default_queue_policy { default_timeout_microseconds: 5000 } }"), 0.02, "a0 b1", "b",
        ["queued 5 ms: the only instance ran another request; failed after 5 ms: UNAVAILABLE: Request timeout expired"],
    ),
    "a sequence by itself": (SEQUENCES, 0.02, "a0", "a", ["began at once; executed 20 ms"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_history(tmp_path: Path, name: str) -> None:
    config, seconds, arrivals, ids, words = HISTORIES[name]
    moments = [(int(one[1:]) / 1000, one[0], "m") for one in arrivals.split()]  # capitals: of another shape
    value = ROW if "max_batch_size" in config else [1.0]
    more = {"correlation_id": 1, "flags": 3} if "sequence_batching" in config else {}
    assert told(tmp_path, {"m": config}, {"m": sleeping(seconds)}, sends(*moments, value=value, **more), ids) == words


def test_an_answer_that_waits_for_those_before_it(tmp_path: Path) -> None:
    async def by_name(batch: Batch) -> Result:
        await asyncio.sleep(0.05 if batch.requests[0].id == "a" else 0.01)
        return echo(batch)

    config = EAGER.replace("dynamic_batching { }", "dynamic_batching { preserve_ordering: true }").replace("count: 1", "count: 2")
    words = told(tmp_path, {"m": config}, {"m": by_name}, sends((0, "a", "m"), (0.001, "b", "m"), value=ROW), "a b")
    assert words == [
        "began at once; executed 50 ms",
        "began at once; executed 10 ms; its answer waited 39 ms for those of requests before it (preserve_ordering)",
    ]


def test_sequences(tmp_path: Path) -> None:
    async def story(kernel: Kernel, client: Client) -> None:
        client.send("m", "a1", correlation_id=7, flags=1)
        client.send("m", "a2", correlation_id=7)
        await asyncio.sleep(0.001)
        client.send("m", "b1", correlation_id=8, flags=1)
        await asyncio.sleep(0.1)
        client.send("m", "a3", correlation_id=7, flags=2)
        await asyncio.sleep(10)

    assert told(tmp_path, {"m": SEQUENCES}, {"m": sleeping(0.02)}, story, "a1 a2 b1 a3") == [
        "began at once; executed 20 ms",
        "waited 20 ms for the requests before it in sequence 7; executed 20 ms",
        "waited 120 ms for a slot: sequence 8 was in the backlog, as all of them were taken; executed 20 ms",
        "began at once; executed 20 ms",
    ]


def test_resources_of_the_rate_limiter(tmp_path: Path) -> None:
    models = {"m": LIMITED, "n": LIMITED}
    story = sends((0, "a", "m"), (0.005, "b", "n"))
    words = told(tmp_path, models, {"m": sleeping(0.02), "n": sleeping(0.03)}, story, "a b", rate_limit="execution_count")
    assert words == [
        "began at once; executed 20 ms",
        "waited 15 ms for resources of the rate limiter, which other executions held; executed 30 ms",
    ]


def test_what_fails(tmp_path: Path) -> None:
    def fail(batch: Batch) -> Result:
        raise ServingError(Code.INVALID_ARG, "no such row")

    async def story(kernel: Kernel, client: Client) -> None:
        client.send("slow", "a")
        client.send("slow", "late", deadline=kernel.clock() + 0.01)
        client.send("wrong", "wrong")
        client.send("short", "x", ROW)
        await asyncio.sleep(0.001)
        client.send("short", "y", ROW)
        client.send("short", "z", ROW)
        gone = client.send("slow", "gone")
        await asyncio.sleep(0.003)
        kernel.cancel(gone)
        await asyncio.sleep(10)

    short = EAGER.replace("{ }", "{ default_queue_policy { max_queue_size: 1 } }")
    behaviours = {"slow": sleeping(0.02), "wrong": fail, "short": sleeping(0.02)}
    words = told(tmp_path, {"slow": BASE, "wrong": BASE, "short": short}, behaviours, story, "late wrong z gone")
    assert words == [
        "queued 10 ms: the only instance ran another request; failed after 10 ms: UNAVAILABLE: [request id: late] deadline of "
        "the request to model 'slow' passed after 0.010 s while it was queued",
        "began at once; executed 0 µs; failed after 0 µs: INVALID_ARG: no such row",
        "refused as it came: UNAVAILABLE: [request id: z] Exceeds maximum queue size",
        "queued 3 ms: the only instance ran another request; failed after 3 ms: CANCELLED: [request id: gone] Request cancelled",
    ]


def test_what_has_no_answer_yet(tmp_path: Path) -> None:
    models, behaviours = {"m": BASE, "d": DELAYED.replace("5000", "900000")}, {"m": sleeping(5.0), "d": echo}

    async def both(kernel: Kernel, client: Client) -> None:
        client.send("m", "a")
        await asyncio.sleep(0.01)
        client.send("m", "b")
        client.send("d", "c", ROW)
        await asyncio.sleep(0.015)

    assert told(tmp_path, models, behaviours, both, "a b c") == [
        "began at once; executing for 25 ms",
        "queued 15 ms: the only instance ran another request",
        "has waited 15 ms for a larger batch: 1 request in the queue, wanted 8 rows",
    ]


def test_calls_are_told_under_who_has_made_them(tmp_path: Path) -> None:
    async def calls(batch: Batch) -> Result:
        child: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = InferenceRequest("inner", dict(batch.requests[0].inputs), lambda *_: child.set_result(None), parent=batch)
        running[0].submit(request)
        await child
        await asyncio.sleep(0.001)
        return echo(batch)

    running: list[Kernel] = []

    async def main() -> None:
        write_repository(tmp_path, {"outer": BASE, "inner": BASE})
        backend = TestBackend({"outer": calls, "inner": sleeping(0.02)})
        async with Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
            running.append(kernel)
            client = Client(kernel)
            client.send("outer", "a")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            client.send("inner", "b")
            await asyncio.sleep(0.01)
            (going,) = kernel.explain("a")
            assert going.lines() == [
                "request 'a' of model 'outer' version 1, 10 ms: began at once; executing for 10 ms, with a call of 'inner' that "
                "has taken 10 ms so far",
                "  a request of model 'inner' version 1, 10 ms: began at once; executing for 10 ms",
            ]
            await asyncio.sleep(1)
            (done,) = kernel.explain("a")
            assert done.lines() == [
                "request 'a' of model 'outer' version 1, 21 ms: began at once; executed 21 ms, with a call of 'inner' that took "
                "20 ms",
                "  a request of model 'inner' version 1, 20 ms: began at once; executed 20 ms",
            ]
            (other,) = kernel.explain("b")
            assert other.words == "queued 20 ms: the only instance ran another request; executed 20 ms" and not other.calls
            assert [one.id for one in kernel.explain(slowest=2)] == ["b", "a"]

    run(main())


def test_steps_of_an_ensemble(tmp_path: Path) -> None:
    words = []

    async def main() -> None:
        write_repository(tmp_path, {"inner": BASE, "outer": ENSEMBLE % "inner"})
        backend = TestBackend({"inner": sleeping(0.02)})
        async with Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
            Client(kernel).send("outer", "a")
            await asyncio.sleep(1)
            words.extend(one.lines() for one in kernel.explain("a"))

    run(main())
    assert words == [
        [
            "request 'a' of model 'outer' version 1, 20 ms: began at once; executed 20 ms, with a step of 'inner' that took "
            "20 ms",
            "  request 'a' of model 'inner' version 1, 20 ms: began at once; executed 20 ms",
        ]
    ]


def test_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of all, the slowest with what they waited for, and of what failed so many; for an hour."""
    monkeypatch.setattr(history, "NEWEST", 2 * FOLD)
    monkeypatch.setattr(history, "SLOWEST", 3)

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        seconds = {"slow": 2.0, "slower": 3.0}

        async def by_name(batch: Batch) -> Result:
            await asyncio.sleep(seconds.get(batch.requests[0].id, 0.001))
            return echo(batch)

        async with Kernel(tmp_path, plugins=[TestBackend({"m": by_name})], control_mode="explicit", load_models=["m"]) as kernel:
            client = Client(kernel)
            for id in ("slow", "slower", "behind"):
                client.send("m", id)
            await asyncio.sleep(10)
            for number in range(5 * FOLD):
                client.send("m", f"n{number}")
                await asyncio.sleep(0.01)
            assert [(one.id, one.words) for one in kernel.explain(slowest=10)] == [
                ("behind", "queued 5 s: the only instance ran 2 other requests; executed 1 ms"),
                ("slower", "queued 2 s: the only instance ran another request; executed 3 s"),
                ("slow", "began at once; executed 2 s"),
            ]
            assert kernel.explain("n100") == [] and len(kernel.explain(f"n{5 * FOLD - 1}")) == 1
            assert len(kernel.explain("slow")) == 1
            assert sum(1 for _ in kernel.supervision.history.records()) <= 2 * FOLD + 3
            await asyncio.sleep(3600)
            assert kernel.explain(slowest=10) == []
            for id in ("x", "y", "z"):
                client.send("m", id)
            await asyncio.sleep(1)
            assert [one.id for one in kernel.explain(slowest=10)] == ["z", "y", "x"]

    run(main())


def test_executions_of_which_no_answer_came_are_told_as_well(tmp_path: Path) -> None:
    """An instance is busy, whatever becomes of what it executes."""

    async def by_name(batch: Batch) -> Result:
        await asyncio.sleep(0.05)
        if batch.requests[0].id == "fails":
            raise ServingError(Code.INVALID_ARG, "no such row")
        return echo(batch)

    async def story(kernel: Kernel, client: Client) -> None:
        for first in ("fails", "gone"):
            request = client.send("m", first)
            await asyncio.sleep(0.01)
            client.send("m", f"behind {first}")
            await asyncio.sleep(0.01)
            if first == "gone":
                kernel.cancel(request)
            await asyncio.sleep(10)
        words = [one.words for id in ("behind fails", "behind gone") for one in kernel.explain(id)]
        assert words == ["queued 40 ms: the only instance ran another request; executed 50 ms"] * 2
        assert [one.words for one in kernel.explain("gone")] == [
            "began at once; executing for 20 ms; failed after 20 ms: CANCELLED: [request id: gone] Request cancelled"
        ]

    told(tmp_path, {"m": BASE}, {"m": by_name}, story, "")


def test_decoupled_models(tmp_path: Path) -> None:
    """Their requests are counted when execute returns, and told of when the last response has come."""

    async def story(kernel: Kernel, client: Client) -> None:
        loop = asyncio.get_running_loop()

        def later(batch: Batch) -> None:
            for request in batch.requests:
                if request.id == "never":
                    continue
                answer = InferenceResponse.failure(Code.INTERNAL, "no paper") if request.id == "wrong" else InferenceResponse([])
                send = request.model.scheduler.send
                loop.call_later(0.2, send, request, answer, True)

        answer.append(later)
        for id in ("a", "wrong", "never"):
            client.send("m", id)
            await asyncio.sleep(0.05)
        assert [one.words for one in kernel.explain("a")] == [
            "began at once; executed 0 µs; its sender has still to answer, 150 ms later"
        ]
        await asyncio.sleep(1)
        assert [one.words for id in ("a", "wrong") for one in kernel.explain(id)] == [
            "began at once; executed 0 µs; its sender took 200 ms more until the final response",
            "began at once; executed 0 µs; its sender took 200 ms more until the final response; failed after 200 ms: INTERNAL: "
            "no paper",
        ]
        assert [one.id for one in kernel.explain(slowest=10)] == ["a"]
        assert [one.state for one in kernel.explain("never")] == ["EXECUTING"]

    answer: list[Callable[[Batch], None]] = []
    told(tmp_path, {"m": DECOUPLED}, {"m": lambda batch: answer[0](batch)}, story, "")


def test_calls_at_the_same_time_are_not_added_up(tmp_path: Path) -> None:
    async def calls(batch: Batch) -> Result:
        done = asyncio.Event()
        left = ["x", "y", "y"]
        for name in left[:]:
            request = InferenceRequest(
                name, dict(batch.requests[0].inputs), lambda *_: left.pop() and not left and done.set(), parent=batch
            )
            running[0].submit(request)
            await asyncio.sleep(0.001)
        await done.wait()
        return echo(batch)

    async def story(kernel: Kernel, client: Client) -> None:
        running.append(kernel)
        client.send("outer", "a")
        await asyncio.sleep(0.01)
        assert [one.words for one in kernel.explain("a")] == [
            "began at once; executing for 10 ms, with 3 calls of 'x' and 'y' that have taken 10 ms so far"
        ]
        await asyncio.sleep(1)
        assert [one.words for one in kernel.explain("a")] == [
            "began at once; executed 41 ms, with 3 calls of 'x' and 'y' that took 41 ms"
        ]

    running: list[Kernel] = []
    told(tmp_path, {"outer": BASE, "x": BASE, "y": BASE}, {"outer": calls, "x": sleeping(0.02), "y": sleeping(0.02)}, story, "")


def test_steps_are_told_under_their_ensemble_alone(tmp_path: Path) -> None:
    async def story(kernel: Kernel, client: Client) -> None:
        client.send("outer", "a")
        await asyncio.sleep(0.01)
        (going,) = kernel.explain("a")
        assert going.words == "began at once; executing for 10 ms, with a step of 'inner' that has taken 10 ms so far"
        assert kernel.explain(going_request := client.send("inner", "b")) == kernel.explain("b")
        assert going_request.id == "b"
        await asyncio.sleep(1)
        assert [(one.id, one.model) for one in kernel.explain(slowest=10)] == [("b", "inner"), ("a", "outer")]
        assert [one.model for one in kernel.explain("a")] == ["outer"]

    told(tmp_path, {"inner": BASE, "outer": ENSEMBLE % "inner"}, {"inner": sleeping(0.02)}, story, "")


def test_a_request_that_another_replica_has_executed(tmp_path: Path) -> None:
    """Its record is there; here is known how long that took."""

    async def story(kernel: Kernel, client: Client) -> None:
        away = Away(kernel.model("m"), kernel.model("m").scheduler, lambda request: None, kernel.clock)
        words: list[str] = []

        def respond(response: InferenceResponse | None, final: bool) -> None:
            words.extend(one.words for one in kernel.explain(request))

        request = InferenceRequest("m", {}, respond, id="a")

        class Peer:
            def hand(self, *_: Any) -> int:
                return 1

            def cancel(self, number: int) -> None: ...

        for error in (None, ServingError(Code.INTERNAL, "no row")):
            request = InferenceRequest("m", {}, respond, id="a")
            away.send(Peer(), request, 0.01, kernel.clock())
            await asyncio.sleep(0.02)
            away.answered(request, InferenceResponse([], error=error), True)
        assert words == [
            "handed over to another replica, which took 20 ms",
            "handed over to another replica, which took 20 ms; failed: INTERNAL: no row",
        ]

    told(tmp_path, {"m": BASE}, {"m": echo}, story, "")


def test_warmups_are_not_told(tmp_path: Path) -> None:
    warmup = 'model_warmup { name: "w" count: 3 inputs { key: "X" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n'

    async def story(kernel: Kernel, client: Client) -> None:
        assert kernel.explain(slowest=10) == [] and kernel.explain("") == []
        client.send("m", "a")
        await asyncio.sleep(1)
        assert [one.words for one in kernel.explain(slowest=10)] == ["began at once; executed 20 ms"]

    told(tmp_path, {"m": BASE + warmup}, {"m": sleeping(0.02)}, story, "")


def test_ids_without_end_are_not_kept_as_they_are(tmp_path: Path) -> None:
    """8192 requests with ids of a megabyte each would have kept 8 GB."""
    long = "x" * 100_000

    def fail(batch: Batch) -> Result:
        raise ServingError(Code.INVALID_ARG, "no")

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE, "wrong": BASE})
        backend = TestBackend({"m": sleeping(0.01), "wrong": fail})
        async with Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
            client = Client(kernel)
            for model in ("m", "wrong"):
                client.send(model, f"{model}{long}")
                client.send(model, f"{model}\n")
                await asyncio.sleep(1)
                (told,) = kernel.explain(f"{model}{long}")
                assert told.id == f"{model}{long}"[:256] + f"… ({len(model) + len(long)} characters)"
                (told,) = kernel.explain(f"{model}\n")
                assert told.id == f"{model}\n" and f"request '{model}\\n' of" in told.lines()[0]

    run(main())


def test_for_a_wait_too_short_to_be_told_of_no_history_is_looked_at() -> None:
    asked: list[Ran] = []

    def ran() -> list[Ran]:
        asked.append(Ran("m_0", 0.0, 2.0, 1))
        return asked

    short = HAND_OVER / 2
    assert waited(1.0, 1.0 + short, ran, 1) == Waited(0.0, pytest.approx(short), 0, 0) and not asked
    assert waited(1.0, 1.5, ran, 1) == Waited(0.5, 0.0, 1, 1) and asked


def test_what_was_over_long_before_is_not_looked_at() -> None:
    """Else whoever asks for explanations with each request has the loop look at all that is kept each time."""
    kept = history.History()
    models = [history.ModelHistory(kept, name, 1) for name in "ab"]
    rng, now = random.Random(1), 0.0
    every: list[tuple[history.ModelHistory, Record]] = []
    for _ in range(300):
        now += 1.0
        model = models[rng.randrange(2)]
        moments = sorted(now - rng.random() * rng.choice((1, 20)) for _ in range(3))
        records: list[Record] = [(1, moments[0], moments[1], 0.0, 0.0, moments[2], now, "", f"i{now}", None, None)]
        every += [(model, record) for record in records]
        model.take(records)
    for owner in models:
        for since in (250.0, 297.0, 10.0, 400.0):
            wanted = {one[8] for whose, one in every if whose is owner and one[2] < since + 5 and one[5] > since}
            assert {one.instance for one in kept.meanwhile(owner, since, since + 5)} == wanted
    fresh = history.History()
    model = history.ModelHistory(fresh, "m", 1)
    for k in range(1000):
        model.take([(1, k, k, k, k, k + 0.5, k + 0.5, "", "i", None, None)])
    assert len(fresh.meanwhile(model, 996.9, 1000.0)) == 3
    assert sum("began" in vars(delivery) for delivery in model.deliveries) == 3


def test_a_model_lets_go_of_what_the_history_lets_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "NEWEST", 10)
    kept = history.History()
    models = [history.ModelHistory(kept, name, 1) for name in "ab"]
    for k in range(100):
        models[k % 7 == 0].take([(1, k, k, k, k, k + 0.5, k + 0.5, "", "i", None, None)] * (1 + k % 3))
    assert sum(len(delivery.records) for model in models for delivery in model.deliveries) <= 10
    assert len(list(models[0].deliveries)) + len(models[1].deliveries) == len(kept._deliveries)
