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
#: An async execution that holds the loop of its thread.
HOLDS = "sys.overtime_for_test.wait(60)"


@pytest.mark.parametrize(
    ("define", "placement", "does"),
    [
        ("def", "thread", WAITS["def"]),
        ("async def", "thread", WAITS["async def"]),
        ("async def", "thread", HOLDS),
        ("async def", "loop", WAITS["async def"]),
        ("def", "process", WAITS["def"]),
        ("async def", "process", WAITS["async def"]),
    ],
)
def test_the_answer_names_the_place(repo: Any, helpers: Any, define: str, placement: str, does: str) -> None:
    import sys
    import threading

    code = f"""
    import asyncio, sys, threading
    if not hasattr(sys, "overtime_for_test"):
        sys.overtime_for_test = threading.Event()
    class TritonPythonModel:
        {define} execute(self, requests):
            {does}
    """
    path = repo.add("m", code, parameters={"placement": placement, "execution_timeout": "0.2"})
    line = path.read_text().splitlines().index("        " + does) + 1
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
    assert answer.endswith(f", is at {path}:{line}")


@pytest.mark.parametrize("define", ["def", "async def"])
def test_a_process_that_is_given_up_begins_anew(repo: Any, helpers: Any, define: str, caplog: pytest.LogCaptureFixture) -> None:
    """What had begun is answered, what had not waits for the next one. Who holds the loop of an `async def` is seen, too."""
    code = f"""
    import time
    class TritonPythonModel:
        {define} execute(self, requests):
            x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
            if x[0] == -1:
                time.sleep(60)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
    """
    path = repo.add("m", code, parameters={"placement": "process", "execution_timeout": "0.2"})
    line = 1 + next(place for place, text in enumerate(path.read_text().splitlines()) if "time.sleep(60)" in text)

    async def main(kernel: Kernel) -> list[Any]:
        late = asyncio.ensure_future(helpers.ask(kernel, "m", [-1]))
        await asyncio.sleep(0)
        if define == "def":
            return await asyncio.wait_for(asyncio.gather(late, helpers.ask(kernel, "m", [5])), 30)
        return [await asyncio.wait_for(late, 30), await asyncio.wait_for(_in_the_next(kernel, helpers), 30)]

    late, behind = repo.run(main)
    assert f"(execution_timeout), is at {path}:{line}" in late
    assert behind == [5.0]
    (told,) = [one.getMessage() for one in caplog.records if "is started again" in one.getMessage()]
    assert "was ended: an execution has lasted for 0." in told
    assert f"of 0.2 s that it may (execution_timeout), and is at {path}:{line}" in told


async def _in_the_next(kernel: Kernel, helpers: Any) -> Any:
    """Ask once the process has ended."""
    (instance,) = kernel.model("m").scheduler.instances
    while not instance.executor.restarts:  # type: ignore[attr-defined]  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)
    return await helpers.ask(kernel, "m", [5])
