"""Models that say themselves whether they are ready: one question for all who ask meanwhile, five seconds, and no means no."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import virtual

from kernel.instances.instance import ModelInstance
from kernel.models.readiness import ANSWER_SECONDS, Readiness

Question = Callable[[], "bool | Awaitable[bool]"]


class Executor:
    capacity = 1

    def __init__(self, question: Question | None) -> None:
        self.is_ready = question


class Bare:
    """An executor of a backend that knows nothing of this."""

    capacity = 1


def instance(executor: Any) -> ModelInstance:
    return ModelInstance("m_0_0", cast(Any, executor), asyncio.get_running_loop().time)


async def asked(readiness: Readiness, *instances: ModelInstance) -> bool:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    readiness.ask(instances, future.set_result)
    return await future


def test_who_has_nothing_to_say_is_ready_at_once() -> None:
    async def main() -> None:
        told: list[bool] = []
        Readiness().ask([instance(Bare()), instance(Executor(None))], told.append)
        assert told == [True]

    virtual.run(main())


def test_every_instance_has_to_be_ready() -> None:
    async def yes() -> bool:
        await asyncio.sleep(3)
        return True

    async def no() -> bool:
        return False

    async def main() -> None:
        readiness = Readiness()
        assert await asked(readiness, instance(Executor(yes)), instance(Bare()), instance(Executor(yes)))
        assert not await asked(readiness, instance(Executor(yes)), instance(Executor(no)))

    virtual.run(main())


def test_one_question_for_all_who_ask_meanwhile() -> None:
    calls = []

    async def question() -> bool:
        calls.append(asyncio.get_running_loop().time())
        await asyncio.sleep(2)
        return len(calls) == 1

    async def main() -> None:
        readiness, one = Readiness(), instance(Executor(question))
        first = asyncio.ensure_future(asked(readiness, one))
        await asyncio.sleep(1)
        assert await asyncio.gather(asked(readiness, one), first, asked(readiness, one)) == [True] * 3
        assert len(calls) == 1
        assert await asked(readiness, one) is False
        assert len(calls) == 2

    virtual.run(main())


def test_no_answer_in_five_seconds_is_none(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    async def main() -> None:
        now = asyncio.get_running_loop().time
        release = asyncio.Event()

        async def question() -> bool:
            calls.append(now())
            await release.wait()
            return True

        readiness, one, began = Readiness(), instance(Executor(question)), now()
        assert not await asked(readiness, one)
        assert now() - began == pytest.approx(ANSWER_SECONDS)
        assert not await asked(readiness, one)
        assert len(calls) == 1, "the question that hangs is asked once"
        waiting = asyncio.ensure_future(asked(readiness, one))
        await asyncio.sleep(1)
        release.set()
        assert await waiting

    with caplog.at_level(logging.WARNING, "kernel"):
        virtual.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "model instance 'm_0_0' is not ready: its is_ready() has said nothing for 5 seconds"
    ]


def test_what_raises_is_not_ready_and_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [ValueError("no database"), ValueError("no database"), True, False, False]

    async def question() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    async def main() -> None:
        readiness, one = Readiness(), instance(Executor(question))
        assert [await asked(readiness, one) for _ in range(5)] == [False, False, True, False, False]

    with caplog.at_level(logging.WARNING, "kernel"):
        virtual.run(main())
    assert [record.getMessage().partition("not ready: ")[2] for record in caplog.records] == [
        "its is_ready() failed: ValueError: no database",
        "its is_ready() says no",
    ]
