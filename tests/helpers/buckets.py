"""Object stores for tests: one in this process's memory, and an S3 server on a thread."""

from __future__ import annotations

import http.client
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import obstore
from obstore.store import MemoryStore

from kernel import StorageOptions
from kernel_storage.location import Location
from kernel_storage.repository import StoredRepository

__all__ = ["Bucket", "Memory", "s3_server"]

_numbers = itertools.count(1)


class Memory:
    """A repository in a store in memory. `put` and `delete` take paths within the repository."""

    def __init__(self, location: str = "gs://bucket/models") -> None:
        place = Location.parse(location)
        assert place is not None
        self.place = place
        self.store = MemoryStore()

    def put(self, path: str, content: str | bytes) -> None:
        obstore.put(self.store, f"{self.place.prefix}/{path}", content.encode() if isinstance(content, str) else content)

    def model(self, name: str, value: object, config: str, version: int = 1) -> None:
        """Put a model of live.Answering."""
        self.put(f"{name}/config.pbtxt", config)
        self.put(f"{name}/{version}/answer", str(value))

    def delete(self, path: str) -> None:
        obstore.delete(self.store, f"{self.place.prefix}/{path}")

    def open(self, cache: Path, **options: Any) -> StoredRepository:
        return StoredRepository(self.place, self.store, StorageOptions(cache=str(cache), **options))


class Bucket:
    """A new bucket of an S3 server, over HTTP alone, so that any key can be put."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.name = f"bucket-{next(_numbers)}"
        self._send("PUT", "")

    @property
    def location(self) -> str:
        return f"s3://{self.host}:{self.port}/{self.name}/models"

    def _send(self, method: str, key: str, content: bytes = b"") -> None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
        connection.request(method, f"/{self.name}/{quote(key)}" if key else f"/{self.name}", content, headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status < 300, body

    def put(self, path: str, content: str | bytes) -> None:
        self._send("PUT", f"models/{path}", content.encode() if isinstance(content, str) else content)

    def delete(self, path: str) -> None:
        self._send("DELETE", f"models/{path}")

    def upload(self, folder: Path) -> None:
        """Put all files of a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(path.relative_to(folder).as_posix(), path.read_bytes())


@contextmanager
def s3_server() -> Iterator[tuple[str, int]]:
    """Run an S3 server; yield its host and port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield host, port
    finally:
        server.stop()
