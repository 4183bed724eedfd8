"""The unmodified client library on either wire: inference as its users write it."""

from __future__ import annotations

from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from . import grpc_wire, http_wire
from .asks import NUMPY, Answered, Ask, Outcome, Refused, Tensor

__all__ = ["ClientWire", "sayable"]


def sayable(ask: Ask) -> bool:
    """Whether the library lets one ask that: it looks at names of datatypes, at shapes and at values itself."""
    return all(
        tensor.part is not None
        or (
            tensor.data is None
            and tensor.values is not None
            and tensor.datatype in (*NUMPY, "BYTES")
            and len(tensor.values) == prod(tensor.shape)
            and min(tensor.shape, default=1) >= 0
        )
        for tensor in ask.inputs
    )


class ClientWire:
    """`wire`: http or grpc."""

    def __init__(self, wire: str, port: int) -> None:
        self.wire = wire
        self.way = f"{wire} client"
        self._library: ModuleType = {"http": http_client, "grpc": grpc_client}[wire]
        self._client = self._library.InferenceServerClient(f"127.0.0.1:{port}")

    def close(self) -> None:
        self._client.close()

    def infer(self, ask: Ask) -> Outcome:
        given, parameters = self._library, dict(ask.parameters)
        inputs = []
        for tensor in ask.inputs:
            each = given.InferInput(tensor.name, list(tensor.shape), tensor.datatype)
            if tensor.part is not None:
                each.set_shared_memory(tensor.part.region, tensor.part.size, tensor.part.offset)
            else:
                each.set_data_from_numpy(array_of(tensor))
            inputs.append(each)
        outputs = None
        if ask.outputs is not None:
            outputs = [given.InferRequestedOutput(want.name, class_count=want.classes) for want in ask.outputs]
            for want, named in zip(ask.outputs, outputs, strict=True):
                if want.part is not None:
                    named.set_shared_memory(want.part.region, want.part.size, want.part.offset)
        # What has an argument of its own may not be among the parameters.
        own = {
            name: parameters.pop(name)
            for name in ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")
            if name in parameters
        }
        try:
            result = self._client.infer(
                ask.model,
                inputs,
                model_version=ask.version,
                outputs=outputs,
                request_id=ask.id,
                parameters=parameters or None,
                **own,
            )
        except InferenceServerException as error:
            return self._refusal(error)
        regions = {want.name for want in ask.outputs or () if want.part is not None}
        return self._answered(result, regions)

    def _refusal(self, error: InferenceServerException) -> Refused:
        if self.wire == "grpc":
            status = str(error.status()).removeprefix("StatusCode.")
            return Refused(grpc_wire.NAMES.get(status, status), error.message())
        names = [name for name, status in http_wire.CODES.items() if str(status) == error.status()]
        return Refused(names[0] if len(names) == 1 else str(error.status()), error.message())

    def _answered(self, result: Any, regions: set[str]) -> Answered:
        response = result.get_response()
        get = response.get if self.wire == "http" else lambda name, _: getattr(response, name)
        outputs = []
        for output in get("outputs", []):
            name, datatype, shape = (
                (output["name"], output["datatype"], output["shape"])
                if self.wire == "http"
                else (output.name, output.datatype, output.shape)
            )
            values = None if name in regions else tuple(result.as_numpy(name).ravel().tolist())
            outputs.append(Tensor(name, datatype, tuple(shape), values))
        return Answered(tuple(outputs), get("id", ""), get("model_name", ""), get("model_version", ""))


def array_of(tensor: Tensor) -> Any:
    values = np.empty(len(tensor.values or ()), object)
    values[:] = tensor.values
    kind = np.object_ if tensor.datatype == "BYTES" else NUMPY.get(tensor.datatype, np.float32)
    return values.astype(kind).reshape(tensor.shape)
