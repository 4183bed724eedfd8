"""The served repository and the ways to ask it, once a session."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import probe
from .clients import ClientWire
from .grpc_wire import GrpcWire
from .http_wire import HttpWire
from .serving import Ports, Served

MODELS = Path(__file__).parents[1] / "reference" / "models"
OWN = Path(__file__).parent / "models"

WAYS = ("http json", "http binary", "http client", "grpc typed", "grpc raw", "grpc client")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that are compared with the reference, and those that only this suite has."""
    folder = tmp_path_factory.mktemp("conformance") / "models"
    for models in (MODELS / "explicit", MODELS / "plain", OWN):
        shutil.copytree(models, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="session")
def served(repository: Path) -> Iterator[Served]:
    names = [path.name for models in (MODELS / "plain", OWN) for path in models.iterdir()]
    sys.modules["conformance_probe"] = probe
    served = Served(repository, sorted({*names, "echo", "tells"}))
    yield served
    served.stop()
    del sys.modules["conformance_probe"]


def made(way: str, ports: Ports) -> Any:
    """Return what asks in that way."""
    wire, manner = way.split()
    port = ports.http if wire == "http" else ports.grpc
    if manner == "client":
        return ClientWire(wire, port)
    return HttpWire(port, binary=manner == "binary") if wire == "http" else GrpcWire(port, typed=manner == "typed")


@pytest.fixture(scope="session")
def ways(served: Served) -> Iterator[dict[str, Any]]:
    """All ways to ask the open front ends."""
    ways = {way: made(way, served.open) for way in WAYS}
    yield ways
    for way in ways.values():
        way.close()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, ways: dict[str, Any]) -> Any:
    return ways[request.param]


@pytest.fixture(params=["http", "grpc"])
def wire(request: pytest.FixtureRequest, ways: dict[str, Any]) -> Any:
    """Both wires, each in its plain way."""
    return ways[{"http": "http json", "grpc": "grpc raw"}[request.param]]


@pytest.fixture(params=["http", "grpc"])
def guarded(request: pytest.FixtureRequest, served: Served) -> Iterator[Any]:
    """Both wires of the guarded front ends."""
    wire = made({"http": "http json", "grpc": "grpc raw"}[request.param], served.guarded)
    yield wire
    wire.close()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A shared memory object of 256 bytes."""
    path = Path(f"/dev/shm/kernel_conformance_{uuid.uuid4().hex}")
    path.write_bytes(bytes(256))
    yield path
    path.unlink()


@pytest.fixture(autouse=True)
def fresh_probe() -> Iterator[None]:
    probe.renew()
    yield
    probe.go.set()  # a test that has failed leaves no model waiting
