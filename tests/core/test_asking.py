"""What commands ask a server with: however it answers, it has an end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kernel.cli import asking
from kernel.errors import ServingError

LIMIT_S = 60.0


@contextmanager
def dripping(first: bytes, then: bytes) -> Iterator[str]:
    """A server that answers `first`, then a bit of `then` at a time until nobody listens."""
    ended = threading.Event()

    def answer() -> None:
        client, _ = port.accept()
        with client:
            client.recv(65536)
            try:
                client.sendall(first)
                while not ended.wait(0.01):
                    client.sendall(then)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as port:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{port.getsockname()[1]}"
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
)
def test_who_drips_is_not_waited_for_without_end(first: bytes, then: bytes) -> None:
    began = time.monotonic()
    with dripping(first, then) as url, pytest.raises(ServingError) as caught:
        asking.ask(url, "/v2", seconds=0.5)
    assert caught.value.message == f"{url} can't be asked: TimeoutError: it has not answered all within 0.5 seconds"
    assert time.monotonic() - began < LIMIT_S


def test_what_is_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_BYTES", 1000)
    long = b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 1001
    with dripping(long, b" ") as url, pytest.raises(ServingError, match="more than 1000 bytes"):
        asking.ask(url, "/v2")


def test_an_answer_until_the_end_of_the_connection() -> None:
    def answer() -> None:
        client, _ = port.accept()
        with client:
            client.recv(65536)
            client.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"a":')
            client.sendall(b" 1}")

    with socket.create_server(("127.0.0.1", 0)) as port:
        thread = threading.Thread(target=answer)
        thread.start()
        assert asking.ask(f"http://127.0.0.1:{port.getsockname()[1]}", "/v2") == (200, "OK", {"a": 1})
        thread.join()
