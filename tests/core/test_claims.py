"""Operations on related models: first come, first served, and nobody blocks anybody."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager

import pytest
from virtual import run

from kernel.registry.claims import Claims


def test_the_order() -> None:
    async def main() -> None:
        claims, log = Claims(), []
        loop = asyncio.get_running_loop()

        async def work(name: str, *names: str) -> None:
            async with claims.hold(names):
                await asyncio.sleep(1)
                log.append((name, loop.time() - 1000))

        tasks = [
            asyncio.ensure_future(work(*one.split()))
            for one in ("1 a b", "2 c", "3 b c", "4 a", "5 d", "6 a c", "7 d")
        ]
        await asyncio.sleep(0.5)
        assert claims.taken({"a", "d", "x"}) == {"a", "d"}
        assert claims.taken_with("b", {"a", "c", "d"}) == {"a", "c"}
        await asyncio.gather(*tasks)
        assert sorted(log) == [("1", 1), ("2", 1), ("3", 2), ("4", 2), ("5", 1), ("6", 3), ("7", 2)]
        assert claims.taken({"a", "b", "c", "d"}) == set()

    run(main())


def test_who_gives_up_waiting_or_fails_is_in_nobodys_way() -> None:
    async def main() -> None:
        claims = Claims()

        async def work(seconds: float, *names: str) -> None:
            async with claims.hold(names):
                await asyncio.sleep(seconds)
                if seconds == 2:
                    raise ValueError("planned")

        first = asyncio.ensure_future(work(2, "a"))
        second = asyncio.ensure_future(work(100, "a", "b"))
        third = asyncio.ensure_future(work(1, "b"))
        await asyncio.sleep(1)
        second.cancel()
        with pytest.raises(ValueError, match="planned"):
            await first
        await third
        assert asyncio.get_running_loop().time() == 1002.0

    run(main())


def test_any_number_of_any_kind_comes_to_an_end() -> None:
    async def main() -> None:
        dice, claims = random.Random(1), Claims()
        held: set[str] = set()

        async def work(names: set[str]) -> None:
            async with claims.hold(names):
                assert not held & names, "two operations at one model"
                held.update(names)
                try:
                    await asyncio.sleep(dice.random())
                finally:
                    held.difference_update(names)

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.ensure_future(work(set(dice.sample("abcdefgh", dice.randint(1, 4))))))
            await asyncio.sleep(dice.choice((0, 0, 0.1)))
            if dice.random() < 0.1:
                dice.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in results} <= {type(None), asyncio.CancelledError}

    run(main())


def test_whose_claim_is_made_first_is_first_whoever_runs_first() -> None:
    async def main() -> None:
        claims, log = Claims(), []

        async def work(name: str, turn: AbstractAsyncContextManager[None]) -> None:
            async with turn:
                log.append(name)

        first, second = claims.hold("a"), claims.hold("a")
        assert claims.taken("a")
        await asyncio.gather(work("second", second), work("first", first))
        assert log == ["first", "second"] and not claims.taken("a")

    run(main())
