"""TOLD is what came of the experiment WHAT, a coroutine method of the model's: its result as JSON, or the exception."""

import asyncio
import json

import numpy as np

import triton_python_backend_utils as pb_utils


def call(model, *values):
    tensor = pb_utils.Tensor("X", np.array(values, np.float32))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[tensor])


def value(response):
    if response.has_error():
        return "error: " + response.error().message()
    return [pb_utils.get_output_tensor_by_name(response, "Y").as_numpy().tolist()] if response.output_tensors() else []


async def asked(*values):
    return value(await call("echo", *values).async_exec())


async def streamed(count):
    return [value(one) for one in await call("count", count, 0).async_exec(decoupled=True)]


async def asked_at_once(*values):
    return value(call("echo", *values).exec())


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
        try:
            told = json.dumps(await getattr(self, what)())
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([told], np.object_))])

    async def gathered(self):
        return await asyncio.gather(*(asked(number) for number in range(4)))

    async def streams_gathered(self):
        return await asyncio.gather(streamed(2), streamed(3))

    async def stream_in_a_task(self):
        return await asyncio.create_task(streamed(2))

    async def exec_of_its_own(self):
        return await asked_at_once(5)

    async def exec_in_a_task(self):
        return await asyncio.create_task(asked_at_once(6))

    async def exec_gathered(self):
        return await asyncio.gather(asked_at_once(1), asked_at_once(2))

    async def exec_in_an_executor(self):
        loop = asyncio.get_running_loop()
        responses = await asyncio.gather(*(loop.run_in_executor(None, call("echo", number).exec) for number in range(3)))
        return [value(response) for response in responses]
