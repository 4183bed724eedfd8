"""Calls of models, ensembles and configs that lead from one kernel to another, over real sockets."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual import TestBackend, answer

from kernel import Batch, Code, InferenceResponse, Kernel, ServingError, Tensor
from kernel_grpc import options as grpc_options
from kernel_grpc.frontend import GrpcFrontend

TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
TEST = f'backend: "test" {TENSORS}'
DECOUPLED = "model_transaction_policy { decoupled: true }"
X = {"X": np.arange(3, dtype=np.float32)}


def write(folder: Path, models: dict[str, str], code: dict[str, str] | None = None) -> Path:
    for name, config in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        if code and name in code:
            (folder / name / "1/model.py").write_text(code[name])
    return folder


def parameters(**values: str) -> str:
    return " ".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items())


def remote(address: str, more: str = "", **values: str) -> str:
    return f'backend: "remote" {more} {parameters(endpoints=address, **values)}'


def step(model: str, given: str, made: str) -> str:
    return (
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{given}" }} '
        f'output_map {{ key: "Y" value: "{made}" }} }}'
    )


def ensemble(*steps: str) -> str:
    return f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ step [ {", ".join(steps)} ] }}'


@contextlib.asynccontextmanager
async def served(folder: Path, **behaviours: Any) -> AsyncIterator[tuple[Kernel, str]]:
    """A kernel, and the address of its gRPC front end."""
    making = Kernel(
        folder, plugins=[TestBackend(behaviours)], exit_on_error=False, control_mode="explicit", load_models=["*"]
    )
    async with making as kernel:
        parser = argparse.ArgumentParser()
        grpc_options.add_options(parser)
        front = GrpcFrontend(kernel, parser.parse_args(["--grpc-port=0", "--grpc-address=127.0.0.1"]))
        await front.start()
        yield kernel, front.address.removeprefix("grpc://")
        await front.stop()


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(limited())


def plus(number: float) -> Callable[[Batch], Any]:
    return lambda batch: [answer(one, Y=one.inputs["X"].array + number) for one in batch.requests]


def times(number: float) -> Callable[[Batch], Any]:
    return lambda batch: [answer(one, Y=one.inputs["X"].array * number) for one in batch.requests]


def counting(batch: Batch) -> None:
    (request,) = batch.requests
    for number in range(3):
        response = InferenceResponse([Tensor("Y", "FP32", np.full(1, number, np.float32))])
        request.model.scheduler.send(request, response, False)
    request.model.scheduler.send(request, None, True)


def failing(batch: Batch) -> Any:
    raise ServingError(Code.NOT_FOUND, "there is no such thing")


def test_an_ensemble_spans_kernels_there_and_back(tmp_path: Path) -> None:
    """near: e = here + there + chain; there is an ensemble of the far end's; chain leads back to a model of ours."""

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            back = write(tmp_path / "back", {"ours": TEST})
            _, home = await stack.enter_async_context(served(back, ours=plus(100)))
            models = {
                "one": TEST,
                "two": TEST,
                "both": ensemble(step("one", "X", "M"), step("two", "M", "Y")),
                "chain": remote(home, remote_model="ours"),
            }
            _, there = await stack.enter_async_context(served(write(tmp_path / "far", models), one=plus(1), two=times(2)))
            models = {
                "here": TEST,
                "there": remote(there, remote_model="both"),
                "chain": remote(there),
                "e": ensemble(step("here", "X", "A"), step("there", "A", "B"), step("chain", "B", "Y")),
            }
            near, _ = await stack.enter_async_context(served(write(tmp_path / "near", models), here=plus(10)))
            assert near.is_ready()
            assert (await near.infer("e", X))["Y"].tolist() == [(x + 10 + 1) * 2 + 100 for x in range(3)]
            answers = await asyncio.gather(*(near.infer("e", {"X": X["X"] + i}) for i in range(100)))
            assert [one["Y"][0] for one in answers] == [(i + 10 + 1) * 2 + 100 for i in range(100)]

    run(main)


CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            call = pb_utils.InferenceRequest(model_name="adds", requested_output_names=["Y"], inputs=[x])
            first = call.exec()
            call = pb_utils.InferenceRequest(model_name="fails", requested_output_names=["Y"], inputs=[x])
            failed = call.exec()
            assert failed.has_error() and "there is no such thing" in failed.error().message(), failed.error()
            call = pb_utils.InferenceRequest(model_name="counts", requested_output_names=["Y"], inputs=[x])
            counted = [one.output_tensors()[0].as_numpy()[0] for one in call.exec(decoupled=True) if one.output_tensors()]
            assert counted == [0, 1, 2], counted
            y = pb_utils.get_output_tensor_by_name(first, "Y").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y + sum(counted))]))
        return responses
