"""Models of the tests of kernel.testing: python models written by the test itself."""

from __future__ import annotations

import textwrap
from pathlib import Path

X_TO_Y = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]'
THREAD = 'parameters { key: "placement" value { string_value: "thread" } }'
LOOP = 'parameters { key: "placement" value { string_value: "loop" } }'
DECOUPLED = "model_transaction_policy { decoupled: true }"

HEAD = "import asyncio, json, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
ANSWER = """
def answer(y, name="Y", dtype=np.float32):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array(y, dtype))])
"""

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()) for request in requests]
"""
NEVER = """
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.Event().wait()
"""
#: Calls `inner` and answers what it answers; `exec` or `async_exec`.
CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.call(request) for request in requests]
    def call(self, request):
        call = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=request.inputs())
        answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
"""
CALLS_ASYNC = CALLS.replace("def ", "async def ").replace("call.exec()", "await call.async_exec()").replace(
    "[self.call(request) for request in requests]", "await asyncio.gather(*(self.call(request) for request in requests))"
)


def write(folder: Path, name: str, code: str, extra: str = "", io: str = X_TO_Y) -> Path:
    """Write a model into `folder` and return its own folder."""
    model = folder / name
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(HEAD + ANSWER + textwrap.dedent(code))
    (model / "config.pbtxt").write_text(f'backend: "python"\n{io}\n{extra}\n')
    return model
