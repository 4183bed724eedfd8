"""Sequences that never end, many more than there are slots: each is answered or refused, and when is known before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stateful import END, START, config, send, serving
from virtual import run, sleeping

from kernel.config.sequence_wait import parse

MANY, SLOTS = 19_200, 16
EXPIRED = "timeout of the corresponding sequence has been expired"
PARAMETER = 'parameters { key: "%s" value { string_value: "%s" } }\n'


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 16 }"])
def test_each_is_silent_for_as_long_as_it_may_then_the_next_has_its_slot(tmp_path: Path, strategy: str) -> None:
    """So whoever comes last waits for as many rounds as there are before him, of the idle time each, and no longer."""

    async def main() -> None:
        text = config(SLOTS, f"{strategy} max_sequence_idle_microseconds: 250000")
        async with serving(tmp_path, text, sleeping(0.01)) as (client, _):
            for index in range(MANY):
                send(client, str(index), index + 1, START)
            send(client, "modest", MANY + 1, START | END)
            rounds = MANY // SLOTS
            await asyncio.sleep(rounds * 0.26 + 1)
            assert {said for _, said in client.outcomes().values()} == {"ok"}
            assert client.outcome("modest")[0] <= rounds * 0.26 + 0.01

    run(main())


def test_who_waits_for_those_that_never_fall_silent_is_refused_in_time(tmp_path: Path) -> None:
    """They keep their slots, as they may; all others have their answer, yes or no, after `sequence_wait` at the latest."""

    async def main() -> None:
        async with serving(tmp_path, config(SLOTS) + PARAMETER % ("sequence_wait", "5"), sleeping(0.01)) as (client, _):
            for index in range(SLOTS):
                send(client, f"talker {index} 0", index + 1, START)
            await asyncio.sleep(0.1)
            for index in range(SLOTS, MANY):
                send(client, str(index), index + 1, START)
            send(client, "more of the last", MANY)
            send(client, "shorter", MANY + 1, START, timeout_us=2_000_000)
            send(client, "longer", MANY + 2, START, timeout_us=60_000_000)
            for round in range(1, 12):
                await asyncio.sleep(0.5)
                for index in range(SLOTS):
                    send(client, f"talker {index} {round}", index + 1, END if (round, index) == (4, 7) else 0)
            await asyncio.sleep(2)
            outcomes = client.outcomes()
            assert {said for id, (_, said) in outcomes.items() if id.startswith("talker") and id < "talker 7"} == {"ok"}
            assert outcomes["shorter"] == (2.1, EXPIRED) and outcomes["longer"] == (5.1, EXPIRED)
            assert outcomes.pop(str(SLOTS))[1] == "ok"  # the first in line had the place of the one that has ended
            waited = {outcomes[str(index)] for index in range(SLOTS + 4, MANY)} | {outcomes["more of the last"]}
            assert waited == {(5.1, EXPIRED)}

    run(main())


def test_a_limit_of_those_in_flight_refuses_the_rest_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(SLOTS) + PARAMETER % ("max_inflight", "64"), sleeping(0.01)) as (client, _):
            for index in range(MANY):
                send(client, str(index), index + 1, START)
            await asyncio.sleep(0)
            answered = [id for id, answers in client.answers.items() if answers]
            assert answered == [str(index) for index in range(64, MANY)]
            assert all("has 64 requests in flight" in client.outcome(id)[1] for id in answered)
            await asyncio.sleep(5)
            assert [client.outcome(str(index))[1] for index in range(64)] == ["ok"] * 64

    run(main())


@pytest.mark.parametrize("value", ["-1", "soon", "", "1e3", "inf"])
def test_a_wait_that_can_t_be(tmp_path: Path, value: str) -> None:
    async def main() -> str:
        async with serving(tmp_path, config() + PARAMETER % ("sequence_wait", value), exit_on_error=False) as (client, _):
            return str(client.kernel.index()[0].reason)

    wanted = f"parameter 'sequence_wait' of model 'm' is '{value}' — wanted a number of seconds, 0 for any time"
    assert wanted in run(main())
    with pytest.raises(ValueError, match="is not a number of seconds"):
        parse(value)
