"""A model that keeps failing is given a rest: the rule alone, and in front of a model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import BASE, Client, TestBackend, answer, run, write_repository

from kernel import Batch, Code, Kernel, Overloaded, ServingError
from kernel.config.circuit_breaker import BreakerRule
from kernel.rules.breaker import Breaker

RULE = 'parameters { key: "circuit_breaker" value { string_value: "%s" } }\n'


# -- the rule ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "rule"), [("5", (5, 10.0)), ("3/0.5", (3, 0.5)), ("007/60", (7, 60.0)), ("1/0", (1, 0.0))])
def test_what_a_config_may_say(text: str, rule: tuple[int, float]) -> None:
    assert BreakerRule.parse(text) == BreakerRule(*rule)


@pytest.mark.parametrize("text", ["", "0", "-1", "5/", "/5", "5/-1", "5/x", "1e3", "5/1e3", "٣", " 5"])
def test_what_it_may_not(text: str) -> None:
    with pytest.raises(ValueError, match="is not '<failures>' or '<failures>/<seconds>'"):
        BreakerRule.parse(text)


def test_failures_in_a_row_open_it_and_one_success_closes_it() -> None:
    breaker = Breaker(BreakerRule(2, 10.0))
    breaker.failed("a", "no", 0.0)
    breaker.succeeded("b")
    breaker.failed("c", "no", 1.0)
    assert not breaker.is_open and breaker.wait(1.0) == 0.0
    breaker.failed("d", "not at all", 2.0)
    assert breaker.is_open and breaker.wait(2.0) == 10.0 and breaker.wait(7.0) == 5.0
    assert (breaker.failures, breaker.why) == (2, "not at all")
    breaker.succeeded("from before")  # it says nothing of now
    breaker.failed("from before, too", "old", 3.0)
    assert breaker.wait(7.0) == 5.0 and breaker.wait(12.0) == 0.0
    breaker.enter("one")
    assert breaker.wait(12.0) > 0.0
    breaker.left("one")
    assert breaker.wait(13.0) == 0.0
    breaker.enter("two")
    breaker.failed("two", "still", 14.0)
    assert breaker.wait(14.0) == 10.0
    breaker.enter("three")
    breaker.succeeded("three")
    assert not breaker.is_open and breaker.failures == 0


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("come come good bad left".split()), st.integers(0, 5), st.sampled_from([0.0, 1.0, 11.0]))),
)
def test_at_most_one_tries_and_nobody_is_kept_out_for_ever(failures: int, steps: list[tuple[str, int, float]]) -> None:
    breaker, now, inside, count = Breaker(BreakerRule(failures, 10.0)), 0.0, list[int](), 0
    since_opened: list[int] = []
    for what, which, seconds in steps:
        now += seconds
        before = breaker.is_open
        if what == "come":
            if not breaker.wait(now):
                count += 1
                breaker.enter(count)
                inside.append(count)
                if before:
                    since_opened.append(count)
        elif inside:
            who = inside.pop(which % len(inside))
            if what == "bad":
                breaker.failed(who, "no", now)
            else:
                (breaker.succeeded if what == "good" else breaker.left)(who)
            if who in since_opened:
                since_opened.remove(who)
        if not breaker.is_open or not before:
            since_opened.clear()
        assert len(since_opened) <= 1
    for who in inside:
        breaker.left(who)
    assert breaker.wait(now + 11.0) == 0.0


# -- in front of a model -------------------------------------------------------------------------------------------------


def test_a_model_that_fails_is_refused_quickly_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    executed: list[str] = []
    broken = True

    def behaviour(batch: Batch) -> Any:
        executed.extend(request.id for request in batch.requests)
        if broken:
            raise ServingError(Code.INTERNAL, "no weights today")
        return [answer(request) for request in batch.requests]

    async def main() -> None:
        nonlocal broken
        backend = TestBackend({"m": behaviour})
        folder = write_repository(tmp_path, {"m": RULE % "3/20" + BASE, "other": BASE})
        async with Kernel(folder, plugins=[backend]) as kernel:
            client = Client(kernel)

            async def said(id: str) -> str:
                client.send("m", id)
                await asyncio.sleep(0)
                return client.outcome(id)[1]

            assert [await said(str(index)) for index in range(3)] == ["no weights today"] * 3
            refused = await said("refused")
            assert refused == (
                "[request id: refused] model 'm' has failed 3 times in a row (its parameter circuit_breaker), and is tried again "
                "in 20 s at the latest; it said last: no weights today"
            )
            assert isinstance(client.requests["refused"].error, Overloaded)
            client.send("other", "other")
            await asyncio.sleep(15)
            assert client.outcome("other")[1] == "ok" and "in 5 s at the latest" in await said("later")
            await asyncio.sleep(6)
            assert await said("tried") == "no weights today" and "in 20 s" in await said("again")
            await asyncio.sleep(21)
            broken = False
            assert [await said(name) for name in ("well", "on")] == ["ok", "ok"]
            assert executed == ["0", "1", "2", "tried", "well", "on"]

    run(main())
    assert [text for text in caplog.messages if "in a row" in text or "again:" in text] == [
        "model 'm' has failed 3 times in a row: requests are refused for 20 s; it said last: no weights today",
        "model 'm' answers again: requests are let in",
    ]


def test_what_says_nothing_of_the_model_does_not_count(tmp_path: Path) -> None:
    """Requests that are cancelled, late, or refused."""

    async def main() -> None:
        from virtual import sleeping

        backend = TestBackend({"m": sleeping(1.0)})
        async with Kernel(write_repository(tmp_path, {"m": RULE % 1 + BASE}), plugins=[backend]) as kernel:
            client = Client(kernel)
            for index in range(3):
                client.send("m", str(index), deadline=kernel.clock() + 0.5)
            client.send("m", "cancelled")
            await asyncio.sleep(0.1)
            kernel.cancel(client.requests["cancelled"])
            await asyncio.sleep(3)
            client.send("m", "last")
            await asyncio.sleep(3)
            assert client.outcome("last")[1] == "ok"

    run(main())


def test_where_none_is_asked_for_there_is_none(tmp_path: Path) -> None:
    async def main() -> str:
        models = {"m": BASE, "wrong": RULE % "many" + BASE}
        async with Kernel(write_repository(tmp_path, models), plugins=[TestBackend({})], exit_on_error=False) as kernel:
            model = kernel.model("m")
            assert model.enqueue == model.scheduler.enqueue and model.scheduler.life.on_release == ()
            return next(str(entry.reason) for entry in kernel.index() if entry.name == "wrong")

    words = "parameter 'circuit_breaker' of model 'wrong' is 'many' — wanted '<failures>' or '<failures>/<seconds>', such as 5/30"
    assert words in run(main())
