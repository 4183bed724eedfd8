"""Connections that have taken nearly all files: who comes then may ask for health, and the log says what to do."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from . import serving
from .serving import wait_until, write_model

FILES = 256
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"


def asked(port: int, message: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(message)
        return sock.recv(4096)


def test_descriptors_are_kept_back_for_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "models", "add")
    whole = serving.command
    limited = ["/bin/sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh"]
    monkeypatch.setattr(serving, "command", lambda *arguments, **more: [*limited, *whole(*arguments, **more)])
    with serving.serving(tmp_path, tmp_path / "models", "--allow-grpc=false") as server, contextlib.ExitStack() as stack:
        files = Path(f"/proc/{server.process.pid}/fd")
        idle = len(list(files.iterdir()))
        for _ in range(FILES):  # more than there are descriptors: the last of them are closed
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
        wait_until(lambda: f"nearly all of the {FILES} files" in server.text())
        assert "Raise the limit (ulimit -n" in server.text()
        # Some of those that were let in to ask for health give their place to others.
        stack.pop_all().close()
        wait_until(lambda: len(list(files.iterdir())) <= idle + 5)  # all of them have gone: there is something to count from
        with contextlib.ExitStack() as fewer:
            for _ in range(FILES - 20 - len(list(files.iterdir()))):  # in the midst of those that are kept back
                fewer.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            wait_until(lambda: b"HTTP/1.1 200" in asked(server.port, LIVE))
            wait_until(lambda: b"HTTP/1.1 503" in asked(server.port, LIVE.replace(b"/v2/health/live", b"/v2")))
