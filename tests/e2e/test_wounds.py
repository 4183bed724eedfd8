"""What has hurt servers of this kind, as two tables: messages over HTTP, and over gRPC, each to a server that goes on serving.

A row is a message, and how it has to be answered. Behind each of them the server lives, has the same process, has taken no more
memory than MEMORY, has written nothing outside of its repository, and its next answer is right. The comments name where the real
servers were hurt.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from kernel_grpc.schemas import grpc_service_pb2 as pb

from .serving import Server, serving, wait_until, write_model
from .test_h2_cases import Client, call, frame, headers, number, settings

MEMORY = 192 * 2**20  # the allocator is told to keep 128 MB that are free
X = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
SERVICE = "/inference.GRPCInferenceService/"
HUGE = 2**63 - 1
INFER = "/v2/models/add/infer"
SECRET = "what nobody may read"
CONFIG = '{"backend": "python", "max_batch_size": 0}'


@dataclass
class Standing:
    """A server that is attacked. `folder`: where it stands, whose files must stay as they are."""

    server: Server
    grpc_port: int
    folder: Path

    def memory(self) -> int:
        text = Path(f"/proc/{self.server.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found
        return int(found[1]) * 1024

    def files(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    folder = tmp_path_factory.mktemp("wounds")
    write_model(folder / "models", "add")
    (folder / "secret").write_text(SECRET)
    with serving(folder, folder / "models", "--model-control-mode=explicit", "--load-model=add") as server:
        found: list[str] = []
        wait_until(lambda: found.extend(re.findall(r"Started GRPCInferenceService at [^ ]+:(\d+)", server.text())) or found)
        yield Standing(server, int(found[0]), folder)


@pytest.fixture(autouse=True)
def unharmed(standing: Standing) -> Iterator[None]:
    """What holds behind each row."""
    memory, files = standing.memory(), standing.files()
    yield
    assert standing.server.process.poll() is None
    status, answer = standing.server.infer("add", 3.0)
    assert status == 200 and answer["outputs"][0]["data"] == [3.0]
    wait_until(lambda: standing.memory() - memory < MEMORY)  # threads let go a little later
    assert standing.files() == files


# -- HTTP ----------------------------------------------------------------------------------------------------------------------


def post(path: str, body: bytes | object, *fields: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(data)}", "Connection: close", *fields, "", ""]
    return "\r\n".join(lines).encode() + data


def chunked(path: str, pieces: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", "Transfer-Encoding: chunked", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + pieces + b"0\r\n\r\n"


def with_input(**changes: object) -> dict[str, object]:
    return {"inputs": [{**X, **changes}]}


def register(key: str, **changes: object) -> bytes:
    return post("/v2/systemsharedmemory/region/r/register", {"key": key, "offset": 0, "byte_size": 64, **changes})


def load(**parameters: str) -> bytes:
    return post("/v2/repository/models/add/load", {"parameters": parameters})


def bomb(megabytes: int) -> bytes:
    return gzip.compress(b'{"inputs":[' + b" " * (megabytes << 20) + b"]}")


MEANT = json.dumps(with_input()).encode()
SPAN = {"shared_memory_region": "r", "shared_memory_byte_size": 4}

#: Name -> message, the statuses that are right.
HTTP: dict[str, tuple[bytes, tuple[int, ...]]] = {
    # CVE-2025-23310: memory on the stack for each piece of a chunked body
    "a good request in chunks of 6 bytes": (
        chunked(INFER, b"".join(b"6\r\n%b\r\n" % MEANT.ljust(96)[at : at + 6] for at in range(0, 96, 6))),
        (200,),
    ),
    "a hundred thousand chunks of 6 bytes": (chunked(INFER, b"6\r\n[[[[[[\r\n" * 100_000), (400,)),
    "as many, for what is not there": (chunked("/v2/models/none/infer", b"6\r\n[[[[[[\r\n" * 100_000), (400, 404)),
    "as many, for another part of the API": (chunked("/v2/repository/index", b"6\r\n[[[[[[\r\n" * 100_000), (400, 413)),
    # CVE-2025-23319, 23320, 23334: the names of the server's own memory, told by an error, and opened by a client
    "internal memory": (register("triton_python_backend_shm_region_1"), (400,)),
    "internal memory behind a slash": (register("/triton_python_backend_shm_region_1"), (400,)),
    "a semaphore": (register("sem.kernel"), (400,)),
    "memory by a path": (register("../../etc/passwd"), (400, 500)),
    "memory by a path from the root": (register("/../../etc/passwd"), (400, 500)),
    "memory by a path with NUL": (register("a\0b"), (400, 500)),
    "memory with a name of a megabyte": (register("a" * 2**20), (400,)),
    "memory without a name": (register(""), (400, 500)),
    "memory of the folder": (register("/"), (400, 500)),
    "memory: offset + size overflows": (register("kernel_none", offset=2**64 - 1, byte_size=2**64 - 1), (400, 500)),
    "memory: offset beyond 64 bits": (register("kernel_none", offset=2**64), (400,)),
    "memory: negative": (register("kernel_none", offset=-1), (400,)),
    "memory that is not registered": (post(INFER, with_input(data=[], parameters=SPAN)), (400,)),
    "span that overflows": (
        post(INFER, with_input(data=[], parameters={**SPAN, "shared_memory_offset": 2**64 - 4})),
        (400,),
    ),
    # CVE-2024-0087 and its like: files outside of the repository, written and read
    "log file": (post("/v2/logging", {"log_file": "written"}), (501,)),
    "log file by a path": (post("/v2/logging", {"log_file": "../../written"}), (501,)),
    "trace file": (post("/v2/trace/setting", {"trace_file": "written"}), (501,)),
    "file of a load, outside": (load(config=CONFIG, **{"file:../../written": "eA=="}), (400, 500)),
    "file of a load, outside of its version": (load(config=CONFIG, **{"file:1/../../../written": "eA=="}), (400, 500)),
    "file of a load, from the root": (load(config=CONFIG, **{"file:/tmp/written": "eA=="}), (400,)),
    "file of a load, NUL": (load(config=CONFIG, **{"file:1/a\0b": "eA=="}), (400, 500)),
    "file of a load, no base64": (load(config=CONFIG, **{"file:1/model.py": "\xff"}), (400,)),
    "default_model_filename outside": (load(config='{"backend":"python","default_model_filename":"../../../secret"}'), (400,)),
    "label_filename outside": (
        load(
            config='{"backend":"python","output":[{"name":"Y","data_type":"TYPE_FP32","dims":[1],"label_filename":"../../secret"}]}'
        ),
        (400,),
    ),
    "a backend by a path": (load(config='{"backend":"../../tmp/evil"}'), (400,)),
    "a runtime by a path": (load(config='{"backend":"python","runtime":"../../tmp/evil.so"}'), (400, 200)),
    "model outside of the repository": (post("/v2/repository/models/../../secret/load", b""), (400, 404)),
    "model outside, in percents": (post("/v2/repository/models/..%2f..%2fsecret/load", b""), (400, 404)),
    "model with NUL": (post("/v2/repository/models/a%00b/load", b""), (400, 404)),
    "model of a version without end": (post(f"/v2/models/add/versions/{10**40}/infer", with_input()), (400, 404)),
    # CVE-2025-23311 and its like: depth and size of what is parsed
    "JSON of a million brackets": (post(INFER, b"[" * 1_000_000), (400,)),
    "JSON of a million objects": (post(INFER, b'{"a":' * 1_000_000), (400,)),
    "data of a thousand dimensions": (
        post(INFER, b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":' + b"[" * 1000 + b"1" + b"]" * 1000 + b"}]}"),
        (400, 200),
    ),
    "config of a hundred thousand brackets": (load(config="[" * 100_000), (400, 500)),
    "parameters of a hundred thousand brackets": (
        post(INFER, b'{"parameters":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b'},"inputs":[]}'),
        (400,),
    ),
    "number of a million digits": (post(INFER, b'{"inputs":[{"name":"X","shape":[' + b"9" * 10**6 + b"]}]}"), (400,)),
    "gzip of 512 MB": (post(INFER, bomb(512), "Content-Encoding: gzip"), (400, 413)),
    "gzip of 512 MB for another part": (post("/v2/repository/index", bomb(512), "Content-Encoding: gzip"), (400, 413)),
    "gzip in gzip": (post(INFER, gzip.compress(bomb(64)), "Content-Encoding: gzip, gzip"), (400, 413, 415, 501)),
    # sizes that overflow (CVE-2023-31036 and its like)
    "shape of 2^63 - 1": (post(INFER, with_input(shape=[HUGE])), (400,)),
    "shape whose product is 0 modulo 2^64": (post(INFER, with_input(shape=[2**32, 2**32], data=[])), (400,)),
    "shape beyond 64 bits": (post(INFER, with_input(shape=[2**64])), (400,)),
    "shape below 0": (post(INFER, with_input(shape=[-HUGE - 1])), (400,)),
    "shape of 100 000 dimensions": (post(INFER, with_input(shape=[2**62] * 100_000)), (400,)),
    "size of a tail beyond 64 bits": (
        post(INFER, with_input(parameters={"binary_data_size": 2**64}), "Inference-Header-Content-Length: 10"),
        (400,),
    ),
    "JSON part beyond 64 bits": (post(INFER, MEANT, f"Inference-Header-Content-Length: {2**64}"), (400,)),
    "JSON part below 0": (post(INFER, MEANT, "Inference-Header-Content-Length: -1"), (400,)),
    "tail below 0": (
        post(INFER, with_input(parameters={"binary_data_size": -4}), f"Inference-Header-Content-Length: {len(MEANT) + 37}"),
        (400,),
    ),
    "classes 2^63": (
        post(INFER, {**with_input(), "outputs": [{"name": "Y", "parameters": {"classification": 2**63}}]}),
        (400, 200),
    ),
    "sequence 2^64": (post(INFER, {**with_input(), "parameters": {"sequence_id": 2**64}}), (400,)),
    "time-out 2^64": (post(INFER, {**with_input(), "parameters": {"timeout": 2**64}}), (400,)),
    "body of a tebibyte": (
        f"POST {INFER} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {2**40}\r\n\r\n".encode() + b"x" * 100_000,
        (413,),
    ),
    "head of a megabyte": (b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 2**20 + b"\r\n\r\n", (431,)),
    "head of many fields": (b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 50_000 + b"\r\n", (431,)),
}  # fmt: skip

STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ")


@pytest.mark.parametrize("name", HTTP)
def test_over_http(name: str, standing: Standing) -> None:
    sent, wanted = HTTP[name]
    came = b""
    with socket.create_connection(("127.0.0.1", standing.server.port), timeout=20) as sock:
        with contextlib.suppress(ConnectionError):  # it has been refused before all of it had come
            sock.sendall(sent)
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                came += piece
    found = [int(status) for status in STATUS.findall(came)]
    assert len(found) == 1 and found[0] in wanted, came[:500]
    assert b"Traceback" not in came and SECRET.encode() not in came


# -- gRPC: messages --------------------------------------------------------------------------------------------------------------


def infer(**changes: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name=changes.pop("model", "add"))
    tensor = made.inputs.add(name="X", datatype=changes.pop("datatype", "FP32"), shape=changes.pop("shape", [1]))
    made.raw_input_contents.append(changes.pop("raw", struct.pack("<f", 1)))
    for key, value in changes.items():
        where = tensor if key.startswith("shared") else made
        where.parameters[key].CopyFrom(pb.InferParameter(**value))
    return made


def registered(key: str, offset: int = 0, size: int = 64) -> pb.SystemSharedMemoryRegisterRequest:
    return pb.SystemSharedMemoryRegisterRequest(name="r", key=key, offset=offset, byte_size=size)


def loaded(name: str = "add", **files: bytes) -> pb.RepositoryModelLoadRequest:
    made = pb.RepositoryModelLoadRequest(model_name=name)
    made.parameters["config"].string_param = CONFIG
    for key, value in files.items():
        made.parameters[key].bytes_param = value
    return made


def logged(value: str) -> pb.LogSettingsRequest:
    made = pb.LogSettingsRequest()
    made.settings["log_file"].string_param = value
    return made


INVALID, INTERNAL, NOT_FOUND, UNAVAILABLE, EXHAUSTED, UNIMPLEMENTED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
REGISTER = "SystemSharedMemoryRegister"

#: Name -> method, message, the codes that are right.
RPC: dict[str, tuple[str, Any, tuple[grpc.StatusCode, ...]]] = {
    "internal memory": (REGISTER, registered("triton_python_backend_shm_region_1"), (INVALID,)),
    "a semaphore": (REGISTER, registered("sem.kernel"), (INVALID,)),
    "memory by a path": (REGISTER, registered("../../etc/passwd"), (INVALID, INTERNAL)),
    "memory with NUL": (REGISTER, registered("a\0b"), (INVALID, INTERNAL)),
    "memory: offset + size overflows": (REGISTER, registered("kernel_none", 2**64 - 1, 2**64 - 1), (INVALID, INTERNAL)),
    "memory that is not registered": (
        "ModelInfer",
        infer(shared_memory_region={"string_param": "r"}, shared_memory_byte_size={"int64_param": 4}),
        (INVALID, NOT_FOUND),
    ),
    "file of a load, outside": ("RepositoryModelLoad", loaded(**{"file:../../written": b"x"}), (INVALID, INTERNAL)),
    "file of a load, from the root": ("RepositoryModelLoad", loaded(**{"file:/tmp/written": b"x"}), (INVALID, INTERNAL)),
    "model outside of the repository": ("RepositoryModelLoad", loaded("../secret"), (INVALID, NOT_FOUND)),
    "model with NUL": ("RepositoryModelLoad", loaded("a\0b"), (INVALID, NOT_FOUND)),
    "log file": ("LogSettings", logged("../written"), (UNIMPLEMENTED,)),
    "shape of 2^63 - 1": ("ModelInfer", infer(shape=[HUGE]), (INVALID,)),
    "shape whose product is 0 modulo 2^64": ("ModelInfer", infer(shape=[2**32, 2**32], raw=b""), (INVALID,)),
    "shape below 0": ("ModelInfer", infer(shape=[-HUGE - 1]), (INVALID,)),
    "shape of 100 000 dimensions": ("ModelInfer", infer(shape=[2**62] * 100_000), (INVALID,)),
    "no bytes for what was announced": ("ModelInfer", infer(raw=b""), (INVALID,)),
    "strings whose lengths lie": ("ModelInfer", infer(datatype="BYTES", raw=b"\xff\xff\xff\xff"), (INVALID,)),
    "datatype of a megabyte": ("ModelInfer", infer(datatype="A" * 2**20), (INVALID, EXHAUSTED)),
    "name of a megabyte": ("ModelInfer", infer(model="A" * 2**20), (INVALID, NOT_FOUND, UNAVAILABLE)),
}  # fmt: skip

TYPES = {
    "ModelInfer": pb.ModelInferResponse,
    REGISTER: pb.SystemSharedMemoryRegisterResponse,
    "RepositoryModelLoad": pb.RepositoryModelLoadResponse,
    "LogSettings": pb.LogSettingsResponse,
}


@pytest.mark.parametrize("name", RPC)
def test_over_grpc(name: str, standing: Standing) -> None:
    method, message, codes = RPC[name]
    with grpc.insecure_channel(f"127.0.0.1:{standing.grpc_port}") as channel:
        one = channel.unary_unary(
            SERVICE + method, request_serializer=type(message).SerializeToString, response_deserializer=TYPES[method].FromString
        )
        with pytest.raises(grpc.RpcError) as caught:
            one(message, timeout=20)
    assert caught.value.code() in codes, caught.value  # type: ignore[attr-defined]
    assert "Traceback" not in caught.value.details() and len(caught.value.details()) < 10_000  # type: ignore[attr-defined]


# -- gRPC: frames ----------------------------------------------------------------------------------------------------------------

PATH = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"{SERVICE}ModelInfer"),
    (":authority", "a"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def message(data: bytes, *, packed: bool = False, length: int | None = None) -> bytes:
    return bytes((packed,)) + (len(data) if length is None else length).to_bytes(4, "big") + data


def whole(stream: int, data: bytes, *fields: tuple[str, str]) -> bytes:
    pieces = [data[at : at + 16384] for at in range(0, len(data), 16384)]
    return headers(stream, PATH + list(fields)) + b"".join(
        frame(0, at == len(pieces) - 1, stream, piece) for at, piece in enumerate(pieces)
    )


def each(piece: Callable[[int], bytes], count: int = 2000) -> list[bytes]:
    return [piece(2 * k + 1) for k in range(count)]


#: The server resets these streams itself, and each counts as one that the client has reset (CVE-2025-8671, MadeYouReset).
MADE = {
    "WINDOW_UPDATE by 0": lambda stream: headers(stream, PATH) + number(8, stream, 0),
    "WINDOW_UPDATE that overflows": lambda stream: headers(stream, PATH) + number(8, stream, 2**31 - 1),
    "PRIORITY of a wrong length": lambda stream: headers(stream, PATH) + frame(2, 0, stream, bytes(4)),
    "DATA behind the end": lambda stream: headers(stream, PATH, 5) + frame(0, 1, stream, b"x"),
    "HEADERS behind the end": lambda stream: headers(stream, PATH, 5) + headers(stream, PATH, 5),
    "second HEADERS": lambda stream: headers(stream, PATH) + headers(stream, PATH),
    "more than content-length": lambda stream: headers(stream, [*PATH, ("content-length", "1")]) + frame(0, 0, stream, b"xxx"),
    "malformed trailers": lambda stream: headers(stream, PATH) + headers(stream, [(":path", "/")], 5),
}  # fmt: skip

#: Name -> what is sent, piece by piece, until the server ends the connection.
FLOODS: dict[str, list[bytes]] = {
    "rapid reset (CVE-2023-44487)": each(lambda stream: call(stream, PATH) + number(3, stream, 8)),
    **{f"{name} (CVE-2025-8671)": each(piece) for name, piece in MADE.items()},
    "CONTINUATION (CVE-2024-27316)": [headers(1, b"\x82", 0), *[frame(9, 0, 1, b"\x00\x01a\x01b") for _ in range(50_000)]],
    "CONTINUATION of nothing": [headers(1, b"\x82", 0), *[frame(9, 0, 1)] * 50_000],
    "HPACK bomb": [headers(1, b"\x40\x01a\x7f\x81\x1e" + b"b" * 3968 + b"\xbe" * 16_000)],
    "header list of a megabyte": [headers(1, [*PATH, *[("x", "y" * 1000)] * 1000], 5)],
    "PING (CVE-2019-9512)": [frame(6, 0, 0, bytes(8))] * 50_000,
    "SETTINGS (CVE-2019-9515)": [settings((4, 1))] * 50_000,
    "empty DATA (CVE-2019-9518)": [headers(1, PATH), *[frame(0, 0, 1)] * 50_000],
    "fields without a name (CVE-2019-9516)": [headers(1, b"\x00\x00\x00" * 5000, 5)] * 100,
    "PRIORITY (CVE-2019-9513)": [frame(2, 0, 1, bytes(5))] * 50_000,
    "frame of 16 MB": [(2**24 - 1).to_bytes(3, "big") + bytes((0, 0, 0, 0, 0, 1))],
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_end_the_connection(name: str, standing: Standing) -> None:
    client = Client(standing.grpc_port)
    with client.sock:
        try:
            for piece in FLOODS[name]:
                client.send(piece)
        except ConnectionError:
            return  # it has been ended
        while (one := client.next()) is not None:
            if one[0] == 7:
                return
    assert one is None, "the connection goes on"


#: Name -> the bytes of a message, and fields of its call; the statuses of gRPC that are right.
BODIES: dict[str, tuple[bytes, tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "length of 4 GB": (message(b"x", length=2**32 - 1), (), ("3", "8", "13")),
    "gzip of 512 MB": (message(gzip.compress(bytes(2**29)), packed=True), (("grpc-encoding", "gzip"),), ("3", "8", "13")),
    "gzip that is none": (message(b"\x1f\x8b" + b"x" * 100, packed=True), (("grpc-encoding", "gzip"),), ("3", "13")),
    "packed without saying how": (message(b"x", packed=True), (), ("3", "12", "13")),
    "groups in groups": (message(b"\x0b" * 100_000), (), ("3", "13")),
    "length of a field that overflows": (message(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), (), ("3", "13")),
    "a million empty inputs": (message(b"\x2a\x00" * 1_000_000), (), ("3", "8", "13")),
    "a million empty contents": (message(b"\x3a\x00" * 1_000_000), (), ("3", "8", "13")),
    "two messages": (message(b"") * 2, (), ("3", "12", "13")),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str, standing: Standing) -> None:
    data, fields, wanted = BODIES[name]
    client = Client(standing.grpc_port)
    with client.sock:
        client.send(whole(1, data, *fields))
        while (one := client.next()) is not None and not (one[0] == 1 and one[1] & 1) and one[0] not in (3, 7):
            pass
        assert one is not None and one[0] == 1, one
        found = re.search(rb"grpc-status.(\d+)", one[3])
        assert found and found[1].decode() in wanted, one


@pytest.mark.parametrize("path", [INFER, "/v2/models/add/generate", "/v2/repository/models/add/load"])
def test_what_is_refused_is_let_go(path: str, standing: Standing) -> None:
    """Large bodies that are read beside the loop, and refused there."""
    body = b'{"parameters":{"a":"' + b"x" * (24 << 20) + b'","a":}}'
    before = standing.memory()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", standing.server.port), timeout=20) as sock:
            sock.sendall(post(path, body))
            assert b" 400 " in sock.recv(65536)
    wait_until(lambda: standing.memory() - before < MEMORY)


def test_nothing_has_been_left_behind(standing: Standing) -> None:
    """Descriptors and threads are what they were: a handful."""
    assert len(os.listdir(f"/proc/{standing.server.process.pid}/fd")) < 60
    assert "Traceback" not in standing.server.text()
