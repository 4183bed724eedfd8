"""The memory budget of the front ends: what is new is refused above it, what was accepted is counted."""

from __future__ import annotations

import pytest

from kernel import Code, Kernel, MemoryBudget, ServingError
from kernel.frontends.budget import Account, machine_memory


def test_new_work_is_refused_above_the_limit() -> None:
    account = Account(100, "--memory-limit-receive")
    assert account.take(60)
    assert not account.take(41)
    assert (account.used, account.refused, account.full) == (60, 1, False)
    assert account.take(40)
    assert account.full
    account.give_back(60)
    assert account.used == 40


def test_what_was_accepted_is_counted_above_the_limit() -> None:
    account = Account(100, "--memory-limit-send")
    account.add(250)
    assert account.full
    assert not account.take(1)
    account.give_back(250)
    assert account.take(100)


def test_more_than_was_taken_cannot_be_given_back() -> None:
    account = Account(100, "--memory-limit-send")
    with pytest.raises(AssertionError, match="more bytes were given back to --memory-limit-send than were taken"):
        account.give_back(1)


def test_a_refusal_says_which_limit_and_how_much_is_held() -> None:
    account = Account(100, "--memory-limit-receive")
    account.add(90)
    error = account.refusal()
    assert error.code is Code.UNAVAILABLE
    assert error.message == (
        "the server holds 90 of the 100 bytes that --memory-limit-receive allows for its clients; try again later"
    )


def test_limits_by_default_are_a_quarter_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.frontends.budget.machine_memory", lambda: 8 * 1024**3)
    budget = MemoryBudget()
    assert (budget.receive.limit, budget.send.limit) == (2 * 1024**3, 2 * 1024**3)
    budget = MemoryBudget(receive=1000)
    assert (budget.receive.limit, budget.send.limit) == (1000, 2 * 1024**3)


@pytest.mark.parametrize(
    ("texts", "found"),
    [(["max\n"], None), (["1048576\n"], 1048576), (["max", "4096\n"], 4096), (["9223372036854771712\n"], None), ([], None)],
)
def test_a_control_group_bounds_what_the_machine_has(tmp_path: object, texts: list[str], found: int | None) -> None:
    from pathlib import Path

    paths = []
    for index, text in enumerate(texts):
        path = Path(str(tmp_path)) / str(index)
        path.write_text(text)
        paths.append(path)
    whole = machine_memory(())
    assert whole > 64 * 1024**2
    assert machine_memory((*paths, Path("/not/there"))) == (found or whole)


def test_a_kernel_has_the_limits_it_was_told() -> None:
    kernel = Kernel(memory_limit_receive=10_000, memory_limit_send=20_000)
    assert (kernel.memory.receive.limit, kernel.memory.send.limit) == (10_000, 20_000)
    with pytest.raises(ServingError, match="memory_limit_send is -1, wanted at least 0"):
        Kernel(memory_limit_send=-1)


def test_listeners_are_told_once_when_it_is_full_and_when_a_tenth_is_free() -> None:
    account = Account(100, "--memory-limit-send")
    told: list[bool] = []
    account.on_full(told.append)
    account.add(99)
    account.add(50)
    account.add(1)
    account.give_back(55)
    assert told == [True]
    account.give_back(5)
    account.give_back(50)
    assert told == [True, False]
    account.add(100)
    assert told == [True, False, True]
