"""A repository of python models written in the test itself, and a kernel that serves it on a real loop."""

from __future__ import annotations

import asyncio
import importlib.metadata
import textwrap
import types
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import kernel_python
from kernel import InferenceRequest, InferenceResponse, Kernel, ServingError, Tensor
from kernel_python.loading import foresight

T = TypeVar("T")

HEAD = "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
IO = 'input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]'

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
            for r in requests
        ]
"""


class Repo:
    """Models are added, then `run` serves them all and calls its argument with the kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        code: str,
        *,
        io: str = IO,
        max_batch_size: int = 0,
        count: int = 1,
        decoupled: bool = False,
        parameters: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        extra: str = "",
        head: str = HEAD,
        file: str = "model.py",
    ) -> Path:
        """Write a model; returns the path of its model file. `files`: path in the model folder -> text."""
        folder = self.folder / name
        (folder / "1").mkdir(parents=True)
        lines = [
            'backend: "python"',
            f"max_batch_size: {max_batch_size}",
            io,
            f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]",
            extra,
        ]
        if decoupled:
            lines.append("model_transaction_policy { decoupled: true }")
        for key, value in (parameters or {}).items():
            lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
        (folder / "config.pbtxt").write_text("\n".join(lines))
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(textwrap.dedent(text))
        if code:
            (folder / "1" / file).write_text(head + textwrap.dedent(code))
        return folder / "1" / file

    def run(self, main: Callable[[Kernel], Awaitable[T]], **options: Any) -> T:
        installed = {point.name for point in importlib.metadata.entry_points(group="kernel")}
        plugins = [] if "kernel_python" in installed else [kernel_python]

        async def served() -> T:
            async with Kernel(self.folder, plugins=plugins, **options) as kernel:
                return await main(kernel)

        async def limited() -> T:
            return await asyncio.wait_for(served(), 120)  # a hang, however slow the machine

        return asyncio.run(limited())

    def load_error(self, name: str) -> str:
        """Serve, and return why `name` could not be loaded."""

        async def main(kernel: Kernel) -> str:
            (entry,) = [one for one in kernel.index() if one.name == name]
            assert entry.state == "UNAVAILABLE", entry
            return str(entry.reason)

        return self.run(main, exit_on_error=False)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "models")


class Call:
    """One request: `responses` as they come, `done` once the final one has come."""

    def __init__(self, kernel: Kernel, model: str, value: Any, **fields: Any) -> None:
        self.kernel = kernel
        self.responses: list[InferenceResponse] = []
        self.finals = 0
        self.done = asyncio.Event()
        array = np.array(value, np.float32)
        self.request = InferenceRequest(model, {"X": Tensor("X", "FP32", array)}, self._respond, **fields)
        kernel.submit(self.request)

    def _respond(self, response: InferenceResponse | None, final: bool) -> None:
        if response is not None:
            self.responses.append(response)
        self.finals += final
        if final:
            self.done.set()

    async def result(self) -> list[Any]:
        """Return the outputs Y as lists, and errors as "<CODE>: <text>"."""
        await asyncio.wait_for(self.done.wait(), 60)
        assert self.finals == 1
        return [
            f"{one.error.code.name}: {one.error.message}" if one.error else [t.array.tolist() for t in one.outputs]
            for one in self.responses
        ]


async def ask(kernel: Kernel, model: str, value: Any = (1.0,), **fields: Any) -> Any:
    """Return output Y as a list (BYTES: text), or the error as "<CODE>: <text>"."""
    try:
        response = await asyncio.wait_for(kernel.infer(model, {"X": np.array(value, np.float32)}, **fields), 60)
    except ServingError as error:
        return f"{error.code.name}: {error.message}"
    array = response.outputs[0].array
    return [item.decode() for item in array.tolist()] if array.dtype.kind == "O" else array.tolist()


@pytest.fixture
def helpers() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(ask=ask, Call=Call, ECHO=ECHO, IO=IO)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules that foresight sees; without those of the tests, which know pb_utils."""
    import triton_python_backend_utils

    modules: dict[str, Any] = {"triton_python_backend_utils": triton_python_backend_utils}
    monkeypatch.setattr(foresight, "sys", types.SimpleNamespace(modules=modules))
    return modules
