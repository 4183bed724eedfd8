"""What models of this suite share with its tests; they import it as `conformance_probe`."""

from __future__ import annotations

import threading

__all__ = ["began", "go", "log", "noticed", "renew"]

#: What models note. `began`: one runs. `noticed`: one has seen that it was cancelled. `go`: what one waits for.
log: list[str] = []
began = threading.Event()
noticed = threading.Event()
go = threading.Event()


def renew() -> None:
    """Forget what was."""
    log.clear()
    for event in (began, noticed, go):
        event.clear()
