"""What plugins supply is refused where it can't work, with the names that were wanted: at registration, or when a model loads."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from virtual import TestBackend, TestExecutor, run, write_repository

from kernel import Batch, InstanceContext, Kernel, ModelConfig, Placement, ServingError, hookimpl
from kernel.plugins import Plugins

IO = """
backend: "test"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
HOOKS = "add_options, register_backends, register_frontends, register_sites, make_gate, make_trace_sink, make_cache, " + (
    "open_repository, make_batcher, make_redactor"
)


class WrongName:
    @hookimpl
    def register_backend(self, kernel: Kernel) -> Mapping[str, Any]:
        return {}


class WrongArgument:
    @hookimpl
    def register_frontends(self, kernal: Kernel) -> list[Any]:
        return []


class NoMarker:
    def make_cache(self, name: str, settings: Mapping[str, str]) -> None:
        return None


class Undecorated:
    def register_backend(self, kernel: Kernel) -> Any:
        return {}


class NoReturn:
    @hookimpl
    def register_backends(self, kernel: Kernel) -> None:
        self.made = {"test": TestBackend({})}


class NoBackend:
    @hookimpl
    def register_backends(self) -> Mapping[str, Any]:
        class Mine:
            name = "mine"
            creates_on_loop = True

            def complete_config(self) -> None: ...
            def validate(self) -> None: ...
            def make(self) -> None: ...

        return {"mine": Mine()}


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (
            WrongName(),
            "plugin {0}.WrongName implements a hook 'register_backend' that there is not; there are "
            f"{HOOKS}; did you mean 'register_backends'?",
        ),
        (
            WrongArgument(),
            "plugin {0}.WrongArgument: Argument(s) {{'kernal'}} are declared in the hookimpl but can not be found in the "
            "hookspec; register_frontends may take kernel, options",
        ),
        (
            TestBackend,
            "plugin builtins.type is the class TestBackend; wanted is an object of it",
        ),
        (NoMarker(), "plugin {0}.NoMarker has a function 'make_cache' that is no hook, since @hookimpl is missing above it"),
        (
            Undecorated(),
            f"plugin {{0}}.Undecorated implements no hook; there are {HOOKS}, each below @hookimpl; "
            "it has a function 'register_backend': did you mean 'register_backends'?",
        ),
        (ModuleType("empty"), f"plugin empty implements no hook; there are {HOOKS}, each below @hookimpl"),
        (
            NoReturn(),
            "register_backends of plugin {0}.NoReturn returned None, wanted a mapping of names to backends; "
            "is a `return` missing?",
        ),
        (
            NoBackend(),
            "the backend 'mine' of plugin {0}.NoBackend ({0}.NoBackend.register_backends.<locals>.Mine) has no 'create'; "
            "wanted are name, creates_on_loop, complete_config, validate, create",
        ),
    ],
)
def test_refused_at_registration(plugin: object, words: str) -> None:
    with pytest.raises(ServingError) as caught:
        Kernel(plugins=[plugin])
    assert caught.value.message == words.format(__name__)


class Front:
    @hookimpl
    def register_frontends(self, kernel: Kernel, options: argparse.Namespace) -> Any:
        return options.made


