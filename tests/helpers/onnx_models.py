"""ONNX models made in the test itself, and a kernel that serves them on a real loop.

Models are written with `onnx.helper`; `graph` saves the typing. Imported only where onnx and onnxruntime are installed.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import kernel_onnx
from kernel import Kernel, ServingError
from kernel.config import ModelConfig, read_config

T = TypeVar("T")

TYPES = {
    "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE, "BF16": TensorProto.BFLOAT16,
    "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32, "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32, "UINT64": TensorProto.UINT64,
    "BOOL": TensorProto.BOOL, "BYTES": TensorProto.STRING,
}  # fmt: skip

#: A tensor's datatype and shape: numbers, None or a name for what varies; no list where the file states no shape.
Declared = tuple[str, Sequence[int | str | None] | None]


def tensor(name: str, declared: Declared) -> onnx.ValueInfoProto:
    datatype, shape = declared
    return helper.make_tensor_value_info(name, TYPES[datatype], shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Declared],
    outputs: Mapping[str, Declared],
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    opset: int = 17,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Return a model. `weights`: its initializers; those that `inputs` names, too, can be overridden."""
    made = helper.make_graph(
        nodes,
        "graph",
        [tensor(*item) for item in inputs.items()],
        [tensor(*item) for item in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()]
    return helper.make_model(made, opset_imports=imports, ir_version=8)


node = helper.make_node


def unary(
    operator: str, datatype: str = "FP32", shape: Sequence[int | str | None] | None = ("n", 3), **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one node, X -> Y, of one type and shape."""
    return graph([node(operator, ["X"], ["Y"], **attributes)], {"X": (datatype, shape)}, {"Y": (datatype, shape)})


class OnnxRepo:
    """Models are added, then `run` serves them all and calls its argument with the kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        self, name: str, model: onnx.ModelProto | bytes | None, config: str | None = None, *, file: str = "1/model.onnx"
    ) -> Path:
        """Write a model and its config; None for none. Returns the path of the model's file."""
        path = self.folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if model is not None:
            path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        if config is not None:
            (self.folder / name / "config.pbtxt").write_text(config)
        return path

    def run(self, main: Callable[[Kernel], Awaitable[T]], *, seconds: float = 60, **options: Any) -> T:
        installed = {point.name for point in importlib.metadata.entry_points(group="kernel")}
        plugins = [] if "kernel_onnx" in installed else [kernel_onnx]

        async def served() -> T:
            async with Kernel(self.folder, plugins=plugins, **options) as kernel:
                return await main(kernel)

        async def limited() -> T:
            return await asyncio.wait_for(served(), seconds)

        return asyncio.run(limited())

    def load_error(self, name: str, **options: Any) -> str:
        """Serve, and return why `name` could not be loaded."""

        async def main(kernel: Kernel) -> str:
            (entry,) = [one for one in kernel.index() if one.name == name]
            assert entry.state == "UNAVAILABLE", entry
            return str(entry.reason)

        return self.run(main, exit_on_error=False, **options)

    def config(self, name: str, **options: Any) -> Any:
        """Serve, and return the config that the model runs with, as a dictionary."""

        async def main(kernel: Kernel) -> Any:
            return kernel.model(name).config.as_dict()

        return self.run(main, **options)


def parameter_lines(parameters: Mapping[str, str]) -> str:
    return "\n".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()
    )


def config_of(folder: Path, text: str) -> ModelConfig:
    """Return the config of a model `m` in `folder`, as far as it goes."""
    model = folder / "m"
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text('backend: "onnxruntime"\n' + text)
    return read_config(model, partial=True)


async def ask(kernel: Kernel, model: str, inputs: Mapping[str, Any], **fields: Any) -> dict[str, Any] | str:
    """Return the outputs by name, or the error as "<CODE>: <text>"."""
    try:
        response = await asyncio.wait_for(kernel.infer(model, inputs, **fields), 20)
    except ServingError as error:
        return f"{error.code.name}: {error.message}"
    return {one.name: one.array for one in response.outputs}


CPU = 'backend: "onnxruntime" instance_group { kind: KIND_CPU count: 1 }\n'
BATCHES = CPU + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: %d }\n"
LOOP = 'parameters { key: "placement" value { string_value: "loop" } }\n'
SHARED = 'parameters { key: "share_session_between_instances" value { string_value: "true" } }\n'

#: Two rows in, each times a weight: what a row gives is told by its values alone.
SCALE = graph(
    [node("Mul", ["X", "W"], ["Y"])], {"X": ("FP32", ["n", 2])}, {"Y": ("FP32", ["n", 2])}, {"W": np.float32(3)}
)


def rows(*values: float) -> np.ndarray[Any, Any]:
    """One request's rows; each holds one value twice."""
    return np.array([[value, value] for value in values], np.float32)


def executions(kernel: Kernel, model: str) -> int:
    return kernel.statistics(model)[0].execution_count


async def until(condition: Any) -> None:
    """Give way until something is so that another thread brings about."""
    while not condition():  # noqa: ASYNC110 - what changes is not ours
        await asyncio.sleep(0)
