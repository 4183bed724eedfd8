"""A message of ModelInfer becomes a response of the kernel.

Pure. Answers of a model are the same for most requests but for the data: such a layout is remembered by the length of the
message, and one that has come before is read without the schema.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel import DATATYPES, Code, InferenceResponse, ServingError, Tensor, unpack_bytes
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.messages import varint

__all__ = ["Answers", "response_of"]

#: How many layouts are remembered of one model, and how much of a message is compared.
REMEMBERED = 256
LONGEST = 4096


class _Output:
    """Where an output's data lies in a message: `[start:stop]`, behind `mark`, which begins at `at`."""

    __slots__ = ("at", "datatype", "dtype", "mark", "name", "shape", "start", "stop")

    def __init__(self, tensor: Tensor, mark: bytes, at: int) -> None:
        self.name = tensor.name
        self.datatype = tensor.datatype
        self.dtype = tensor.array.dtype
        self.shape = tensor.array.shape
        self.mark = mark
        self.at = at
        self.start = at + len(mark)
        self.stop = self.start + tensor.array.nbytes


class Answers:
    """Reads the messages of one model, `name` as the far end calls it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[int, tuple[bytes, list[_Output]]] = {}

    def read(self, data: bytes, where: str) -> InferenceResponse:
        """Return the response that a ModelInferResponse is. Raises ServingError(INTERNAL), or what says that it is none."""
        layout = self._known.get(len(data))
        if layout is not None and data.startswith(layout[0]):
            outputs = []
            for one in layout[1]:
                if not data.startswith(one.mark, one.at):
                    break
                # A copy: whoever gets it may write to it.
                array: Any = np.ndarray(one.shape, one.dtype, bytearray(memoryview(data)[one.start : one.stop]))
                outputs.append(Tensor(one.name, one.datatype, array))
            else:
                return InferenceResponse(outputs)
        message = pb.ModelInferResponse.FromString(data)
        if message.model_name not in (self._name, ""):
            text = f"endpoint {where} answers for model '{message.model_name[:128]}', where '{self._name}' was asked"
            raise ServingError(Code.INTERNAL, text)
        response, _ = response_of(message, where)
        if not (message.id or response.parameters):
            self._learn(data, response.outputs)
        return response

    def _learn(self, data: bytes, tensors: list[Tensor]) -> None:
        """Remember the layout of a message that is nothing but head and data, of outputs whose size does not vary."""
        at, found = len(data), []
        for tensor in reversed(tensors):
            size = tensor.array.nbytes
            mark = b"\x32" + varint(size)  # raw_output_contents, field 6, which comes last
            at -= size + len(mark)
            if tensor.datatype == "BYTES" or at < 0 or not data.startswith(mark, at):
                return
            found.append(_Output(tensor, mark, at))
        if at <= LONGEST:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[len(data)] = data[:at], found[::-1]


def response_of(message: Any, where: str) -> tuple[InferenceResponse, bool]:
    """Return the response that it is, and whether it says that it is the last. Raises ServingError(INTERNAL)."""
    parameters: dict[str, Any] = {}
    final = False
    if message.parameters:
        parameters = {
            key: getattr(one, one.WhichOneof("parameter_choice") or "string_param")
            for key, one in message.parameters.items()
        }
        final = bool(parameters.pop("triton_final_response", False))
    raws = message.raw_output_contents
    if len(raws) != len(message.outputs):
        text = f"endpoint {where} answers with {len(message.outputs)} outputs and the raw data of {len(raws)}"
        raise ServingError(Code.INTERNAL, text)
    outputs = [_tensor(one, raw, where) for one, raw in zip(message.outputs, raws)]
    return InferenceResponse(outputs, parameters=parameters or None), final


def _tensor(output: Any, raw: bytes, where: str) -> Tensor:
    dtype = DATATYPES.get(output.datatype)
    shape = tuple(output.shape)
    try:
        if dtype is None:
            raise ValueError("an unknown datatype")
        if output.datatype == "BYTES":
            items = unpack_bytes(raw)
            array = np.empty(len(items), np.object_)
            array[:] = items
        else:
            array = np.frombuffer(bytearray(raw), dtype)  # a copy: whoever gets it may write to it
        return Tensor(output.name, output.datatype, array.reshape(shape))
    except ValueError as error:
        said = f"output '{output.name}' of {output.datatype}{list(shape)} in {len(raw)} bytes"
        text = f"endpoint {where} answers with {said}: {error}"
        raise ServingError(Code.INTERNAL, text) from None
