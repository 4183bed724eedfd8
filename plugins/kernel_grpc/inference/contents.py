"""Typed contents: the elements of an input in the field of InferTensorContents that fits its datatype.

Says which field that is, and refuses the others in the reference's words. Whether there are as many elements as the shape
wants is not looked at here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel import DATATYPES, empty_array
from kernel_grpc.inference.parameters import invalid

__all__ = ["typed_contents"]

#: Field -> its datatype in messages, and the datatypes that it is for. In the reference's order.
FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bool_contents": ("BOOL", ("BOOL",)),
    "int_contents": ("INT32", ("INT8", "INT16", "INT32")),
    "int64_contents": ("INT64", ("INT64",)),
    "uint_contents": ("UINT32", ("UINT8", "UINT16", "UINT32")),
    "uint64_contents": ("UINT64", ("UINT64",)),
    "fp32_contents": ("FP32", ("FP32",)),
    "fp64_contents": ("FP64", ("FP64",)),
    "bytes_contents": ("BYTES", ("BYTES",)),
}


def typed_contents(contents: Any, name: str, datatype: str, model: str) -> Any:
    """Return the elements' bytes as an array of uint8, for BYTES the list of elements. Raises ServingError(INVALID_ARG)."""
    subject = f"unexpected explicit tensor data for input tensor '{name}' for model '{model}'"
    found: Any = None
    for field, (kind, datatypes) in FIELDS.items():
        elements = getattr(contents, field)
        if not len(elements):
            continue
        if found is not None:
            raise invalid(f"{subject}, binary data was already supplied.")
        if datatype not in datatypes:
            raise invalid(f"{subject} of type '{kind}', expected datatype '{datatype}'")
        if kind == "BYTES":
            found = list(elements)
            continue
        array = elements if isinstance(elements, np.ndarray) else np.fromiter(elements, DATATYPES[kind], len(elements))
        if datatype != kind:
            array = _narrowed(array, datatype, field, subject)
        found = array.view(np.uint8)
    if found is None:
        return [] if datatype == "BYTES" else np.empty(0, np.uint8)
    return found


def _narrowed(array: Any, datatype: str, field: str, subject: str) -> Any:
    """Return the integers in the datatype's width, all of which must fit."""
    dtype = DATATYPES[datatype]
    narrow = empty_array(len(array), dtype)
    np.copyto(narrow, array, casting="unsafe")
    wrong = narrow != array
    if wrong.any():
        bounds, index = np.iinfo(dtype), int(wrong.argmax())
        raise invalid(
            f"{subject}: element {index} of '{field}' is {array[index]}, {datatype} holds {bounds.min} to {bounds.max}"
        )
    return narrow
