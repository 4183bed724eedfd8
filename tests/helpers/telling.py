"""What tests of python models share: the inputs and outputs of models that answer with JSON, and the wait for another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["ADD_ONE", "TELL", "TEXT", "until"]

TEXT = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "S" data_type: TYPE_STRING dims: [ -1 ] } ]'

#: Gives a model `tell(requests, value)`, which answers each request with the value.
TELL = """
def tell(requests, value):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))]) for _ in requests]
"""

#: A model that is called: Y is X + 1; where X begins with -1 the answer is an error, with -2 it raises.
ADD_ONE = """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
            if x[0] == -1:
                error = pb_utils.TritonError("callee says no", pb_utils.TritonError.NOT_FOUND)
                out.append(pb_utils.InferenceResponse(error=error))
            elif x[0] == -2:
                raise ValueError("callee boom")
            else:
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)]))
        return out
"""


async def until(done: Callable[[], Any]) -> None:
    """Return once something has come about on another thread or in another process."""
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
