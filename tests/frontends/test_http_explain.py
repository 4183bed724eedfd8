"""Why requests took as long as they did, over HTTP: beside answers that ask for it, and of those that are over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from frontends.fakes import Client, infer, parse, request, tensor

from kernel import Code, Explanation, InferenceRequest, InferenceResponse, Interval, server_timing
from kernel.frontends.timing import LONGEST
from kernel_http.operations.operation import PAUSE

INTERVALS = (
    Interval("queue", 0.0, 0.041, "queued 41 ms: the only instance ran a batch of 3"),
    Interval("execute", 0.041, 0.00025, "executed 250 µs"),
)
TOLD = Explanation("multi", 1, "q", 1000.0, "ANSWERED", 0.04125, INTERVALS, "multi_0_0", 1, "queued 41 ms; executed 250 µs")
CALL = replace(TOLD, model="inner", id="")


@pytest.fixture
def client() -> Client:
    client = Client()
    client.kernel.explain = explain  # type: ignore[attr-defined]
    return client


def asked(client: Client, path: str) -> Any:
    """Return the answer of who asks when nobody has asked just before."""
    client.kernel.loop.advance(PAUSE)
    return client.ask(request("GET", f"/v2/kernel/explain/{path}"))


def explain(asked: Any = "", *, slowest: int = 0, failed: int = 0) -> list[Explanation]:
    if isinstance(asked, InferenceRequest):
        return [replace(TOLD, id=asked.id)]
    if slowest or failed:
        return [replace(TOLD, id=f"{'slowest' if slowest else 'failed'} {k}") for k in range(slowest or failed)]
    return [replace(TOLD, id=asked, calls=(CALL,))] if asked else []


ADDED = {"inputs": [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4], [1, 1, 1, 1])]}


def test_an_answer_that_says_why(client: Client) -> None:
    for _ in range(2):  # the second one would be recognised, were it like others
        response = client.ask(infer("add_sub", {**ADDED, "id": "a"}, "x-explain: 1"))
        assert response.status == 200
        assert response.headers["Server-Timing"] == (
            'total;dur=41.250;desc="ANSWERED", queue;dur=41.000;desc="queued 41 ms: the only instance ran a batch of 3", '
            'execute;dur=0.250;desc="executed 250 us"'
        )
        words = "request 'a' of model 'multi' version 1, 41.2 ms: queued 41 ms; executed 250 µs"
        assert response.json["parameters"]["explain"] == words
    for line in ("x-explain: 0", "x-explained: 1"):
        response = client.ask(infer("add_sub", ADDED, line))
        assert "Server-Timing" not in response.headers and "parameters" not in response.json


def test_beside_compression_and_errors(client: Client) -> None:
    response = client.ask(infer("add_sub", ADDED, "x-explain: 1", "Accept-Encoding: gzip"))
    assert response.headers["Content-Encoding"] == "gzip" and response.headers["Server-Timing"].startswith("total;")
    response = client.ask(infer("nowhere", ADDED, "x-explain: 1"))
    assert response.status == 404 and "Server-Timing" not in response.headers, "it came to no model"
    client.kernel.hold = True
    client.send(infer("add_sub", ADDED, "x-explain: 1"))
    (held,) = client.kernel.held
    held.respond(InferenceResponse.failure(Code.INTERNAL, "no"), True)
    (response,) = parse(client.take())
    assert response.status == 500 and response.headers["Server-Timing"].startswith("total;")


def test_an_explanation_that_fails_costs_no_answer(client: Client) -> None:
    client.kernel.explain = lambda asked: 1 // 0  # type: ignore[attr-defined]
    response = client.ask(infer("add_sub", ADDED, "x-explain: 1"))
    assert response.status == 200 and "Server-Timing" not in response.headers and "parameters" not in response.json


def test_texts_that_are_no_utf_8_are_told_all_the_same(client: Client) -> None:
    half = Interval("wait", 0.0, 1.0, "for '\udcff'")
    odd = replace(TOLD, id="\udcff", intervals=(half,), words="no file '\udcff', é", error="no file '\udcff'")
    client.kernel.explain = lambda *asked, **more: [odd]  # type: ignore[attr-defined]
    (told,) = asked(client, "failed").json["requests"]
    assert told["id"] == "\\udcff" and told["words"] == "no file '\\udcff', é" and told["error"] == "no file '\\udcff'"
    assert told["intervals"][0]["words"] == "for '\\udcff'"


def test_what_a_header_can_carry() -> None:
    strange = Interval("wait", 0.0, 1.0, 'as "x" said \\ \n\r that ' + "long " * 100)
    told = server_timing(replace(TOLD, intervals=(strange,) * 50)).decode()
    assert len(told) <= LONGEST and told.isascii() and told.isprintable()
    assert told.count('"') == 2 * told.count(";desc=")


def test_requests_that_are_over(client: Client) -> None:
    def ids(path: str) -> Any:
        response = asked(client, path)
        return response.status, [one["id"] for one in response.json.get("requests", ())]

    assert ids("id/a%2Fb%20c") == (200, ["a/b c"])
    assert ids("slowest") == (200, [f"slowest {k}" for k in range(10)]) and ids("slowest/2") == (200, ["slowest 0", "slowest 1"])
    assert ids("failed") == (200, [f"failed {k}" for k in range(10)]) and len(ids("failed/100")[1]) == 100
    response = asked(client, "failed/101")
    assert (response.status, response.error) == (400, "101 requests are asked for, wanted are 1 to 100")
    for kind in ("slowest", "failed"):  # which is no question for those without an id
        response = asked(client, f"{kind}/00")
        assert (response.status, response.error) == (400, "0 requests are asked for, wanted are 1 to 100")
    (told,) = asked(client, "id/q").json["requests"]
    assert told["lines"] == [
        "request 'q' of model 'multi' version 1, 41.2 ms: queued 41 ms; executed 250 µs",
        "  a request of model 'inner' version 1, 41.2 ms: queued 41 ms; executed 250 µs",
    ]
    assert told["intervals"][0] == {
        "kind": "queue", "at": 0.0, "seconds": 0.041, "words": "queued 41 ms: the only instance ran a batch of 3",
    }  # fmt: skip
    for path in ("", "/", "/id", "/id/", "/slowest/-1", "/slowest/12345", "/slowest/x", "/all"):
        assert client.ask(request("GET", f"/v2/kernel/explain{path}")).status == 404, path


def test_who_asks_without_pause_is_told_the_same_for_half_a_second(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen connections that asked for the slowest hundred held up a health check for 425 ms."""
    found: list[dict[str, int]] = []

    def counted(**which: int) -> list[Explanation]:
        found.append(which)
        return explain(**which)

    client.kernel.explain = counted  # type: ignore[attr-defined]
    for path in ("slowest", "slowest/100", "failed/7", "slowest/3", "failed"):
        assert asked(client, path).status == 200
    assert found == [{"slowest": 100}, {"failed": 100}]
    now = client.kernel.clock()
    monkeypatch.setattr(client.kernel, "clock", lambda: now + 0.5)
    assert asked(client, "slowest").status == 200 and len(found) == 3


def test_one_explanation_at_a_time_and_nobody_waits_behind_those_who_ask(client: Client) -> None:
    """As turns of their connections, 16 that asked for an id all the time held up a health check for 192 ms."""
    found: list[str] = []

    def counted(id: str) -> list[Explanation]:
        found.append(id)
        return explain(id)

    kernel = client.kernel
    kernel.explain = counted  # type: ignore[attr-defined]
    others = [Client(kernel, server=client.connection.server) for _ in range(16)]
    for number, other in enumerate(others):
        other.send(request("GET", f"/v2/kernel/explain/id/{number}") * 2)
    assert found == ["0"]
    assert client.ask(request("GET", "/v2/health/live")).status == 200 and len(found) == 1
    others[1].lose()  # nobody waits for these any more
    for _ in range(15):
        kernel.loop.advance(PAUSE)
        assert client.ask(request("GET", "/v2/health/live")).status == 200
    assert found == ["0", "0", *map(str, range(2, 16))], "each has its turn"
    kernel.loop.advance(16 * PAUSE)
    assert all(len(parse(other.take())) == 2 for other in others if other is not others[1]) and len(found) == 30
