"""`execution_timeout`: who waits for an execution that lasts too long is told where in the model's code it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kernel import Kernel
from kernel_python import calling


@pytest.fixture(autouse=True)
def left_alone() -> Iterator[None]:
    """What a model is left in the middle of goes on after a test; for others it is not there."""
    yield
    calling._serving.clear()


WAITS = {
    "def": "sys.overtime_for_test.wait(60)",
    "async def": "await asyncio.sleep(60)",
}


@pytest.mark.parametrize(
    ("define", "placement"), [("def", "thread"), ("async def", "thread"), ("async def", "loop"), ("def", "process")]
)
def test_the_answer_names_the_place(repo: Any, helpers: Any, define: str, placement: str) -> None:
    import sys
    import threading

    code = f"""
    import asyncio, sys, threading
    if not hasattr(sys, "overtime_for_test"):
        sys.overtime_for_test = threading.Event()
    class TritonPythonModel:
        {define} execute(self, requests):
            {WAITS[define]}
    """
    path = repo.add("m", code, parameters={"placement": placement, "execution_timeout": "0.2"})
    line = path.read_text().splitlines().index("        " + WAITS[define]) + 1
    sys.overtime_for_test = event = threading.Event()  # type: ignore[attr-defined]

    async def main(kernel: Kernel) -> str:
        answer = await asyncio.wait_for(helpers.ask(kernel, "m"), 30)
        event.set()
        return str(answer)

    try:
        answer = repo.run(main, drain_seconds=0.5)
    finally:
        del sys.overtime_for_test  # type: ignore[attr-defined]
    assert answer.startswith("UNAVAILABLE: [request id: <id_unknown>] execution of model 'm', instance 'm_0_0', has lasted for ")
    assert "of 0.2 s that it may (execution_timeout)" in answer
    if placement != "process":  # whose code another process executes
        assert answer.endswith(f", is at {path}:{line}")
