"""Models that close what the loop they run on waits by: their requests are answered, and so are those that come later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernel import Kernel

CODE = """
import asyncio, os
class TritonPythonModel:
    {define}
    async def answers(self, requests):
        loop = asyncio.get_running_loop()
        for file in (loop._ssock, loop._csock, loop._selector):
            os.close(file.fileno())
        await asyncio.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
ASYNC = "async def execute(self, requests): return await self.answers(requests)"
RETURNED = "def execute(self, requests): return self.answers(requests)"


@pytest.mark.parametrize("define", [ASYNC, RETURNED], ids=["async", "returned"])
@pytest.mark.parametrize("placement", ["thread", "process"])
def test_they_are_answered(repo: Any, helpers: Any, placement: str, define: str) -> None:
    repo.add("a", CODE.format(define=define), parameters={"placement": placement})

    async def main(kernel: Kernel) -> None:
        for number in range(3):
            assert await asyncio.wait_for(helpers.ask(kernel, "a", [number]), 20) == [float(number)]

    repo.run(main)
