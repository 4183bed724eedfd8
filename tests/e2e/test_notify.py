"""NOTIFY_SOCKET: who has started the server is told when it serves, and when it stops, and may as well not listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .serving import BROKEN, Server, serving, wait_until, write_model


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[socket.socket]:
    """Have servers tell a socket of that name, which is abstract where it begins with @."""
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        sock.settimeout(30)
        yield sock


def no_more_is_told(sock: socket.socket) -> None:
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        sock.recv(1024)


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_and_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    write_model(tmp_path / "models", "echo")
    with listening(monkeypatch, f"@{tmp_path}/notify" if abstract else f"{tmp_path}/notify") as sock:
        with serving(tmp_path, tmp_path / "models") as server:
            assert sock.recv(1024) == b"READY=1\nSTATUS=serving"
            assert server.request("GET", "/v2/health/ready")[0] == 200
            server.signal()
            assert sock.recv(1024).startswith(b"STOPPING=1\n")
            assert server.wait() == 0
        no_more_is_told(sock)


def test_a_start_that_fails_is_never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "models", "broken", BROKEN)
    with listening(monkeypatch, f"{tmp_path}/notify") as sock:
        assert Server(tmp_path / "log", [tmp_path / "models"]).wait() == 1
        no_more_is_told(sock)


def test_a_server_that_is_not_ready_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "models", "broken", BROKEN)
    with listening(monkeypatch, f"{tmp_path}/notify") as sock:
        with serving(tmp_path, tmp_path / "models", "--exit-on-error=false"):
            assert sock.recv(1024) == b"READY=1\nSTATUS=serving; not ready, as the log tells"


def test_replicas_are_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process that the unit is about."""
    write_model(tmp_path / "models", "echo")
    with listening(monkeypatch, f"{tmp_path}/notify") as sock:
        with serving(tmp_path, tmp_path / "models", "--replicas=2") as server:
            assert sock.recv(1024) == b"READY=1\nSTATUS=2 replicas serve"
            server.signal()
            assert sock.recv(1024).startswith(b"STOPPING=1\n")
            assert server.wait() == 0
        no_more_is_told(sock)


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "models", "echo")
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/nowhere")
    with serving(tmp_path, tmp_path / "models") as server:
        wait_until(lambda: f"NOTIFY_SOCKET '{tmp_path}/nowhere' can't be told READY=1" in server.text())
        assert server.infer("echo", 1.0)[0] == 200
        server.signal()
        assert server.wait() == 0
