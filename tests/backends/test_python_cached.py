"""The response cache and python models: answers kept of every placement, asked for from every placement and by ensembles."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernel import Kernel, LocalCache

KEPT = "response_cache { enable: true }"

#: Y = X + the number of the execution; keeps what it has answered, and spoils it once the next one comes.
COUNTS = """
class TritonPythonModel:
    executions = 0
    buffer = None
    def execute(self, requests):
        if self.buffer is not None:
            self.buffer[:] = -1
        self.executions += 1
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        self.buffer = x + self.executions
        x[:] = -2
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.buffer)])]
"""

#: Asks `kept` twice, and spoils what it gets in between.
CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        for _ in range(2):
            call = pb_utils.InferenceRequest(
                model_name="kept", inputs=[pb_utils.Tensor("X", x.copy())], requested_output_names=["Y"]
            )
            answer = call.exec()
            y = pb_utils.get_output_tensor_by_name(answer, "Y").as_numpy()
            found = y.copy()
            y[:] = -3
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", found)])]
"""
CALLS_ASYNC = CALLS.replace("def execute", "async def execute").replace("call.exec()", "await call.async_exec()")

ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling {
  step {
    model_name: "kept"
    model_version: -1
    input_map { key: "X" value: "X" }
    output_map { key: "Y" value: "M" }
  }
  step {
    model_name: "spoils"
    model_version: -1
    input_map { key: "X" value: "M" }
    output_map { key: "Y" value: "Y" }
  }
}
"""

SPOILS = """
class TritonPythonModel:
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        y = x.copy()
        x[:] = -4
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])]
"""


def looks(kernel: Kernel, model: str) -> tuple[int, int, int]:
    """Return executions, hits and misses."""
    (record,) = kernel.statistics(model)
    return record.execution_count, record.cache_hit.count, record.cache_miss.count


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
@pytest.mark.parametrize(("caller", "code"), [("loop", CALLS), ("thread", CALLS), ("process", CALLS), ("loop", CALLS_ASYNC)])
def test_every_placement(repo: Any, helpers: Any, placement: str, caller: str, code: str) -> None:
    repo.add("kept", COUNTS, extra=KEPT, parameters={"placement": placement})
    repo.add("outer", code, parameters={"placement": caller})

    async def main(kernel: Kernel) -> None:
        assert await helpers.ask(kernel, "outer", [5.0]) == [6.0]
        assert await helpers.ask(kernel, "kept", [7.0]) == [9.0]  # its first answer is spoilt, not what was kept of it
        assert await helpers.ask(kernel, "kept", [5.0]) == [6.0]
        assert await helpers.ask(kernel, "outer", [5.0]) == [6.0]
        assert looks(kernel, "kept") == (2, 4, 2)

    repo.run(main, cache=LocalCache(1 << 16))


def test_a_step_of_an_ensemble(repo: Any, helpers: Any) -> None:
    repo.add("kept", COUNTS, extra=KEPT)
    repo.add("spoils", SPOILS, parameters={"placement": "loop"})
    (repo.folder / "both" / "1").mkdir(parents=True)
    (repo.folder / "both" / "config.pbtxt").write_text(ENSEMBLE)
    (repo.folder / "whole" / "1").mkdir(parents=True)
    (repo.folder / "whole" / "config.pbtxt").write_text(ENSEMBLE + KEPT)

    async def main(kernel: Kernel) -> None:
        for _ in range(3):
            assert await helpers.ask(kernel, "both", [5.0]) == [6.0]
        assert looks(kernel, "kept") == (1, 2, 1)
        assert looks(kernel, "both") == (3, 0, 0)
        for _ in range(3):
            assert await helpers.ask(kernel, "whole", [5.0]) == [6.0]
        assert looks(kernel, "kept") == (1, 3, 1)
        assert looks(kernel, "whole") == (1, 2, 1)
        (record,) = kernel.statistics("whole")
        assert (record.success.count, record.inference_count, record.compute_infer.count) == (3, 1, 1)

    repo.run(main, cache=LocalCache(1 << 16))


def test_many_at_once(repo: Any, helpers: Any) -> None:
    """Everybody gets the answer to what was asked, whoever was executed and whoever was not."""
    repo.add("kept", helpers.ECHO, extra=KEPT + "\ndynamic_batching { }", max_batch_size=4, count=2)

    async def main(kernel: Kernel) -> None:
        answers = await asyncio.gather(*(helpers.ask(kernel, "kept", [[float(k % 7)]]) for k in range(200)))
        assert answers == [[[float(k % 7)]] for k in range(200)]
        again = await asyncio.gather(*(helpers.ask(kernel, "kept", [[float(k)]]) for k in range(7)))
        assert again == [[[float(k)]] for k in range(7)]
        (record,) = kernel.statistics("kept")
        assert record.success.count == 207 == record.cache_hit.count + record.cache_miss.count
        assert record.cache_hit.count >= 7
        assert record.inference_count == record.cache_miss.count

    repo.run(main, cache=LocalCache(1 << 16))
