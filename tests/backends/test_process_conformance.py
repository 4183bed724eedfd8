"""Placement `process` keeps the contract that the others keep: their own tests once more, with every model in a child.

What is left out says why. What only a process can show is in the other test_process files.
"""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent

IN_PROCESS = "the model meets the test in the test's own memory"
OTHER_PLACEMENT = "is about how another placement works"
SAME = "adds nothing that the tests taken do not show of a child"

#: file -> tests that are not taken -> why
LEFT_OUT = {
    "test_python_execute": {
        "test_a_cancelled_request_may_have_anything_in_its_place": IN_PROCESS,
        "test_what_a_sender_refuses": IN_PROCESS,
        "test_a_lost_sender_in_a_cycle_is_told_when_it_is_collected": IN_PROCESS,
        "test_foresight_reads_every_file_of_the_model": OTHER_PLACEMENT,
        "test_foresight_is_careful_where_a_library_knows_pb_utils": OTHER_PLACEMENT,
        "test_a_wrong_guess_costs_one_request_and_says_why": OTHER_PLACEMENT,
        "test_a_coroutine_that_nothing_announced_costs_one_request": OTHER_PLACEMENT,
    },
    "test_python_bls": {
        "test_who_waits_on_the_loop_for_a_thread_that_needs_it_is_told": OTHER_PLACEMENT,
        "test_tasks_that_wait_in_a_call_can_be_cancelled": OTHER_PLACEMENT,
        "test_an_apps_own_task_factory_goes_on": OTHER_PLACEMENT,
        "test_the_parents_cancellation_reaches_the_child": IN_PROCESS,
        "test_exec_by_code_outside_of_the_model_is_driven_from_the_second_time_on": OTHER_PLACEMENT,
        "test_a_call_on_the_loop_leaves_its_callers_context_alone": OTHER_PLACEMENT,
        "test_a_plain_execution_does_not_leave_the_greenlet_of_its_caller": OTHER_PLACEMENT,
    },
    "test_python_load": {
        "test_where_execute_runs": OTHER_PLACEMENT,
        "test_a_file_is_imported_once_in_the_life_of_an_instance": IN_PROCESS,
        "test_a_model_is_examined_once_a_load": OTHER_PLACEMENT,
        "test_what_was_imported_for_a_load_that_failed_is_forgotten": IN_PROCESS,
        "test_trees_are_made_by_many_threads_at_a_time": SAME,
        "test_parameters_that_cannot_be_served": SAME,
        "test_what_auto_complete_refuses": SAME,
        "test_auto_complete_fills_what_the_config_left_open": SAME,
        "test_many_models_load_at_once": SAME,
    },
}

#: Parameters that say where a model runs are all the same here.
FIXED = {"placement": "process", "callee": "process"}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"process_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take(name: str) -> None:
    """Bring the tests of a file, and its fixtures, into this one."""
    module = load(name)
    taken = {}
    for key, value in vars(module).items():
        if key.startswith("test_") and inspect.isfunction(value):
            taken[key] = value
    unknown = LEFT_OUT[name].keys() - taken.keys()
    assert not unknown, f"{name} has no {sorted(unknown)}"
    for key, value in taken.items():
        if key not in LEFT_OUT[name]:
            value.pytestmark = [fixed(mark) for mark in getattr(value, "pytestmark", [])]
            globals()[f"{key}_{name.rpartition('_')[2]}"] = value


def fixed(mark: pytest.Mark) -> pytest.Mark:
    """Return the mark with one value for each parameter that says where a model runs."""
    if mark.name != "parametrize" or not isinstance(mark.args[0], str) or mark.args[0] not in FIXED:
        return mark
    return pytest.mark.parametrize(mark.args[0], [FIXED[mark.args[0]]]).mark


for _name in LEFT_OUT:
    take(_name)


@pytest.fixture
def repo(repo: Any) -> Any:
    """A repository whose models all run in processes."""
    add = repo.add

    def add_in_process(name: str, code: str, **options: Any) -> Path:
        options["parameters"] = {**(options.get("parameters") or {}), "placement": "process"}
        return Path(add(name, code, **options))

    repo.add = add_in_process
    return repo


@pytest.fixture
def placement() -> str:
    return FIXED["placement"]


@pytest.fixture
def callee() -> str:
    return FIXED["callee"]


@pytest.fixture(params=["def", "async def"])
def define(request: Any) -> str:
    return str(request.param)


@pytest.fixture(params=["def", "async def"])
def way(request: Any) -> Any:
    return request.param, FIXED["placement"]
