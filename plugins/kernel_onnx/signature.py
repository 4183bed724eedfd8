"""What a model file says about its inputs and outputs: names, datatypes, dims. Read off a session, asked of nobody else.

Says as much about a tensor that can't be served as about others; who needs it refuses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel import Code, ServingError
from kernel_onnx.shapes import without_shape

__all__ = ["ModelTensor", "Signature", "read_signature"]

#: onnxruntime's names of element types -> KServe's.
DATATYPES = {
    "bool": "BOOL", "string": "BYTES",
    "float16": "FP16", "float": "FP32", "double": "FP64", "bfloat16": "BF16",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
}  # fmt: skip

_TENSOR = re.compile(r"tensor\((\w+)\)")
_KINDS = {"seq": "ONNX_TYPE_SEQUENCE", "map": "ONNX_TYPE_MAP", "sparse_tensor": "ONNX_TYPE_SPARSETENSOR"}


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An input or output of a model file.

    `onnx_type`: as onnxruntime writes it, `tensor(float)`. `datatype`: KServe's name, "" where there is none. `dims`: with
    the batch dimension, -1 for what varies; None where the file doesn't say how many there are.
    """

    name: str
    onnx_type: str
    datatype: str
    dims: tuple[int, ...] | None

    @property
    def shape(self) -> str:
        """The dims as messages show them."""
        return "unknown" if self.dims is None else "[" + ",".join(map(str, self.dims)) + "]"

    def unserved(self, model: str) -> ServingError | None:
        """Return why no request can carry this tensor, or None when one can."""
        if self.datatype:
            return None
        if _TENSOR.fullmatch(self.onnx_type):
            return ServingError(
                Code.UNSUPPORTED,
                f"tensor '{self.name}' of model '{model}' is a {self.onnx_type}; there are datatypes for "
                f"{', '.join(DATATYPES)}",
            )
        kind = _KINDS.get(self.onnx_type.partition("(")[0], "ONNX_TYPE_UNKNOWN")
        return ServingError(
            Code.UNSUPPORTED,
            f"Unsupported ONNX Type '{kind}' for I/O '{self.name}', expected 'ONNX_TYPE_TENSOR'. Model '{model}' has a "
            f"{self.onnx_type} there",
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of a model file by name, in its order. `initializers`: weights that a request may override."""

    inputs: dict[str, ModelTensor]
    outputs: dict[str, ModelTensor]
    initializers: dict[str, ModelTensor]


def read_signature(session: Any, file: Path) -> Signature:
    """Return the signature of the model that `session` has loaded from `file`."""
    groups = (session.get_inputs(), session.get_outputs(), session.get_overridable_initializers())
    shapeless = without_shape(file) if any(not arg.shape for group in groups for arg in group) else frozenset()
    inputs, outputs, initializers = ({arg.name: _tensor(arg, shapeless) for arg in group} for group in groups)
    return Signature(inputs, outputs, initializers)


def _tensor(arg: Any, shapeless: frozenset[str]) -> ModelTensor:
    found = _TENSOR.fullmatch(arg.type)
    dims = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in arg.shape)
    unknown = not dims and arg.name in shapeless
    return ModelTensor(arg.name, arg.type, DATATYPES.get(found[1], "") if found else "", None if unknown else dims)
