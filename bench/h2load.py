"""Load over gRPC by `h2load`, and what came of it.

One case is one call, made over and over by a number of streams on a few connections; h2load only counts bytes, so the client
is never what is measured. It does not look at a call's status: before the load starts the answer has to be the right one, and
afterwards the bytes of all answers have to be as many as that many right answers have. Debian package: `nghttp2-client`.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

__all__ = ["GrpcLoad", "run", "verify"]

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
DTYPES = {"FP32": np.float32, "INT32": np.int32}


@dataclass(frozen=True)
class GrpcLoad:
    """A call with raw inputs. `rpc`: ModelInfer, or ModelStreamInfer with one request a stream, which is then closed.

    `answers`: responses to one call; a figure counts responses.
    """

    model: str
    inputs: dict[str, tuple[list[int], list[float]]]  # name -> shape, values
    connections: int
    streams: int
    rpc: str = "ModelInfer"
    datatype: str = "FP32"
    answers: int = 1

    def message(self) -> Any:
        """Return the call's ModelInferRequest."""
        message = service_pb2.ModelInferRequest(model_name=self.model)
        for name, (shape, values) in self.inputs.items():
            message.inputs.add(name=name, datatype=self.datatype, shape=shape)
            message.raw_input_contents.append(np.array(values, DTYPES[self.datatype]).tobytes())
        return message

    @property
    def path(self) -> str:
        return f"/inference.GRPCInferenceService/{self.rpc}"


def framed(message: bytes) -> bytes:
    """Return a message as gRPC sends it: not compressed, its length, itself."""
    return struct.pack(">BI", 0, len(message)) + message


def verify(port: int, load: GrpcLoad) -> tuple[bytes, int]:
    """Make the call once; return the raw contents of all responses, and how many bytes of data they took on the wire.

    Raises RuntimeError when it isn't a success.
    """
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            if load.rpc == "ModelInfer":
                responses = [stub.ModelInfer(load.message(), timeout=60)]
                data = responses
            else:

                def requests() -> Iterator[Any]:
                    yield load.message()

                data = list(stub.ModelStreamInfer(requests(), timeout=60))
                errors = [one.error_message for one in data if one.error_message]
                if errors:
                    raise RuntimeError(f"{load.path}: {errors[0]}")
                responses = [one.infer_response for one in data]
        except grpc.RpcError as error:
            raise RuntimeError(f"{load.path}: {error.code()} {error.details()}") from None
    if len(responses) != load.answers:
        raise RuntimeError(f"{load.path}: {len(responses)} responses where {load.answers} were wanted")
    contents = b"".join(raw for one in responses for raw in one.raw_output_contents)
    return contents, sum(len(framed(one.SerializeToString())) for one in data)


def run(port: int, load: GrpcLoad, seconds: float, folder: Path) -> float:
    """Load the server for `seconds`; return responses a second. Raises RuntimeError when an answer failed, or without h2load."""
    h2load = shutil.which("h2load")
    if h2load is None:
        raise RuntimeError("h2load isn't installed; it is in a Debian package: apt-get install nghttp2-client")
    _, size = verify(port, load)
    body = folder / f"{load.model}.grpc"
    body.write_bytes(framed(load.message().SerializeToString()))
    command = [h2load, "-t1", f"-c{load.connections}", f"-m{load.streams}", f"-D{max(1, round(seconds))}"]
    command += ["-d", str(body), "-H", "content-type: application/grpc", "-H", "te: trailers"]
    process = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{load.path}"], capture_output=True, text=True, timeout=60 + seconds
    )
    text = process.stdout
    per_second = re.search(r"finished in [^,]*, ([\d.]+) req/s", text)
    requests = re.search(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text)
    traffic = re.search(r"\((\d+)\) data", text)
    if process.returncode or per_second is None or requests is None or traffic is None:
        raise RuntimeError(f"h2load failed: {text}{process.stderr}")
    done, succeeded, *wrong = map(int, requests.groups())
    # What is still under way at the end has been counted as bytes already, or not at all: a call of each stream.
    slack = size * load.connections * load.streams
    if any(wrong) or not done or done != succeeded or not -slack <= int(traffic[1]) - size * done <= slack:
        raise RuntimeError(f"{load.path}: not all answers were right ({size} bytes each)\n{text}")
    return float(per_second[1]) * load.answers
