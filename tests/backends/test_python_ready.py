"""`is_ready` of a model, wherever it runs: asked by whoever asks for the model's readiness (spec, section 2; main only)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from kernel import Kernel

WAYS = [(define, placement) for define in ("def", "async def") for placement in ("loop", "thread", "process")]

#: X[0] sets the answer that is_ready gives from then on.
MODEL = """
import threading
ANSWERS = {{0: False, 1: True, 2: 1, 3: None}}
class TritonPythonModel:
    answer = True
    {ask} is_ready(self):
        if self.answer == "raise":
            raise ValueError("no database")
        if self.answer == "who":
            return pb_utils.get_model_dir().endswith("/a/1")
        return self.answer
    {define} execute(self, requests):
        x = int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        self.answer = {{0: False, 1: True, 2: 1, 3: "raise", 4: "who"}}[x]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([x], np.float32))]) for _ in requests]
"""


async def ready(kernel: Kernel, name: str = "a", version: str = "") -> bool:
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    kernel.ask_model_ready(name, version, future.set_result)
    return await asyncio.wait_for(future, 60)


@pytest.mark.parametrize("ask", ["def", "async def"])
@pytest.mark.parametrize(("define", "placement"), WAYS, ids=lambda value: str(value).replace(" ", "-"))
def test_a_model_says_whether_it_is_ready(
    repo: Any, helpers: Any, define: str, placement: str, ask: str, caplog: pytest.LogCaptureFixture
) -> None:
    repo.add("a", MODEL.format(define=define, ask=ask), parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        answers = [await ready(kernel), await ready(kernel, "a", "1"), await ready(kernel, "a", "2"), await ready(kernel, "b")]
        for x in range(5):
            await helpers.ask(kernel, "a", (float(x),))
            answers.append(await ready(kernel))
        assert kernel.is_model_ready("a"), "it takes requests, whatever it says"
        return answers

    with caplog.at_level(logging.WARNING, "kernel"):
        assert repo.run(main) == [True, True, False, False, False, True, False, False, True]
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "model instance 'a_0_0' is not ready: its is_ready() says no" in text
    assert "is_ready() must return a boolean value, found <class 'int'>" in text
    assert "ValueError: no database" in text


def test_a_process_answers_in_the_midst_of_an_execution(repo: Any, helpers: Any, tmp_path: Any) -> None:
    """It is the model's business whether a long execution makes it unready: the question gets through."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    code = f"""
import os, time
class TritonPythonModel:
    def is_ready(self):
        return True
    def execute(self, requests):
        open({str(begun)!r}, "w").close()
        while not os.path.exists({str(go)!r}):
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))]) for _ in requests]
"""
    repo.add("a", code, parameters={"placement": "process"})

    async def main(kernel: Kernel) -> Any:
        call = helpers.Call(kernel, "a", (1.0,))
        async with asyncio.timeout(60):
            while not begun.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        told = await ready(kernel)
        go.touch()
        return told, await call.result()

    assert repo.run(main) == (True, [[[0.0]]])


def test_a_process_that_dies_of_the_question_is_not_ready(repo: Any, helpers: Any) -> None:
    code = """
import os
class TritonPythonModel:
    def is_ready(self):
        os._exit(3)
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1, np.float32))]) for _ in requests]
"""
    repo.add("a", code, parameters={"placement": "process"})

    async def main(kernel: Kernel) -> Any:
        return await ready(kernel), await helpers.ask(kernel, "a")

    assert repo.run(main) == (False, [1.0])


def test_every_instance_is_asked(repo: Any, helpers: Any, tmp_path: Any) -> None:
    code = f"""
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
    def is_ready(self):
        with open({str(tmp_path / "asked")!r}, "a") as file:
            file.write(json.dumps(self.name) + "\\n")
        return True
    def execute(self, requests):
        pass
"""
    repo.add("a", code, count=2)
    assert repo.run(ready) is True
    assert sorted(json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()) == ["a_0_0", "a_0_1"]