"""


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_a_model_calls_remote_ones(tmp_path: Path, placement: str) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            far = write(tmp_path / "far", {"adds": TEST, "fails": TEST, "counts": TEST + DECOUPLED})
            _, there = await stack.enter_async_context(served(far, adds=plus(1), fails=failing, counts=counting))
            models = {name: remote(there) for name in ("adds", "fails", "counts")}
            models["caller"] = f'backend: "python" {TENSORS} {parameters(placement=placement)}'
            near, _ = await stack.enter_async_context(served(write(tmp_path / "near", models, {"caller": CALLER})))
            assert near.is_ready(), near.index()
            answers = await asyncio.gather(*(near.infer("caller", X) for _ in range(5)))
            assert [one["Y"].tolist() for one in answers] == [[4, 5, 6]] * 5

    run(main)


# --- the config from the far end

FAR_CONFIG = """
backend: "test" max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "OPTIONAL" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
output [ { name: "Z" data_type: TYPE_BF16 dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
dynamic_batching { }
"""


INPUT = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ] '


def test_the_config_is_completed_from_the_far_end(tmp_path: Path) -> None:
    async def main() -> None:
        far = write(tmp_path / "far", {"m": FAR_CONFIG, "plain": TEST})
        (far / "m/labels.txt").write_text("a\nb\n")
        async with served(far) as (_, there):
            models = {
                "m": remote(there),
                "other": remote(there, remote_model="m", remote_version="1"),
                "outputs": remote(there, INPUT + "max_batch_size: 2", remote_model="m"),
                "own": remote("127.0.0.1:1," + there, TENSORS, remote_model="plain"),
            }
            async with served(write(tmp_path / "near", models)) as (near, _):
                assert near.is_ready(), near.index()
                for name in ("m", "other"):
                    config = near.model(name).config
                    assert [(one.name, one.dims, one.optional) for one in config.message.input] == [
                        ("X", [3], False), ("OPTIONAL", [1], True)
                    ]  # fmt: skip
                    assert [(one.name, one.label_filename) for one in config.message.output] == [("Y", ""), ("Z", "")]
                    assert config.max_batch_size == 4 and config.decoupled and config.dynamic_batching is None
                config = near.model("outputs").config
                assert [one.name for one in config.inputs] == ["X"] and len(config.outputs) == 2 and config.max_batch_size == 2
                assert not near.model("own").config.decoupled
                assert (await near.infer("own", X))["Y"].tolist() == [0, 1, 2]

    run(main)


#: What a config says -> the words of the load's failure. `{}`: the far end's address.
FAILURES = {
    "unknown there": ({"endpoints": "{}", "remote_model": "none"}, "endpoint {}: Request for unknown model: 'none' is not found"),
    "no such version": ({"endpoints": "{}", "remote_version": "7"}, "endpoint {}: Request for unknown model: 'm' version 7"),
    "no endpoints": ({"endpoints": " , "}, "model 'm' has no endpoints — wanted a parameter 'endpoints'"),
    "no port": ({"endpoints": "a:0"}, "parameter 'endpoints' of model 'm' is 'a:0' — wanted host:port"),
    "http": ({"endpoints": "http://a:8000"}, "parameter 'endpoints' of model 'm' is 'http://a:8000' — wanted host:port"),
    "idempotent": ({"endpoints": "{}", "idempotent": "yes"}, "is 'yes' — wanted true or false"),
    "connections": ({"endpoints": "{}", "connections": "65"}, "is '65' — wanted a number from 1 to 64"),
    "keepalive_timeout": ({"endpoints": "{}", "keepalive_timeout": "0.5"}, "is '0.5' — wanted seconds, at least 1"),
    "sequence_batching": ({"endpoints": "{}", "SEQUENCES": ""}, "model 'm' is remote and has sequence_batching — leave it to"),
    "remote_version": ({"endpoints": "{}", "remote_version": "new"}, "is 'new' — wanted a version's number"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_load_fails_with_the_reason(tmp_path: Path, what: str) -> None:
    values, words = FAILURES[what]

    async def main() -> None:
        async with served(write(tmp_path / "far", {"m": TEST})) as (_, there):
            given = {key: value.format(there) for key, value in values.items()}
            more = "" if given.pop("SEQUENCES", None) is None else "sequence_batching { }"
            async with served(write(tmp_path / "near", {"m": f'backend: "remote" {parameters(**given)} {more}'})) as (near, _):
                assert words.format(there) in near.index()[0].reason

    run(main)


def test_a_model_is_as_ready_as_it_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            fars = []
            for name in ("one", "two"):
                far = write(tmp_path / name, {"m": TEST})
                fars.append(await stack.enter_async_context(served(far)))
            models = {"m": remote(",".join(address for _, address in fars))}
            near, _ = await stack.enter_async_context(served(write(tmp_path / "near", models)))

            async def ready() -> bool:
                said: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                near.ask_model_ready("m", "", said.set_result)
                return await said

            assert await ready()
            await fars[0][0].unload("m")
            assert await ready(), "one of them is enough"
            await fars[1][0].unload("m")
            assert not await ready()
            await fars[0][0].load("m")
            assert await ready()

    run(main)


def test_a_model_that_is_not_ready_there_is_not_loaded_here_and_can_be_later(tmp_path: Path) -> None:
    async def main() -> None:
        far = write(tmp_path / "far", {"m": TEST})
        async with served(far) as (kernel, there):
            await kernel.unload("m")
            async with served(write(tmp_path / "near", {"m": remote(there, TENSORS)})) as (near, _):
                reason = near.index()[0].reason
                assert f"no endpoint of model 'm' can serve it: endpoint {there}: the model 'm' is not ready" in reason, reason
                await kernel.load("m")
                await near.load("m")
                assert (await near.infer("m", X))["Y"].tolist() == [0, 1, 2]

    run(main)
