"""What changes something for everybody is for clients of this machine alone where the server is told so: both wires."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from frontends.fakes import Client, request

from kernel import is_local, local_categories, only_local
from kernel_grpc.rpc.methods import Method
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.local import kept_local
from kernel_grpc.services.paths import triton

HERE = [("127.0.0.1", 5), ("127.8.8.8", 5), ("::1", 5, 0, 0), ("::ffff:127.0.0.1", 5, 0, 0), "", None, "\0abstract"]
ELSEWHERE = [("10.0.0.7", 5), ("0.0.0.0", 5), ("fe80::1%eth0", 5, 0, 2), ("::ffff:10.0.0.7", 5, 0, 0), ("somewhere", 5)]

SAFE = {"logging", "trace", "shared-memory", "model-repository", "inflight"}

#: Method, path, body, and as what it is kept.
CHANGES = [
    ("POST", "/v2/repository/models/m/load", b"", "model-repository"),
    ("POST", "/v2/repository/models/m/unload", b"", "model-repository"),
    ("POST", "/v2/systemsharedmemory/region/r/register", b'{"key":"/x","byte_size":1}', "shared-memory"),
    ("POST", "/v2/systemsharedmemory/unregister", b"", "shared-memory"),
    ("POST", "/v2/cudasharedmemory/region/r/register", b"{}", "shared-memory"),
    ("POST", "/v2/cudasharedmemory/region/r/unregister", b"", "shared-memory"),
    ("POST", "/v2/logging", b'{"log_info":false}', "logging"),
    ("POST", "/v2/trace/setting", b"{}", "trace"),
    ("GET", "/v2/inflight", b"", "inflight"),
]
SHOWS = [("GET", "/v2/logging"), ("GET", "/v2/trace/setting"), ("POST", "/v2/repository/index"), ("GET", "/v2/health/live")]


@pytest.mark.parametrize("peer", HERE)
def test_who_is_of_this_machine(peer: object) -> None:
    assert is_local(peer)


@pytest.mark.parametrize("peer", ELSEWHERE)
def test_who_is_not(peer: object) -> None:
    assert not is_local(peer)


def test_what_is_kept() -> None:
    """Shared memory by default, as it is of use on one machine only; where a key is asked for, that decides."""

    def kept(*restricted: str, **options: Any) -> set[str]:
        return set(local_categories(argparse.Namespace(**options), restricted))

    assert kept() == kept(allow_client_shm="local") == {"shared-memory"}
    assert kept(allow_client_shm=True) == kept("shared-memory") == set()
    assert kept(safe=True) == kept(safe=True, allow_client_shm=True) == SAFE
    assert kept("statistics", "logging", safe=True) == {"trace", "shared-memory", "model-repository"}


def status(client: Client, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    client.send(request(method, path, body))
    head, _, answer = bytes(client.transport.out).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), answer


@pytest.mark.parametrize(("method", "path", "body", "category"), CHANGES)
def test_http(method: str, path: str, body: bytes, category: str) -> None:
    for local, peer in ((SAFE, ELSEWHERE[0]), (SAFE, HERE[0]), (SAFE - {category}, ELSEWHERE[0])):
        client = Client(local=local)
        client.transport.extra["peername"] = peer
        if path.endswith("/load") and not (category in local and peer is ELSEWHERE[0]):
            continue  # it takes a task, which the fake loop has none of
        got, answer = status(client, method, path, body)
        refused = category in local and peer is ELSEWHERE[0]
        assert (got == 403) is refused, answer
        assert (only_local(category).encode() in answer) is refused


@pytest.mark.parametrize(("method", "path"), SHOWS)
def test_http_shows_the_rest_to_all(method: str, path: str) -> None:
    client = Client(local=SAFE)
    client.transport.extra["peername"] = ELSEWHERE[0]
    assert status(client, method, path, b"")[0] == 200


class FakeCall:
    def __init__(self, peer: object) -> None:
        self.peer = peer
        self.ended: tuple[int, str] | None = None

    def finish(self, status: int, text: str) -> None:
        self.ended = status, text


SETTING = pb.LogSettingsRequest.SettingValue(bool_param=False)
LEVEL = pb.TraceSettingRequest.SettingValue(value=["OFF"])

GRPC = [
    ("RepositoryModelLoad", "model-repository", b""),
    ("RepositoryModelUnload", "model-repository", b""),
    ("SystemSharedMemoryRegister", "shared-memory", b""),
    ("SystemSharedMemoryUnregister", "shared-memory", b""),
    ("CudaSharedMemoryRegister", "shared-memory", b""),
    ("CudaSharedMemoryUnregister", "shared-memory", b""),
    ("LogSettings", "logging", pb.LogSettingsRequest(settings={"log_info": SETTING}).SerializeToString()),
    ("TraceSetting", "trace", pb.TraceSettingRequest(settings={"trace_level": LEVEL}).SerializeToString()),
]
GRPC_SHOWS = [
    ("LogSettings", "logging", b""),
    ("TraceSetting", "trace", pb.TraceSettingRequest(model_name="m").SerializeToString()),
    ("LogSettings", "logging", b"\xff\xff"),  # whose handler says that it is none
    ("RepositoryIndex", "model-repository", b""),
    ("SystemSharedMemoryStatus", "shared-memory", b""),
    ("ModelInfer", "inference", b""),
]


@pytest.mark.parametrize("peer", [HERE[0], ELSEWHERE[0]])
@pytest.mark.parametrize("local", [SAFE, set()])
@pytest.mark.parametrize(("name", "category", "message"), [*GRPC, *GRPC_SHOWS])
def test_grpc(name: str, category: str, message: bytes, local: set[str], peer: object) -> None:
    taken: list[object] = []
    (method,) = kept_local([Method(triton(name), lambda call, message: taken.append(message), category=category)], local)
    call = FakeCall(peer)
    method.handler(call, message)
    refused = bool(local) and peer is ELSEWHERE[0] and (name, category, message) in GRPC
    assert (call.ended == (7, only_local(category))) is refused
    assert (taken == [message]) is not refused


def test_every_changing_method_is_there() -> None:
    """Names of methods are texts here: one that is renamed must not be forgotten."""
    from kernel_grpc.services.admin import methods

    kernel: Any = SimpleNamespace(shared_memory=None, cuda_shared_memory=None)
    there = {method.path: method.category for method in methods(kernel, argparse.Namespace())}
    assert {triton(name): category for name, category, _ in GRPC}.items() <= there.items()


def parse(*flags: str) -> argparse.Namespace:
    from kernel_grpc import options as grpc
    from kernel_http import options as http

    parser = argparse.ArgumentParser()
    http.add_options(parser)
    grpc.add_options(parser)
    parser.add_argument("--safe", action="store_true")
    return parser.parse_args([*flags])


RESTRICTING = ("http-restricted-api", "grpc-restricted-protocol")


@pytest.mark.parametrize(
    ("flags", "exposed"),
    [
        ([], True),
        (["--http-address=10.1.2.3", "--grpc-address=[::]"], True),
        (["--safe"], False),
        (["--http-address=127.0.0.1", "--grpc-address=localhost"], False),
        (["--http-address=[::1]", "--grpc-address=unix:/tmp/kernel_test.sock"], False),
        (["--http-restricted-api=health,inference:key=x", "--grpc-restricted-protocol=model-repository,trace:key=x"], True),
        ([f"--{flag}=model-repository,trace,logging:k=x" for flag in RESTRICTING], False),
    ],
)
def test_a_start_says_whom_nothing_keeps_out(flags: list[str], exposed: bool) -> None:
    from frontends.fakes import FakeKernel

    from kernel_grpc.frontend import GrpcFrontend
    from kernel_http.frontend import HttpFrontend

    options, kernel = parse(*flags), FakeKernel()
    kernel.clock = lambda: 0.0  # type: ignore[attr-defined]
    assert HttpFrontend(kernel, options).open_to_all is exposed  # type: ignore[arg-type]
    assert GrpcFrontend(kernel, options).open_to_all is exposed  # type: ignore[arg-type]