class Listens:
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def drained(self) -> None: ...
    @property
    def address(self) -> str:
        raise RuntimeError("it has not been started")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "register_frontends of plugin {0}.Front returned None, wanted a list of front ends, [] where none is asked for; "
               "is a `return` missing?"),
        (Listens(), "register_frontends of plugin {0}.Front returned <"),
        ([Listens()], "a front end of plugin {0}.Front ({0}.Listens) has no 'drain'; wanted are start, drain, stop, address; "
                      "did you mean 'drained'?"),
    ],
)  # fmt: skip
def test_front_ends(made: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    plugins = Plugins([Front()])
    with pytest.raises(ServingError, match=re.escape(words.format(__name__))):
        plugins.frontends(Kernel(), argparse.Namespace(made=made))


class Guests:
    @hookimpl
    def make_cache(self, name: str) -> object:
        return object()

    @hookimpl
    def make_batcher(self) -> object:
        return lambda waiting, now: (list(waiting), None)


def test_caches_and_batchers(tmp_path: Path) -> None:
    with pytest.raises(ServingError) as caught:
        Kernel(plugins=[Guests()], cache=("mine", {}))
    assert caught.value.message == (
        "the response cache 'mine' (builtins.object) has no 'largest'; wanted are largest, lookup, insert, usage"
    )
    refused = load(tmp_path, GOOD, IO + "max_batch_size: 4 dynamic_batching { }", Guests())
    assert "the batcher for model 'm' (builtins.function) has no 'choose'; wanted are choose" in refused


class Backend(TestBackend):
    """Makes an executor that lacks something."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        super().__init__({})
        self.made = made

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return self.made.get("config", config)

    def create(self, context: InstanceContext) -> TestExecutor:
        if "executor" in self.made:
            return self.made["executor"]
        return type("Mine", (), {"__module__": "mine", **self.made})()


def load(folder: Path, made: Mapping[str, Any], config: str = IO, *more: object) -> str:
    write_repository(folder, {"m": config})

    async def main() -> str:
        async with Kernel(folder, plugins=[Backend(made), *more], exit_on_error=False) as kernel:
            return next(line.reason for line in kernel.index())

    return run(main())


def execute(self: object, batch: Batch) -> list[Any]:
    return []


async def awaits(self: object, batch: Batch) -> list[Any]:
    return []


GOOD: dict[str, Any] = {"placement": Placement.LOOP, "capacity": 1, "may_wait": True, "execute": execute, "finalize": print}
WHOSE = "the executor of model 'm' of backend 'test' (mine.Mine)"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({**GOOD, "placement": "loop"}, f"{WHOSE} has placement 'loop' (str), wanted one of Placement.LOOP, Placement.TASK, "
         "Placement.THREAD, Placement.THREAD_TASK, Placement.REMOTE, Placement.CALLBACK"),
        (
            {name: value for name, value in GOOD.items() if name != "may_wait"},
            f"{WHOSE} has no 'may_wait'; wanted are placement, capacity, execute, finalize, may_wait",
        ),
        (
            {**GOOD, "placement": Placement.THREAD, "execute": awaits},
            f"{WHOSE} has Placement.THREAD, whose execute is called and not awaited, but it is `async def`; wanted is "
            "Placement.THREAD_TASK, or a plain one",
        ),
        ({**GOOD, "capacity": "2"}, f"{WHOSE} has capacity '2' (str), wanted an integer of at least 1"),
        ({**GOOD, "capacity": 0}, f"{WHOSE} has capacity 0 (int), wanted an integer of at least 1"),
        (
            {name: value for name, value in {**GOOD, "finalise": print}.items() if name != "finalize"},
            f"{WHOSE} has no 'finalize'; wanted are placement, capacity, execute, finalize, may_wait; did you mean 'finalise'?",
        ),
        (
            {**GOOD, "placement": Placement.REMOTE},
            f"{WHOSE} has no 'attach'; wanted are placement, capacity, execute, attach, take_back, cancelled, close, kill",
        ),
        ({"executor": None}, "create of model 'm' of backend 'test' returned None, wanted an executor; is a `return` missing?"),
        (
            {"config": None},
            "complete_config of the backend of model 'm' returned None, wanted a ModelConfig; is a `return` missing?",
        ),
    ],
)  # fmt: skip
def test_refused_at_load(made: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    reason = load(tmp_path, made)
    assert f"Internal: {words}" in reason, reason


def test_an_execute_without_a_return_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only where nothing else can answer: whoever calls Kernel.send may return nothing."""

    def forgets(self: Any, batch: Batch) -> None:
        self.seen = list(batch.requests)

    assert load(tmp_path / "good", GOOD) == ""
    assert not caplog.records
    assert load(tmp_path / "bad", {**GOOD, "execute": forgets}) == ""
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "execute of model 'm' (mine.Mine) returns nothing, and nothing beside it calls Kernel.send: its requests would have no "
        "answer. Is a `return` missing? Wanted is a list with a response for each request of the batch"
    ]
    caplog.clear()

    def sends(self: Any, batch: Batch) -> None:
        for request in batch.requests:
            self.kernel.send(request, None, True)

    load(tmp_path / "sends", {**GOOD, "execute": forgets, "later": sends})
    assert not caplog.records
