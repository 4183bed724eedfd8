"""Warmup of python models, wherever they run: what they see, what counts, and calls of models that are still on their way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kernel import Kernel

PLACEMENTS = ["loop", "thread", "process"]

ZERO = 'inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }'
SHOW = """
import os
class TritonPythonModel:
    def initialize(self, args):
        self.path = os.path.join(args["model_repository"], "shown.txt")
    def execute(self, requests):
        with open(self.path, "a") as file:
            shapes = [list(pb_utils.get_input_tensor_by_name(r, "X").as_numpy().shape) for r in requests]
            file.write(json.dumps([shapes, [r.request_id() for r in requests], [r.parameters() for r in requests]]) + "\\n")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
            for r in requests
        ]
"""


def sample(inputs: str = ZERO, batch_size: int = 1, count: int = 1) -> str:
    return f'model_warmup [ {{ name: "s" batch_size: {batch_size} count: {count} {inputs} }} ]'


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_single_requests_in_one_execution(repo: Any, placement: str) -> None:
    repo.add("m", SHOW, max_batch_size=4, count=2, parameters={"placement": placement}, extra=sample(batch_size=2, count=3))

    async def main(kernel: Kernel) -> tuple[int, int, int]:
        (counted,) = kernel.statistics("m")
        return counted.inference_count, counted.execution_count, counted.success.count

    assert repo.run(main) == (12, 6, 12)
    shown = Path(repo.folder / "m" / "shown.txt").read_text().splitlines()
    assert shown == ['[[[1, 2], [1, 2]], ["", ""], ["{}", "{}"]]'] * 6


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_model_that_raises(repo: Any, placement: str) -> None:
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError('boom')\n"
    repo.add("m", code, max_batch_size=4, parameters={"placement": placement}, extra=sample(batch_size=2))
    reason = repo.load_error("m")
    assert reason.startswith("Invalid argument: failed to run warmup sample 's': Failed to process the request(s) for model")
    assert reason.count("ValueError: boom") == 2


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("code", ["error", "sender"])
def test_a_decoupled_model(repo: Any, placement: str, code: str) -> None:
    """The second response of one sample ends the reference."""
    last = "pb_utils.InferenceResponse(error=pb_utils.TritonError('late'))" if code == "error" else ""
    body = f"""
    class TritonPythonModel:
        def execute(self, requests):
            for r in requests:
                sender = r.get_response_sender()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(2, np.float32))]))
                sender.send({last}{", " if last else ""}flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    repo.add("m", body, decoupled=True, parameters={"placement": placement}, extra=sample(count=2))
    if code == "error":
        assert "failed to run warmup sample 's': late; " in repo.load_error("m")
        return

    async def main(kernel: Kernel) -> tuple[int, int]:
        (counted,) = kernel.statistics("m")
        return counted.execution_count, counted.success.count

    assert repo.run(main) == (2, 2)


#: How a model may call another, each a body of `execute`.
CALLS = {
    "exec": "answers = [self.request(r).exec() for r in requests]",
    "stream": "answers = [list(self.request(r).exec(decoupled=True))[0] for r in requests]",
    "async_exec": "answers = await asyncio.gather(*[self.request(r).async_exec() for r in requests])",
}
OUTER = """
import asyncio
class TritonPythonModel:
    def request(self, r):
        x = pb_utils.get_input_tensor_by_name(r, "X")
        return pb_utils.InferenceRequest(model_name="zinner", inputs=[x], requested_output_names=["Y"])
    %s execute(self, requests):
        %s
        for answer in answers:
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
        return [pb_utils.InferenceResponse(answer.output_tensors()) for answer in answers]
"""


def slow(seconds: float) -> str:
    return f"""
    import time
    class TritonPythonModel:
        def initialize(self, args):
            time.sleep({seconds})
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
                for r in requests
            ]
    """


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("call", CALLS)
def test_the_call_of_a_model_that_is_still_being_loaded(repo: Any, helpers: Any, placement: str, call: str) -> None:
    """BC17."""
    define = "async def" if call == "async_exec" else "def"
    code = OUTER % (define, CALLS[call])
    repo.add("outer", code, max_batch_size=4, parameters={"placement": placement}, extra=sample(batch_size=2))
    repo.add("zinner", slow(0.3), max_batch_size=4)

    async def main(kernel: Kernel) -> Any:
        (counted,) = kernel.statistics("outer")
        assert (counted.success.count, counted.execution_count) == (2, 1)
        return await helpers.ask(kernel, "outer", [[1.0, 2.0]])

    assert repo.run(main, load_threads=1) == [[1.0, 2.0]]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_call_of_a_model_that_is_not_there(repo: Any, placement: str) -> None:
    code = OUTER % ("def", CALLS["exec"])
    repo.add("outer", code, max_batch_size=4, parameters={"placement": placement}, extra=sample())
    reason = repo.load_error("outer")
    assert "'zinner'" in reason and "load it before 'outer', or together with it" in reason


def test_an_ensemble_that_is_called_while_its_steps_are_on_their_way(repo: Any, helpers: Any) -> None:
    code = (OUTER % ("def", CALLS["exec"])).replace('"zinner"', '"chain"')
    repo.add("outer", code, max_batch_size=4, parameters={"placement": "thread"}, extra=sample())
    repo.add("zinner", slow(0.2), max_batch_size=4)
    folder = repo.folder / "chain"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'platform: "ensemble" max_batch_size: 4 '
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ] '
        'ensemble_scheduling { step [ { model_name: "zinner" model_version: -1 '
        'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } ] }'
    )

    async def main(kernel: Kernel) -> Any:
        await asyncio.sleep(0)
        return await helpers.ask(kernel, "outer", [[1.0, 2.0]])

    assert repo.run(main, load_threads=1) == [[1.0, 2.0]]


def test_an_ensemble_that_can_only_come_after_the_model_that_calls_it(repo: Any) -> None:
    code = (OUTER % ("def", CALLS["exec"])).replace('"zinner"', '"chain"')
    repo.add("outer", code, max_batch_size=4, parameters={"placement": "thread"}, extra=sample())
    folder = repo.folder / "chain"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'platform: "ensemble" max_batch_size: 4 '
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ] '
        'ensemble_scheduling { step [ { model_name: "outer" model_version: -1 '
        'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } ] }'
    )
    assert "(outer -> chain -> outer)" in repo.load_error("outer")
