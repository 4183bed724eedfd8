"""The kit as pytest's fixtures use it: one for each test, closed at its end; and async tests that nobody else runs.

Imported when a test asks for one of the fixtures of kernel_pytest.py. From then on two hooks look at the tests that have a kit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from kernel.testing.kit import Kit

__all__ = ["kit_for"]

_KIT = pytest.StashKey[Kit]()
_FAILED = pytest.StashKey[bool]()
_NAME = "kernel.testing.fixtures"


def kit_for(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Yield the kit of one test."""
    item, config = request.node, request.config
    if not config.pluginmanager.hasplugin(_NAME):
        config.pluginmanager.register(_Hooks(), _NAME)
    kit = Kit(
        virtual_time="virtual_time" in item.fixturenames,
        strict_outputs=config.getini("kernel_strict_outputs"),
        check_leaks=config.getini("kernel_check_leaks"),
        limit=float(config.getini("kernel_limit")),
        roots=(config.rootpath, request.path.parent),
    )
    function = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(function):
        kit.for_async_test = True
        item.obj = _closing(kit, function)
    item.stash[_KIT] = kit
    yield kit
    kit.close(quiet=item.stash.get(_FAILED, False))


def _closing(kit: Kit, function: Any) -> Any:
    """Wrap an async test so that its kit is closed on its loop, whoever runs it."""

    @functools.wraps(function)
    async def test(*args: Any, **named: Any) -> None:
        __tracebackhide__ = True
        try:
            await function(*args, **named)
        except BaseException:
            kit.told = kit.told or kit.reasons()
            await kit.aclose(quiet=True)
            raise
        await kit.aclose()

    return test


class _Hooks:
    @pytest.hookimpl
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run an async test that no other plugin runs."""
        kit = pyfuncitem.stash.get(_KIT, None)
        if kit is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        __tracebackhide__ = True
        names = pyfuncitem._fixtureinfo.argnames
        kit.run_test(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Remember which tests have failed, as what is left of their models is no news; say why requests took so long."""
        report = yield
        if report.failed:
            item.stash[_FAILED] = True
            kit = item.stash.get(_KIT, None)
            if kit is not None and (told := kit.told or ([] if kit.closed else kit.reasons())):
                report.sections.append(("requests, and why they took so long", "\n".join(told)))
        return report
